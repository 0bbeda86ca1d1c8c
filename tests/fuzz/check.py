# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Lower and run one program, and say how it went."""

import functools
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, ExecutorchBackendConfig, ExecutorchProgramManager
from executorch.exir.dialects._ops import ops
from executorch.exir.passes import MemoryPlanningPass, ToOutVarPass
from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  and their kernels
from executorch.kernels import quantized  # noqa: F401
from torch import nn
from torch.export import ExportedProgram

from tests.fuzz.passes import PASSES
from tests.fuzz.program import Options, Program
from tests.support import harness
from tests.support.harness import Result


class Verdict(Enum):
    RIGHT = "right"
    REFUSED = "refused before any patch"
    FAILED = "failed to lower or run"
    WRONG = "wrong result"
    DIED = "killed the process"
    WORSE = "worse than stock"
    ALIKE = "refused, and not right on stock"


@dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    detail: str = ""

    @property
    def is_finding(self) -> bool:
        return self.verdict not in (Verdict.RIGHT, Verdict.REFUSED, Verdict.ALIKE)

    def __str__(self) -> str:
        return f"{self.verdict.value}: {self.detail}" if self.detail else self.verdict.value

    def beside(self, stock: "Outcome") -> "Outcome":
        """The outcome on patched, judged by the one of the same program on stock.

        What stock runs right has to run right. What it doesn't may be refused, but not be
        silently wrong, nor end the process where stock doesn't.
        """
        if not self.is_finding:
            return self
        detail = f"{self}\non stock: {stock}"
        if stock.verdict is Verdict.RIGHT:
            return Outcome(Verdict.WORSE, detail)
        may_be = self.verdict is Verdict.FAILED or stock.verdict is self.verdict is Verdict.DIED
        return Outcome(Verdict.ALIKE if may_be else self.verdict, detail)


class _OwnToOutVar(ToOutVarPass):
    """As a user may have one."""


class _OwnSymShapeEval(ConstraintBasedSymShapeEvalPass):
    """As a user may have one."""


def _edge(options: Options) -> dict[str, Any]:
    return {"_check_ir_validity": False, "_skip_dim_order": options.skip_dim_order}


def _expected(
    exported: dict[str, ExportedProgram], manager: EdgeProgramManager, program: Program
) -> list[Result]:
    """What the program means, taken from its edge program before any backend took parts over.

    Nothing that the patches change has run on that yet, and its graph is functional without
    further work. What making it changes is upstream's affair: an int32 tensor of no dimensions
    plus a Python number becomes an int64 there.
    """
    if program.options.xnnpack:
        manager = harness.to_edge_programs(exported, edge=_edge(program.options))
    edge = {"forward": manager.exported_program()}
    return harness.run_functionally(edge, program.calls(), functional_already=True)


def _config(options: Options) -> ExecutorchBackendConfig:
    known = {field.name for field in fields(ExecutorchBackendConfig)}
    values: dict[str, Any] = {
        "memory_planning_pass": MemoryPlanningPass(
            alloc_graph_input=options.alloc_graph_input,
            alloc_graph_output=options.alloc_graph_output,
            alloc_mutable_buffers=options.alloc_mutable_buffers,
        ),
        "passes": [PASSES[name]() for name in options.passes],
        "run_reinplace_pass": options.run_reinplace_pass,
        "do_quant_fusion_and_const_prop": options.do_quant_fusion_and_const_prop,
        "remove_view_copy": options.remove_view_copy,
        "emit_stacktrace": options.emit_stacktrace,
        "emit_mutable_buffer_names": not options.alloc_mutable_buffers,
    }
    if options.reinplace_extra_ops:
        values["reinplace_extra_ops"] = frozenset(
            functools.reduce(getattr, name.split("."), ops.edge)
            for name in options.reinplace_extra_ops
        )
    if options.own_last_passes:
        values["to_out_var_pass"] = _OwnToOutVar(ignore_to_out_var_failure=False)
        values["sym_shape_eval_pass"] = _OwnSymShapeEval()
    if "write_state_in_place" in known:
        values["write_state_in_place"] = options.write_state_in_place
    return ExecutorchBackendConfig(**values)


def _other(options: Options) -> Options:
    """Another config, for a lowering that is to leave no trace."""
    return Options(
        run_reinplace_pass=not options.run_reinplace_pass,
        remove_view_copy=not options.remove_view_copy,
        write_state_in_place=not options.write_state_in_place,
    )


def _lowerings(
    manager: EdgeProgramManager, options: Options
) -> Sequence[tuple[Options, ExecutorchProgramManager]]:
    before = {"": [], "same": [options], "other": [_other(options)]}[options.lowered_before]
    return [(each, manager.to_executorch(_config(each))) for each in (*before, options)]


def _tolerance(program: Program) -> float:
    """How far a kernel's rounding may go: not at all, as long as all numbers are whole."""
    source = program.source()
    if re.search(r"float16", source):
        return 1e-2
    return 1e-4 if "softmax" in source else 1e-6


def check(program: Program, module: nn.Module | None = None) -> Outcome:
    """Compare `program` in the runtime with its own functional meaning, call by call."""
    options = program.options
    module = module or program.module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = harness.export_methods(
                module,
                {"forward": program.example()},
                dynamic_shapes={"forward": program.dynamic_shapes()},
            )
            manager = harness.to_edge_programs(
                exported,
                partitioner=XnnpackPartitioner() if options.xnnpack else None,
                edge=_edge(options),
            )
            expected = _expected(exported, manager, program)
        except Exception as error:
            return Outcome(Verdict.REFUSED, _describe(error))
        try:
            lowerings = _lowerings(manager, options)
            # Python's runtime has no memory for a buffer that isn't planned.
            can_run = options.alloc_mutable_buffers
            actual = [
                (each, harness.run_in_runtime(lowered.buffer, program.calls()))
                for each, lowered in lowerings
                if can_run or not lowered.buffer
            ]
        except Exception as error:
            return Outcome(Verdict.FAILED, _describe(error))
    for number, (each, results) in enumerate(actual):
        try:
            harness.assert_same(
                results,
                expected,
                inputs_too=not each.alloc_graph_input,
                tolerance=_tolerance(program),
            )
        except AssertionError as error:
            which = f"lowering {number + 1} of {len(actual)}: " if len(actual) > 1 else ""
            return Outcome(Verdict.WRONG, which + str(error))
    return Outcome(Verdict.RIGHT)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
