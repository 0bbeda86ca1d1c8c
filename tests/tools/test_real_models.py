"""The page of real models: what is called right, wrong and lost; a row from end to end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.real.page import Summary, export_section, not_lowered_section, page, table
from benchmarks.real.picture import draw
from benchmarks.real.run import FAILED
from benchmarks.real.store import CONFIGURATIONS as NAMES
from benchmarks.real.store import Described, Kept, Result, load_table, lost, row_key, save_table
from benchmarks.real.subject import CONFIGURATIONS
from benchmarks.real.worker import at_once, relative_difference
from tools.lowering import ExportFailed, export_method
from tools.paths import ROOT


def outcome(**values: Any) -> dict[str, Any]:
    whole = {"row": "m", "configuration": "default", "failed": "", "reason": "", **FAILED}
    return {**whole, "state": 64, "arena": 1000, "calls": 12, "seconds": 1.0, **values}


def result(stock: dict[str, Any], patched: dict[str, Any], **values: Any) -> Result:
    whole: dict[str, Any] = {"row": "m", "family": "f", "configuration": "default"}
    return Result(**{**whole, "stock": stock, "patched": patched, **values})


RIGHT, WRONG = outcome(), outcome(wrong=3)
STOPS = outcome(failed="run", reason="RuntimeError: no")


def test_what_was_right_and_is_wrong_now_is_lost() -> None:
    before, now = [result(WRONG, RIGHT)], [result(WRONG, WRONG)]
    assert lost(before, now) == ["m, default: was right before, now 3 of 12 calls wrong"]
    assert lost(before, before) == []


def test_what_is_right_on_stock_only_is_lost_whatever_was_before() -> None:
    assert lost([], [result(RIGHT, WRONG)]) == [
        "m, default: right on stock, patched 3 of 12 calls wrong"
    ]
    assert lost([], [result(RIGHT, STOPS)]) == [
        "m, default: right on stock, patched fails to run: RuntimeError: no"
    ]


def test_what_neither_side_ever_ran_is_not_lost() -> None:
    assert lost([result(STOPS, STOPS)], [result(STOPS, STOPS)]) == []
    assert lost([], [result(WRONG, WRONG)]) == []


def test_another_configuration_of_the_same_model_is_another_result() -> None:
    before = [result(WRONG, RIGHT, configuration="reinplace")]
    assert lost(before, [result(WRONG, WRONG)]) == []


def test_the_summary_counts_and_takes_geometric_means() -> None:
    results = [
        result(RIGHT, outcome(arena=500, seconds=1.2), seconds=(1.0, 0.5)),
        result(WRONG, outcome(arena=2000, copied=0), seconds=(1.0, 2.0)),
        result(STOPS, outcome(failed="lower", arena=0)),
    ]
    summary = Summary.of(results)
    assert (summary.models, summary.families, summary.configurations) == (1, 1, 3)
    assert summary.compared == 2
    assert summary.wrong == {"stock": 1, "patched": 0}
    assert summary.arena_mean == pytest.approx(1.0)
    assert (summary.arena_best, summary.arena_worst) == (0.5, 2.0)
    assert summary.call_mean == pytest.approx(1.0)
    assert summary.export_worst == pytest.approx(1.2)


def test_the_table_says_who_is_wrong() -> None:
    cells = table([result(WRONG, RIGHT)]).splitlines()[-1].split("|")
    assert [cell.strip() for cell in cells[6:8]] == ["**wrong** (3/12)", "right"]


def test_a_row_that_is_not_lowered_says_why_and_on_which_side() -> None:
    both = result(
        outcome(failed="export", reason="X: y", arena=0),
        outcome(failed="export", reason="X: y", arena=0),
    )
    alone = result(outcome(failed="lower", reason="Z: w", arena=0), RIGHT, row="other")
    text = not_lowered_section([both, alone])
    assert "- m (default) fails to export on both sides: X: y" in text
    assert "- other (default) fails to lower on stock alone: Z: w" in text


def test_a_slow_export_is_named() -> None:
    slow = result(RIGHT, outcome(seconds=1.3))
    assert "m, default: 1.30" in export_section([slow])
    assert "All meet it" in export_section([result(RIGHT, outcome(seconds=1.05))])


def test_page_and_picture(tmp_path: Path) -> None:
    results = [
        result(WRONG, RIGHT, seconds=(2e-5, 1e-5)),
        result(RIGHT, outcome(arena=900), configuration="XNNPACK", seconds=(1e-5, 1e-5)),
    ]
    text = page(results, {"stock": "1", "patched": "2", "torch": "3"}, "p.png")
    assert "![Arena and time of a call, patched over stock](p.png)" in text
    assert re.findall(r"^## .*", text, flags=re.MULTILINE) == [
        "## Where stock is wrong",
        "## Where patched is wrong",
        "## default",
        "## XNNPACK",
        "## What doesn't run",
        "## Time of to_executorch",
    ]
    draw(results, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_results_are_kept_and_read(tmp_path: Path) -> None:
    results = [result(WRONG, RIGHT, seconds=[1.0, 2.0])]
    kept = Kept(tmp_path)
    assert kept.load("key") is None
    kept.save("key", results)
    assert kept.load("key") == results
    save_table(tmp_path / "t.json", {"torch": "1"}, results)
    assert load_table(tmp_path / "t.json") == results
    assert json.loads((tmp_path / "t.json").read_text())["versions"] == {"torch": "1"}


def test_a_row_is_measured_anew_when_what_decides_it_changes(tmp_path: Path) -> None:
    row = Described("m", "f", NAMES, "models.py")
    (tmp_path / "models.py").write_text("one")
    first = row_key(row, ["a", "b"], tmp_path)
    assert first == row_key(row, ["a", "b"], tmp_path)
    assert first != row_key(row, ["a", "c"], tmp_path)
    assert first != row_key(replace(row, name="n"), ["a", "b"], tmp_path)
    (tmp_path / "models.py").write_text("two")
    assert first != row_key(row, ["a", "b"], tmp_path)


def test_configurations_have_one_list_of_names() -> None:
    assert tuple(CONFIGURATIONS) == NAMES


def test_methods_that_share_arenas_need_the_largest_of_each() -> None:
    assert at_once({"a": [10, 5], "b": [3, 7], "c": [1]}) == 17


@pytest.mark.parametrize(
    ("got", "wanted", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2),
        ([float("nan")], [float("nan")], 0.0),
        ([float("nan")], [1.0], float("inf")),
        ([float("inf")], [float("inf")], 0.0),
        ([float("inf")], [1.0], float("inf")),
        ([30.0, float("inf")], [20.0, float("inf")], 0.5),
    ],
)
def test_differences_are_relative_to_the_largest_value(
    got: list[float], wanted: list[float], expected: float
) -> None:
    found = relative_difference([torch.tensor(got)], [torch.tensor(wanted)])
    assert found == pytest.approx(expected)


def test_another_shape_or_number_of_results_is_a_difference() -> None:
    one, two = torch.zeros(1), torch.zeros(2)
    assert relative_difference([one], [two]) == float("inf")
    assert relative_difference([one], [one, one]) == float("inf")


# --- export ---------------------------------------------------------------------------------


class StrictOnly(torch.nn.Module):
    """The tensor that it writes is a buffer by one name and an attribute of an object by another,
    as in caches of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = SimpleNamespace(seen=torch.zeros(3))
        self.register_buffer("seen", self.hidden.seen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden.seen[1:].add_(x[1:])
        return self.hidden.seen * 2


class Neither(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Plain(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


X = (torch.ones(3),)


def test_the_default_export_is_tried_first() -> None:
    exported = export_method(Plain(), "forward", X)
    assert not exported.strict
    assert exported.note("forward") == ""


def test_strict_export_is_tried_where_the_default_fails() -> None:
    module = StrictOnly()
    exported = export_method(module, "forward", X)
    assert exported.strict
    assert re.fullmatch(
        "forward: exported with strict=True; strict=False fails: ValueError: .* writes to "
        "slice_1, which it takes for a constant",
        exported.note("forward"),
    )
    functional = exported.program.run_decompositions({})
    assert list(functional.graph_signature.buffers_to_mutate.values()) == ["seen"]
    # The attempt that failed has left the module's own tensor where it was.
    assert module.seen is module.hidden.seen


def test_what_exports_neither_way_says_both_reasons() -> None:
    with pytest.raises(
        ExportFailed, match=r"^GuardOnDataDependent.*; with strict=True, "
    ) as raised:
        export_method(Neither(), "forward", X)
    assert "\n" not in str(raised.value)


# --- from end to end ------------------------------------------------------------------------

MODEL = """
import torch
from torch import nn


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("previous", torch.zeros(4))
        self.register_buffer("current", torch.zeros(4))

    def forward(self, x):
        y = x + self.previous + 2 * self.current
        self.previous.copy_(self.current)
        self.current.copy_(x)
        return y


def make():
    return Counter(), (torch.zeros(4),)
"""


def test_a_model_of_ones_own_on_both_sides(tmp_path: Path) -> None:
    """Stock loses `previous.copy_(current)`; patched doesn't, and the command says so."""
    (tmp_path / "mine.py").write_text(MODEL)
    done = subprocess.run(
        [sys.executable, "-m", "tools", "models", str(tmp_path / "mine.py:make")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    cells = {row.split("|")[1].strip(): [c.strip() for c in row.split("|")[6:8]] for row in rows}
    for name in NAMES:
        stock, patched = cells[name]
        assert stock.startswith("**wrong**"), name
        assert patched == "right", name
