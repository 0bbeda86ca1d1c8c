# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any, Dict, List, Tuple

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.program._lowering_copy import copy_for_lowering
from executorch.exir.tensor import TensorSpec
from torch.export import Dim, export
from torch.export.experimental import _export_forward_backward
from torch.fx import GraphModule


class Accumulator(torch.nn.Module):
    """State that is read, added to, shifted and returned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("before", torch.zeros(4))
        self.linear = torch.nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        old = self.total.view(2, 2)
        self.before.copy_(self.total)
        self.total.add_(self.linear(x))
        return old.sum(), self.total * 2


class Averaging(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.linear = torch.nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(self.linear(x))
        return self.total * 2


class Chooser(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def add(x: torch.Tensor) -> torch.Tensor:
            return x.view(-1) + 1

        def negate(x: torch.Tensor) -> torch.Tensor:
            return -x

        self.total.add_(torch.cond(x.sum() > 0, add, negate, (x,)))
        return self.total + 1


class Growing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum())
        return x.view(-1, 2) + self.total


class Trained(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.linear(x), y)


class FailsHalfway:
    """A pass that changes the graph in place, and then fails."""

    def __call__(self, graph_module: GraphModule) -> Any:
        for node in list(graph_module.graph.nodes):
            node.meta.clear()
        graph_module.graph.output(())
        raise RuntimeError("on purpose")


def edge_accumulator() -> EdgeProgramManager:
    return to_edge(export(Accumulator(), (torch.ones(4),)))


def edge_chooser() -> EdgeProgramManager:
    return to_edge(export(Chooser(), (torch.ones(4),)))


def edge_growing() -> EdgeProgramManager:
    shapes = ({0: 2 * Dim("half", min=1, max=8)},)
    return to_edge(export(Growing(), (torch.ones(6),), dynamic_shapes=shapes))


def edge_trained() -> EdgeProgramManager:
    exported = export(Trained(), (torch.ones(3), torch.zeros(3)))
    return to_edge(_export_forward_backward(exported))


def edge_delegated() -> EdgeProgramManager:
    return to_edge_transform_and_lower(
        export(Averaging(), (torch.ones(4),)), partitioner=[XnnpackPartitioner()]
    )


def edge_methods() -> EdgeProgramManager:
    module = Accumulator()
    programs = {
        name: export(module, (torch.ones(4),)) for name in ("forward", "prefill")
    }
    return to_edge(programs, constant_methods={"length": 7})


def edge_without_dim_order() -> EdgeProgramManager:
    return to_edge(
        export(Accumulator(), (torch.ones(4),)),
        compile_config=EdgeCompileConfig(_skip_dim_order=True),
    )


EDGE_PROGRAMS = {
    "accumulator": edge_accumulator,
    "chooser": edge_chooser,
    "growing": edge_growing,
    "trained": edge_trained,
    "delegated": edge_delegated,
    "methods": edge_methods,
    "without_dim_order": edge_without_dim_order,
}

CONFIGS = {
    "default": {},
    "reinplace": {"run_reinplace_pass": True},
    "views": {"remove_view_copy": False},
    "external": {"external_constants": True},
    "unplanned_inputs": {
        "memory_planning_pass": MemoryPlanningPass(alloc_graph_input=False)
    },
    "initial": {"passes": [InitializedMutableBufferPass(["total"])]},
    "shared": {"memory_planning_pass": MemoryPlanningPass(share_mutable_buffers=True)},
}


def describe_meta(value: Any) -> Any:
    """Metadata with all fields of the specs in it, to be compared."""
    if isinstance(value, TensorSpec):
        return {k: describe_meta(v) for k, v in vars(value).items()}
    if isinstance(value, dict):
        return {k: describe_meta(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe_meta(each) for each in value]
    return repr(value) if isinstance(value, (int, str)) else id(value)


def describe(manager: EdgeProgramManager) -> List[Any]:
    """All that lowering might change of the edge programs."""
    description: List[Any] = []
    for name in sorted(manager.methods):
        program = manager.exported_program(name)
        description += [name, repr(program.graph_signature)]
        description.append({k: id(v) for k, v in program.state_dict.items()})
        description.append({k: id(v) for k, v in program.constants.items()})
        for module in program.graph_module.modules():
            if isinstance(module, GraphModule):
                description += [str(module.graph), module.code]
                description.append(describe_meta(module.meta))
                description += [describe_meta(n.meta) for n in module.graph.nodes]
    return description


def lower(manager: EdgeProgramManager, config: Dict[str, Any]) -> bytes:
    program = manager.to_executorch(ExecutorchBackendConfig(**config))
    files = program._tensor_data or {}
    return program.buffer + b"".join(bytes(files[name]) for name in sorted(files))


class TestLoweringCopy(unittest.TestCase):
    def test_lowering_again_gives_what_a_fresh_program_gives(self) -> None:
        for name, make in EDGE_PROGRAMS.items():
            torch.manual_seed(0)
            manager = make()
            before = describe(manager)
            for title in [*CONFIGS, "default"]:
                with self.subTest(program=name, config=title):
                    again = lower(manager, CONFIGS[title])
                    self.assertEqual(describe(manager), before)
                    torch.manual_seed(0)
                    self.assertEqual(again, lower(make(), CONFIGS[title]))

    def test_failure_leaves_the_edge_program(self) -> None:
        torch.manual_seed(0)
        manager = edge_methods()
        before = describe(manager)
        with self.assertRaisesRegex(RuntimeError, "on purpose"):
            lower(manager, {"passes": [FailsHalfway()]})
        self.assertEqual(describe(manager), before)
        torch.manual_seed(0)
        self.assertEqual(lower(manager, {}), lower(edge_methods(), {}))

    def test_lowered_program_is_not_the_edge_program(self) -> None:
        manager = edge_chooser()
        lowered = manager.to_executorch().exported_program()
        edge = manager.exported_program()
        self.assertIsNot(lowered.graph_module, edge.graph_module)
        self.assertIs(lowered.state_dict["total"], edge.state_dict["total"])

    def test_copy_shares_weights_and_lowered_modules(self) -> None:
        edge = edge_delegated().exported_program()
        copied = copy_for_lowering({"forward": edge})["forward"]
        for name, tensor in {**edge.state_dict, **edge.constants}.items():
            self.assertIs({**copied.state_dict, **copied.constants}[name], tensor)
        lowered = [n.target for n in edge.graph.nodes if n.op == "get_attr"]
        self.assertTrue(lowered)
        for name in lowered:
            self.assertIs(
                getattr(copied.graph_module, name), getattr(edge.graph_module, name)
            )

    def test_copy_of_control_flow_shares_no_graph(self) -> None:
        edge = edge_chooser().exported_program()
        copied = copy_for_lowering({"forward": edge})["forward"]
        graphs = [
            {id(m.graph) for m in program.graph_module.modules()}
            for program in (edge, copied)
        ]
        self.assertEqual([len(each) for each in graphs], [3, 3])
        self.assertTrue(graphs[0].isdisjoint(graphs[1]))

    def test_copy_keeps_names_that_python_has(self) -> None:
        edge = edge_accumulator().exported_program()
        placeholder = next(n for n in edge.graph.nodes if n.name == "x")
        placeholder.name = "input"
        copied = copy_for_lowering({"forward": edge})["forward"]
        self.assertEqual(
            [node.name for node in copied.graph.nodes],
            [node.name for node in edge.graph.nodes],
        )

    def test_nodes_that_share_a_spec_share_its_copy(self) -> None:
        edge = edge_accumulator().exported_program()
        first, second, third, *_ = edge.graph.nodes
        spec = TensorSpec.from_tensor(torch.zeros(2))
        spec.storage_base = TensorSpec.from_tensor(torch.zeros(4))
        first.meta["spec"] = spec
        second.meta["spec"] = (spec, [spec.storage_base])
        third.meta["spec"] = second.meta["spec"]
        copied = copy_for_lowering({"forward": edge})["forward"]
        metas = [
            node.meta["spec"] for node in copied.graph.nodes if "spec" in node.meta
        ]
        self.assertEqual(len(metas), 3)
        for each, (base,) in metas[1:]:
            self.assertIs(each, metas[0])
            self.assertIs(base, metas[0].storage_base)
        metas[0].lifetime[0] = 1
        metas[0].storage_base.mem_id = 1
        self.assertEqual(spec.lifetime, [None, None])
        self.assertIsNone(spec.storage_base.mem_id)
