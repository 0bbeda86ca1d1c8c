# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""A backend's result that is written into state, which the same call reads or doesn't."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.alias_tolerant_kernels import why_delegate_not_over
from torch import Tensor, nn
from torch.fx import GraphModule

from tests.support import harness

ROWS, COLUMNS = 300, 64


class _OverState(MemoryPlanningPass):
    """Gives the backend's results the memory of the state that they are copied into."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str | None] = []

    def run(self, module: GraphModule, signature: Any = None) -> Any:
        for copy in module.graph.find_nodes(
            op="call_function", target=torch.ops.aten.copy_.default
        ):
            buffer, value = copy.args[:2]
            if value.target is not operator.getitem:
                continue
            call, number = value.args
            self.reasons.append(why_delegate_not_over(call, number, buffer))
            specs = list(call.meta["spec"])
            specs[number] = value.meta["spec"] = buffer.meta["spec"]
            call.meta["spec"] = tuple(specs)
            copy.replace_all_uses_with(value)
            module.graph.erase_node(copy)
        return super().run(module, signature)


class State(nn.Module):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(sizes or (ROWS, COLUMNS)))
        self.u = nn.Linear(COLUMNS, COLUMNS)
        self.w = nn.Linear(COLUMNS, COLUMNS)

    def new(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.h.copy_(self.new(x))
        # No operator that the backend takes over, so it reads what was written.
        return x * 2, self.h.argmax(-1)


class NotRead(State):
    def new(self, x: Tensor) -> Tensor:
        return self.w(x).sigmoid()


class Pointwise(State):
    def new(self, x: Tensor) -> Tensor:
        return self.h * x + x


class Gru(State):
    def new(self, x: Tensor) -> Tensor:
        z = torch.sigmoid(self.w(x) + self.u(self.h))
        n = torch.tanh(self.u(x) + z * self.w(self.h))
        return (1 - z) * n + z * self.h


class Window(State):
    def __init__(self) -> None:
        super().__init__(1, COLUMNS, 400)
        self.conv = nn.Conv1d(COLUMNS, 8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x[:17].t().unsqueeze(0)
        window = torch.cat([self.h, x], -1)
        self.h.copy_(window[..., -400:])
        return self.conv(window), self.h.argmax(-1)


class ReadLater(State):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        new = self.h + x * x
        old = self.u(self.h)
        self.h.copy_(new)
        return old, self.h.argmax(-1)


class Product(State):
    def new(self, x: Tensor) -> Tensor:
        return self.u(self.h) + 1


class ProductAlone(State):
    def new(self, x: Tensor) -> Tensor:
        return self.u(self.h)


class ProductClamped(State):
    def new(self, x: Tensor) -> Tensor:
        return self.u(self.h).relu()


class Transposed(State):
    def __init__(self) -> None:
        super().__init__(COLUMNS, COLUMNS)

    def new(self, x: Tensor) -> Tensor:
        return self.h.t() + x[:COLUMNS]


class Turned(State):
    def new(self, x: Tensor) -> Tensor:
        return torch.cat([self.h[150:], x[:150] + self.h[:150]])


class Softmax(State):
    def new(self, x: Tensor) -> Tensor:
        return torch.softmax(self.h + x, -1)


@dataclass(frozen=True)
class _Lowered:
    reasons: list[str | None]
    results: list[harness.Result]
    over_state: list[harness.Result]


def _lowered(module: Callable[[], nn.Module]) -> _Lowered:
    torch.manual_seed(0)
    inputs = {"forward": (torch.randn(ROWS, COLUMNS),)}
    with torch.no_grad():
        programs = harness.export_methods(module().eval(), inputs)
        calls = harness.random_calls(inputs, ["forward"] * 5)
        edge = harness.to_edge_programs(programs, partitioner=XnnpackPartitioner())
        shared = _OverState()
        over_state = harness.finish(edge, memory_planning_pass=shared)
        plain = harness.lower(programs, partitioner=XnnpackPartitioner())
        assert shared.reasons, "the new state is no result of a backend"
        return _Lowered(
            shared.reasons,
            harness.run_in_runtime(plain, calls),
            harness.run_in_runtime(over_state, calls),
        )


def _is_same(first: list[harness.Result], second: list[harness.Result]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(
        torch.equal(a, b) for x, y in pairs for a, b in zip(x.outputs, y.outputs, strict=True)
    )


@pytest.mark.parametrize("module", [NotRead, Pointwise, Gru, Window, Product])
def test_result_over_state(module: Callable[[], nn.Module]) -> None:
    lowered = _lowered(module)
    assert set(lowered.reasons) == {None}
    assert _is_same(lowered.results, lowered.over_state)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (ReadLater, "may read the argument after"),
        (ProductAlone, "may merge"),
        (ProductClamped, "may merge"),
        (Transposed, "reads more of the argument"),
        (Turned, "reads more of the argument"),
        (Softmax, "may merge"),
    ],
)
def test_result_that_is_refused(module: Callable[[], nn.Module], reason: str) -> None:
    assert all(reason in (found or "") for found in _lowered(module).reasons)


@pytest.mark.parametrize("module", [ReadLater, ProductAlone])
def test_what_is_refused_is_wrong(module: Callable[[], nn.Module]) -> None:
    lowered = _lowered(module)
    assert not _is_same(lowered.results, lowered.over_state)


def test_other_backend() -> None:
    """Nothing is known of how it runs, but it may write where it doesn't read."""

    class Lowered:
        backend_id = "SomeBackend"

    graph = torch.fx.Graph()
    state, x = graph.placeholder("state"), graph.placeholder("x")
    call = graph.call_function(lambda *_: None, (graph.get_attr("lowered"), state))
    graph.output(call)
    root = nn.Module()
    root.lowered = Lowered()  # type: ignore[assignment]
    module = GraphModule(root, graph)
    call = next(n for n in module.graph.nodes if n.op == "call_function")
    state, x = module.graph.find_nodes(op="placeholder")
    assert "SomeBackend may read" in (why_delegate_not_over(call, 0, state) or "")
    assert why_delegate_not_over(call, 0, x) is None
