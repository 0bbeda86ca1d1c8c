# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Results in place, and state that is returned, whoever allocates inputs and outputs."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import harness
from tests.support.plan_checker import check_plan, report


class UsedLater(nn.Module):
    def forward(self, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
        y = x * 2
        y.index_put_((i,), v)
        return y + (x + 1).sin() * 3


class Returned(nn.Module):
    def forward(self, x: Tensor, v: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y.index_put_((i,), v)
        return (x + 1).sin() * 3, y


class Twice(nn.Module):
    def forward(self, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
        y = (x * 2).index_put((i,), v).index_put((i + 1,), v * 2)
        return y * (x + 1).sin()


class ViewReturned(nn.Module):
    def forward(self, x: Tensor, v: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = (x * 2).view(12)
        y = y.index_put((i,), v[0, :1])
        return (x + 1).sin() * 3, y, y.sum()


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(4, 3))


class StateInPlaceReturned(Stateful):
    def forward(self, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
        self.state.index_put_((i,), v)
        return self.state


class StateCopiedReturned(Stateful):
    def forward(self, x: Tensor, v: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        self.state.add_(x)
        return self.state, self.state * v


class StateThroughView(Stateful):
    def forward(self, x: Tensor, v: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.state.view(12).index_put_((i,), v[0, :1])
        return (v + 1).sin() * 3, self.state.sum(), self.state


MODULES: list[Callable[[], nn.Module]] = [
    UsedLater,
    Returned,
    Twice,
    ViewReturned,
    StateInPlaceReturned,
    StateCopiedReturned,
    StateThroughView,
]
OPTIONS: list[dict[str, Any]] = [
    *(
        {"alloc_graph_input": inputs, "alloc_graph_output": outputs}
        for inputs, outputs in itertools.product([True, False], repeat=2)
    ),
    {"share_mutable_buffers": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(f"{k}={o[k]}" for k in o))
@pytest.mark.parametrize("module", MODULES)
def test_in_place(module: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    inputs = (torch.randn(4, 3), torch.randn(1, 3), torch.tensor([1]))
    program = harness.check(
        module(),
        {"forward": inputs},
        ["forward"] * 3,
        run_reinplace_pass=True,
        planning=options,
    )
    exported = program.exported_program()
    findings = check_plan(exported.graph_module, exported.graph_signature)
    assert not findings, report(findings)
