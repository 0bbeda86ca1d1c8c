# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""How close greedy and best fit come to the optimum on packing instances.

    PACKING=DIR python -m benchmarks.bench_packing

DIR holds CSV files in MiniMalloc's format (https://github.com/google/minimalloc): a row is a
buffer, with the first instant at which it is alive (lower), the first at which it is no longer
(upper), and its size.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from executorch.exir.memory_planning import best_fit, greedy
from executorch.exir.tensor import TensorSpec

from tools.liveness import Interval, peak_live_bytes

DIRECTORY = Path(
    os.environ.get("PACKING", Path(__file__).resolve().parents[2] / "shared" / "minimalloc")
)
"""Where the instances are; there need not be any."""
CAPACITY = 1_048_576
"""Bytes into which each of MiniMalloc's challenging instances is known to fit."""
EACH = 1.15
MEAN = 1.10
"""What an arena may be at most over the optimum: of any instance, and in the mean."""


@dataclass(frozen=True)
class Instance:
    """Buffers to pack, and the fewest bytes known to hold them."""

    name: str
    buffers: tuple[Interval, ...]
    capacity: int = CAPACITY

    @classmethod
    def read(cls, path: Path) -> Instance:
        with path.open(newline="", encoding="utf-8") as file:
            buffers = tuple(
                Interval(int(row["lower"]), int(row["upper"]) - 1, int(row["size"]))
                for row in csv.DictReader(file)
            )
        return cls(path.stem, buffers)

    def specs(self) -> list[TensorSpec]:
        specs = []
        for buffer in self.buffers:
            spec = TensorSpec(torch.uint8, torch.Size([buffer.bytes]))
            spec.lifetime = [buffer.first, buffer.last]
            specs.append(spec)
        return specs


@dataclass(frozen=True)
class PackingRow:
    """What an instance needs; bytes and CPU seconds."""

    name: str
    buffers: int
    capacity: int
    peak: int
    greedy: int
    first_pass: int
    arena: int
    seconds: float
    """Of best fit with its search."""

    def over(self, size: int) -> float:
        return size / self.capacity


def instances(directory: Path = DIRECTORY) -> list[Instance]:
    """The instances there, by name; none where there is no such directory."""
    return [Instance.read(path) for path in sorted(directory.glob("*.csv"))]


def long_graph(tensors: int) -> Instance:
    """64 tensors alive all the time, most of the others for a few nodes."""
    rng = random.Random(0)
    buffers = [Interval(0, tensors, 4 * rng.choice([16, 1024, 4096])) for _ in range(64)]
    for first in range(tensors - 64):
        life = rng.choices(
            [rng.randint(1, 4), rng.randint(5, 50), rng.randint(50, 2000)], [90, 9, 1]
        )[0]
        size = 4 * rng.choice([1, 16, 64, 256, 1024, 4096, 16384]) * rng.randint(1, 4)
        buffers.append(Interval(first, min(tensors, first + life), size))
    peak = peak_live_bytes(buffers).bytes
    return Instance(f"{tensors} tensors", tuple(buffers), peak)


def pack(instance: Instance, plan: Callable[..., Any], **options: int) -> tuple[int, float]:
    """The arena's bytes, and the CPU seconds that it took."""
    specs, graph_module = instance.specs(), torch.fx.GraphModule({}, torch.fx.Graph())
    # Greedy sorts by the sizes that it finds, before it aligns them.
    for spec in specs:
        spec.realign(1)
    started = time.process_time()
    result = plan(1, specs, graph_module, None, **options)
    return result.bufsizes[1], time.process_time() - started


def times(instance: Instance) -> str:
    """How long greedy takes, best fit's first pass, and best fit, in CPU seconds."""
    lines = [f"{instance.name}; arena over peak; CPU seconds"]
    for name, plan in {
        "greedy": greedy,
        "best fit, first pass": partial(best_fit, effort=0),
        "best fit": best_fit,
    }.items():
        arena, seconds = pack(instance, plan)
        lines.append(f"{name}: {arena / instance.capacity:.3f}; {seconds:.1f} s")
    return "\n".join(lines)


def measure(chosen: Iterable[Instance], effort: int = 1) -> Iterator[PackingRow]:
    """Pack each instance, with `effort` times the search that is the default."""
    for instance in chosen:
        arena, seconds = pack(instance, best_fit, effort=effort)
        yield PackingRow(
            name=instance.name,
            buffers=len(instance.buffers),
            capacity=instance.capacity,
            peak=peak_live_bytes(instance.buffers).bytes,
            greedy=pack(instance, greedy)[0],
            first_pass=pack(instance, best_fit, effort=0)[0],
            arena=arena,
            seconds=seconds,
        )


def table(rows: Iterable[PackingRow]) -> str:
    """The rows in Markdown."""
    lines = [
        "| instance | buffers | greedy | best fit, first pass | best fit | seconds |",
        "|---|---|---|---|---|---|",
    ]
    ratios = []
    for row in rows:
        ratios.append(row.over(row.arena))
        lines.append(
            f"| {row.name} | {row.buffers} | {row.over(row.greedy):.3f} "
            f"| {row.over(row.first_pass):.3f} | {row.over(row.arena):.3f} | {row.seconds:.2f} |"
        )
    mean = sum(ratios) / len(ratios)
    lines += [
        "",
        f"Largest {max(ratios):.3f} (target {EACH:.2f}), mean {mean:.3f} (target {MEAN:.2f}).",
    ]
    return "\n".join(lines)


def section(effort: int = 1, directory: Path = DIRECTORY) -> str:
    """The table for the benchmark's page, or what is missing for it."""
    found = instances(directory)
    if not found:
        return "No packing instances were measured: PACKING names no directory with CSV files."
    return table(measure(found, effort))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_packing")
    parser.add_argument("--effort", type=int, default=1, help="times the default search")
    parser.add_argument("--long", type=int, metavar="N", help="a graph of N tensors instead")
    options = parser.parse_args()
    print(times(long_graph(options.long)) if options.long else section(options.effort))
