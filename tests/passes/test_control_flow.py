# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Conds around mutable buffers, run in the real runtime, both branches in turn."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support import harness
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


MODULES: list[Callable[[], nn.Module]] = [
    ViewsBuffer,
    NestedViewsBuffer,
    TwoResultsAdded,
    TwoResultsReturned,
    FourInARow,
    SeveralResults,
    ViewsOfResults,
    Nested,
]


@pytest.mark.parametrize("make", MODULES, ids=lambda make: make.__name__)
def test_cond(make: Callable[[], nn.Module]) -> None:
    module = make()
    programs = harness.export_methods(module, {"forward": (torch.randn(2, 3), torch.tensor(0.5))})
    generator = torch.Generator().manual_seed(0)
    calls = [
        Call("forward", (torch.randn(2, 3, generator=generator), torch.tensor(p)))
        for p in (0.5, -3.0, 3.0, 1.5, -0.5)
    ]
    actual = harness.run_in_runtime(harness.lower(programs), calls)
    harness.assert_same(actual, harness.run_functionally(programs, calls))
    harness.assert_same(actual, harness.run_eagerly(module, calls))
