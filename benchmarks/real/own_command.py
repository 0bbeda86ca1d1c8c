# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Run a model of the user's own through both sides, and print its rows."""

from __future__ import annotations

from pathlib import Path

from benchmarks.real.page import not_lowered_section, numbers, table, unseen
from benchmarks.real.run import Workers
from benchmarks.real.store import Described, fault
from benchmarks.sides import Side, timed_progress
from tools import versions
from tools.shipping import upstream


def run_own(model: str, stock: Path | None, patched: Path | None, packages: Path | None) -> int:
    """Print the rows of FILE.py:FUNCTION; returns 1 if the patched side is wrong."""
    workers = Workers(
        Side("stock", stock or upstream.unpacked(versions.DEFAULT)),
        Side("patched", patched),
        packages,
        timed_progress(),
    )
    # Its name and its configurations are known without importing it.
    file, _, function = model.rpartition(":")
    row = Described.own(f"{Path(file).name}:{function}")
    results = workers.measure([row], model)
    print(f"{row.name}\n\n{table(results, 'configuration')}")
    if any(result.side(side)["failed"] for result in results for side in ("stock", "patched")):
        print(f"\n{not_lowered_section(results)}")
    print(f"\n{numbers(results)}")
    for name in unseen(results):
        print(f"Note: no result of {name} depends on its state, so that a fault can't show.")
    wrong = [r for r in results if not r.right("patched") and r.patched["failed"] != "export"]
    for result in wrong:
        print(f"WRONG: {result.configuration}: {fault(result.patched)}")
    return 1 if wrong else 0
