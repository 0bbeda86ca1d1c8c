# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""What is known of a row, kept from run to run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.paths import ROOT

CORE = (
    "benchmarks/comparison.py",
    "benchmarks/models.py",
    "benchmarks/state_bytes.py",
    "benchmarks/real/requirements.txt",
    "benchmarks/real/subject.py",
    "benchmarks/real/timing.py",
    "benchmarks/real/worker.py",
    "tools/lowering.py",
)
"""What decides how a row comes out, besides the ExecuTorch and the row's own file."""


CONFIGURATIONS = ("default", "reinplace", "XNNPACK", "XNNPACK, reinplace")
"""As `subject.CONFIGURATIONS` has them, for those who can't import torch."""


@dataclass(frozen=True)
class Described:
    """A row as the worker lists it."""

    name: str
    family: str
    configurations: tuple[str, ...]
    file: str
    """The file that builds the model."""

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Described:
        values = {**event, "configurations": tuple(event["configurations"])}
        return cls(**values)

    @classmethod
    def own(cls, name: str) -> Described:
        """The row of a model that isn't on the page."""
        return cls(name, "your own", CONFIGURATIONS, "")


@dataclass(frozen=True)
class Result:
    """A model in one configuration on both sides."""

    row: str
    family: str
    configuration: str
    stock: Mapping[str, Any]
    """A worker's `Outcome`."""
    patched: Mapping[str, Any]
    seconds: Sequence[float] = ()
    """Of a call, stock's and the patched one's; empty if either doesn't run."""

    @property
    def key(self) -> tuple[str, str]:
        return self.row, self.configuration

    def side(self, name: str) -> Mapping[str, Any]:
        return self.stock if name == "stock" else self.patched

    def right(self, side: str) -> bool:
        outcome = self.side(side)
        return not outcome["failed"] and not outcome["wrong"]

    def lowered(self, side: str) -> bool:
        return self.side(side)["arena"] > 0

    def both(self) -> bool:
        """Whether both sides made a program, so that sizes can be compared."""
        return self.lowered("stock") and self.lowered("patched")


def digest(parts: Iterable[bytes]) -> str:
    """A short name for contents."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]


def package_digest(package: Path) -> str:
    """Of the part of an ExecuTorch that lowers programs."""
    files = sorted((package / "exir").rglob("*.py"))
    return digest(
        part
        for file in files
        if "tests" not in file.parts
        for part in (str(file.relative_to(package)).encode(), file.read_bytes())
    )


def row_key(row: Described, packages: Sequence[str], root: Path = ROOT) -> str:
    """Names a row's results: they change if the ExecuTorchs or the sources do."""
    names = (*CORE, row.file)
    sources = [file.read_bytes() for name in names if (file := root / name).is_file()]
    return digest([row.name.encode(), *(p.encode() for p in packages), *sources])


class Kept:
    """Results in a directory, a file a row."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def load(self, key: str) -> list[Result] | None:
        file = self.directory / f"{key}.json"
        if not file.is_file():
            return None
        return [Result(**values) for values in json.loads(file.read_text(encoding="utf-8"))]

    def save(self, key: str, results: Sequence[Result]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        partial = self.directory / f"{key}.partial"
        partial.write_text(json.dumps([asdict(result) for result in results]), encoding="utf-8")
        partial.replace(self.directory / f"{key}.json")


def load_table(file: Path) -> list[Result]:
    """The results of the last run, as data."""
    if not file.is_file():
        return []
    return [Result(**values) for values in json.loads(file.read_text(encoding="utf-8"))["rows"]]


def save_table(file: Path, versions: Mapping[str, str], results: Sequence[Result]) -> None:
    """Keep the results as data, a line each."""
    lines = ",\n".join(json.dumps(asdict(result)) for result in results)
    text = f'{{"versions": {json.dumps(versions)},\n"rows": [\n{lines}\n]}}\n'
    file.write_text(text, encoding="utf-8")


def lost(before: Sequence[Result], now: Sequence[Result]) -> list[str]:
    """What was right and isn't any more, patched; or is right on stock only."""
    was_right = {result.key for result in before if result.right("patched")}
    found = []
    for result in now:
        if result.right("patched"):
            continue
        why = fault(result.patched)
        where = f"{result.row}, {result.configuration}"
        if result.right("stock"):
            found.append(f"{where}: right on stock, patched {why}")
        elif result.key in was_right:
            found.append(f"{where}: was right before, now {why}")
    return found


def fault(outcome: Mapping[str, Any]) -> str:
    """What is wrong with an outcome, in a few words."""
    if outcome["failed"]:
        return f"fails to {outcome['failed']}: {outcome['reason']}"
    return f"{outcome['wrong']} of {outcome['calls']} calls wrong"
