# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Methods of one loaded program see one copy of the buffers that they share."""

from typing import Any

import pytest
from executorch.exir import ExecutorchProgramManager

from tests import harness
from tests.cases import SHARED_BUFFER


def sharing(*fqns: str, **planning: Any) -> dict[str, Any]:
    """Arguments of a memory planning pass that shares `fqns`."""
    return {"share_mutable_buffers": True, "shared_buffer_fqns": fqns, **planning}


def places(program: ExecutorchProgramManager, fqn: str) -> dict[str, tuple[int, int]]:
    """(arena, offset) of the buffer in each method that has it, by what was emitted."""
    found = {}
    for plan in program.executorch_program.execution_plan:
        for value in plan.values:
            info = getattr(value.val, "extra_tensor_info", None)
            if info is not None and info.fully_qualified_name == fqn:
                place = value.val.allocation_info
                assert place.memory_offset_high == 0
                found[plan.name] = (place.memory_id, place.memory_offset_low)
    return found


LAYOUTS: dict[str, dict[str, Any]] = {
    "default": {},
    "strict_alignment": {"alignment": 128},
    "callers_inputs": {"alloc_graph_input": False},
    "callers_outputs": {"alloc_graph_output": False},
    "callers_both": {"alloc_graph_input": False, "alloc_graph_output": False},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SHARED_BUFFER)
def test_case(name: str, layout: str) -> None:
    case = SHARED_BUFFER[name]
    planning = sharing(*case.shared, **LAYOUTS[layout])
    harness.check(case.module(), case.methods, case.sequence, planning=planning, **case.options)


@pytest.mark.parametrize("name", SHARED_BUFFER)
def test_emitted_names_stand_at_one_place(name: str) -> None:
    case = SHARED_BUFFER[name]
    program = harness.lower(
        harness.export_methods(case.module(), case.methods),
        planning=sharing(*case.shared),
        emit_mutable_buffer_names=True,
        **case.options,
    )
    (fqn,) = case.shared
    found = places(program, fqn)
    # An exported method lists all buffers of its module, used or not.
    assert set(found) == set(case.methods)
    assert set(found.values()) == {(1, 0)}
