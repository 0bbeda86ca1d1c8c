# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any, Dict, Iterable, List, Tuple

import torch
from executorch.exir import ExecutorchBackendConfig, ExecutorchProgramManager, to_edge
from executorch.exir.capture._capture import patch_forward
from executorch.exir.pass_base import PassBase, PassResult
from executorch.exir.passes import MemoryPlanningPass
from expecttest import assert_expected_inline
from torch import nn
from torch.export import export, ExportedProgram
from torch.utils import _pytree as pytree


def _planned_graph(
    module: torch.nn.Module, inputs: tuple[Any, ...]
) -> torch.fx.GraphModule:
    with torch.no_grad():
        program = to_edge(export(module, inputs, strict=True))
    return program.to_executorch().exported_program().graph_module


def _conds_and_branches(
    graph_module: torch.fx.GraphModule,
) -> Iterable[tuple[torch.fx.Node, str, torch.fx.GraphModule]]:
    for node in graph_module.graph.nodes:
        if node.target is torch.ops.higher_order.cond:
            for name in (branch.target for branch in node.args[1:3]):
                yield node, name, getattr(graph_module, name)


def _printed_branch_inputs(graph_module: torch.fx.GraphModule) -> str:
    """Where each input of a branch, and each view in it, has memory of the branch's own."""
    lines = []
    for cond, branch_name, branch in _conds_and_branches(graph_module):
        lines.append(f"{cond.name}, {branch_name}:")
        for node in branch.graph.nodes:
            if node.op == "placeholder" or "view" in node.name:
                lines.append(f"  {node.name}: {node.meta['spec'].mem_offset}")
    return "\n".join(lines)


def _printed_branch_results(graph_module: torch.fx.GraphModule) -> str:
    """Whether each branch writes its result to where the graph around it planned it."""
    lines = []
    for cond, branch_name, branch in _conds_and_branches(graph_module):
        wanted = pytree.tree_leaves(cond.meta["spec"])
        results = pytree.tree_leaves(branch.graph.output_node().args)
        for place, result in zip(wanted, results):
            spec = result.meta["spec"]
            there = (spec.mem_id, spec.mem_offset) == (place.mem_id, place.mem_offset)
            where = "the parent's place" if there else "the branch's own place"
            lines.append(f"{cond.name}, {branch_name}: {where}")
        inner = _printed_branch_results(branch)
        lines.extend(f"  {line}" for line in inner.splitlines())
    return "\n".join(lines)


class _TwoConds(torch.nn.Module):
    def forward(self, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        def left(a: torch.Tensor) -> torch.Tensor:
            return a.sin() * 2

        def right(a: torch.Tensor) -> torch.Tensor:
            return a.cos()

        y = torch.cond(p.sum() > 0, left, right, [x])
        z = torch.cond(p.sum() > 1, left, right, [x + 1])
        return y + z


class _NestedConds(torch.nn.Module):
    def forward(self, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        def inner(a: torch.Tensor) -> torch.Tensor:
            return torch.cond(a.sum() > 0, torch.sin, torch.cos, [a])

        y = torch.cond(p.sum() > 0, inner, torch.exp, [x])
        z = torch.cond(p.sum() > 1, torch.exp, inner, [x + 1])
        return y + z


class TestMisc(unittest.TestCase):
    def test_branch_that_views_a_buffer(self) -> None:
        class ViewInBranch(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("state", torch.zeros(2, 4))

            def forward(self, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
                def left(state: torch.Tensor) -> torch.Tensor:
                    return state.view(8) * 2

                def right(state: torch.Tensor) -> torch.Tensor:
                    return state.view(8) - 1

                y = torch.cond(p.sum() > 0, left, right, [self.state])
                self.state.add_(x)
                return y

        graph_module = _planned_graph(
            ViewInBranch(), (torch.randn(2, 4), torch.ones(2))
        )
        # The caller says where the input of a branch is, so it has no place here.
        assert_expected_inline(
            _printed_branch_inputs(graph_module),
            """\
cond, submodule_0:
  b_state: None
  aten_view_copy_default: None
cond, submodule_1:
  b_state: None
  aten_view_copy_default: None""",
        )

    def test_results_of_cond_after_another(self) -> None:
        graph_module = _planned_graph(_TwoConds(), (torch.randn(8), torch.ones(2)))
        assert_expected_inline(
            _printed_branch_results(graph_module),
            """\
cond, submodule_0: the parent's place
cond, submodule_1: the parent's place
cond_1, submodule_2: the parent's place
cond_1, submodule_3: the parent's place""",
        )

    def test_results_of_nested_cond(self) -> None:
        graph_module = _planned_graph(_NestedConds(), (torch.randn(8), torch.ones(2)))
        assert_expected_inline(
            _printed_branch_results(graph_module),
            """\
cond, submodule_0: the parent's place
  cond, submodule_0: the parent's place
  cond, submodule_1: the parent's place
cond, submodule_1: the parent's place
cond_1, submodule_2: the parent's place
cond_1, submodule_3: the parent's place
  cond, submodule_0: the parent's place
  cond, submodule_1: the parent's place""",
        )


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
