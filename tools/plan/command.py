"""`python -m tools plan`: ask each ExecuTorch in a process of its own, then draw."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools import versions
from tools.errors import UserError
from tools.paths import ROOT
from tools.plan import report
from tools.plan.data import Plan
from tools.plan.panels import rows
from tools.plan.text import ratio_text
from tools.shipping import upstream
from tools.tables import table


@dataclass(frozen=True)
class Trees:
    """The two ExecuTorchs: directories that hold `executorch/`."""

    stock: Path | None = None  # None for the one in the cache
    patched: Path | None = None  # None for the installed one
    has_stock: bool = True

    def by_side(self) -> list[tuple[str, Path | None]]:
        sides: list[tuple[str, Path | None]] = [("patched", _tree(self.patched))]
        if self.has_stock:
            stock = self.stock or upstream.unpacked(versions.DEFAULT)
            sides.insert(0, ("stock", _tree(stock)))
        return sides


def run(model: str, out: Path, png: Path | None, trees: Trees) -> None:
    """Draw the plans of a model, and print arena bytes over peak live bytes.

    Args:
        model: FILE.py:FUNCTION.
        out: The page to write.
        png: The picture to write.
        trees: Whose plans are drawn.

    Raises:
        UserError: The model, an ExecuTorch or a place to write to isn't there, or the
            model can't be lowered.
    """
    file, function = _model(model)
    pages: list[Path] = [path for path in (out, png) if path is not None]
    for path in pages:
        if not path.resolve().parent.is_dir():
            raise UserError(f"{path}: there is no such directory to write to")
    sides = trees.by_side()

    with ThreadPoolExecutor(max_workers=len(sides)) as pool:
        plans = list(pool.map(lambda tree: plan_with(file, function, *tree), sides))
    report(*plans, html=out, png=png)
    print(_numbers(plans))
    for path in pages:
        print(f"wrote {path}")


def plan_with(model: Path, function: str, side: str, tree: Path | None) -> Plan:
    """Lower `function` of the file `model` with the ExecuTorch in `tree`, and read the plan.

    Args:
        side: Names the plan: "stock" or "patched".
        tree: A directory that holds `executorch/`; None for the installed one.

    Raises:
        UserError: What the model returns can't be lowered; the message says why.
    """
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / "plan.json"
        command = [sys.executable, "-m", "tools.plan.worker", str(model), function]
        command += ["--cwd", str(Path.cwd()), "--label", side, "--json", str(written)]
        done = subprocess.run(
            command, check=False, cwd=ROOT, env=_environment(tree), capture_output=True, text=True
        )
        if done.returncode != 0:
            reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
            how = "" if done.returncode == 2 else f"the process ended with {done.returncode}: "
            raise UserError(f"{side}: {how}{reason}")
        for note in filter(None, map(str.strip, done.stdout.splitlines())):
            print(f"{side}: {note}")
        return Plan.from_json(written.read_text(encoding="utf-8"))


def _model(text: str) -> tuple[Path, str]:
    name, colon, function = text.rpartition(":")
    if not colon or not name or not function:
        raise UserError(f"{text!r}: expected FILE.py:FUNCTION, as in my_model.py:make")
    path = Path(name).resolve()
    if not path.is_file():
        raise UserError(f"{name}: no such file")
    return path, function


def _tree(path: Path | None) -> Path | None:
    if path is not None and not (path / "executorch" / "exir").is_dir():
        raise UserError(f"{path}: holds no ExecuTorch (expected executorch/exir in there)")
    return path and path.resolve()


def _environment(tree: Path | None) -> dict[str, str]:
    paths = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if tree is not None:
        paths.insert(0, str(tree))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _numbers(plans: Sequence[Plan]) -> str:
    lines = [
        (
            row.method,
            str(row.arena),
            panel.label,
            f"{panel.size:,}",
            f"{panel.peak.bytes:,}",
            ratio_text(panel.over_peak),
        )
        for row in rows(plans)
        for panel in filter(None, row.panels)
    ]
    return table(("method", "arena", "plan", "arena bytes", "peak live", "ratio"), lines, right=3)
