# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Small stateful programs that a correct lowering must keep right, call after call.

Each names the mistake that it would show. All buffers start at zero.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.harness import Inputs


@dataclass(frozen=True)
class Case:
    """A module, the example inputs of its methods, and how to lower and call it."""

    module: Callable[[], nn.Module]
    methods: Mapping[str, Inputs]
    options: Mapping[str, Any] = field(default_factory=dict)
    sequence: Sequence[str] = ("forward",) * 5
    shared: Sequence[str] = ()


class Stateful(nn.Module):
    """A module whose buffers are named with their shapes."""

    def __init__(self, **shapes: Sequence[int]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(*shape))


# --- one method: write-backs ----------------------------------------------------------------


class OldThroughViewCopy(Stateful):
    """A view_copy becomes a view later on: a write-back that waits only for the view_copy
    itself lets `old` read the new state."""

    def __init__(self) -> None:
        super().__init__(state=(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.view_copy(self.state, [6])
        self.state.copy_(x - 1)
        return flat * 3 - 2


class OldThroughReshape(Stateful):
    """As above, by way of reshape, with the new state at hand before the read."""

    def __init__(self) -> None:
        super().__init__(state=(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        doubled = x + x
        flat = self.state.reshape(-1) * 0.5
        self.state.copy_(doubled)
        return flat


class DelayLine(Stateful):
    """Each buffer takes over the next one's contents. A copy from buffer to buffer must not
    be taken for a buffer that was changed in place, and copies must not overtake."""

    def __init__(self, order: str = "abc") -> None:
        super().__init__(**dict.fromkeys(order, (5,)))

    def forward(self, x: Tensor) -> Tensor:
        self.a.copy_(self.b)
        self.b.copy_(self.c)
        self.c.copy_(x)
        return 100 * self.c + 10 * self.b + self.a


class Difference(Stateful):
    """The state of the call before is kept beside the current one."""

    def __init__(self) -> None:
        super().__init__(now=(5,), before=(5,))

    def forward(self, x: Tensor) -> Tensor:
        delta = self.now - self.before
        self.before.copy_(self.now)
        self.now.copy_(x * 3)
        return delta


class Rotation(Stateful):
    """Three buffers change places: a cycle of copies, which needs one temporary."""

    def __init__(self) -> None:
        super().__init__(a=(4,), b=(4,), c=(4,))

    def forward(self, x: Tensor) -> Tensor:
        a = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(self.c)
        self.c.copy_(a)
        self.a.add_(x)
        return self.a + 10 * self.b + 100 * self.c


class Swap(Stateful):
    """Two buffers change places and nothing is computed from them."""

    def __init__(self) -> None:
        super().__init__(a=(4,), b=(4,))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        old_a, old_b = self.a * 1, self.b * 1
        a = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(a)
        self.b.add_(x)
        return old_a, old_b


class InPlaceBesideCopied(Stateful):
    """With the reinplace pass, one buffer is changed in place and the other by a copy: the
    outputs and their specs must stay in step."""

    def __init__(self) -> None:
        super().__init__(cache=(5, 2), mean=(2,))

    def forward(self, x: Tensor) -> Tensor:
        self.cache.index_put_((torch.tensor([3]),), x.unsqueeze(0))
        self.mean.copy_(self.mean * 0.25 + x)
        return self.mean - self.cache.sum(0)


class EarlyUpdate(Stateful):
    """The new state is known at once, long before the graph ends."""

    def __init__(self) -> None:
        super().__init__(state=(32,))

    def forward(self, x: Tensor) -> Tensor:
        self.state.sub_(2)
        for _ in range(3):
            x = (x + 1).cos()
        return x * self.state


class ReturnOld(Stateful):
    """The old state is returned: it must not be overwritten before it is handed out."""

    def __init__(self) -> None:
        super().__init__(state=(5,))

    def forward(self, x: Tensor) -> Tensor:
        old = self.state.clone()
        self.state.mul_(0.5).add_(x)
        return old


class CausalConv(nn.Module):
    """A convolution over a stream, its left context kept in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 2, 3)
        self.register_buffer("left", torch.zeros(1, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        padded = torch.cat([self.left, x], dim=2)
        self.left.copy_(padded[:, :, -2:])
        return self.conv(padded).tanh()


class MutatedInput(Stateful):
    """A user input is changed as well as a buffer, each from the other's old contents."""

    def __init__(self) -> None:
        super().__init__(state=(4,))

    def forward(self, x: Tensor) -> Tensor:
        old = self.state * 2
        self.state.copy_(x)
        x.add_(old)
        return x + self.state


WRITE_BACK = {
    "old_through_view_copy": Case(OldThroughViewCopy, {"forward": (torch.randn(3, 2),)}),
    "old_through_reshape": Case(OldThroughReshape, {"forward": (torch.randn(3, 2),)}),
    "delay_line": Case(DelayLine, {"forward": (torch.randn(5),)}),
    "delay_line_reversed": Case(lambda: DelayLine("cba"), {"forward": (torch.randn(5),)}),
    "difference": Case(Difference, {"forward": (torch.randn(5),)}),
    "rotation": Case(Rotation, {"forward": (torch.randn(4),)}),
    "swap": Case(Swap, {"forward": (torch.randn(4),)}),
    "in_place_beside_copied": Case(
        InPlaceBesideCopied, {"forward": (torch.randn(2),)}, {"run_reinplace_pass": True}
    ),
    "early_update": Case(EarlyUpdate, {"forward": (torch.randn(32),)}),
    "return_old": Case(ReturnOld, {"forward": (torch.randn(5),)}),
    "causal_conv": Case(CausalConv, {"forward": (torch.randn(1, 3, 7),)}),
    "mutated_input": Case(MutatedInput, {"forward": (torch.randn(4),)}),
}


# --- several methods: shared buffers --------------------------------------------------------


class GetSet(Stateful):
    """`get` only reads: lowering marks the buffer constant there, and plans nothing for it."""

    def __init__(self) -> None:
        super().__init__(state=(5,))

    def forward(self, x: Tensor) -> Tensor:
        self.state.mul_(0.5).add_(x)
        return self.state + 1

    def get(self) -> Tensor:
        return self.state.clone()

    def set(self, x: Tensor) -> None:
        self.state.copy_(x)


class ViewsBeside(Stateful):
    """A view's placement is its base's: whoever moves both moves the base twice."""

    def __init__(self) -> None:
        super().__init__(state=(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        self.state.add_(x)
        flat = self.state.view(6) + (x - 2).view(6)
        return 1 - (flat + flat).view(2, 3)

    def reset(self, x: Tensor) -> Tensor:
        self.state.copy_(0 * x)
        return 3 * (x - 1).view(6)


class BranchesBeside(Stateful):
    """The branches of a cond are planned as graphs of their own, in the same arena."""

    def __init__(self) -> None:
        super().__init__(state=(5,))

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        def smooth(a: Tensor) -> Tensor:
            return a.tanh() * 2 - a.sin()

        def steep(a: Tensor) -> Tensor:
            return 3 * a + a.exp()

        y = torch.cond(p.sum() > 0, smooth, steep, [x])
        self.state.add_(y)
        z = torch.cond(p.sum() > 0, steep, smooth, [x - self.state])
        return self.state - z

    def reset(self, x: Tensor) -> Tensor:
        self.state.copy_(x)
        return x + 1


class MethodWithoutState(Stateful):
    """`stateless` has no buffer, yet what it computes must not land on the other's state."""

    def __init__(self) -> None:
        super().__init__(state=(5,))

    def forward(self, x: Tensor) -> Tensor:
        self.state.sub_(x)
        return self.state * 3

    def stateless(self, x: Tensor) -> Tensor:
        return x.repeat(10).cos().exp() - 1


class IndexedCache(Stateful):
    """With the reinplace pass the cache is written in place."""

    def __init__(self) -> None:
        super().__init__(cache=(5, 2))

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        self.cache.index_put_((i,), x)
        return self.cache.sum(0)

    def reset(self, x: Tensor) -> Tensor:
        self.cache.copy_(x)
        return x - 1


SHARED_BUFFER = {
    "get_set": Case(
        GetSet,
        {"forward": (torch.randn(5),), "get": (), "set": (torch.randn(5),)},
        sequence=("set", "forward", "get", "forward", "get"),
        shared=("state",),
    ),
    "views_beside": Case(
        ViewsBeside,
        {"forward": (torch.randn(3, 2),), "reset": (torch.randn(3, 2),)},
        sequence=("reset", "forward", "forward", "reset", "forward"),
        shared=("state",),
    ),
    "branches_beside": Case(
        BranchesBeside,
        {"forward": (torch.randn(5), torch.ones(2)), "reset": (torch.randn(5),)},
        sequence=("reset", "forward", "forward", "reset", "forward"),
        shared=("state",),
    ),
    "method_without_state": Case(
        MethodWithoutState,
        {"forward": (torch.randn(5),), "stateless": (torch.randn(5),)},
        sequence=("forward", "stateless", "forward", "stateless", "forward"),
        shared=("state",),
    ),
    "indexed_cache": Case(
        IndexedCache,
        {"forward": (torch.randn(1, 2), torch.tensor([3])), "reset": (torch.randn(5, 2),)},
        {"run_reinplace_pass": True},
        sequence=("reset", "forward", "forward", "reset", "forward"),
        shared=("cache",),
    ),
}
