# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""The demo on a short run, and what it does when something differs."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import executorch.exir
import pytest
import torch

from benchmarks.channel import Channel
from benchmarks.comparison import difference
from benchmarks.models import llama
from benchmarks.sides import Report
from demo import sharing
from demo.sharing import GENERATED, VOCABULARY, run_sharing
from demo.table import render, verdict
from tools.paths import ROOT

INSTALLED = Path(executorch.exir.__file__).parents[2]
"""The directory of the ExecuTorch that these tests import."""


def run_demo(stock: Path, patched: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "demo", f"--stock={stock}", f"--patched={patched}"]
    command += ["--model=silero-vad", "--steps=40"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def without_write_backs(directory: Path) -> Path:
    """An ExecuTorch made of links to the real one, save that it drops all write-backs."""
    module = Path("exir", "passes", "insert_write_back_for_buffers_pass.py")
    real, copy = INSTALLED / "executorch", directory / "executorch"
    for folder in (Path(), *reversed(module.parents[:-1])):
        (copy / folder).mkdir(parents=True)
        replaced = {module.name, *(p.name for p in module.parents[:-1])}
        for entry in (real / folder).iterdir():
            if entry.name not in replaced and entry.name != "__pycache__":
                (copy / folder / entry.name).symlink_to(entry)
    (copy / module).write_text(
        (real / module).read_text()
        + "\n\ndef _mutated_placeholders(graph, signature):\n"
        + "    return [None] * len(signature.output_specs)\n"
    )
    return directory


def test_short_run() -> None:
    done = run_demo(INSTALLED, INSTALLED)
    assert done.returncode == 0, done.stderr
    assert "40/40 and 40/40" in done.stdout
    assert "exporting" in done.stderr


def test_lost_state_is_found(tmp_path: Path) -> None:
    done = run_demo(INSTALLED, without_write_backs(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "DIFFERENT: Silero VAD on patched" in done.stdout
    assert "on stock" not in done.stdout.partition("DIFFERENT")[2]


def test_directory_without_executorch(tmp_path: Path) -> None:
    done = run_demo(tmp_path, INSTALLED)
    assert done.returncode == 2
    assert done.stderr.count("\n") < 5 and str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_worker_that_fails(tmp_path: Path) -> None:
    package = tmp_path / "executorch" / "exir"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('broken on purpose')")
    (package.parent / "version.py").write_text("__version__ = '0'")
    done = run_demo(INSTALLED, tmp_path)
    assert done.returncode == 1
    assert "patched failed:" in done.stderr and "broken on purpose" in done.stderr


def outcome(**changes: object) -> dict[str, object]:
    return {
        "model": "m",
        "arena": 100,
        "steps": 4,
        "equal": 4,
        "worst": 1e-6,
        "note": "",
        **changes,
    }


def report(side: str, *outcomes: dict[str, object]) -> Report:
    return Report(side, outcomes=list(outcomes))


def test_verdict() -> None:
    good = report("stock", outcome())
    assert verdict(good, report("patched", outcome(arena=60))) == []
    for bad in (
        outcome(equal=3, worst=0.5),
        outcome(arena=101),
        outcome(steps=0, equal=0),
    ):
        assert len(verdict(good, report("patched", bad))) == 1
        assert len(verdict(report("stock", {**bad, "arena": 100}), good)) == (
            0 if bad["arena"] == 101 else 1
        )


def test_table() -> None:
    text = render(report("stock", outcome()), report("patched", outcome(arena=60)))
    [row] = [line.split() for line in text.splitlines() if line.startswith("m ")]
    assert row == ["m", "100", "60", "0.600", "4/4", "and", "4/4", "1.0e-06"]


def test_caches_are_shared() -> None:
    model = llama(1, dim=16, heads=2, context=128, vocabulary=VOCABULARY)
    found = run_sharing(Channel(), "small", model, limit=None)
    assert (found.steps, found.equal) == (GENERATED, GENERATED)
    assert "arena-aware sharing was run" in found.note


def test_shared_arenas_are_as_large_as_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"decode": [50, 100], "prefill": [70]}
    monkeypatch.setattr(sharing, "arena_sizes", lambda program, name: sizes[name])
    program = SimpleNamespace(methods=set(sizes))
    assert sharing.arenas_of_program(program, shared=True) == [70, 100]
    assert sharing.arenas_of_program(program, shared=False) == [50, 100, 70]


@pytest.mark.parametrize(
    "actual",
    [torch.tensor([1.0, float("nan")]), torch.ones(3), torch.ones(2, dtype=torch.double)],
)
def test_what_can_not_be_compared_is_different(actual: torch.Tensor) -> None:
    assert difference(actual, torch.ones(2)) == float("inf")
    assert difference(torch.ones(2), torch.ones(2)) == 0.0
