# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Every write-back case is right in the real runtime, for five calls."""

import pytest

from tests.support import harness
from tests.support.cases import SHARED_BUFFER, WRITE_BACK


@pytest.mark.parametrize("name", WRITE_BACK)
def test_write_back_case(name: str) -> None:
    case = WRITE_BACK[name]
    assert len(case.sequence) == 5
    harness.check(case.module(), case.methods, case.sequence, **case.options)


# The Python runtime gives each output that has no place in the plan memory of its own, and a
# mutated input that the caller holds is such an output: the method then no longer sees what was
# passed. It does so on stock alike.
RETURNS_AN_INPUT = {"mutated_input"}


@pytest.mark.parametrize("name", [name for name in WRITE_BACK if name not in RETURNS_AN_INPUT])
def test_write_back_case_beside_the_callers_own_memory(name: str) -> None:
    """The same, the runtime working on the caller's inputs."""
    case = WRITE_BACK[name]
    programs = harness.export_methods(case.module(), case.methods)
    calls = harness.random_calls(case.methods, case.sequence, seed=1)
    program = harness.lower(programs, planning={"alloc_graph_input": False}, **case.options)
    actual = harness.run_in_runtime(program, calls)
    harness.assert_same(actual, harness.run_functionally(programs, calls), inputs_too=True)


@pytest.mark.parametrize("name", [*WRITE_BACK, *SHARED_BUFFER])
def test_references_agree(name: str) -> None:
    """The eager module and the exported program mean the same, methods sharing their state."""
    case = (WRITE_BACK | SHARED_BUFFER)[name]
    module = case.module()
    calls = harness.random_calls(case.methods, case.sequence, seed=2)
    programs = harness.export_methods(module, case.methods)
    harness.assert_same(
        harness.run_functionally(programs, calls),
        harness.run_eagerly(module, calls, programs),
        inputs_too=True,
    )


def test_a_wrong_output_is_noticed() -> None:
    case = WRITE_BACK["delay_line"]
    calls = harness.random_calls(case.methods, case.sequence)
    right = harness.run_eagerly(case.module(), calls)
    wrong = harness.run_eagerly(case.module(), [calls[0], *calls[:-1]])
    with pytest.raises(AssertionError, match="call 2: output 0"):
        harness.assert_same(wrong, right)
