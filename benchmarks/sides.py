# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Run one command with each of several ExecuTorch installations, at the same time."""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.shipping.upstream import stock
from tools.versions import DEFAULT


@dataclass(frozen=True)
class Side:
    """One installation: the directory that holds `executorch/`, or None for the one that this
    interpreter has installed."""

    name: str
    directory: Path | None

    def environment(self, root: Path) -> dict[str, str]:
        """The environment in which this side's `executorch` is what gets imported."""
        # PYTHONPATH comes before what is installed. The caller's own could hide either side.
        places = [root] if self.directory is None else [self.directory.resolve(), root]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
        # Two processes at a time; one thread each also adds up floats in the same order.
        return {**variables, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@dataclass
class Report:
    """What one side reported: the ExecuTorch it ran, and its results in order."""

    side: str
    executorch: str = "?"
    torch: str = "?"
    path: str = "?"
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)
    """Memory plans, as `tools.plan.data.Plan` writes them."""


class Failure(Exception):
    """A side couldn't be run."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


Progress = Callable[[str, str], None]


def add_side_options(parser: argparse.ArgumentParser) -> None:
    """`--stock` and `--patched`, as every program that compares the two takes them."""
    parser.add_argument(
        "--stock",
        type=Path,
        default=stock(DEFAULT),
        metavar="DIR",
        help="directory with the untouched executorch package (default: %(default)s)",
    )
    parser.add_argument(
        "--patched",
        type=Path,
        metavar="DIR",
        help="directory with a patched executorch package (default: the one that is installed)",
    )


def timed_progress() -> Progress:
    """Print progress on standard error with the seconds since now."""
    started = time.monotonic()

    def progress(side: str, text: str) -> None:
        seconds = time.monotonic() - started
        print(f"{seconds:5.0f} s  {side:7}  {text}", file=sys.stderr, flush=True)

    return progress


def _check(side: Side) -> None:
    if side.directory is None:
        return
    if not (side.directory / "executorch" / "exir").is_dir():
        raise Failure(
            f"{side.directory} (--{side.name}) holds no executorch package; "
            "`make demo` puts it in place",
            exit_code=2,
        )


def _tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _read(side: str, stream: Any, events: queue.Queue[tuple[str, str | None]]) -> None:
    for line in stream:
        events.put((side, line))
    events.put((side, None))


def _collect(
    sides: Sequence[Side], processes: dict[str, subprocess.Popen[str]], progress: Progress
) -> dict[str, Report]:
    """Read what all the processes print until they have ended, or one of them has failed."""
    events: queue.Queue[tuple[str, str | None]] = queue.Queue()
    for name, process in processes.items():
        arguments = (name, process.stdout, events)
        threading.Thread(target=_read, args=arguments, daemon=True).start()

    reports = {side.name: Report(side.name) for side in sides}
    running = len(processes)
    while running:
        name, line = events.get()
        if line is None:
            running -= 1
            if processes[name].wait() != 0:
                break
            continue
        event = json.loads(line)
        kind = event.pop("event")
        if kind == "progress":
            progress(name, event["text"])
        elif kind == "side":
            vars(reports[name]).update(event)
        elif kind == "plan":
            reports[name].plans.append(event["plan"])
        else:
            reports[name].outcomes.append(event)
    return reports


def run_sides(
    sides: Sequence[Side], command: Sequence[str], root: Path, progress: Progress
) -> list[Report]:
    """Run `command` once a side, all at the same time, from the directory `root`.

    The command prints JSON objects, one a line. What "event" says in them is "side" for which
    ExecuTorch it runs on, "progress" for what it is at, "plan" for a memory plan, and anything
    else for a result.

    Returns:
        A report for each side, in the order of `sides`.

    Raises:
        Failure: A directory isn't an installation (exit code 2), or a command failed (1).
    """
    for side in sides:
        _check(side)
    with tempfile.TemporaryDirectory() as directory:
        logs = {side.name: Path(directory, f"{side.name}.log") for side in sides}
        processes = {}
        try:
            for side in sides:
                progress(side.name, "starting")
                with logs[side.name].open("w") as log:
                    processes[side.name] = subprocess.Popen(
                        command,
                        cwd=root,
                        env=side.environment(root),
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                    )
            reports = _collect(sides, processes, progress)
            failed = [name for name, process in processes.items() if process.poll()]
            if failed:
                text = "\n".join(f"{name} failed:\n{_tail(logs[name])}" for name in failed)
                raise Failure(text, exit_code=1)
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.kill()
                process.wait()
    return [reports[side.name] for side in sides]
