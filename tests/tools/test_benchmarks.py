# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""The benchmark on its smallest model, and what its page says."""

import subprocess
import sys
from pathlib import Path

import executorch.exir
import pytest
import torch

from benchmarks.call_times import Loaded, median_milliseconds
from benchmarks.lowering import arena_sizes, lower
from benchmarks.models import MODELS
from benchmarks.results import Row, models_section
from benchmarks.step_results import (
    CUSTOM_CACHE,
    STEP_MODELS,
    StepRow,
    draw,
    step_rows,
    steps_section,
)
from benchmarks.worker import differences, keep, mutable_bytes
from tools.paths import ROOT

INSTALLED = Path(executorch.exir.__file__).parents[2]


def row(model: str = "a model", **changes: object) -> Row:
    values = {"mutable": 10, "stock": 1000, "patched": 500, "peak": 500, "seconds": 1.25}
    return Row(model, **{**values, "wrong": {"stock": 0, "patched": 0}, **changes})  # type: ignore[arg-type]


def test_small_benchmark(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    command = [sys.executable, "-m", "benchmarks", f"--stock={INSTALLED}"]
    command += [f"--patched={INSTALLED}", "--model=streaming convolutions", f"--out={page}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line, calls = [x for x in page.read_text().splitlines() if x.startswith("| streaming")]
    # Left contexts of 2, 4, 8 and 16 samples of 32 channels, four bytes each.
    assert line.split("|")[2].strip() == "3,840"
    assert line.split("|")[5].strip() == "1.000"
    # Both sides are the same, and the call is timed on both.
    _, copied_stock, copied_patched, *milliseconds, ratio = calls.strip("| ").split(" | ")
    assert copied_stock == copied_patched
    assert [float(value) > 0 for value in (*milliseconds, ratio)] == [True] * 3


def test_wrong_results_are_counted() -> None:
    model = MODELS["streaming convolutions"]()
    program = lower(model)
    assert max(differences(model, program)) < 1e-4
    with torch.no_grad():
        model.module.layers[0].weight.add_(0.1)
    assert min(differences(model, program)) > 1e-4


def test_mutable_bytes_leave_constants_out() -> None:
    program = lower(MODELS["streaming convolutions"]())
    assert mutable_bytes(program) == 3840
    with pytest.raises(ValueError, match="no method 'backward'"):
        arena_sizes(program, "backward")


@pytest.mark.parametrize(
    ("found", "missed", "faults"),
    [
        (row(), 0, 0),
        (row(patched=1001, peak=1001), 1, 1),
        (row(wrong={"stock": 0, "patched": 2}), 0, 1),
        (row(wrong={"stock": 3, "patched": 0}), 0, 0),
        (row(refused={"stock": "error", "patched": "error"}), 0, 0),
        (row(refused={"patched": "error"}), 0, 1),
        (row(peak=499), 1, 0),
        (row("a model, XNNPACK", patched=564), 0, 0),
        (row("a model", patched=564), 1, 0),
        (row(copied={"stock": 8, "patched": 8}), 0, 0),
        (row(copied={"stock": 8, "patched": 9}), 0, 1),
        (row("GRU stack", copied={"stock": 8, "patched": 8}), 1, 0),
        (row("GRU stack", copied={"stock": 8, "patched": 0}), 0, 0),
        (row(milliseconds={"stock": 100.0, "patched": 102.0}), 0, 0),
        (row(milliseconds={"stock": 100.0, "patched": 103.0}), 1, 0),
        (row(milliseconds={"patched": 103.0}), 0, 0),
        (row("llama 16", patched=535, peak=535), 0, 0),
        (row("llama 16", patched=536, peak=536), 1, 0),
    ],
)
def test_targets(found: Row, missed: int, faults: int) -> None:
    assert (len(list(found.missed())), len(list(found.faults()))) == (missed, faults)


def test_page_says_what_is_not_met() -> None:
    assert "All are met." in models_section([row()])
    text = models_section([row(), row("llama 16", patched=700, peak=700)])
    assert "All are met." not in text
    assert "- llama 16: 0.7000 of stock, target 0.535" in text
    assert "Different from eager" not in text
    assert "refuses" not in text
    text = models_section([row("c", refused={"stock": "error 1", "patched": "error 1"})])
    assert "- c, on stock and patched: error 1" in text
    assert "- b: 1 calls on stock" in models_section([row("b", wrong={"stock": 1, "patched": 0})])


@pytest.mark.parametrize(
    ("step", "missed"),
    [
        (StepRow(4096, stock=100, patched=70, custom=70), []),
        (StepRow(4096, stock=100, patched=71, custom=70), ["of stock"]),
        (StepRow(2048, stock=100, patched=99, custom=99), []),
        (StepRow(2048, stock=100, patched=75, custom=70), ["of the custom operator"]),
        (StepRow(4096, stock=100, patched=99, custom=70), ["of stock", "of the custom operator"]),
    ],
)
def test_targets_of_a_step(step: StepRow, missed: list[str]) -> None:
    assert [words for text, words in zip(step.missed(), missed, strict=True) if words in text] == (
        missed
    )


def test_steps_are_those_that_all_sides_ran() -> None:
    first, second, *_ = STEP_MODELS
    times = {
        first: {"stock": 3.0, "patched": 2.0, CUSTOM_CACHE: 2.5},
        second: {"stock": 3.0, "patched": 2.0},
        "GRU stack": {"stock": 1.0, "patched": 1.0},
    }
    assert step_rows(times) == [StepRow(256, 3.0, 2.0, 2.5)]


def test_page_of_steps(tmp_path: Path) -> None:
    steps = [StepRow(256, 3.0, 2.0, 2.5), StepRow(512, 5.0, 3.0, 2.5)]
    text = steps_section(steps, "step.png")
    assert "| 256 | 3.000 | 2.000 | 2.500 | 0.667 | 0.800 |" in text
    assert "![Time of a step against the context](step.png)" in text
    assert "- context 512: 1.200 of the custom operator, target 1.05" in text
    draw(steps, tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_programs_take_turns(tmp_path: Path) -> None:
    model = MODELS["streaming convolutions"]()
    file = Path(keep(lower(model), tmp_path))
    assert file.parent == tmp_path
    # Programs of one file have states of their own, and outlive the garbage collector.
    first, second = Loaded(file), Loaded(file)
    inputs = list(model.call(0))
    [start] = (r.clone() for r in first.method.execute(inputs))
    [later] = (r.clone() for r in first.method.execute(inputs))
    assert not torch.equal(start, later)
    assert torch.equal(second.method.execute(inputs)[0], start)
    times = median_milliseconds(model, {"one": file, "other": file})
    assert set(times) == {"one", "other"}
    assert min(times.values()) > 0
