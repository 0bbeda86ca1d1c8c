# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""One side of the demo: run the models through the ExecuTorch that this process imports.

What comes out is one JSON object a line on standard output: what ExecuTorch this is, what is
being done, and how each model did. Libraries that print are sent to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from dataclasses import asdict

import torch
from executorch.exir import ExecutorchProgramManager
from executorch.runtime import Method, Runtime

from benchmarks.channel import Channel
from benchmarks.comparison import difference
from benchmarks.lowering import arena_sizes, lower
from benchmarks.models import (
    CHUNK,
    SAMPLE_RATE,
    WIDE,
    Model,
    decoding_step,
    llama,
    noise,
    silero_vad,
    silero_weights,
)
from demo import MODELS, audio
from demo.outcome import Outcome, outcome
from demo.sharing import run_llama_methods
from tools.plan.extract import extract


def load(program: ExecutorchProgramManager) -> Method:
    """Load `forward` into the runtime."""
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    if method is None:
        raise RuntimeError("the program has no method 'forward'")
    return method


# --- the models -----------------------------------------------------------------------------


def run_silero_vad(channel: Channel, limit: int | None) -> Outcome:
    """Stream sound through Silero VAD, beside the original TorchScript model."""
    name = "Silero VAD"
    sound, speech = audio.synthesised(), audio.speech()
    if speech is not None:
        sound = torch.cat([sound, speech])

    channel.progress(f"{name}: exporting")
    program = lower(Model(silero_vad(), noise(1, CHUNK)))
    method = load(program)
    original = torch.jit.load(str(silero_weights()))

    differences, probabilities = [], []
    chunks = sound[: len(sound) // CHUNK * CHUNK].split(CHUNK)
    for chunk in channel.steps(name, chunks[:limit]):
        with torch.no_grad():
            expected = original(chunk[None], SAMPLE_RATE)
        actual = method.execute([chunk[None]])[0]
        differences.append(difference(actual, expected))
        probabilities.append(float(actual))

    note = f"probabilities from {min(probabilities):.3f} to {max(probabilities):.3f}"
    spoken = "with" if speech is not None else "without (espeak-ng is not installed)"
    arena = sum(arena_sizes(program))
    return outcome(name, arena, differences, f"{note}, {spoken} real speech")


def run_llama(channel: Channel, limit: int | None) -> Outcome:
    """Decode 16 tokens, each the likeliest after the one before, beside eager."""
    name = "llama 12x768, context 1024"
    channel.progress(f"{name}: building")
    eager = llama(12, **WIDE)
    channel.progress(f"{name}: exporting")
    program = lower(Model(eager, decoding_step))
    channel.send("plan", plan=extract(program, name).to_json())
    channel.progress(f"{name}: loading")
    method = load(program)

    differences = []
    token = torch.tensor([[1]])
    for position in channel.steps(name, torch.arange(16).split(1)[:limit]):
        with torch.no_grad():
            expected = eager(token, position)
        differences.append(difference(method.execute([token, position])[0], expected))
        token = expected.argmax(-1, keepdim=True)
    return outcome(name, sum(arena_sizes(program)), differences)


RUNS: dict[str, Callable[[Channel, int | None], Outcome]] = dict(
    zip(MODELS, [run_silero_vad, run_llama, run_llama_methods], strict=True)
)


# --- the process ----------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """Run the models asked for and report on standard output."""
    parser = argparse.ArgumentParser(prog="python -m demo.worker", description=__doc__)
    parser.add_argument("--model", action="append", choices=RUNS, dest="models")
    parser.add_argument("--steps", type=int, help="end each model after so many steps")
    options = parser.parse_args(arguments)

    channel = Channel()
    with contextlib.redirect_stdout(sys.stderr):
        channel.introduce()
        for model in options.models or RUNS:
            channel.send("outcome", **asdict(RUNS[model](channel, options.steps)))


if __name__ == "__main__":
    main(sys.argv[1:])
