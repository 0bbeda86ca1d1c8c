# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Measure stock and patched ExecuTorch, and write what came out as a page.

The exit code is 0 if nothing is wrong, 1 if a model is larger than on stock or returns something
else than eager, 2 if the benchmark can't be run. A target that isn't met is written down, no more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.results import Times, models_section, page, rows
from benchmarks.sides import (
    Failure,
    Progress,
    Report,
    Side,
    add_side_options,
    run_sides,
    timed_progress,
)
from benchmarks.step_results import CUSTOM_CACHE, STEP_MODELS, draw, step_rows, steps_section
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


def lower_models(
    options: argparse.Namespace, directory: Path, progress: Progress
) -> tuple[Report, Report, Report | None]:
    """Lower and run the models on both sides, and then on stock with its custom cache those
    whose steps are compared with that."""
    command = [sys.executable, "-m", "benchmarks.worker", f"--programs={directory}"]
    stock_side = Side("stock", options.stock)
    asked = [f"--model={name}" for name in options.model or ()]
    sides = [stock_side, Side("patched", options.patched)]
    stock, patched = run_sides(sides, [*command, *asked], ROOT, progress)
    steps = [row["model"] for row in patched.outcomes if row["model"] in STEP_MODELS]
    if not steps:
        return stock, patched, None
    custom_cache = [*command, "--custom-cache", *(f"--model={name}" for name in steps)]
    return stock, patched, run_sides([stock_side], custom_cache, ROOT, progress)[0]


def time_calls(
    options: argparse.Namespace, reports: Mapping[str, Report], directory: Path, progress: Progress
) -> Times:
    """Time the calls of what was lowered, all in one process that has nothing beside it."""
    programs: dict[str, dict[str, str]] = {}
    for side, report in reports.items():
        for outcome in report.outcomes:
            if not outcome["refused"]:
                programs.setdefault(outcome["model"], {})[side] = outcome["program"]
    listed = directory / "programs.json"
    listed.write_text(json.dumps(programs), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.call_times", str(listed)]
    command += ["--custom-cache"] if CUSTOM_CACHE in reports else []
    (report,) = run_sides([Side("patched", options.patched)], command, ROOT, progress)
    return {outcome["model"]: outcome["milliseconds"] for outcome in report.outcomes}


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
    try:
        with tempfile.TemporaryDirectory() as name:
            stock, patched, custom_cache = lower_models(options, Path(name), progress)
            reports = {"stock": stock, "patched": patched}
            if custom_cache is not None:
                reports[CUSTOM_CACHE] = custom_cache
            times = time_calls(options, reports, Path(name), progress)
        timed = None if options.model else time_write_backs(options, progress)
    except Failure as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return failure.exit_code
    found = rows(stock, patched, times)
    steps = step_rows(times)
    sections = [models_section(found)]
    if steps:
        picture = options.out.with_name("step_time.png")
        draw(steps, picture)
        sections.append(steps_section(steps, picture.name))
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
