# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Measure stock and patched ExecuTorch, and write what came out as a page.

The exit code is 0 if nothing is wrong, 1 if a model is larger than on stock or returns something
else than eager, 2 if the benchmark can't be run. A target that isn't met is written down, no more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.results import models_section, page, rows
from benchmarks.sides import Failure, Progress, Side, add_side_options, run_sides, timed_progress
from benchmarks.write_back_results import Row as WriteBackRow
from benchmarks.write_back_results import write_back_section
from tools.paths import ROOT


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add_side_options(parser)
    parser.add_argument("--model", action="append", help="only this model; may be repeated")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "RESULTS.md",
        metavar="FILE",
        help="where to write (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def time_write_backs(options: argparse.Namespace, progress: Progress) -> list[WriteBackRow]:
    """Time the write-back pass, both sides' in one process that has nothing beside it."""
    command = [sys.executable, "-m", "benchmarks.bench_write_back", "--events"]
    command.append(f"--stock={options.stock.resolve()}")
    (report,) = run_sides([Side("patched", options.patched)], command, ROOT, progress)
    return [WriteBackRow(**outcome) for outcome in report.outcomes]


def packing_section(options: argparse.Namespace) -> str:
    """The packing instances, in a process where the patched package is what is imported."""
    table = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_packing"],
        env=Side("patched", options.patched).environment(ROOT),
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return f"## Packing instances\n\nArena over optimum; CPU seconds.\n\n{table.strip()}\n"


def main(arguments: list[str]) -> int:
    """Run the benchmark; returns the exit code."""
    options = parse(arguments)
    progress = timed_progress()
    chosen = [f"--model={name}" for name in options.model or ()]
    try:
        stock, patched = run_sides(
            [Side("stock", options.stock), Side("patched", options.patched)],
            [sys.executable, "-m", "benchmarks.worker", *chosen],
            ROOT,
            progress,
        )
        timed = None if options.model else time_write_backs(options, progress)
    except Failure as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return failure.exit_code
    found = rows(stock, patched)
    sections = [models_section(found)]
    if timed is not None:
        sections += [write_back_section(timed), packing_section(options)]
    text = page(stock, patched, sections)
    options.out.write_text(text, encoding="utf-8")
    print(text)
    faults = [fault for row in found for fault in row.faults()]
    print("\n".join(f"WRONG: {fault}" for fault in faults) or f"wrote {options.out}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
