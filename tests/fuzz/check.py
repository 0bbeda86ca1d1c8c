# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Lower and run one program, and say how it went."""

import warnings
from dataclasses import dataclass
from enum import Enum

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager
from torch import nn
from torch.export import ExportedProgram

from tests.fuzz.program import Program
from tests.support import harness
from tests.support.harness import Result

_EDGE = {"_check_ir_validity": False}


class Verdict(Enum):
    RIGHT = "right"
    REFUSED = "refused before any patch"
    FAILED = "failed to lower or run"
    WRONG = "wrong result"
    DIED = "killed the process"


@dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    detail: str = ""

    @property
    def is_finding(self) -> bool:
        return self.verdict in (Verdict.FAILED, Verdict.WRONG, Verdict.DIED)

    def __str__(self) -> str:
        return f"{self.verdict.value}: {self.detail}" if self.detail else self.verdict.value


def _expected(
    exported: dict[str, ExportedProgram], manager: EdgeProgramManager, program: Program
) -> list[Result]:
    """What the program means, taken from its edge program before any backend took parts over.

    Nothing that the patches change has run on that yet, and its graph is functional without
    further work. What making it changes is upstream's affair: an int32 tensor of no dimensions
    plus a Python number becomes an int64 there.
    """
    if program.options.xnnpack:
        manager = harness.to_edge_programs(exported, edge=_EDGE)
    edge = {"forward": manager.exported_program()}
    return harness.run_functionally(edge, program.calls(), functional_already=True)


def check(program: Program, module: nn.Module | None = None) -> Outcome:
    """Compare `program` in the runtime with its own functional meaning, call by call."""
    options = program.options
    module = module or program.module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = harness.export_methods(module, {"forward": program.example()})
            manager = harness.to_edge_programs(
                exported,
                partitioner=XnnpackPartitioner() if options.xnnpack else None,
                edge=_EDGE,
            )
            expected = _expected(exported, manager, program)
        except Exception as error:
            return Outcome(Verdict.REFUSED, _describe(error))
        try:
            lowered = harness.finish(
                manager,
                planning={
                    "alloc_graph_input": options.alloc_graph_input,
                    "alloc_graph_output": options.alloc_graph_output,
                    "alloc_mutable_buffers": options.alloc_mutable_buffers,
                },
                run_reinplace_pass=options.run_reinplace_pass,
            )
            actual = harness.run_in_runtime(lowered, program.calls())
        except Exception as error:
            return Outcome(Verdict.FAILED, _describe(error))
    try:
        harness.assert_same(
            actual, expected, inputs_too=not options.alloc_graph_input, tolerance=1e-6
        )
    except AssertionError as error:
        return Outcome(Verdict.WRONG, str(error))
    return Outcome(Verdict.RIGHT)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
