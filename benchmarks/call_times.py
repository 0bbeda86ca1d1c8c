# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Time the calls of several programs of one model, which take turns in one process.

The runtime is the same on all sides; what differs is the program. Taking turns, they meet the
same noise of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from executorch.runtime import Runtime

from benchmarks.channel import Channel
from benchmarks.models import MODELS, Model

ROUNDS = 200
"""Most rounds in which each program is called once."""
SECONDS = 4.0
"""No round begins later."""
FEWEST = 15
"""Rounds that there are in any case, the first of which isn't counted."""
POSITIONS = 100
"""Calls until the inputs begin anew; no context is shorter."""


class Loaded:
    """A program that is ready to be called. The method doesn't keep what it runs on alive."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.program = Runtime.get().load_program(self.data)
        method = self.program.load_method("forward")
        if method is None:
            raise ValueError(f"{path} has no method 'forward'")
        self.method = method


def median_milliseconds(model: Model, programs: Mapping[str, Path]) -> dict[str, float]:
    """The median time of a call of each program."""
    loaded = {side: Loaded(path) for side, path in programs.items()}
    times: dict[str, list[float]] = {side: [] for side in loaded}
    started = time.perf_counter()
    for number in range(ROUNDS):
        if number >= FEWEST and time.perf_counter() - started > SECONDS:
            break
        inputs = list(model.call(number % POSITIONS))
        # Each is the first of a round as often as the others.
        order = list(loaded)
        first = number % len(order)
        for side in order[first:] + order[:first]:
            before = time.perf_counter()
            loaded[side].method.execute(inputs)
            times[side].append(time.perf_counter() - before)
    return {side: 1000 * statistics.median(found[1:]) for side, found in times.items()}


def main(arguments: Sequence[str]) -> None:
    """Time what the file says, and report on standard output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.call_times", description=__doc__)
    parser.add_argument(
        "programs", type=Path, help="a JSON object: model to an object of side to program file"
    )
    parser.add_argument("--custom-cache", action="store_true", help="register llama::update_cache")
    options = parser.parse_args(arguments)
    channel = Channel()
    with contextlib.redirect_stdout(sys.stderr):
        channel.introduce()
        if options.custom_cache:
            importlib.import_module("executorch.extension.llm.custom_ops.custom_ops")
        for name, files in json.loads(options.programs.read_text()).items():
            channel.progress(f"calls of {name}")
            sides = {side: Path(file) for side, file in files.items()}
            channel.send(
                "times", model=name, milliseconds=median_milliseconds(MODELS[name](), sides)
            )


if __name__ == "__main__":
    main(sys.argv[1:])
