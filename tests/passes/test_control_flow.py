# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Control flow around mutable buffers, run in the real runtime, both branches in turn."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from executorch.backends.transforms.remove_clone_ops import RemoveCloneOpsTransform
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import ExecutorchProgramManager, memory_planning
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as map_rows
from torch.export import ExportedProgram

from tests.support import harness, plan_checker
from tests.support.cases import Stateful
from tests.support.harness import Call


def _smooth(a: Tensor) -> Tensor:
    return a.tanh() * 2 - a.sin()


def _steep(a: Tensor) -> Tensor:
    return 3 * a + a.exp()


class ViewsBuffer(Stateful):
    """The branches view the buffer that they are given."""

    def __init__(self) -> None:
        super().__init__(state=(2, 3))

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        def left(state: Tensor, a: Tensor) -> Tensor:
            return state.view(6) * 2 + a

        def right(state: Tensor, a: Tensor) -> Tensor:
            return state.view(6) - a

        y = torch.cond(p > 0, left, right, [self.state, x.view(6)])
        self.state.add_(x)
        return y


class NestedViewsBuffer(Stateful):
    """A cond inside a branch views the buffer."""

    def __init__(self) -> None:
        super().__init__(state=(2, 3))

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        def view(state: Tensor) -> Tensor:
            return state.view(6) + 1

        def flatten(state: Tensor) -> Tensor:
            return state.reshape(6) * 3

        def nested(state: Tensor) -> Tensor:
            return torch.cond(state.sum() > 0, view, flatten, [state])

        y = torch.cond(p > 0, nested, flatten, [self.state])
        self.state.add_(x)
        return y


class TwoResultsAdded(nn.Module):
    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        y = torch.cond(p > 0, _smooth, _steep, [x])
        z = torch.cond(p > 1, _steep, _smooth, [x + 1])
        return y + z


class TwoResultsReturned(nn.Module):
    def forward(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cond(p > 0, _smooth, _steep, [x])
        z = torch.cond(p > 1, _steep, _smooth, [x + 1])
        return y, z


class FourInARow(Stateful):
    """Every result is needed at the end, and by the next cond."""

    def __init__(self) -> None:
        super().__init__(state=(2, 3))

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        results = [x]
        for step in range(4):
            results.append(torch.cond(p > step - 2, _smooth, _steep, [results[-1] * 0.3]))
        self.state.add_(results[1])
        return torch.stack(results).sum(0) + self.state


class SeveralResults(nn.Module):
    """One cond has two results, one of which is needed after another cond."""

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        def left(a: Tensor) -> tuple[Tensor, Tensor]:
            return a.sin(), a.view(6).exp()

        def right(a: Tensor) -> tuple[Tensor, Tensor]:
            return a * 5, a.view(6) - 5

        u, v = torch.cond(p > 0, left, right, [x])
        first = u * 2
        w, y = torch.cond(p > 1, right, left, [x + 1])
        return first + w + v.view(2, 3) * y.view(2, 3)


class ViewsOfResults(nn.Module):
    """A view of a result is elided to the memory that was planned for the result."""

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        def nested(a: Tensor) -> Tensor:
            return torch.cond(a.sum() > 0, _smooth, _steep, [a]).view(6) * 2

        y = torch.cond(p > 0, nested, lambda a: a.view(6) - 1, [x])
        return y.view(3, 2) * 3


class Nested(nn.Module):
    """Results of conds inside of branches are needed after conds inside and outside."""

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        def nested(a: Tensor) -> Tensor:
            u = torch.cond(a.sum() > 0, _smooth, _steep, [a])
            v = torch.cond(a.sum() > 1, _steep, _smooth, [a + 1])
            return u - v

        def passed_on(a: Tensor) -> Tensor:
            return torch.cond(a.sum() > 0, _smooth, _steep, [a])

        y = torch.cond(p > 0, nested, passed_on, [x])
        z = torch.cond(p > 1, passed_on, nested, [x + 1])
        return y * z


class MapViewsBuffer(Stateful):
    """The body of a map views what it closes over, and the slice."""

    def __init__(self) -> None:
        super().__init__(state=(2, 3))

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        y = map_rows(lambda row, s: row.view(3, 1).sum(1) + s.view(6)[:3], x, self.state)
        self.state.add_(y)
        return y.view(6) * p


class ScanViewsCarry(nn.Module):
    """The body of a scan views the carry, the slice and what it closes over."""

    def forward(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        def body(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            return carry + row.view(3, 1).sum(1), carry.view(3, 1) * x.view(6)[:1] + p

        carry, rows = scan(body, x[0] * 1, x)
        return carry.view(3, 1) + 1, rows.view(6)


class ScanSwapsCarries(nn.Module):
    """Each of two carries becomes the other, and is returned as it was before."""

    def forward(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def body(carry: tuple[Tensor, Tensor], row: Tensor) -> Any:
            first, second = carry
            kept = (first.clone(), first.view(3, 1).clone(), second + row)
            return (second.clone(), first.clone()), kept

        (first, second), (a, b, c) = scan(body, (x[0] * 1, x[1] * 1), x)
        return first * 2 + second, a + b.view(2, 3), c * p


class HandsOperandsThrough(Stateful):
    """A branch returns its operand, a view of it, one tensor twice, a buffer."""

    def __init__(self) -> None:
        super().__init__(state=(2, 3))

    def forward(self, x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        def left(a: Tensor, s: Tensor) -> tuple[Tensor, ...]:
            t = a.sin()
            return a.clone(), a.view(6).clone(), t, t.clone(), s.clone()

        def right(a: Tensor, s: Tensor) -> tuple[Tensor, ...]:
            return a + 1, s.view(6) * 2, a - s, a.cos(), s + 1

        y = x * 2
        a, b, c, d, e = torch.cond(p > 0, left, right, [y, self.state])
        self.state.add_(x)
        z = (x - 1).exp() + torch.cond(p > 1, _smooth, _steep, [x])
        return a.view(6) + b, c - d, e.view(3, 2) * 2, z


class LoopsInBranches(Stateful):
    """A scan in a branch of a cond, with a map and a cond in its body."""

    def __init__(self) -> None:
        super().__init__(state=(2, 3))

    def forward(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        def body(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            scaled = map_rows(lambda a, c: a.view(1) * c.view(3, 1).sum(0), row, carry)
            kept = torch.cond(carry.sum() > 0, lambda a: a.view(3) + 1, _steep, [carry])
            return carry + scaled.view(3), kept

        def left(a: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
            carry, rows = scan(body, s.view(6)[:3] * 1, a)
            return rows + a, carry * 1

        def right(a: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
            rows = map_rows(lambda b, c: _smooth(b) + c.view(6)[3:], a, s)
            return rows.view(3, 2).view(2, 3) * 1, s[0] * 2

        rows, carry = torch.cond(p > 0, left, right, [x, self.state])
        self.state.add_(rows * 0.1)
        return rows.view(6) + 1, carry.view(3, 1)


class CallersOutputs(Stateful):
    """Outputs of the program are results of conds and loops, one of them viewed as well."""

    def __init__(self) -> None:
        super().__init__(state=(2, 3))

    def forward(self, x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        y = torch.cond(p > 0, _smooth, _steep, [x])
        z = torch.cond(p > 1, _steep, lambda a: a.clone(), [x + self.state])
        rows = map_rows(lambda row: row.exp(), x)
        carry, steps = scan(lambda c, row: (c + row, c * row), x[0] * 1, x)
        self.state.add_(y)
        return y, z, z.view(6) * 2, rows, carry, steps


MODULES: list[Callable[[], nn.Module]] = [
    ViewsBuffer,
    NestedViewsBuffer,
    TwoResultsAdded,
    TwoResultsReturned,
    FourInARow,
    SeveralResults,
    ViewsOfResults,
    Nested,
    MapViewsBuffer,
    ScanViewsCarry,
    ScanSwapsCarries,
    HandsOperandsThrough,
    LoopsInBranches,
    CallersOutputs,
]


CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "callers memory": {"planning": {"alloc_graph_input": False, "alloc_graph_output": False}},
    "views copied": {"remove_view_copy": False},
    "clones removed": {"passes": [RemoveCloneOpsTransform()]},
    "clones removed, callers outputs": {
        "passes": [RemoveCloneOpsTransform()],
        "planning": {"alloc_graph_output": False},
    },
}


def _run(make: Callable[[], nn.Module], config: Mapping[str, Any]) -> ExecutorchProgramManager:
    """Lower, compare five calls with both references, and check the plan."""
    module = make()
    programs = harness.export_methods(module, {"forward": (torch.randn(2, 3), torch.tensor(0.5))})
    generator = torch.Generator().manual_seed(0)
    calls = [
        Call("forward", (torch.randn(2, 3, generator=generator), torch.tensor(p)))
        for p in (0.5, -3.0, 3.0, 1.5, -0.5)
    ]
    program = harness.lower(programs, **config)
    actual = harness.run_in_runtime(program, calls)
    harness.assert_same(actual, harness.run_functionally(programs, calls))
    harness.assert_same(actual, harness.run_eagerly(module, calls))
    exported = program.exported_program()
    plan = (exported.graph_module, exported.graph_signature)
    findings = plan_checker.check_plan(*plan)
    assert not findings, plan_checker.report(findings)
    assert not plan_checker.unused_places(*plan)
    return program


OF_CONDS_ALONE = MODULES[: MODULES.index(MapViewsBuffer)]
RUNS = [(make, "default") for make in OF_CONDS_ALONE]
RUNS += [(make, config) for make in MODULES[len(OF_CONDS_ALONE) :] for config in CONFIGS]


@pytest.mark.parametrize(
    ("make", "config"), RUNS, ids=[f"{make.__name__}-{config}" for make, config in RUNS]
)
def test_control_flow(make: Callable[[], nn.Module], config: str) -> None:
    _run(make, CONFIGS[config])


# --- once wrong or refused ------------------------------------------------------------------


class MapBodyViewsBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = map_rows(lambda a, b: a * 2 + b.view(4), x, self.state)
        self.state.add_(x[0].view(2, 2))
        return y


class ScanBodyViewsCarry(nn.Module):
    def forward(self, h: Tensor, xs: Tensor) -> Any:
        return scan(lambda c, x: (c + x, c.view(2, 2).sum(0)), h, xs)


class ViewOfMapResult(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return map_rows(lambda a: a * 2, x).view(2, -1) + 1


class CondResultsAreCallersOutputs(nn.Module):
    """With alloc_graph_output=False the caller owns the outputs; each result has to get there."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), [x])
        z = torch.cond(x.sum() < 0, lambda a: a + 1, lambda a: a - 1, [x])
        return y, z


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (MapBodyViewsBuffer, [(3, 4)]),
        (ScanBodyViewsCarry, [(4,), (5, 4)]),
        (ViewOfMapResult, [(4, 4)]),
        (CondResultsAreCallersOutputs, [(2,)]),
    ],
)
@pytest.mark.parametrize("callers", [False, True], ids=["planned", "callers"])
def test_case(make: Callable[[], nn.Module], shapes: list[tuple[int, ...]], callers: bool) -> None:
    inputs = tuple(torch.randn(shape) for shape in shapes)
    planning = {"alloc_graph_input": not callers, "alloc_graph_output": not callers}
    harness.check(make(), {"forward": inputs}, ["forward"] * 5, planning=planning)


# --- delegates, shapes ----------------------------------------------------------------------


class DelegatesInBranches(nn.Module):
    """What delegates return is viewed in the branches and outside."""

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        def left(a: Tensor) -> Tensor:
            return a.sigmoid() * a + a

        def right(a: Tensor) -> Tensor:
            return (a * a).view(6).view(2, 3).sigmoid()

        y = torch.cond(p > 0, left, right, [x])
        z = torch.cond(p > 1, right, left, [x + 1])
        return y.view(6) + z.view(6)


class ToXnnpackInBodies(Partitioner):
    """XNNPACK's own partitioner stays out of bodies."""

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        spec = DelegationSpec(XnnpackBackend.__name__, [])
        tags = {}
        bodies = get_control_flow_submodules(exported_program.graph_module)
        for number, (_, body, _) in enumerate(bodies):
            views = 0
            for node in body.graph.nodes:
                if "view" in node.name:
                    views += 1
                elif node.op == "call_function":
                    tag = f"body_{number}_part_{views}"
                    node.meta["delegation_tag"] = tag
                    tags[tag] = spec
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


@pytest.mark.parametrize("alloc_graph_output", [True, False])
def test_delegates_in_branches(alloc_graph_output: bool) -> None:
    config = {
        "partitioner": ToXnnpackInBodies(),
        "planning": {"alloc_graph_output": alloc_graph_output},
    }
    graph_module = _run(DelegatesInBranches, config).exported_program().graph_module
    bodies = [body for _, body, _ in get_control_flow_submodules(graph_module)]
    called = [node.target for body in bodies for node in body.graph.nodes]
    assert called.count(executorch_call_delegate) == 6


class OfAnyLength(nn.Module):
    def forward(self, x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        a, b = torch.cond(
            p > 0,
            lambda x: (x.sin(), x.view(-1).clone()),
            lambda x: (x + 1, x.reshape(-1) + 1),
            [x],
        )
        carry, rows = scan(lambda c, row: (c + row, c.view(3, 1) * 1), x[0] * 1, x)
        return a, b, a.view(-1) * 2, carry, rows


@pytest.mark.parametrize("alloc_graph_output", [True, False])
def test_any_length(alloc_graph_output: bool) -> None:
    inputs = (torch.randn(3, 3), torch.tensor(0.5))
    shapes = {"forward": ({0: torch.export.Dim("n", min=2, max=8)}, {})}
    programs = harness.export_methods(OfAnyLength(), {"forward": inputs}, dynamic_shapes=shapes)
    calls = [
        Call("forward", (torch.randn(n, 3), torch.tensor(p)))
        for n, p in ((3, 0.5), (8, -1.0), (2, 1.0), (5, -0.5), (8, 0.5))
    ]
    program = harness.lower(programs, planning={"alloc_graph_output": alloc_graph_output})
    actual = harness.run_in_runtime(program, calls)
    harness.assert_same(actual, harness.run_eagerly(OfAnyLength(), calls))


# --- the floor ------------------------------------------------------------------------------


class CacheBehindConds(nn.Module):
    """A cache, and branches with large and with small intermediate values, one in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(16, 16))

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        def large(a: Tensor, s: Tensor) -> Tensor:
            grown = torch.cat([a @ s, a, s, a.sin()])
            return (grown * 2 + grown.cos())[:16] * 0.1

        def nested(a: Tensor, s: Tensor) -> Tensor:
            return torch.cond(a.sum() > 0, large, torch.sub, [a * 2, s]) - a

        def looped(a: Tensor, s: Tensor) -> Tensor:
            rows = map_rows(lambda row, s: _smooth(s @ row) + row.sum(), a, s)
            return rows + 1

        y = torch.cond(p > 0, large, looped, [x, self.state])
        self.state.add_(y)
        z = torch.cond(p > 1, nested, torch.add, [y * 0.5, self.state])
        wide = torch.cat([z, y, x]).exp()
        return wide.sum(0) - z[0]

    @classmethod
    def lower(cls, **planning: Any) -> ExecutorchProgramManager:
        """Lower with a plan as given, run five calls, and check the plan."""
        programs = harness.export_methods(
            cls(), {"forward": (torch.randn(16, 16), torch.tensor(0.5))}
        )
        program = harness.lower(programs, planning=planning)
        calls = [
            Call("forward", (torch.randn(16, 16) * 0.2, torch.tensor(p)))
            for p in (0.5, -3.0, 3.0, 1.5, -0.5)
        ]
        actual = harness.run_in_runtime(program, calls)
        harness.assert_same(actual, harness.run_functionally(programs, calls))
        exported = program.exported_program()
        findings = plan_checker.check_plan(exported.graph_module, exported.graph_signature)
        assert not findings, plan_checker.report(findings)
        return program


def _arenas(program: ExecutorchProgramManager) -> list[int]:
    sizes: list[int] = program.exported_program().graph_module.meta["non_const_buffer_sizes"]
    return sizes


def test_arena_is_as_small_as_the_peak() -> None:
    program = CacheBehindConds.lower()
    exported = program.exported_program()
    peaks = plan_checker.peak_at_nodes(exported.graph_module, exported.graph_signature)
    # A few scalars of 1 or 4 bytes take 16 each.
    assert peaks[1] <= _arenas(program)[1] <= peaks[1] * 1.003


def _known(graph_module: torch.fx.GraphModule) -> set[Any]:
    """The specs of the graph's own nodes."""
    return {
        spec
        for node in graph_module.graph.nodes
        for spec in memory_planning.get_node_tensor_specs(node)
    }


def _greedy(alignment: int, specs: Any, graph: Any, *rest: Any) -> list[int]:
    suite = memory_planning.MemoryPlanningAlgorithmSuite([memory_planning.greedy])
    sizes: list[int] = suite(alignment, specs, graph, *rest)
    return sizes


def _fails_on_strangers(alignment: int, specs: Any, graph: Any, *rest: Any) -> list[int]:
    if not _known(graph).issuperset(specs):
        raise KeyError("no node has this spec")
    return _greedy(alignment, specs, graph, *rest)


def _forgets_strangers(alignment: int, specs: Any, graph: Any, *rest: Any) -> list[int]:
    known = _known(graph)
    return _greedy(alignment, [spec for spec in specs if spec in known], graph, *rest)


def _heaps_strangers(alignment: int, specs: Any, graph: Any, *rest: Any) -> list[int]:
    known = _known(graph)
    for stranger in [spec for spec in specs if spec not in known]:
        stranger.mem_id, stranger.mem_offset = 1, 0
    return _greedy(alignment, [spec for spec in specs if spec in known], graph, *rest)


def _uses_second_arena(alignment: int, specs: Any, graph: Any, *rest: Any) -> list[int]:
    """Every other tensor of the graph goes to arena 3, as in a program with two memories."""
    for number, spec in enumerate(specs):
        if spec.mem_id is None and number % 2:
            spec.mem_id = 3
    return _greedy(alignment, specs, graph, *rest)


@pytest.mark.parametrize(
    "algorithm", [_fails_on_strangers, _forgets_strangers, _heaps_strangers, _uses_second_arena]
)
def test_algorithm_that_knows_nothing_of_bodies(algorithm: Callable[..., list[int]]) -> None:
    CacheBehindConds.lower(memory_planning_algo=algorithm)


@pytest.mark.parametrize(
    "algorithms",
    [
        [memory_planning.greedy],
        [memory_planning.best_fit],
        [memory_planning.naive],
        [memory_planning.greedy, memory_planning.best_fit],
    ],
    ids=lambda algorithms: "+".join(each.__name__ for each in algorithms),
)
def test_no_arena_grows(algorithms: list[Callable[..., Any]]) -> None:
    """An algorithm that refuses the blocks of bodies gets the plan that there was before."""

    def refusing(alignment: int, specs: Any, graph: Any, *rest: Any) -> list[int]:
        if not _known(graph).issuperset(specs):
            raise KeyError("no node has this spec")
        sizes: list[int] = suite(alignment, specs, graph, *rest)
        return sizes

    suite = memory_planning.MemoryPlanningAlgorithmSuite(algorithms)
    before = _arenas(CacheBehindConds.lower(memory_planning_algo=refusing))
    suite = memory_planning.MemoryPlanningAlgorithmSuite(algorithms)
    now = _arenas(CacheBehindConds.lower(memory_planning_algo=suite))
    assert len(now) == len(before)
    assert all(size <= limit for size, limit in zip(now, before, strict=True))
