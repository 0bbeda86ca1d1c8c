# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Two reports as one table, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.sides import Report
from tools.tables import table


def _pairs(stock: Report, patched: Report) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    yield from zip(stock.outcomes, patched.outcomes, strict=True)


def render(stock: Report, patched: Report) -> str:
    """The table: model, arena bytes on both sides, their ratio, and the steps that are equal."""
    rows = [("model", "arena stock", "arena patched", "ratio", "steps equal", "worst")]
    notes = []
    for before, after in _pairs(stock, patched):
        steps = [f"{side['equal']}/{side['steps']}" for side in (before, after)]
        rows.append(
            (
                before["model"],
                f"{before['arena']:,}",
                f"{after['arena']:,}",
                f"{after['arena'] / before['arena']:.3f}" if before["arena"] else "-",
                " and ".join(steps),
                f"{max(before['worst'], after['worst']):.1e}",
            )
        )
        if after["note"]:
            notes.append(f"{after['model']}: {after['note']}.")
    sides = [f"{s.side}: executorch {s.executorch} ({s.path})" for s in (stock, patched)]
    heading = "Arena bytes; steps equal to the reference on stock and on patched."
    return (
        "\n".join([*sides, "", heading, "", table(rows[0], rows[1:], right=1), "", *notes]) + "\n"
    )


def verdict(stock: Report, patched: Report) -> list[str]:
    """All that is wrong, a line each; nothing if all is well."""
    problems = []
    for report in (stock, patched):
        for outcome in report.outcomes:
            wrong = outcome["steps"] - outcome["equal"]
            if wrong or not outcome["steps"]:
                problems.append(
                    f"DIFFERENT: {outcome['model']} on {report.side}: {wrong} of "
                    f"{outcome['steps']} steps, by up to {outcome['worst']:.3g}"
                )
    for before, after in _pairs(stock, patched):
        if after["arena"] > before["arena"]:
            problems.append(
                f"LARGER: {after['model']} needs {after['arena']:,} bytes patched, "
                f"{before['arena']:,} stock"
            )
    return problems
