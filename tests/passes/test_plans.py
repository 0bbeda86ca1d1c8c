# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""The plan checker finds nothing in the plans of random programs, however they are planned.

The fuzzer itself compares values; this looks at the plans, which may be wrong where no value
shows it.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchProgramManager
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from tests.fuzz.generate import programs
from tests.fuzz.program import Program
from tests.support import harness
from tests.support.plan_checker import check_plan, report


@dataclass(frozen=True)
class Planned:
    """A program and how to plan it; the program's own options say how to lower it."""

    program: Program
    alloc_graph_input: bool
    alloc_graph_output: bool
    alloc_mutable_buffers: bool
    share_mutable_buffers: bool

    def planning(self) -> dict[str, Any]:
        return {
            "alloc_graph_input": self.alloc_graph_input,
            "alloc_graph_output": self.alloc_graph_output,
            "alloc_mutable_buffers": self.alloc_mutable_buffers,
            # The two don't go together.
            "share_mutable_buffers": self.share_mutable_buffers and self.alloc_mutable_buffers,
        }


@st.composite
def planned_programs(draw: st.DrawFn) -> Planned:
    flags = [draw(st.booleans()) for _ in range(4)]
    return Planned(draw(programs()), *flags)


def lowered(planned: Planned) -> ExecutorchProgramManager:
    program, options = planned.program, planned.program.options
    try:
        manager = harness.to_edge_programs(
            harness.export_methods(program.module(), {"forward": program.example()}),
            partitioner=XnnpackPartitioner() if options.xnnpack else None,
            edge={"_check_ir_validity": False},
        )
    except Exception:
        # Refused before memory is planned: such a program shows nothing.
        reject()
    return harness.finish(
        manager,
        planning=planned.planning(),
        run_reinplace_pass=options.run_reinplace_pass,
        # A buffer without a place has to be found by its name.
        emit_mutable_buffer_names=not planned.alloc_mutable_buffers,
    )


OPTIONS = settings(
    derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.filterwarnings("ignore")
@settings(OPTIONS, max_examples=15)
@given(planned_programs())
def test_plans_of_random_programs(planned: Planned) -> None:
    check(planned)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(OPTIONS, max_examples=60)
@given(planned_programs())
def test_plans_of_many_random_programs(planned: Planned) -> None:
    check(planned)


def check(planned: Planned) -> None:
    exported = lowered(planned).exported_program()
    findings = check_plan(exported.graph_module, exported.graph_signature)
    assert not findings, f"{planned.program.source()}\n{report(findings)}"
