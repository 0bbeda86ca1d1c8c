# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Type

import torch
from executorch.exir import (
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    memory,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.test.op_partitioner_demo import AddMulPartitionerDemo
from executorch.exir.capture._capture import patch_forward
from executorch.exir.error import InternalError
from executorch.exir.memory_planning import (
    _bodies,
    best_fit,
    get_node_tensor_specs,
    greedy,
    MemoryAlgoResult,
    MemoryPlanningAlgorithmSuite,
    naive,
)
from executorch.exir.pass_base import PassBase, PassResult
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.schema import DeviceType
from executorch.exir.tensor import TensorSpec
from expecttest import assert_expected_inline
from functorch.experimental.control_flow import map as torch_map
from torch import nn
from torch._higher_order_ops import scan
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

    def test_loops_own_their_slices_alone(self) -> None:
        class Loops(torch.nn.Module):
            def forward(self, x: torch.Tensor, s: torch.Tensor) -> Any:
                y = torch_map(lambda row, t: row.view(2, 2) + t.view(2, 2), x, s)
                carry, rows = scan(
                    lambda c, row: (c + row.view(4), c.view(2, 2) * 1), s * 1, y * 1
                )
                return carry, rows

        graph_module = _planned_graph(Loops(), (torch.ones(3, 4), torch.ones(4)))
        printed = [
            f"{body.node.name}, input {number}: {node.meta['spec'].mem_offset is not None}"
            for body in _bodies(graph_module)
            for number, node in enumerate(body.placeholders())
        ]
        # A map's body is given the slice first, a scan's the carry.
        assert_expected_inline(
            "\n".join(printed),
            """\
map_impl, input 0: True
map_impl, input 1: False
scan, input 0: False
scan, input 1: True""",
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


def _printed_bodies(graph_module: torch.fx.GraphModule) -> str:
    """The arenas, and the bytes that each graph has for what its nodes make."""
    lines = [f"arenas {graph_module.meta['non_const_buffer_sizes']}"]
    graphs = [("", graph_module)]
    while graphs:
        name, graph = graphs.pop(0)
        for node in graph.graph.nodes:
            for spec in pytree.tree_leaves(node.meta.get("spec")):
                if node.target is memory.alloc or node.op == "placeholder":
                    if spec.mem_offset is not None:
                        end = spec.mem_offset + spec.allocated_memory
                        lines.append(f"{name}{node.name}: {spec.mem_offset}..{end}")
        graphs += [
            (f"{name}{body.attribute.target}/", body.graph_module)
            for body in _bodies(graph)
        ]
    return "\n".join(lines)


class _SmallBehindLarge(torch.nn.Module):
    """The branch of a cond needs much, and the graph around it needs much elsewhere."""

    def forward(self, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        def left(a: torch.Tensor) -> torch.Tensor:
            return torch.cat([a, a, a]).sin()[:8]

        y = torch.cond(p, left, torch.cos, [x])
        return torch.cat([y, y, y, y]).exp()[:8]


class TestBodiesAtTheirNodes(unittest.TestCase):
    def test_body_shares_bytes_with_the_graph_around(self) -> None:
        graph_module = _planned_graph(
            _SmallBehindLarge(), (torch.randn(8), torch.tensor(True))
        )
        # At the cond are alive: x, 32 bytes, p, 16, the result, 32, and what the branch
        # needs for a cat and its sine, 192. Later, the large cat and exp need 256.
        assert_expected_inline(
            _printed_bodies(graph_module),
            """\
arenas [0, 272]
x: 192..224
p: 256..272
alloc: 0..128
alloc_1: 128..256
alloc_2: 0..32
submodule_0/alloc: 96..192
submodule_0/alloc_1: 0..96
submodule_0/alloc_2: 224..256
submodule_1/alloc: 224..256""",
        )

    def test_algorithm_without_bodies(self) -> None:
        def refuses_bodies(alignment: int, specs: Any, graph: Any, *rest: Any) -> Any:
            known = [
                spec
                for node in graph.graph.nodes
                for spec in get_node_tensor_specs(node)
            ]
            if any(spec not in known for spec in specs):
                raise KeyError("no node has this spec")
            return MemoryPlanningAlgorithmSuite()(alignment, specs, graph, *rest)

        with torch.no_grad():
            program = to_edge(
                export(_SmallBehindLarge(), (torch.randn(8), torch.tensor(True)))
            )
        config = ExecutorchBackendConfig(
            memory_planning_pass=MemoryPlanningPass(refuses_bodies)
        )
        planned = program.to_executorch(config).exported_program().graph_module
        # The branch's 192 bytes stay in front of the 256 that the graph around needs.
        self.assertEqual(planned.meta["non_const_buffer_sizes"], [0, 448])

    def test_arena_of_bodies_alone(self) -> None:
        class InArena(MemoryPlanningPass):
            def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
                for body in _bodies(graph_module):
                    for node in body.graph_module.graph.nodes:
                        for spec in get_node_tensor_specs(node):
                            spec.mem_id = 3
                return super().run(graph_module, graph_signature)

        with torch.no_grad():
            program = to_edge(
                export(_SmallBehindLarge(), (torch.randn(8), torch.tensor(True)))
            )
        config = ExecutorchBackendConfig(memory_planning_pass=InArena())
        planned = program.to_executorch(config).exported_program().graph_module
        # Arena 3 holds the branch's cat and its sine, arena 1 the large ones.
        self.assertEqual(planned.meta["non_const_buffer_sizes"], [0, 256, 0, 192])


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


def _greedy_alone() -> MemoryPlanningAlgorithmSuite:
    return MemoryPlanningAlgorithmSuite(algo_list=[greedy])


def _copying(**config: Any) -> ExecutorchBackendConfig:
    """A config with which new state is copied to its buffer, however it is made."""
    copying = ExecutorchBackendConfig(**config)
    copying.write_state_in_place = False
    return copying


def _lowered(
    module: torch.nn.Module,
    inputs: Tuple[Any, ...],
    planning: Dict[str, Any],
    **config: Any,
) -> ExecutorchProgramManager:
    """Lower with the greedy algorithm alone, whatever the default is."""
    with torch.no_grad():
        edge = to_edge(export(module, inputs))
    memory_planning_pass = MemoryPlanningPass(
        memory_planning_algo=_greedy_alone(), **planning
    )
    return edge.to_executorch(
        _copying(memory_planning_pass=memory_planning_pass, **config)
    )


def _place(spec: TensorSpec) -> str:
    if spec.mem_id is None:
        return "no memory"
    first, last = spec.lifetime
    nbytes = spec.allocated_memory
    return f"arena {spec.mem_id}, {spec.mem_offset} + {nbytes}, alive {first}-{last}"


def _printed_plan(program: ExecutorchProgramManager) -> str:
    """Each tensor with its arena, offset + bytes and live range; then what is returned.

    Tensors are called for the first node that has them, other than an allocation. The
    outputs are those of the graph, written-back state first.
    """
    graph_module = program.exported_program().graph_module
    sizes = graph_module.meta["non_const_buffer_sizes"]
    lines: List[str] = [f"arenas: {sizes}"]
    names: Dict[TensorSpec, str] = {}
    for node in graph_module.graph.nodes:
        if node.op == "output" or "alloc" in node.name:
            continue
        for spec in get_node_tensor_specs(node):
            if spec not in names and not spec.const:
                names[spec] = node.name
                lines.append(f"{node.name}: {_place(spec)}")
    output = graph_module.graph.output_node()
    for number, spec in enumerate(output.meta["spec"]):
        if isinstance(spec, TensorSpec):
            name = names.get(spec, f"a tensor of its own, {_place(spec)}")
            lines.append(f"output {number} is {name}")
    return "\n".join(lines)


class _State(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(8))


class _Scaled(_State):
    """All that reads the state comes before what is written back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.state
        self.state.copy_(y + 1)
        return y


class _Stored(_State):
    """A setter: there is no user output."""

    def forward(self, x: torch.Tensor) -> None:
        self.state.copy_(x * 2)


class _Indexed(torch.nn.Module):
    """With the reinplace pass, the state is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        self.state.index_put_((i,), x)
        return self.state.sum(0)


class _IndexedAndReturned(_Indexed):
    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        self.state.index_put_((i,), x)
        return self.state


class _Cached(torch.nn.Module):
    """A cache that a custom operator writes in place."""

    def __init__(self) -> None:
        from executorch.examples.models.llama.source_transformation.custom_kv_cache import (
            CustomKVCache,
        )
        from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

        super().__init__()
        self.cache = CustomKVCache(1, 4, 1, 8)

    def forward(self, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        k, v = self.cache.update(at, x, x)
        return k + v


class _NoSignature(MemoryPlanningPass):
    """Plans a graph as callers do that have no signature."""

    def run(
        self, graph_module: torch.fx.GraphModule, graph_signature: Any = None
    ) -> PassResult:
        return super().run(graph_module, None)


class TestWriteBackResults(unittest.TestCase):
    """What is written back is the buffer, and takes no memory as an output."""

    x: torch.Tensor = torch.ones(8)
    row: Tuple[torch.Tensor, torch.Tensor] = (torch.ones(1, 8), torch.tensor([1]))

    def test_copied(self) -> None:
        program = _lowered(_Scaled(), (self.x,), {})
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 112]
b_state: arena 1, 64 + 32, alive 0-10
x: arena 1, 0 + 32, alive 0-4
aten_mul_tensor: arena 1, 32 + 32, alive 3-10
dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 16, alive 5-8
aten_add_tensor: arena 1, 0 + 32, alive 7-9
output 0 is b_state
output 1 is aten_mul_tensor""",
        )

    def test_copied_without_memory_for_outputs(self) -> None:
        program = _lowered(_Scaled(), (self.x,), {"alloc_graph_output": False})
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 80]
b_state: arena 1, 32 + 32, alive 0-10
x: arena 1, 0 + 32, alive 0-4
aten_mul_tensor: no memory
dim_order_ops__to_dim_order_copy_default: arena 1, 64 + 16, alive 5-8
aten_add_tensor: arena 1, 0 + 32, alive 7-9
output 0 is b_state
output 1 is aten_mul_tensor""",
        )

    def test_copied_without_memory_for_inputs(self) -> None:
        program = _lowered(_Scaled(), (self.x,), {"alloc_graph_input": False})
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 112]
b_state: arena 1, 64 + 32, alive 0-10
x: no memory
aten_mul_tensor: arena 1, 32 + 32, alive 3-10
dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 16, alive 5-8
aten_add_tensor: arena 1, 0 + 32, alive 7-9
output 0 is b_state
output 1 is aten_mul_tensor""",
        )

    def test_copied_without_memory_for_buffers(self) -> None:
        program = _lowered(
            _Scaled(),
            (self.x,),
            {"alloc_mutable_buffers": False},
            emit_mutable_buffer_names=True,
        )
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 80]
b_state: no memory
x: arena 1, 0 + 32, alive 0-4
aten_mul_tensor: arena 1, 32 + 32, alive 3-10
dim_order_ops__to_dim_order_copy_default: arena 1, 64 + 16, alive 5-8
aten_add_tensor: arena 1, 0 + 32, alive 7-9
output 0 is b_state
output 1 is aten_mul_tensor""",
        )

    def test_copied_to_shared_buffer(self) -> None:
        program = _lowered(_Scaled(), (self.x,), {"share_mutable_buffers": True})
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 80, 32]
b_state: arena 2, 0 + 32, alive 0-10
x: arena 1, 0 + 32, alive 0-4
aten_mul_tensor: arena 1, 32 + 32, alive 3-10
dim_order_ops__to_dim_order_copy_default: arena 1, 64 + 16, alive 5-8
aten_add_tensor: arena 1, 0 + 32, alive 7-9
output 0 is b_state
output 1 is aten_mul_tensor""",
        )

    def test_setter(self) -> None:
        program = _lowered(_Stored(), (self.x,), {})
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 112]
b_state: arena 1, 64 + 32, alive 0-8
x: arena 1, 32 + 32, alive 0-6
dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 16, alive 3-6
aten_mul_tensor: arena 1, 0 + 32, alive 5-7
output 0 is b_state""",
        )

    def test_setter_without_memory_for_outputs(self) -> None:
        program = _lowered(_Stored(), (self.x,), {"alloc_graph_output": False})
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 112]
b_state: arena 1, 64 + 32, alive 0-8
x: arena 1, 32 + 32, alive 0-6
dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 16, alive 3-6
aten_mul_tensor: arena 1, 0 + 32, alive 5-7
output 0 is b_state""",
        )

    def test_nothing_returned(self) -> None:
        class Silent(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> int:
                return 3

        program = _lowered(Silent(), (self.x,), {})
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 32]
x: arena 1, 0 + 32, alive 0-0""",
        )

    def test_setter_of_shared_buffer(self) -> None:
        program = _lowered(_Stored(), (self.x,), {"share_mutable_buffers": True})
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 80, 32]
b_state: arena 2, 0 + 32, alive 0-8
x: arena 1, 32 + 32, alive 0-6
dim_order_ops__to_dim_order_copy_default: arena 1, 64 + 16, alive 3-6
aten_mul_tensor: arena 1, 0 + 32, alive 5-7
output 0 is b_state""",
        )

    def test_in_place(self) -> None:
        program = _lowered(_Indexed(), self.row, {}, run_reinplace_pass=True)
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 176]
b_state: arena 1, 0 + 128, alive 0-6
x: arena 1, 128 + 32, alive 0-3
i: arena 1, 160 + 16, alive 0-3
aten_sum_dim_int_list: arena 1, 128 + 32, alive 4-6
output 0 is b_state
output 1 is aten_sum_dim_int_list""",
        )

    def test_state_in_place_is_user_output(self) -> None:
        plans = [
            _printed_plan(
                _lowered(
                    _IndexedAndReturned(),
                    self.row,
                    {"alloc_graph_output": outputs},
                    run_reinplace_pass=True,
                )
            )
            for outputs in (True, False)
        ]
        assert_expected_inline(
            plans[0],
            """\
arenas: [0, 176]
b_state: arena 1, 0 + 128, alive 0-4
x: arena 1, 128 + 32, alive 0-3
i: arena 1, 160 + 16, alive 0-3
output 0 is b_state
output 1 is b_state""",
        )
        # The state has its memory, whoever allocates the other outputs.
        self.assertEqual(plans[0], plans[1])

    def test_state_copied_is_user_output(self) -> None:
        class Accumulated(_State):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.state.add_(x)
                return self.state

        program = _lowered(Accumulated(), (self.x,), {})
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 96]
b_state: arena 1, 64 + 32, alive 0-5
x: arena 1, 32 + 32, alive 0-3
aten_add_tensor: arena 1, 0 + 32, alive 2-5
output 0 is b_state
output 1 is aten_add_tensor""",
        )

    def test_custom_operator(self) -> None:
        inputs = (torch.tensor([0]), torch.ones(1, 1, 1, 8))
        program = _lowered(_Cached(), inputs, {"alloc_graph_output": False})
        # The buffers have memory although the graph returns them as they are.
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 512]
b_cache_k_cache: arena 1, 384 + 128, alive 0-21
b_cache_v_cache: arena 1, 256 + 128, alive 0-21
at: arena 1, 64 + 16, alive 0-9
x: arena 1, 32 + 32, alive 0-7
aten_permute_copy_default: arena 1, 128 + 32, alive 4-12
aten_permute_copy_default_1: arena 1, 0 + 32, alive 6-14
aten_select_copy_int: arena 1, 32 + 16, alive 8-10
update_cache: arena 1, 32 + 16, alive 11-12
update_cache_1: arena 1, 128 + 16, alive 13-14
aten_permute_copy_default_2: arena 1, 128 + 128, alive 15-20
aten_permute_copy_default_3: arena 1, 0 + 128, alive 17-20
aten_add_tensor: no memory
output 0 is b_cache_k_cache
output 1 is b_cache_v_cache
output 2 is aten_add_tensor""",
        )

    def test_delegate(self) -> None:
        with torch.no_grad():
            program = to_edge_transform_and_lower(
                export(_Scaled(), (self.x,)),
                partitioner=[AddMulPartitionerDemo()],
            ).to_executorch(
                _copying(memory_planning_pass=MemoryPlanningPass(_greedy_alone()))
            )
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 112]
b_state: arena 1, 64 + 32, alive 0-11
x: arena 1, 0 + 32, alive 0-6
dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 16, alive 3-8
aten_mul_tensor: arena 1, 32 + 32, alive 5-11
executorch_call_delegate: arena 1, 0 + 32, alive 8-10
output 0 is b_state
output 1 is aten_mul_tensor""",
        )

    def test_no_signature(self) -> None:
        program = to_edge(export(_Scaled(), (self.x,))).to_executorch(
            _copying(memory_planning_pass=_NoSignature(_greedy_alone()))
        )
        # Nothing is known to be a buffer: the state is an input among others. What is
        # written back to it is that input, and an output among others.
        outputs = _printed_plan(program).splitlines()[-2:]
        assert_expected_inline(
            "\n".join(outputs),
            """\
output 0 is b_state
output 1 is aten_mul_tensor""",
        )


class TestInPlaceResults(unittest.TestCase):
    """An in-place result is what was changed, and lives as long as either is used."""

    def test_used_after_other_tensors(self) -> None:
        class Changed(torch.nn.Module):
            def forward(
                self, x: torch.Tensor, i: torch.Tensor, v: torch.Tensor
            ) -> torch.Tensor:
                y = x.sin()
                y.index_put_((i,), v)
                return y + x.cos().exp()

        inputs = (torch.ones(8), torch.tensor([1]), torch.ones(1))
        program = _lowered(Changed(), inputs, {}, run_reinplace_pass=True)
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 96]
x: arena 1, 32 + 32, alive 0-7
i: arena 1, 16 + 16, alive 0-5
v: arena 1, 0 + 16, alive 0-5
aten_sin_default: arena 1, 64 + 32, alive 3-11
aten_cos_default: arena 1, 0 + 32, alive 6-9
aten_exp_default: arena 1, 32 + 32, alive 8-11
aten_add_tensor: arena 1, 0 + 32, alive 10-12
output 0 is aten_add_tensor""",
        )

    def test_view_used_after_other_tensors(self) -> None:
        class Changed(torch.nn.Module):
            def forward(
                self, x: torch.Tensor, i: torch.Tensor, v: torch.Tensor
            ) -> torch.Tensor:
                y = x.sin().view(8)
                y.index_put_((i,), v)
                return y + x.cos().exp().view(8)

        inputs = (torch.ones(2, 4), torch.tensor([1]), torch.ones(1))
        program = _lowered(Changed(), inputs, {}, run_reinplace_pass=True)
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 96]
x: arena 1, 32 + 32, alive 0-9
i: arena 1, 16 + 16, alive 0-6
v: arena 1, 0 + 16, alive 0-6
aten_sin_default: arena 1, 64 + 32, alive 3-14
aten_index_put__default: arena 1, 64 + 32, alive 3-14
aten_cos_default: arena 1, 0 + 32, alive 8-11
aten_exp_default: arena 1, 32 + 32, alive 10-14
aten_add_tensor: arena 1, 0 + 32, alive 13-15
output 0 is aten_add_tensor""",
        )

    def test_user_input(self) -> None:
        class Changed(torch.nn.Module):
            def forward(
                self, x: torch.Tensor, i: torch.Tensor, v: torch.Tensor
            ) -> torch.Tensor:
                x.index_put_((i,), v)
                return v.sin().cos()

        inputs = (torch.ones(4, 8), torch.tensor([1]), torch.ones(1, 8))
        program = _lowered(Changed(), inputs, {}, run_reinplace_pass=True)
        # The program returns the input, so it lives to the end.
        assert_expected_inline(
            _printed_plan(program),
            """\
arenas: [0, 192]
x: arena 1, 0 + 128, alive 0-8
i: arena 1, 160 + 16, alive 0-3
v: arena 1, 128 + 32, alive 0-5
aten_sin_default: arena 1, 160 + 32, alive 4-7
aten_cos_default: arena 1, 128 + 32, alive 6-8
output 0 is x
output 1 is aten_cos_default""",
        )


def _alive(
    size: int, first: int, last: int, mem_id: Optional[int] = None
) -> TensorSpec:
    """A tensor of `size` bytes, alive from node `first` to node `last`."""
    spec = TensorSpec(torch.uint8, torch.Size([size]))
    spec.lifetime = [first, last]
    spec.mem_id = mem_id
    return spec


def _graph_with_branches(*bufsizes: int) -> torch.fx.GraphModule:
    """An empty graph, of whose arenas branches take the first `bufsizes` bytes."""
    graph_module = torch.fx.GraphModule({}, torch.fx.Graph())
    graph_module.input_mem_buffer_sizes = list(bufsizes)
    return graph_module


def _printed_packing(specs: Iterable[TensorSpec], result: MemoryAlgoResult) -> str:
    lines = []
    for spec in specs:
        alloc = result.spec_dict[spec]
        end = alloc.mem_offset + spec.allocated_memory
        lines.append(
            f"arena {alloc.mem_id}, object {alloc.mem_obj_id}, "
            f"bytes {alloc.mem_offset}..{end}, nodes {spec.lifetime}"
        )
    return "\n".join([*lines, f"arenas {result.bufsizes}"])


class TestBestFit(unittest.TestCase):
    """Planning by best fit over offsets."""

    def test_no_hole_where_greedy_leaves_one(self) -> None:
        # Together at node 1, two tensors don't fit into the slot of the largest one:
        # greedy opens a second slot, and the end of the first is a hole.
        specs = [_alive(64, 0, 0), _alive(48, 1, 1), _alive(32, 1, 1)]
        graph_module = _graph_with_branches()
        assert_expected_inline(
            _printed_packing(specs, greedy(16, specs, graph_module, None)),
            """\
arena 1, object 0, bytes 0..64, nodes [0, 0]
arena 1, object 0, bytes 0..48, nodes [1, 1]
arena 1, object 1, bytes 64..96, nodes [1, 1]
arenas [0, 96]""",
        )
        assert_expected_inline(
            _printed_packing(specs, best_fit(16, specs, graph_module, None)),
            """\
arena 1, object 0, bytes 0..64, nodes [0, 0]
arena 1, object 0, bytes 0..48, nodes [1, 1]
arena 1, object 0, bytes 48..80, nodes [1, 1]
arenas [0, 80]""",
        )

    def test_behind_branches_and_padded(self) -> None:
        specs = [_alive(16, 0, 1), _alive(16, 1, 2)]
        result = best_fit(16, specs, _graph_with_branches(0, 48), None, 64)
        assert_expected_inline(
            _printed_packing(specs, result),
            """\
arena 1, object 0, bytes 48..64, nodes [0, 1]
arena 1, object 1, bytes 64..80, nodes [1, 2]
arenas [0, 144]""",
        )

    def test_alignment(self) -> None:
        specs = [_alive(1, 0, 0), _alive(17, 0, 0)]
        result = best_fit(32, specs, _graph_with_branches(), None)
        assert_expected_inline(
            _printed_packing(specs, result),
            """\
arena 1, object 0, bytes 0..32, nodes [0, 0]
arena 1, object 1, bytes 32..64, nodes [0, 0]
arenas [0, 64]""",
        )

    def test_nothing_to_place(self) -> None:
        graph_module = _graph_with_branches()
        self.assertEqual(best_fit(16, [], graph_module, None).bufsizes, [0, 0])
        self.assertEqual(best_fit(16, set(), graph_module, None).bufsizes, [0, 0])
        specs = [_alive(0, 0, 1), _alive(16, 0, 1), _alive(0, 0, 1)]
        assert_expected_inline(
            _printed_packing(specs, best_fit(16, specs, graph_module, None)),
            """\
arena 1, object 0, bytes 0..0, nodes [0, 1]
arena 1, object 2, bytes 0..16, nodes [0, 1]
arena 1, object 1, bytes 0..0, nodes [0, 1]
arenas [0, 16]""",
        )

    def test_unknown_life(self) -> None:
        unknown = _alive(16, 0, 0)
        unknown.lifetime = [None, None]
        specs = [unknown, _alive(16, 3, 3), _alive(16, 5, 5)]
        assert_expected_inline(
            _printed_packing(specs, best_fit(16, specs, _graph_with_branches(), None)),
            """\
arena 1, object 0, bytes 0..16, nodes [None, None]
arena 1, object 1, bytes 16..32, nodes [3, 3]
arena 1, object 1, bytes 16..32, nodes [5, 5]
arenas [0, 32]""",
        )

    def test_in_place_chain(self) -> None:
        base, other = _alive(32, 0, 1), _alive(32, 3, 4)
        # It outlives its base, whose bytes are thus in use at node 3.
        result, last = _alive(32, 2, 2), _alive(32, 3, 3)
        result.inplace_base, last.inplace_base = base, result
        specs = [last, base, result, other]
        assert_expected_inline(
            _printed_packing(specs, best_fit(16, specs, _graph_with_branches(), None)),
            """\
arena 1, object 0, bytes 0..32, nodes [3, 3]
arena 1, object 0, bytes 0..32, nodes [0, 1]
arena 1, object 0, bytes 0..32, nodes [2, 2]
arena 1, object 1, bytes 32..64, nodes [3, 4]
arenas [0, 64]""",
        )

    @unittest.skipUnless(
        hasattr(_alive(0, 0, 0), "storage_base_offset"), "needs ExecuTorch 1.5"
    )
    def test_offset_in_storage_base(self) -> None:
        outer, inner, innermost = _alive(64, 0, 9), _alive(48, 1, 9), _alive(16, 2, 9)
        inner.storage_base, inner.storage_base_offset = outer, 16
        innermost.storage_base, innermost.storage_base_offset = inner, 32
        below = _alive(128, 0, 9)
        specs = [outer, inner, innermost, below]
        assert_expected_inline(
            _printed_packing(specs, best_fit(16, specs, _graph_with_branches(), None)),
            """\
arena 1, object 1, bytes 128..192, nodes [0, 9]
arena 1, object 1, bytes 144..192, nodes [1, 9]
arena 1, object 1, bytes 176..192, nodes [2, 9]
arena 1, object 0, bytes 0..128, nodes [0, 9]
arenas [0, 192]""",
        )
        innermost.storage_base_offset = 48
        with self.assertRaisesRegex(InternalError, "does not fit into the 48 bytes"):
            best_fit(16, specs, _graph_with_branches(), None)
        innermost.storage_base_offset = 8
        with self.assertRaisesRegex(InternalError, "alignment of 16 bytes"):
            best_fit(16, specs, _graph_with_branches(), None)

    def test_bases_that_cannot_be(self) -> None:
        base, inner = _alive(16, 0, 1), _alive(16, 0, 1)
        inner.inplace_base = base
        with self.assertRaisesRegex(InternalError, "for which no memory is planned"):
            best_fit(16, [inner], _graph_with_branches(), None)
        base.inplace_base = inner
        with self.assertRaisesRegex(InternalError, "circular"):
            best_fit(16, [base, inner], _graph_with_branches(), None)

    def test_effort(self) -> None:
        # No more than 64 bytes are alive at any node; the first pass takes 80.
        specs = [_alive(16, 3, 4), _alive(48, 4, 4), _alive(48, 2, 2), _alive(16, 2, 3)]
        graph_module = _graph_with_branches()
        for effort, size in ((0, 80), (1, 64)):
            result = best_fit(16, specs, graph_module, None, effort=effort)
            self.assertEqual(result.bufsizes, [0, size])

    def test_no_arena_grows_for_another(self) -> None:
        # The first pass needs 176 bytes in arena 1, where greedy needs 144; in arena 2
        # it needs 80 bytes, where greedy needs 96.
        specs = [
            _alive(32, 2, 2, 1),
            _alive(64, 0, 0, 1),
            _alive(16, 0, 2, 1),
            _alive(32, 2, 3, 1),
            _alive(64, 0, 2, 1),
            _alive(64, 3, 3, 1),
            _alive(64, 0, 0, 2),
            _alive(48, 1, 1, 2),
            _alive(32, 1, 1, 2),
        ]
        graph_module = _graph_with_branches()
        rival = greedy(16, specs, graph_module, None)
        self.assertEqual(rival.bufsizes, [0, 144, 96])
        result = best_fit(16, specs, graph_module, None, effort=0)
        self.assertEqual(result.bufsizes, [0, 144, 80])
        for spec in specs[:6]:
            self.assertEqual(result.spec_dict[spec], rival.spec_dict[spec])
        self.assertEqual(
            [result.spec_dict[s].mem_offset for s in specs[6:]], [0, 0, 48]
        )


class TestDefaultAlgorithms(unittest.TestCase):
    """The suite that plans unless the user gives another."""

    def test_best_fit_beside_greedy(self) -> None:
        suite = MemoryPlanningAlgorithmSuite()
        self.assertEqual(suite.algo_list, [greedy, best_fit])
        specs = [_alive(64, 0, 0), _alive(48, 1, 1), _alive(32, 1, 1)]
        self.assertEqual(suite(16, specs, _graph_with_branches(), None, 0), [0, 80])
        self.assertEqual([spec.mem_offset for spec in specs], [0, 0, 48])
        # Where both need as much, all is as it was.
        equal = [_alive(32, 0, 0), _alive(16, 1, 1)]
        bufsizes = suite(16, equal, _graph_with_branches(), None, 0)
        placed = greedy(16, equal, _graph_with_branches(), None)
        self.assertEqual(bufsizes, placed.bufsizes)
        for spec in equal:
            self.assertEqual(spec.mem_obj_id, placed.spec_dict[spec].mem_obj_id)


class _Method(nn.Module):
    """A method of its own: a function of its buffers (sizes in floats) and its inputs."""

    def __init__(self, function: Callable[..., Any], **buffers: int) -> None:
        super().__init__()
        self.function = function
        for name, size in buffers.items():
            self.register_buffer(name, torch.zeros(size))

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def _add(method: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for buffer in method.buffers():
        buffer.add_(x.sum())
    return x * 2


def _get(method: nn.Module) -> List[torch.Tensor]:
    return [buffer * 1 for buffer in method.buffers()]


def _double(method: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def _adding(**buffers: int) -> Tuple[nn.Module, Tuple[Any, ...]]:
    return _Method(_add, **buffers), (torch.ones(8),)


def _plan_sharing(
    methods: Dict[str, Tuple[nn.Module, Tuple[Any, ...]]],
    fqns: Optional[Iterable[str]],
    planner: Type[MemoryPlanningPass] = MemoryPlanningPass,
    planning: Optional[Dict[str, Any]] = None,
    **config: Any,
) -> ExecutorchProgramManager:
    """Plan with the greedy algorithm alone, unless `planning` says another; share `fqns`."""
    with torch.no_grad():
        edge = to_edge({name: export(*each) for name, each in methods.items()})
    options = {"memory_planning_algo": _greedy_alone(), **(planning or {})}
    if fqns is not None:
        options.update(share_mutable_buffers=True, shared_buffer_fqns=fqns)
    return edge.to_executorch(
        _copying(memory_planning_pass=planner(**options), **config)
    )


def _graphs_of(
    graph_module: torch.fx.GraphModule, prefix: str = ""
) -> Iterator[Tuple[str, torch.fx.GraphModule]]:
    yield prefix, graph_module
    for node in graph_module.graph.nodes:
        inner = node.op == "get_attr" and getattr(graph_module, node.target, None)
        if isinstance(inner, torch.fx.GraphModule):
            yield from _graphs_of(inner, f"{prefix}{node.target}.")


def _printed_sharing(program: ExecutorchProgramManager) -> str:
    """By method, arena sizes, and each tensor's arena, offset and bytes.

    Buffers are called for their FQNs, tensors for the first node that has them. Views
    aren't listed: a view has no placement but its base's.
    """
    lines: List[str] = []
    for method in sorted(program.methods):
        exported = program.exported_program(method)
        fqns = exported.graph_signature.inputs_to_buffers
        seen: Dict[TensorSpec, None] = {}
        for prefix, graph_module in _graphs_of(exported.graph_module):
            sizes = graph_module.meta["non_const_buffer_sizes"]
            lines.append(f"{method}: {prefix or 'arenas '}{sizes}")
            for node in graph_module.graph.nodes:
                for spec in pytree.tree_leaves(node.meta.get("spec")):
                    if not isinstance(spec, TensorSpec) or isinstance(spec, _ViewSpec):
                        continue
                    if spec in seen or spec.mem_offset is None or "alloc" in node.name:
                        continue
                    seen[spec] = None
                    place = f"arena {spec.mem_id}, {spec.mem_offset} + {spec.nbytes()}"
                    lines.append(f"  {fqns.get(node.target, node.name)}: {place}")
    return "\n".join(lines)


class _Borrowing(MemoryPlanningPass):
    """Lets the last sine lie at the end of the state, or all over the first product."""

    def run(self, graph_module, graph_signature=None):  # pyre-ignore
        named = {node.name: node.meta.get("spec") for node in graph_module.graph.nodes}
        for borrower, base, offset in (
            ("aten_sin_default", "b_state", 32),
            ("aten_cos_default", "aten_mul_tensor", 0),
        ):
            if borrower in named and base in named:
                if not hasattr(TensorSpec, "inplace_base"):
                    named[borrower].inplace_base = named[base]
                else:
                    named[borrower].storage_base = named[base]
                    named[borrower].storage_base_offset = offset
        return super().run(graph_module, graph_signature)


class _Pools(MemoryPlanningPass):
    """State `b*` goes to arena 3 and `c*` to arena 2, sines to arena 3."""

    ARENAS = {"b_b": 3, "b_c": 2, "aten_sin": 3}

    def run(self, graph_module, graph_signature=None):  # pyre-ignore
        for node in graph_module.graph.nodes:
            for prefix, arena in self.ARENAS.items():
                if node.name.startswith(prefix):
                    node.meta["spec"].mem_id = arena
        return super().run(graph_module, graph_signature)


class _OnDevice(MemoryPlanningPass):
    """State `b*` and sines are on the first CUDA device."""

    def run(self, graph_module, graph_signature=None):  # pyre-ignore
        for node in graph_module.graph.nodes:
            if node.name.startswith(("b_b", "aten_sin")):
                node.meta["spec"].device = DeviceType.CUDA
        return super().run(graph_module, graph_signature)


def _from_the_end(
    alignment: int,
    specs: Iterable[TensorSpec],
    graph_module: torch.fx.GraphModule,
    graph_signature: Any,
    extra_padding: int,
) -> List[int]:
    """An algorithm of its own: no reuse, in reverse order, all in arena 1."""
    sizes = [0, *(getattr(graph_module, "input_mem_buffer_sizes", None) or [0, 0])[1:]]
    for spec in reversed(list(specs)):
        spec.realign(alignment)
        spec.mem_id, spec.mem_offset, spec.mem_obj_id = 1, sizes[1], 0
        sizes[1] += spec.allocated_memory
    sizes[1] += extra_padding
    return sizes


class TestSharedBuffers(unittest.TestCase):
    """Where `shared_buffer_fqns` puts the shared buffers, and all else behind them."""

    maxDiff = None

    def check(
        self,
        methods: Dict[str, Tuple[nn.Module, Tuple[Any, ...]]],
        fqns: Iterable[str],
        **options: Any,
    ) -> str:
        """The printed plan. No arena may have grown, but by buffers that a method lacks."""
        shared = _plan_sharing(methods, fqns, **options)
        plain = _plan_sharing(methods, None, **options)
        places: Dict[str, Tuple[int, int, int]] = {}
        for method in shared.methods:
            exported = shared.exported_program(method)
            for node in exported.graph_module.graph.nodes:
                fqn = exported.graph_signature.inputs_to_buffers.get(node.target)
                if node.op == "placeholder" and fqn in fqns:
                    spec = node.meta["spec"]
                    place = (spec.mem_id, spec.mem_offset, spec.allocated_memory)
                    self.assertEqual(places.setdefault(fqn, place), place)
        for method in shared.methods:
            sizes, before = (
                each.exported_program(method).graph_module.meta[
                    "non_const_buffer_sizes"
                ]
                for each in (shared, plain)
            )
            mutated = shared.exported_program(
                method
            ).graph_signature.buffers_to_mutate.values()
            for arena, size in enumerate(sizes):
                lacking = sum(
                    nbytes
                    for fqn, (home, _, nbytes) in places.items()
                    if home == arena and fqn not in mutated
                )
                plain_size = before[arena] if arena < len(before) else 0
                self.assertLessEqual(size, plain_size + lacking)
        return _printed_sharing(shared)

    def test_written_read_and_absent(self) -> None:
        methods = {
            "write": _adding(b=4, a=2),
            "read": (_Method(_get, b=4), ()),
            "without": (_Method(_double), (torch.ones(8),)),
        }
        plan = self.check(methods, ["b", "a"])
        assert_expected_inline(
            plan,
            """\
read: arenas [0, 64]
  b: arena 1, 16 + 16
  dim_order_ops__to_dim_order_copy_default: arena 1, 48 + 4
  aten_mul_tensor: arena 1, 32 + 16
without: arenas [0, 112]
  inputs_0: arena 1, 32 + 32
  aten_sin_default: arena 1, 64 + 32
  dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 4
  aten_mul_tensor: arena 1, 32 + 32
write: arenas [0, 112]
  b: arena 1, 16 + 16
  a: arena 1, 0 + 8
  inputs_0: arena 1, 64 + 32
  aten_sum_dim_int_list: arena 1, 96 + 4
  aten_add_tensor: arena 1, 32 + 16
  aten_sum_dim_int_list_1: arena 1, 96 + 4
  aten_add_tensor_1: arena 1, 32 + 8
  dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 4
  aten_mul_tensor: arena 1, 32 + 32""",
        )

    def test_in_place(self) -> None:
        def put(method: nn.Module, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            method.get_buffer("state").index_put_((i,), x)
            return method.get_buffer("state") * 2

        methods = {
            "put": (_Method(put, state=8), (torch.ones(1), torch.tensor([3]))),
            "add": _adding(state=8),
        }
        plan = self.check(methods, ["state"], run_reinplace_pass=True)
        assert_expected_inline(
            plan,
            """\
add: arenas [0, 112]
  state: arena 1, 0 + 32
  inputs_0: arena 1, 64 + 32
  aten_sum_dim_int_list: arena 1, 96 + 4
  aten_add_tensor: arena 1, 32 + 32
  dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 4
  aten_mul_tensor: arena 1, 32 + 32
put: arenas [0, 80]
  state: arena 1, 0 + 32
  inputs_0: arena 1, 64 + 4
  inputs_1: arena 1, 32 + 8
  dim_order_ops__to_dim_order_copy_default: arena 1, 64 + 4
  aten_mul_tensor: arena 1, 32 + 32""",
        )

    def test_views(self) -> None:
        def view(method: nn.Module, x: torch.Tensor) -> torch.Tensor:
            state = method.get_buffer("state")
            state.add_(x)
            chain = (x * 3).view(2, 4).view(4, 2).view(8) + state.view(2, 4).view(8)
            return chain.view(2, 4) * 2

        methods = {
            "view": (_Method(view, state=8), (torch.ones(8),)),
            "add": _adding(state=8),
        }
        assert_expected_inline(
            self.check(methods, ["state"]),
            """\
add: arenas [0, 112]
  state: arena 1, 0 + 32
  inputs_0: arena 1, 64 + 32
  aten_sum_dim_int_list: arena 1, 96 + 4
  aten_add_tensor: arena 1, 32 + 32
  dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 4
  aten_mul_tensor: arena 1, 32 + 32
view: arenas [0, 144]
  state: arena 1, 0 + 32
  inputs_0: arena 1, 64 + 32
  aten_add_tensor: arena 1, 96 + 32
  dim_order_ops__to_dim_order_copy_default: arena 1, 128 + 4
  aten_mul_tensor: arena 1, 32 + 32
  aten_add_tensor_1: arena 1, 64 + 32
  dim_order_ops__to_dim_order_copy_default_1: arena 1, 96 + 4
  aten_mul_tensor_1: arena 1, 32 + 32""",
        )

    def test_borrowed_storage(self) -> None:
        def borrow(method: nn.Module, x: torch.Tensor) -> torch.Tensor:
            product = x * 3
            end, whole = x[:4].sin(), product.cos()
            method.get_buffer("state").add_(whole.sum() + end.sum())
            return whole + product

        methods = {
            "borrow": (_Method(borrow, state=12), (torch.ones(8),)),
            "add": _adding(state=12),
        }
        plan = self.check(methods, ["state"], planner=_Borrowing)
        # Up to 1.4 a tensor borrows from the start of its base's storage only.
        start = 32 if hasattr(TensorSpec, "inplace_base") else 0
        borrowed = f"aten_sin_default: arena 1, {start} + 16"
        self.assertIn(borrowed, plan)
        assert_expected_inline(
            plan.replace(borrowed, "aten_sin_default: borrowed"),
            """\
add: arenas [0, 144]
  state: arena 1, 0 + 48
  inputs_0: arena 1, 96 + 32
  aten_sum_dim_int_list: arena 1, 128 + 4
  aten_add_tensor: arena 1, 48 + 48
  dim_order_ops__to_dim_order_copy_default: arena 1, 80 + 4
  aten_mul_tensor: arena 1, 48 + 32
borrow: arenas [0, 144]
  state: arena 1, 0 + 48
  inputs_0: arena 1, 48 + 32
  dim_order_ops__to_dim_order_copy_default: arena 1, 128 + 4
  aten_mul_tensor: arena 1, 96 + 32
  aten_slice_copy_tensor: arena 1, 128 + 16
  aten_sin_default: borrowed
  aten_cos_default: arena 1, 96 + 32
  aten_sum_dim_int_list: arena 1, 64 + 4
  aten_sum_dim_int_list_1: arena 1, 48 + 4
  aten_add_tensor: arena 1, 128 + 4
  aten_add_tensor_1: arena 1, 48 + 48
  aten_add_tensor_2: arena 1, 48 + 32""",
        )

    def test_control_flow(self) -> None:
        def deep(a: torch.Tensor) -> torch.Tensor:
            return torch.cond(a.sum() > 0, torch.sin, torch.neg, [a * 2])

        def branch(method: nn.Module, x: torch.Tensor) -> torch.Tensor:
            y = torch.cond(x.sum() > 1, deep, torch.cos, [x])
            method.get_buffer("state").add_(y)
            return y * 2

        methods = {
            "branch": (_Method(branch, state=8), (torch.ones(8),)),
            "add": _adding(state=8),
        }
        assert_expected_inline(
            self.check(methods, ["state"]),
            """\
add: arenas [0, 112]
  state: arena 1, 0 + 32
  inputs_0: arena 1, 64 + 32
  aten_sum_dim_int_list: arena 1, 96 + 4
  aten_add_tensor: arena 1, 32 + 32
  dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 4
  aten_mul_tensor: arena 1, 32 + 32
branch: arenas [0, 176]
  state: arena 1, 0 + 32
  inputs_0: arena 1, 128 + 32
  aten_sum_dim_int_list: arena 1, 32 + 4
  aten_gt_scalar: arena 1, 160 + 1
  cond: arena 1, 96 + 32
  aten_add_tensor: arena 1, 32 + 32
  dim_order_ops__to_dim_order_copy_default: arena 1, 128 + 4
  aten_mul_tensor: arena 1, 32 + 32
branch: submodule_0.[0, 96]
  aten_sum_dim_int_list: arena 1, 32 + 4
  aten_gt_scalar: arena 1, 80 + 1
  dim_order_ops__to_dim_order_copy_default: arena 1, 64 + 4
  aten_mul_tensor: arena 1, 32 + 32
  cond: arena 1, 96 + 32
branch: submodule_0.submodule_0.[0, 0]
  aten_sin_default: arena 1, 96 + 32
branch: submodule_0.submodule_1.[0, 0]
  aten_neg_default: arena 1, 96 + 32
branch: submodule_1.[0, 0]
  aten_cos_default: arena 1, 96 + 32""",
        )

    def test_loops(self) -> None:
        def loop(method: nn.Module, x: torch.Tensor) -> torch.Tensor:
            state = method.get_buffer("state")
            y = torch_map(lambda row, s: row.sin() + s[0], x.view(2, 4), state)
            carry, rows = scan(lambda c, row: (c + row, c * 2), x[:4] * 1, y * 1)
            state.add_(carry.sum())
            return rows + y

        methods = {
            "loop": (_Method(loop, state=8), (torch.ones(8),)),
            "add": _adding(state=8),
        }
        assert_expected_inline(
            self.check(methods, ["state"]),
            """\
add: arenas [0, 112]
  state: arena 1, 0 + 32
  inputs_0: arena 1, 64 + 32
  aten_sum_dim_int_list: arena 1, 96 + 4
  aten_add_tensor: arena 1, 32 + 32
  dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 4
  aten_mul_tensor: arena 1, 32 + 32
loop: arenas [0, 208]
  state: arena 1, 0 + 32
  inputs_0: arena 1, 80 + 32
  map_impl: arena 1, 144 + 32
  aten_slice_copy_tensor: arena 1, 112 + 16
  dim_order_ops__to_dim_order_copy_default: arena 1, 32 + 4
  aten_mul_tensor: arena 1, 192 + 16
  dim_order_ops__to_dim_order_copy_default_1: arena 1, 32 + 4
  aten_mul_tensor_1: arena 1, 112 + 32
  scan: arena 1, 176 + 16
  scan: arena 1, 80 + 32
  aten_sum_dim_int_list: arena 1, 112 + 4
  aten_add_tensor: arena 1, 32 + 32
  aten_add_tensor_1: arena 1, 32 + 32
loop: submodule_0.[0, 80]
  view: arena 1, 32 + 16
  aten_sin_default: arena 1, 64 + 16
  aten_select_copy_int: arena 1, 48 + 4
  aten_add_tensor: arena 1, 32 + 16
loop: submodule_1.[0, 80]
  arg1_1: arena 1, 32 + 16
  aten_add_tensor: arena 1, 64 + 16
  dim_order_ops__to_dim_order_copy_default: arena 1, 48 + 4
  aten_mul_tensor: arena 1, 32 + 16""",
        )

    def test_custom_operator(self) -> None:
        class Reset(_Cached):
            def forward(self) -> None:
                self.cache.k_cache.zero_()
                self.cache.v_cache.zero_()

        methods = {
            "update": (_Cached(), (torch.tensor([0]), torch.ones(1, 1, 1, 8))),
            "reset": (Reset(), ()),
        }
        assert_expected_inline(
            self.check(methods, ["cache.k_cache", "cache.v_cache"]),
            """\
reset: arenas [0, 384]
  cache.k_cache: arena 1, 0 + 128
  cache.v_cache: arena 1, 128 + 128
  aten_full_like_default: arena 1, 256 + 128
  aten_full_like_default_1: arena 1, 256 + 128
update: arenas [0, 640]
  cache.k_cache: arena 1, 0 + 128
  cache.v_cache: arena 1, 128 + 128
  at: arena 1, 288 + 8
  x: arena 1, 512 + 32
  aten_permute_copy_default: arena 1, 384 + 32
  aten_permute_copy_default_1: arena 1, 256 + 32
  aten_select_copy_int: arena 1, 512 + 8
  update_cache: arena 1, 512 + 4
  update_cache_1: arena 1, 384 + 4
  aten_permute_copy_default_2: arena 1, 512 + 128
  aten_permute_copy_default_3: arena 1, 384 + 128
  aten_add_tensor: arena 1, 256 + 128""",
        )

    def test_dynamic_shape_with_an_upper_bound(self) -> None:
        def grow(method: nn.Module, x: torch.Tensor) -> torch.Tensor:
            method.get_buffer("state").add_(x.sum())
            return x.sin() * 2

        length = torch.export.Dim("length", min=2, max=24)
        exported = export(
            _Method(grow, state=8), (torch.ones(8),), dynamic_shapes=(({0: length},),)
        )
        planner = MemoryPlanningPass(
            memory_planning_algo=_greedy_alone(),
            share_mutable_buffers=True,
            shared_buffer_fqns=["state"],
        )
        program = to_edge({"grow": exported, "add": export(*_adding(state=8))})
        plan = _printed_sharing(
            program.to_executorch(_copying(memory_planning_pass=planner))
        )
        assert_expected_inline(
            plan,
            """\
add: arenas [0, 112]
  state: arena 1, 0 + 32
  inputs_0: arena 1, 64 + 32
  aten_sum_dim_int_list: arena 1, 96 + 4
  aten_add_tensor: arena 1, 32 + 32
  dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 4
  aten_mul_tensor: arena 1, 32 + 32
grow: arenas [0, 240]
  state: arena 1, 0 + 32
  inputs_0: arena 1, 32 + 96
  aten_sum_dim_int_list: arena 1, 224 + 4
  aten_add_tensor: arena 1, 128 + 32
  aten_sin_default: arena 1, 128 + 96
  dim_order_ops__to_dim_order_copy_default: arena 1, 224 + 4
  aten_mul_tensor: arena 1, 32 + 96""",
        )

    def test_callers_inputs_and_outputs(self) -> None:
        methods = {"write": _adding(state=8), "read": (_Method(_get, state=8), ())}
        for alloc_graph_input, alloc_graph_output in (
            (False, True),
            (True, False),
            (False, False),
        ):
            plan = self.check(
                methods,
                ["state"],
                planning={
                    "alloc_graph_input": alloc_graph_input,
                    "alloc_graph_output": alloc_graph_output,
                },
            )
            self.assertEqual(plan.count("  state: arena 1, 0 + 32\n"), 2)
            self.assertEqual("  inputs_0: " in plan, alloc_graph_input)

    def test_strict_alignment(self) -> None:
        methods = {"write": _adding(b=4, a=2), "read": (_Method(_get, b=4), ())}
        plan = self.check(methods, ["b", "a"], planning={"alignment": 64})
        self.assertEqual(plan.count("  a: arena 1, 0 + 8\n"), 1)
        self.assertEqual(plan.count("  b: arena 1, 64 + 16\n"), 2)

    def test_other_algorithms(self) -> None:
        methods = {
            "write": _adding(b=4, a=2),
            "without": (_Method(_double), (torch.ones(8),)),
        }
        for algorithm in (
            MemoryPlanningAlgorithmSuite([naive]),
            MemoryPlanningAlgorithmSuite([greedy, naive]),
            _from_the_end,
        ):
            plan = self.check(
                methods, ["b", "a"], planning={"memory_planning_algo": algorithm}
            )
            self.assertIn("  a: arena 1, 0 + 8\n", plan)
            self.assertIn("  b: arena 1, 16 + 16\n", plan)

    def test_several_arenas(self) -> None:
        def use(method: nn.Module, x: torch.Tensor) -> torch.Tensor:
            for buffer in method.buffers():
                buffer.add_(x.sin().sum())
            return x.cos()

        def read(method: nn.Module) -> List[torch.Tensor]:
            return [buffer.cos() for buffer in method.buffers()]

        methods = {
            "some": (_Method(use, a=2, b1=4, c=6), (torch.ones(8),)),
            "others": (_Method(use, b1=4, b2=8), (torch.ones(8),)),
            "read": (_Method(read, b2=8, c=6), ()),
        }
        plan = self.check(methods, ["a", "b1", "b2", "c"], planner=_Pools)
        for line, count in (
            ("  a: arena 1, 0 + 8\n", 1),
            ("  b1: arena 3, 0 + 16\n", 2),
            ("  b2: arena 3, 16 + 32\n", 2),
            ("  c: arena 2, 0 + 24\n", 2),
        ):
            self.assertEqual(plan.count(line), count, line)

    def test_device_arenas(self) -> None:
        def use(method: nn.Module, x: torch.Tensor) -> torch.Tensor:
            for buffer in method.buffers():
                buffer.add_(x.sin().sum())
            return x * 2

        methods = {
            "both": (_Method(use, a=2, b=4), (torch.ones(8),)),
            "one": (_Method(use, b=4), (torch.ones(8),)),
        }
        program = _plan_sharing(methods, ["a", "b"], planner=_OnDevice)
        assert_expected_inline(
            _printed_sharing(program),
            """\
both: arenas [0, 96, 48]
  a: arena 1, 0 + 8
  b: arena 2, 0 + 16
  inputs_0: arena 1, 48 + 32
  aten_sin_default: arena 2, 16 + 32
  aten_sum_dim_int_list: arena 1, 80 + 4
  aten_add_tensor: arena 1, 16 + 8
  aten_sin_default_1: arena 2, 16 + 32
  aten_sum_dim_int_list_1: arena 1, 80 + 4
  aten_add_tensor_1: arena 1, 16 + 16
  dim_order_ops__to_dim_order_copy_default: arena 1, 80 + 4
  aten_mul_tensor: arena 1, 16 + 32
one: arenas [0, 96, 48]
  b: arena 2, 0 + 16
  inputs_0: arena 1, 48 + 32
  aten_sin_default: arena 2, 16 + 32
  aten_sum_dim_int_list: arena 1, 80 + 4
  aten_add_tensor: arena 1, 16 + 16
  dim_order_ops__to_dim_order_copy_default: arena 1, 80 + 4
  aten_mul_tensor: arena 1, 16 + 32""",
        )
        for plan in program.executorch_program.execution_plan:
            self.assertEqual(
                [each.buffer_idx for each in plan.non_const_buffer_device], [2]
            )

    def test_own_arenas_of_devices(self) -> None:
        def use(method: nn.Module, x: torch.Tensor) -> torch.Tensor:
            for buffer in method.buffers():
                buffer.add_(x.sin().sum())
            return x * 2

        inputs = (torch.ones(8),)
        methods = {
            "both": (_Method(use, a=2, b=4), inputs),
            "host": (_Method(use, a=2), inputs),
            "device": (_Method(use, b=4), inputs),
            "none": (_Method(_double), inputs),
        }
        program = _plan_sharing(
            methods, ["a", "b"], planner=_OnDevice, planning={"shared_arena": "own"}
        )
        # Arenas 1 and 2 are those of the algorithm, on the host and on the device.
        plan = _printed_sharing(program)
        self.assertEqual(plan.count("  a: arena 3, 0 + 8\n"), 2)
        self.assertEqual(plan.count("  b: arena 4, 0 + 16\n"), 2)
        self.assertEqual(plan.count("arena 3, ") + plan.count("arena 4, "), 4)
        found = {
            plan.name: [each.buffer_idx for each in plan.non_const_buffer_device]
            for plan in program.executorch_program.execution_plan
        }
        self.assertEqual(
            found, {"both": [2, 4], "host": [2], "device": [2, 4], "none": [2]}
        )

    def test_a_pass_for_each_method(self) -> None:
        methods = {
            "write": _adding(b=4, a=2),
            "without": (_Method(_double), (torch.ones(8),)),
        }
        options = {
            "memory_planning_algo": _greedy_alone(),
            "share_mutable_buffers": True,
            "shared_buffer_fqns": ["a", "b"],
        }
        one = MemoryPlanningPass(**options)
        several = {name: MemoryPlanningPass(**options) for name in methods}
        plans = []
        for planner in (one, dict.fromkeys(methods, one), several):
            edge = to_edge({name: export(*each) for name, each in methods.items()})
            config = _copying(memory_planning_pass=planner)
            plans.append(_printed_sharing(edge.to_executorch(config)))
        self.assertEqual(plans[0], plans[1])
        self.assertEqual(plans[0], plans[2])
        assert_expected_inline(
            plans[0],
            """\
without: arenas [0, 112]
  inputs_0: arena 1, 32 + 32
  aten_sin_default: arena 1, 64 + 32
  dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 4
  aten_mul_tensor: arena 1, 32 + 32
write: arenas [0, 112]
  b: arena 1, 16 + 16
  a: arena 1, 0 + 8
  inputs_0: arena 1, 64 + 32
  aten_sum_dim_int_list: arena 1, 96 + 4
  aten_add_tensor: arena 1, 32 + 16
  aten_sum_dim_int_list_1: arena 1, 96 + 4
  aten_add_tensor_1: arena 1, 32 + 8
  dim_order_ops__to_dim_order_copy_default: arena 1, 96 + 4
  aten_mul_tensor: arena 1, 32 + 32""",
        )

    def test_emitted_names(self) -> None:
        methods = {
            "write": _adding(b=4, a=2),
            "read": (_Method(_get, b=4), ()),
            "without": (_Method(_double), (torch.ones(8),)),
        }
        program = _plan_sharing(methods, ["a", "b"], emit_mutable_buffer_names=True)
        found = {}
        for plan in program.executorch_program.execution_plan:
            for value in plan.values:
                if info := getattr(value.val, "extra_tensor_info", None):
                    place = value.val.allocation_info
                    found[plan.name, info.fully_qualified_name] = (
                        place.memory_id,
                        place.memory_offset_low,
                    )
        self.assertEqual(
            found,
            {("write", "a"): (1, 0), ("write", "b"): (1, 16), ("read", "b"): (1, 16)},
        )
