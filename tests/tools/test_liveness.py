# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.liveness import Interval, Peak, peak_live_bytes


def test_nothing_alive() -> None:
    assert peak_live_bytes([]) == Peak(bytes=0, node=0)


def test_first_and_last_node_both_count() -> None:
    # The second begins at the node at which the first is read for the last time.
    assert peak_live_bytes([Interval(0, 3, 16), Interval(3, 5, 32)]) == Peak(48, 3)
    assert peak_live_bytes([Interval(0, 2, 16), Interval(3, 5, 32)]) == Peak(32, 3)


@pytest.mark.parametrize("interval", [Interval(4, 3, 16), Interval(0, 0, -1)])
def test_not_an_interval(interval: Interval) -> None:
    with pytest.raises(ValueError, match="not a live interval"):
        peak_live_bytes([interval])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 100))))
def test_same_as_counting_at_every_node(ranges: list[tuple[int, int, int]]) -> None:
    intervals = [Interval(min(a, b), max(a, b), size) for a, b, size in ranges]
    at_node = [sum(i.bytes for i in intervals if i.first <= n <= i.last) for n in range(21)]
    peak = peak_live_bytes(intervals)
    assert peak.bytes == max(at_node)
    assert peak.node == at_node.index(max(at_node))
