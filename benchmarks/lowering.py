# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""From a model to an ExecuTorch program."""

from __future__ import annotations

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from torch.export import ExportedProgram, export

from benchmarks.models import Lowering, Model

# Some operators that ExecuTorch runs aren't in the set that this check knows.
_EDGE_CONFIG = EdgeCompileConfig(_check_ir_validity=False)


def export_model(model: Model) -> ExportedProgram:
    """Export; without gradients, or the write to a cache would be traced as a copy of it."""
    with torch.no_grad():
        return export(model.module, model.inputs, strict=True)


def to_edge(programs: dict[str, ExportedProgram], lowering: Lowering) -> EdgeProgramManager:
    """Bring exported methods to the edge dialect and delegate what is to be delegated."""
    partitioner = [XnnpackPartitioner()] if lowering.xnnpack else []
    return to_edge_transform_and_lower(
        programs, partitioner=partitioner, compile_config=_EDGE_CONFIG
    )


def lower(model: Model) -> ExecutorchProgramManager:
    """Export and lower a model whose one method is `forward`, planned as by default."""
    edge = to_edge({"forward": export_model(model)}, model.lowering)
    return edge.to_executorch(ExecutorchBackendConfig(run_reinplace_pass=model.lowering.reinplace))


def arena_sizes(program: ExecutorchProgramManager, method: str = "forward") -> list[int]:
    """Bytes of each arena of a method's plan; the first is arena 1."""
    for plan in program.executorch_program.execution_plan:
        if plan.name == method:
            # Index 0 is reserved and always empty.
            return list(plan.non_const_buffer_sizes[1:])
    raise ValueError(f"no method {method!r} in this program")
