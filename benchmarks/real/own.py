# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""A model of the user's own as a row: `python -m tools models path.py:make`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import seeded
from benchmarks.real.subject import CALLS, Call, Inputs, Row, Subject
from tools.plan.worker import load_function, methods_of

FAMILY = "your own"


def own_row(model: str) -> Row:
    """The row of FILE.py:FUNCTION.

    FUNCTION returns a module and example inputs, a module and {method: inputs}, or besides these,
    third, the calls of a session: pairs of a method and its inputs.
    """
    name, _, function = model.rpartition(":")
    path = Path(name).resolve()

    def build() -> Subject:
        with seeded():
            made = load_function(path, function)()
        calls: Any = None
        if isinstance(made, tuple) and len(made) == 3:
            *made, calls = made
            made = tuple(made)
        module, methods = methods_of(made, model)
        if calls is None:
            return Subject(module, drawn_calls(module, methods), methods)
        return Subject(module, [Call(method, tuple(inputs)) for method, inputs in calls], methods)

    return Row(f"{path.name}:{function}", FAMILY, build)


def drawn_calls(module: nn.Module, methods: dict[str, Inputs]) -> list[Call]:
    """Calls of all methods in turn. Floats are drawn anew; whole numbers may be positions or
    tokens, and stay."""
    calls: list[Call] = []
    while len(calls) < CALLS:
        for method, inputs in methods.items():
            with seeded(len(calls)):
                calls.append(Call(method, tuple(_drawn(value) for value in inputs)))
    return calls


def _drawn(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return torch.randn_like(value)
    return value
