"""Run a recipe of examples/ in the runtime beside eager: `python -m tests.support.recipes NAME`.

In a process of its own, since the packages that some need aren't installed beside the tests.
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
from typing import Any

import torch
from executorch.runtime import Runtime
from torch import Tensor, nn

Calls = list[tuple[str, tuple[Any, ...]]]


def language_model() -> Calls:
    """A prompt, six tokens, and all of it again with others."""
    calls: Calls = []
    for part in range(2):
        prompt = torch.tensor([[5 + part, 3, 8, 1]])
        calls.append(("prefill", (prompt, torch.arange(4))))
        calls += [
            ("decode", (torch.tensor([[position + part]]), torch.tensor([position])))
            for position in range(4, 10)
        ]
    return calls


def transcriber() -> Calls:
    """Two recordings, each decoded six tokens far."""
    calls: Calls = []
    for part in range(2):
        torch.manual_seed(part)
        calls.append(("encode", (torch.randn(1, 8, 20),)))
        calls += [
            ("decode", (torch.tensor([[position + 9]]), torch.tensor([position])))
            for position in range(6)
        ]
    return calls


def codec() -> Calls:
    """Frames in both directions, with a reset in between."""
    calls: Calls = []
    for number in range(8):
        torch.manual_seed(number)
        calls.append(("encode", (torch.randn(1, 1, 32),)))
        calls.append(("decode", (torch.randint(0, 16, (1, 4)),)))
        if number == 3:
            calls.append(("reset", ()))
    return calls


SESSIONS = {"transformers_cache": language_model, "whisper": transcriber, "codec": codec}


def eager(module: nn.Module, calls: Calls) -> list[Tensor]:
    """What the module itself returns."""
    module = copy.deepcopy(module)
    with torch.no_grad():
        return [getattr(module, method)(*inputs).clone() for method, inputs in calls]


def without_state(module: nn.Module, calls: Calls) -> list[Tensor]:
    """What it would return if each call were the first."""
    return [eager(module, [call])[0] for call in calls]


def in_runtime(data: bytes, calls: Calls) -> list[Tensor]:
    """What the program returns; all methods are loaded before the first call."""
    program = Runtime.get().load_program(data)
    methods = {name: program.load_method(name) for name in dict.fromkeys(m for m, _ in calls)}
    return [methods[method].execute(list(inputs))[0].clone() for method, inputs in calls]


def distances(a: list[Tensor], b: list[Tensor]) -> list[float]:
    return [float((x.float() - y.float()).abs().max()) for x, y in zip(a, b, strict=True)]


def main(name: str) -> None:
    """Print the largest difference from eager, and how much the state matters."""
    recipe = importlib.import_module(f"examples.{name}")
    module, methods = recipe.make()
    calls = SESSIONS[name]()
    expected = eager(module, calls)
    forgotten = without_state(module, calls)
    program = recipe.lower(module, methods)
    found = in_runtime(program.buffer, calls)
    answer = {
        "worst": max(distances(found, expected)),
        "matters": max(distances(forgotten, expected)),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
