# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Time the calls of two programs in turn: stock's and the patched one's.

Both run in this process. The runtime is the same library on both sides, so that what differs is
the program.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.runtime import Runtime

from benchmarks.channel import Channel

SECONDS = 1.0
"""About how long a pair of programs is timed."""
MOST, FEWEST = 40, 3
"""Sessions of each that are timed."""


class Loaded:
    """A program with all of its methods loaded."""

    def __init__(self, data: bytes, methods: Sequence[str]) -> None:
        # The program reads from these bytes for as long as it lives.
        self.data = data
        self.program = Runtime.get().load_program(data)
        self.methods: dict[str, Any] = {name: self.program.load_method(name) for name in methods}

    def seconds(self, method: str, inputs: Sequence[Any]) -> float:
        """Run one call; inputs are copied beforehand, since a method may write to them."""
        own = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        execute = self.methods[method].execute
        started = time.perf_counter()
        execute(own)
        return time.perf_counter() - started


def call_seconds(
    programs: Sequence[Loaded], calls: Sequence[tuple[str, Sequence[Any]]]
) -> list[float]:
    """Seconds of a call of each program: the mean over a session of each call's median."""
    taken: list[list[list[float]]] = [[[] for _ in calls] for _ in programs]
    started, sessions = time.perf_counter(), 0
    while sessions < MOST:
        for number, (method, inputs) in enumerate(calls):
            # Each goes first as often as the other.
            order = range(len(programs))
            for side in order if (sessions + number) % 2 else reversed(order):
                taken[side][number].append(programs[side].seconds(method, inputs))
        sessions += 1
        if sessions > FEWEST and time.perf_counter() - started > SECONDS:
            break
    # The first session warms the caches.
    return [statistics.fmean(statistics.median(t[1:]) for t in side) for side in taken]


def time_row(stock: Path, patched: Path, channel: Channel, row: str) -> None:
    """Time all configurations that both sides have a program of."""
    if not (stock / "calls.pt").is_file():
        return
    calls = torch.load(stock / "calls.pt")
    flat = [(method, torch.utils._pytree.tree_leaves(inputs)) for method, inputs in calls]
    methods = list(dict.fromkeys(method for method, _ in calls))
    for file in sorted(stock.glob("*.pte")):
        if not (patched / file.name).is_file():
            continue
        channel.progress(f"timing {row}, {file.stem}")
        with contextlib.suppress(RuntimeError):
            pair = [Loaded((side / file.name).read_bytes(), methods) for side in (stock, patched)]
            seconds = call_seconds(pair, flat)
            channel.send("time", row=row, configuration=file.stem, seconds=seconds)


def main(arguments: Sequence[str]) -> None:
    """Time rows, each with its directories of programs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real.timing", description=__doc__)
    parser.add_argument(
        "--row", nargs=3, action="append", default=[], metavar=("NAME", "STOCK", "PATCHED")
    )
    options = parser.parse_args(arguments)
    channel = Channel()
    with contextlib.redirect_stdout(sys.stderr):
        # Registers the kernels of operators that some programs call.
        with contextlib.suppress(ImportError):
            from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401
        with contextlib.suppress(ImportError):
            import executorch.kernels.quantized  # noqa: F401
        for name, stock, patched in options.row:
            time_row(Path(stock), Path(patched), channel, name)


if __name__ == "__main__":
    main(sys.argv[1:])
