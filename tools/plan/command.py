"""`python -m tools plan`: ask each ExecuTorch in a process of its own, then draw."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools import upstream, versions
from tools.errors import UserError
from tools.paths import ROOT
from tools.plan import report
from tools.plan.data import Plan
from tools.plan.panels import rows
from tools.plan.text import ratio_text


def run(args: argparse.Namespace) -> int:
    model, function = _model(args.model)
    pages: list[Path] = [path for path in (args.out, args.png) if path is not None]
    for path in pages:
        if not path.resolve().parent.is_dir():
            raise UserError(f"{path}: there is no such directory to write to")
    trees: list[tuple[str, Path | None]] = [("patched", _tree(args.patched))]
    if not args.no_stock:
        trees.insert(0, ("stock", _tree(args.stock or upstream.unpacked(versions.DEFAULT))))

    with ThreadPoolExecutor(max_workers=len(trees)) as pool:
        plans = list(pool.map(lambda tree: plan_with(model, function, *tree), trees))
    report(*plans, html=args.out, png=args.png)
    print(_numbers(plans))
    for path in pages:
        print(f"wrote {path}")
    return 0


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
    lines = [("method", "arena", "plan", "arena bytes", "peak live", "ratio")]
    for row in rows(plans):
        for panel in filter(None, row.panels):
            size, peak = f"{panel.size:,}", f"{panel.peak.bytes:,}"
            ratio = ratio_text(panel.over_peak)
            lines.append((row.method, str(row.arena), panel.label, size, peak, ratio))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
