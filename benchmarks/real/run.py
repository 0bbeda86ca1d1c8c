# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Run rows on both sides, at the same time, and time what they make in turn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.real.store import Described, Result
from benchmarks.sides import Failure, Progress, Side
from tools.paths import ROOT

FAILED: Mapping[str, Any] = {
    "strict": False,
    "state": 0,
    "arenas": {},
    "arena": 0,
    "copied": 0,
    "seconds": 0.0,
    "calls": 0,
    "wrong": 0,
    "worst": 0.0,
    "unseen": False,
}
"""The rest of an outcome that no worker lived to tell."""


@dataclass
class Versions:
    """What the sides said of themselves."""

    known: dict[str, str] = field(default_factory=dict)

    def note(self, side: str, event: Mapping[str, Any]) -> None:
        self.known[side] = event["executorch"]
        self.known["torch"] = event["torch"]


@dataclass(frozen=True)
class Workers:
    """Starts the processes in which an ExecuTorch is imported."""

    stock: Side
    patched: Side
    packages: Path | None
    """Directory with the packages that models come from."""
    progress: Progress
    versions: Versions = field(default_factory=Versions)

    def environment(self, side: Side) -> dict[str, str]:
        """A side's environment, with the packages behind it and no hub to ask."""
        variables = side.environment(ROOT)
        if self.packages is not None:
            path = [variables["PYTHONPATH"], str(self.packages.resolve())]
            variables["PYTHONPATH"] = os.pathsep.join(path)
        return {**variables, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

    def events(self, side: Side, command: Sequence[str]) -> Iterator[dict[str, Any]]:
        """What a process reports, until it ends.

        The last event is "ended", with its exit code and the last line of its standard error.
        """
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=self.environment(side),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            try:
                for line in process.stdout or ():
                    event = json.loads(line)
                    kind = event.get("event")
                    if kind == "progress":
                        self.progress(side.name, event["text"])
                    elif kind == "side":
                        self.versions.note(side.name, event)
                    else:
                        yield event
                code = process.wait()
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
            log.seek(0)
            said = [line.strip() for line in log.read().splitlines() if line.strip()]
            yield {"event": "ended", "code": code, "said": said[-1] if said else ""}

    def listed(self) -> list[Described]:
        """All rows of the page."""
        rows, failed = [], ""
        for event in self.events(self.patched, ["benchmarks.real.worker", "--list"]):
            if event["event"] == "row":
                rows.append(Described.of(event["row"]))
            elif event["event"] == "ended" and event["code"] != 0:
                failed = event["said"]
        if failed:
            raise Failure(f"the rows can't be listed: {failed}", exit_code=2)
        return rows

    def ask_versions(self) -> None:
        """Ask the sides that haven't run for their versions."""
        for side in (self.stock, self.patched):
            if side.name not in self.versions.known:
                for _ in self.events(side, ["benchmarks.real.worker"]):
                    pass

    def outcomes(
        self, side: Side, rows: Sequence[Described], keep: Path, model: str = ""
    ) -> dict[tuple[str, str], dict[str, Any]]:
        """Measure rows on one side. A process that dies is followed by another for the rest."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        wanted = [(row.name, configuration) for row in rows for configuration in row.configurations]
        while left := [key for key in wanted if key not in found]:
            command = ["benchmarks.real.worker", "--keep", str(keep)]
            command += [f"--model={model}"] if model else []
            for name, configuration in found:
                command += ["--skip", name, configuration]
            command += list(dict.fromkeys(name for name, _ in left))
            running, ended = left[0], {"code": 0, "said": ""}
            for event in self.events(side, command):
                kind = event.pop("event")
                if kind == "begin":
                    running = (event["row"], event["configuration"])
                elif kind == "outcome":
                    found[event["row"], event["configuration"]] = event
                elif kind == "ended":
                    ended = event
            if any(key not in found for key in left):
                key = running if running not in found else next(k for k in left if k not in found)
                found[key] = _died(key, ended)
        return found

    def seconds(
        self, rows: Sequence[Described], keep: Mapping[str, Path]
    ) -> dict[tuple[str, str], list[float]]:
        """Time the calls of the programs that both sides have kept, in turn."""
        command = ["benchmarks.real.timing"]
        for row in rows:
            places = [str(keep[side] / directory_name(row.name)) for side in ("stock", "patched")]
            command += ["--row", row.name, *places]
        return {
            (event["row"], event["configuration"]): event["seconds"]
            for event in self.events(self.patched, command)
            if event["event"] == "time"
        }

    def measure(self, rows: Sequence[Described], model: str = "") -> list[Result]:
        """Measure rows on both sides at the same time, then time what they made."""
        scratch = Path(tempfile.mkdtemp(prefix="models-"))
        try:
            keep = {side.name: scratch / side.name for side in (self.stock, self.patched)}
            with ThreadPoolExecutor(max_workers=2) as pool:
                stock, patched = pool.map(
                    lambda side: self.outcomes(side, rows, keep[side.name], model),
                    (self.stock, self.patched),
                )
            seconds = self.seconds(rows, keep)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return [
            Result(
                row=row.name,
                family=row.family,
                configuration=configuration,
                stock=stock[row.name, configuration],
                patched=patched[row.name, configuration],
                seconds=seconds.get((row.name, configuration), ()),
            )
            for row in rows
            for configuration in row.configurations
        ]


def _died(key: tuple[str, str], ended: Mapping[str, Any]) -> dict[str, Any]:
    row, configuration = key
    # A process that a signal ends has said nothing of it.
    said = f": {ended['said'][:120]}" if ended["code"] >= 0 else ""
    reason = f"the process ended with {ended['code']}{said}"
    return {
        "row": row,
        "configuration": configuration,
        **FAILED,
        "failed": "survive",
        "reason": reason,
    }


def directory_name(row: str) -> str:
    """A row's name as the name of a directory."""
    return "".join(c if c.isalnum() else "-" for c in row)


def in_chunks(
    workers: Workers,
    rows: Sequence[Described],
    size: int,
    jobs: int,
    done: Callable[[Sequence[Described], list[Result]], None],
) -> None:
    """Measure rows a few at a time, since starting a process takes long; report each few."""
    chunks = [rows[at : at + size] for at in range(0, len(rows), size)]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for chunk, results in zip(chunks, pool.map(workers.measure, chunks), strict=True):
            done(chunk, results)
