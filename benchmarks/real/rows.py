# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""All rows of the page."""

from __future__ import annotations

from importlib import import_module

from benchmarks.real.subject import Row

MODULES = ("decoders", "seq2seq", "executorch_examples", "kyutai", "small")


def _all() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for module in MODULES:
        for row in import_module(f"benchmarks.real.{module}").ROWS:
            if row.name in rows:
                raise ValueError(f"two rows are called {row.name!r}")
            rows[row.name] = row
    return rows


ROWS = _all()
"""Name to row, in the order of the page."""
