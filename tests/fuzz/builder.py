# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Turns steps, each a kind and a few numbers, into lines of a program.

A step reads as one line of Python (or a few), which is tried at once on real tensors: what eager
PyTorch refuses is left out, and what it accepts tells the shapes that the next steps choose from.
"""

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.program import INDEX, POSITION, QUANTIZATION, RING, Options, Program, TensorType

Numbers = tuple[int, int, int, int]
Step = Callable[["Builder", Numbers], list[str]]
STEPS: dict[str, tuple[int, Step]] = {}


def step(weight: int) -> Callable[[Step], Step]:
    """Register a kind of step, drawn `weight` times as often as one of weight 1; 0 is for what
    only some themes draw."""

    def register(function: Step) -> Step:
        STEPS[function.__name__] = (weight, function)
        return function

    return register


# --- bodies, run by hand --------------------------------------------------------------------


def _as_tuple(value: Any) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _check_alike(one: Any, other: Any) -> None:
    for a, b in zip(_as_tuple(one), _as_tuple(other), strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError("two bodies, or a carry before and after, differ in type")


def _cond(pred: Tensor, left: Any, right: Any, operands: Sequence[Tensor]) -> Any:
    results = left(*operands), right(*operands)
    _check_alike(*results)
    return results[0] if pred else results[1]


def _stacked(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], (tuple, list)):
        return tuple(torch.stack(parts) for parts in zip(*rows, strict=True))
    return torch.stack(rows)


def _mapped(body: Any, xs: Tensor, *operands: Any) -> Any:
    return _stacked([body(row, *operands) for row in xs])


def _scan(body: Any, carry: Tensor, xs: Tensor) -> Any:
    results = []
    for row in xs:
        after, result = body(carry, row)
        _check_alike(carry, after)
        carry = after
        results.append(result)
    return carry, _stacked(results)


# --- values ---------------------------------------------------------------------------------


def is_channels_last(t: Tensor) -> bool:
    return (
        t.dim() == 4
        and not t.is_contiguous()
        and t.is_contiguous(memory_format=torch.channels_last)
    )


def is_like(t: Tensor, other: Tensor) -> bool:
    """Whether one can take the other's place. Most kernels want one dim order of all."""
    return (
        t.shape == other.shape
        and t.dtype == other.dtype
        and is_channels_last(t) == is_channels_last(other)
    )


class Builder:
    """Turns steps into lines, keeping at hand what each name stands for."""

    def __init__(
        self,
        buffers: Iterable[TensorType],
        inputs: Iterable[TensorType],
        options: Options,
        mutate_inputs: bool,
    ) -> None:
        self.buffers = tuple(buffers)
        self.inputs = tuple(inputs)
        self.options = options
        self.mutate_inputs = mutate_inputs
        program = Program(self.buffers, self.inputs, (), ())
        self.names: dict[str, Any] = {
            "torch": torch,
            "self": SimpleNamespace(**{t.name: t.zeros() for t in self.buffers}),
            "cond": _cond,
            "mapped": _mapped,
            "scan": _scan,
        }
        exec(QUANTIZATION, self.names)
        self.names.update(zip((t.name for t in self.inputs), program.example(), strict=True))
        special = (INDEX, POSITION)
        self.user_inputs = [
            t.name for t in self.inputs if t.name not in special and not t.is_dynamic
        ]
        self.flowing = [t.name for t in self.inputs if t.is_dynamic]
        """Values whose number of rows is dynamic."""
        self.state = [f"self.{t.name}" for t in self.buffers if t.name != RING]
        self.values = [*self.user_inputs, *self.state]
        self.lines: list[str] = []

    def tensor(self, name: str) -> Tensor:
        value: Tensor = eval(name, self.names)
        return value

    def has(self, name: str) -> bool:
        return name in self.names or any(t.name == name for t in self.buffers)

    def is_written(self, name: str) -> bool:
        # Operators of ExecuTorch's own don't count in the version.
        by_custom = any(line.endswith(f", {name}, pos)") for line in self.lines)
        return by_custom or self.tensor(name)._version > 0

    def pick(self, number: int, among: Callable[[Tensor], bool] = lambda _: True) -> str | None:
        fitting = [name for name in self.values if among(self.tensor(name))]
        return fitting[-1 - number % len(fitting)] if fitting else None

    def need(self, number: int, among: Callable[[Tensor], bool] = lambda _: True) -> str:
        """As `pick`, for a step that can't do without."""
        name = self.pick(number, among)
        if name is None:
            raise LookupError("no value fits")
        return name

    def pick_like(self, number: int, name: str) -> str:
        like = self.tensor(name)
        return self.pick(number, lambda t: is_like(t, like)) or name

    def pick_target(self, number: int) -> str:
        """Something to write: a buffer, a value that is no input, or an input if it may be one."""
        targets = self.state
        if number % 3 == 0:
            targets = [v for v in self.values if v not in self.user_inputs]
        elif number % 3 == 1 and self.mutate_inputs:
            targets = self.user_inputs
        return targets[-1 - number // 3 % len(targets)]

    def new(self, further: int = 0) -> str:
        """A name that stands for nothing yet."""
        taken = (*self.values, *self.flowing)
        return f"v{sum(name.startswith('v') for name in taken) + further}"

    def add(self, kind: str, numbers: Numbers) -> None:
        before = self._writes_to_inputs()
        try:
            lines = STEPS[kind][1](self, numbers)
            for line in lines:
                exec(line, self.names)
        except (RuntimeError, TypeError, LookupError, ValueError):
            return
        if self._writes_to_inputs() > before and not self.mutate_inputs:
            return  # through a view of an input
        self.lines.extend(lines)
        for line in lines:
            self._remember(line)

    def _writes_to_inputs(self) -> int:
        return sum(self.tensor(t.name)._version for t in self.inputs)

    def _remember(self, line: str) -> None:
        names, equals, _ = line.partition(" = ")
        for name in names.split(", "):
            known = name in self.values or name in self.flowing
            if not equals or not name.isidentifier() or known:
                continue
            value = self.tensor(name)
            if not isinstance(value, Tensor) or not value.numel():
                continue
            (self.flowing if self._is_flowing(value) else self.values).append(name)

    def _is_flowing(self, value: Tensor) -> bool:
        """No other dimension has that many rows; see `ROWS`."""
        dynamic = [self.tensor(t.name).shape[0] for t in self.inputs if t.is_dynamic]
        return any(size in dynamic for size in value.shape)
