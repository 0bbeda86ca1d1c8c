# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any, Dict, List, Tuple

import torch
from executorch.exir import ExecutorchBackendConfig, ExecutorchProgramManager, to_edge
from executorch.exir.capture._capture import patch_forward
from executorch.exir.pass_base import PassBase, PassResult
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from torch.export import export, ExportedProgram


class Accumulator(nn.Module):
    """State of `size` floats; `set` writes it, `forward` reads and writes it."""

    def __init__(self, size: int, buffer: str) -> None:
        super().__init__()
        self.register_buffer(buffer, torch.zeros(size))
        self.buffer = buffer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer(self.buffer).add_(x)
        return self.get_buffer(self.buffer) * 2

    def set(self, x: torch.Tensor) -> None:
        self.get_buffer(self.buffer).copy_(-x)


def export_methods(
    module: nn.Module, inputs: Dict[str, Tuple[Any, ...]]
) -> Dict[str, ExportedProgram]:
    programs = {}
    for method, example in inputs.items():
        with patch_forward(module, getattr(module, method)):
            programs[method] = export(module, example)
    return programs


def accumulator_programs(
    size: int, buffer: str = "total"
) -> Dict[str, ExportedProgram]:
    x = torch.ones(size)
    return export_methods(Accumulator(size, buffer), {"forward": (x,), "set": (x,)})


def emitted_plan(program: ExecutorchProgramManager) -> List[Any]:
    """Arena sizes and places (arena, offset) of all methods, as they are emitted."""
    return [
        (
            plan.name,
            plan.non_const_buffer_sizes,
            [
                (place.memory_id, place.memory_offset_low)
                for value in plan.values
                if (place := getattr(value.val, "allocation_info", None))
            ],
        )
        for plan in program.executorch_program.execution_plan
    ]


class FailOnNodes(PassBase):
    """A pass that refuses graphs with a node of that name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        if any(self.name in node.name for node in graph_module.graph.nodes):
            raise RuntimeError(f"found {self.name}")
        return PassResult(graph_module, False)


class InThirdArena(MemoryPlanningPass):
    """Puts the results of negations in arena 3, which the legacy sharing refuses."""

    def run(self, graph_module, graph_signature=None):  # pyre-ignore
        for node in graph_module.graph.nodes:
            if "neg" in node.name:
                node.meta["spec"].mem_id = 3
        return super().run(graph_module, graph_signature)


class TestOnePassManyPrograms(unittest.TestCase):
    """A config keeps its pass; each program is planned as by a pass of its own."""

    def plan_fresh(self, size: int) -> List[Any]:
        config = ExecutorchBackendConfig(
            memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True)
        )
        return emitted_plan(to_edge(accumulator_programs(size)).to_executorch(config))

    def test_second_program_after_success(self) -> None:
        config = ExecutorchBackendConfig(
            memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True)
        )
        for size in (4, 1024, 4):
            program = to_edge(accumulator_programs(size)).to_executorch(config)
            plan = emitted_plan(program)
            self.assertEqual(plan, self.plan_fresh(size))
            for _, sizes, _ in plan:
                self.assertEqual(sizes[2], 4 * size)

    def test_second_program_after_a_method_was_refused(self) -> None:
        planner = InThirdArena(share_mutable_buffers=True)
        config = ExecutorchBackendConfig(memory_planning_pass=planner)
        with self.assertRaisesRegex(ValueError, "default mem_id of 1"):
            to_edge(accumulator_programs(4)).to_executorch(config)
        program = to_edge(
            export_methods(Accumulator(1024, "sum"), {"forward": (torch.ones(1024),)})
        ).to_executorch(config)
        ((_, sizes, _),) = emitted_plan(program)
        self.assertEqual(sizes[2], 4096)

    def test_second_program_after_a_failure_between_methods(self) -> None:
        config = ExecutorchBackendConfig(
            passes=[FailOnNodes("neg")],
            memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True),
        )
        with self.assertRaisesRegex(RuntimeError, "found neg"):
            to_edge(accumulator_programs(4, "sum")).to_executorch(config)
        config.passes = []
        program = to_edge(accumulator_programs(1024)).to_executorch(config)
        self.assertEqual(emitted_plan(program), self.plan_fresh(1024))
