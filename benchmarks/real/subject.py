# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Real models: what a row of the page is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from benchmarks.models import seeded

Inputs = tuple[Any, ...]
CALLS = 12
"""Calls of a session, at least."""


@dataclass(frozen=True)
class Call:
    """One call of one method."""

    method: str
    inputs: Inputs


@dataclass(frozen=True)
class Subject:
    """A model, ready to be exported and run."""

    module: nn.Module
    calls: Sequence[Call]
    """A session from zeroed state: at least `CALLS` calls of all methods, with new inputs."""
    methods: Mapping[str, Inputs] = field(default_factory=dict)
    """Example inputs of each method, by default those of its first call."""
    strict: bool | None = None
    """How it exports; None tries non-strict export and then strict."""
    initialized: tuple[str, ...] = ()
    """Patterns for `InitializedMutableBufferPass`: this state doesn't start at zero."""
    dynamic_shapes: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-4
    """The largest difference from eager that is called equal, relative to the largest value."""

    def examples(self) -> dict[str, Inputs]:
        """Example inputs of each method."""
        found: dict[str, Inputs] = {}
        for call in self.calls:
            found.setdefault(call.method, call.inputs)
        return {**found, **self.methods}


@dataclass(frozen=True)
class Row:
    """A model of the page."""

    name: str
    family: str
    build: Callable[[], Subject]
    only: tuple[str, ...] = ()
    """The configurations to lower it in; all by default."""

    @property
    def configurations(self) -> tuple[str, ...]:
        return self.only or tuple(CONFIGURATIONS)


@dataclass(frozen=True)
class Configuration:
    """How a model is lowered."""

    reinplace: bool = False
    xnnpack: bool = False


CONFIGURATIONS: Mapping[str, Configuration] = {
    "default": Configuration(),
    "reinplace": Configuration(reinplace=True),
    "XNNPACK": Configuration(xnnpack=True),
    "XNNPACK, reinplace": Configuration(reinplace=True, xnnpack=True),
}


def session(method: str, make: Callable[[int], Inputs], count: int = CALLS) -> list[Call]:
    """`count` calls of one method; each draws from a seed of its own."""
    calls = []
    for number in range(count):
        with seeded(number):
            calls.append(Call(method, make(number)))
    return calls


def tensors(values: Any) -> list[Tensor]:
    """The tensors in what a method returns."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, (tuple, list)):
        return [tensor for value in values for tensor in tensors(value)]
    return []
