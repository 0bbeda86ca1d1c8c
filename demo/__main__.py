# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Run real models through stock and patched ExecuTorch, and compare them step by step.

Each side is a process of its own, since one process can import only one ExecuTorch. The table
goes to standard output, progress to standard error. The exit code is 0 if every step of every
model equals its reference on both sides and no arena grew, 1 if not, 2 if it can't be run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.sides import Failure, Side, add_side_options, run_sides, timed_progress
from demo import MODELS
from demo.table import render, verdict
from tools.paths import ROOT
from tools.plan import report
from tools.plan.data import Plan


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    add_side_options(parser)
    parser.add_argument(
        "--model", action="append", choices=MODELS, help="only this model; may be repeated"
    )
    parser.add_argument("--steps", type=_positive, help="end each model after so many steps")
    parser.add_argument(
        "--plan",
        type=Path,
        default=ROOT / "build" / "llama-plan.html",
        metavar="FILE",
        help="where to draw llama's memory plan (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def draw(plans: list[str], path: Path) -> None:
    """Draw memory plans side by side and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report(*map(Plan.from_json, plans), html=path)
    print(f"llama's memory plan, stock beside patched: {path}")


def main(arguments: list[str]) -> int:
    """Run the demo; returns the exit code."""
    options = parse(arguments)
    progress = timed_progress()
    extra = [f"--model={name}" for name in options.model or ()]
    if options.steps is not None:
        extra.append(f"--steps={options.steps}")

    try:
        stock, patched = run_sides(
            [Side("stock", options.stock), Side("patched", options.patched)],
            [sys.executable, "-m", "demo.worker", *extra],
            ROOT,
            progress,
        )
    except Failure as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return failure.exit_code
    print(render(stock, patched))
    if stock.plans and patched.plans:
        draw([*stock.plans, *patched.plans], options.plan)
    problems = verdict(stock, patched)
    print("\n".join(problems) if problems else "All steps equal their reference on both sides.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
