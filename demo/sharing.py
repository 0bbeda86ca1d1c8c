# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""llama as two methods, `prefill` and `decode`, that have one key/value cache between them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from itertools import zip_longest

import torch
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
)
from executorch.exir.passes import MemoryPlanningPass
from executorch.runtime import Runtime
from torch import Tensor

from benchmarks.channel import Channel
from benchmarks.comparison import difference
from benchmarks.lowering import arena_sizes, export_model, to_edge
from benchmarks.models import LlamaStep, Lowering, Model, decoding_step, llama, seeded
from demo.outcome import Outcome, outcome

PROMPT = 64
"""Tokens that `prefill` takes."""
GENERATED = 32
VOCABULARY = 512

Step = Callable[[str, Tensor, Tensor], Tensor]
"""Calls a method with tokens and their positions; returns the last token's logits."""


def sharing_options(caches: list[str]) -> dict[str, dict[str, object]]:
    """What to tell the planner for each way to hold the caches that this ExecuTorch knows."""
    legacy: dict[str, object] = {"share_mutable_buffers": True}
    ways = {"private": {}, "legacy": legacy}
    if "shared_buffer_fqns" in inspect.signature(MemoryPlanningPass).parameters:
        ways["arena-aware"] = {**legacy, "shared_buffer_fqns": caches}
    return ways


def arenas_of_program(program: ExecutorchProgramManager, shared: bool) -> list[int]:
    """Bytes of each arena that a program needs.

    Methods that share state run in one set of arenas, each as large as the method that needs
    most of it asks for. Methods that don't have a set of their own each.
    """
    methods = [arena_sizes(program, name) for name in sorted(program.methods)]
    if shared:
        return [max(sizes) for sizes in zip_longest(*methods, fillvalue=0)]
    return [size for sizes in methods for size in sizes]


def prompt() -> Tensor:
    """The same 64 random tokens each time."""
    with seeded():
        return torch.randint(VOCABULARY, (1, PROMPT))


def generate(step: Step) -> Iterator[tuple[Tensor, Tensor]]:
    """Read the prompt, then go on with the likeliest token each time.

    Yields:
        The logits of each step and the token chosen; `GENERATED` times.
    """
    logits = step("prefill", prompt(), torch.arange(PROMPT))
    for position in range(PROMPT, PROMPT + GENERATED):
        token = logits.argmax(-1, keepdim=True)
        yield logits, token
        logits = step("decode", token, torch.tensor([position]))


def eager_step(model: LlamaStep) -> Step:
    """Steps of the eager module, on a copy with an empty cache."""
    model = copy.deepcopy(model)

    def step(method: str, tokens: Tensor, positions: Tensor) -> Tensor:
        with torch.no_grad():
            return model(tokens, positions)

    return step


def runtime_step(program: ExecutorchProgramManager) -> Step:
    """Steps of the lowered program, loaded once."""
    loaded = Runtime.get().load_program(program.buffer)

    def step(method: str, tokens: Tensor, positions: Tensor) -> Tensor:
        called = loaded.load_method(method)
        if called is None:
            raise RuntimeError(f"the program has no method {method!r}")
        return called.execute([tokens, positions])[0]

    return step


def lowered(edge: EdgeProgramManager, planning: dict[str, object]) -> ExecutorchProgramManager:
    """Lower a copy, since lowering changes what it is given."""
    config = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(**planning))
    return copy.deepcopy(edge).to_executorch(config)


def run_llama_methods(channel: Channel, limit: int | None) -> Outcome:
    """Generate 32 tokens after a prompt of 64, beside eager, with the caches shared."""
    model = llama(4, dim=256, heads=8, context=256, vocabulary=VOCABULARY)
    return run_sharing(channel, "llama 4x256, prefill and decode", model, limit)


def run_sharing(channel: Channel, name: str, model: LlamaStep, limit: int | None) -> Outcome:
    """Lower `model` in every way to hold its caches, and run the best that there is."""
    channel.progress(f"{name}: exporting")
    methods = {
        "prefill": Model(model, lambda _: (prompt(), torch.arange(PROMPT))),
        "decode": Model(model, decoding_step),
    }
    edge = to_edge({key: export_model(method) for key, method in methods.items()}, Lowering())

    caches = [fqn for fqn, _ in model.named_buffers() if fqn.endswith(("k_cache", "v_cache"))]
    arenas, programs = {}, {}
    for way, planning in sharing_options(caches).items():
        channel.progress(f"{name}: lowering, {way}")
        programs[way] = lowered(edge, planning)
        arenas[way] = arenas_of_program(programs[way], shared=way != "private")

    # The best way that this ExecuTorch knows is the last.
    way, program = list(programs.items())[-1]
    both = zip(generate(runtime_step(program)), generate(eager_step(model)), strict=True)
    differences = [
        difference(logits, expected) if torch.equal(token, wanted) else float("inf")
        for (logits, token), (expected, wanted) in channel.steps(name, list(both)[:limit])
    ]
    sizes = "; ".join(f"{w} {' + '.join(f'{n:,}' for n in a)}" for w, a in arenas.items())
    return outcome(name, sum(arenas[way]), differences, f"{way} sharing was run; arenas: {sizes}")
