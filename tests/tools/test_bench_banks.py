# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""What the benchmark of memory banks measures, and what it says of it."""

import pytest

pytest.importorskip("executorch.exir.banked_memory_planning", reason="needs ExecuTorch 1.5.1")

from benchmarks.bench_banks import PARTS, BankRow, measure, table
from benchmarks.models import MODELS


def test_a_model() -> None:
    name = "streaming convolutions"
    rows = measure(name, MODELS[name]())
    assert [row.part for row in rows] == list(PARTS)
    assert [row.fast for row in rows] == sorted(row.fast for row in rows)
    assert all(row.ours <= row.greedy for row in rows)
    assert any(row.ours < row.greedy for row in rows)


def test_table() -> None:
    rows = [BankRow("a", 0.25, 1024, 2000, 1500), BankRow("a", 0.75, 3072, 0, 0)]
    lines = table(rows).splitlines()
    assert lines[2:4] == [
        "| a | 25% | 1,024 | 2,000 | 1,500 | -25.0% |",
        "| a | 75% | 3,072 | 0 | 0 | 0% |",
    ]
    assert lines[-1] == "Best fit spills less in 1 of 2; on average 0.750 of greedy's bytes."
