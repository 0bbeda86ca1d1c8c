# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""What timing the write-back pass gave, as a section of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.results import bullets

LLAMA = "llama 16"
MOST_OF_STOCK = 1.5
"""What the patched pass may take of stock's time, at every size."""
MOST_GROWTH = 6.0
"""What 1024 buffers may take of the time of 256."""


@dataclass(frozen=True)
class Row:
    """One program: its size, and the median CPU seconds of each pass."""

    program: str
    buffers: int
    nodes: int
    stock: float
    patched: float

    @property
    def ratio(self) -> float:
        return self.patched / self.stock


def growth(rows: Sequence[Row]) -> float:
    """The patched pass's time at 1024 buffers over that at 256."""
    by_size = {row.buffers: row.patched for row in rows if row.program != LLAMA}
    return by_size[1024] / by_size[256]


def faults(rows: Sequence[Row]) -> list[str]:
    """What falls short of the targets."""
    found = [
        f"{row.program}, {row.buffers} buffers: {row.ratio:.2f} times stock's time, "
        f"at most {MOST_OF_STOCK} is wanted"
        for row in rows
        if row.ratio > MOST_OF_STOCK
    ]
    if growth(rows) > MOST_GROWTH:
        found.append(
            f"1024 buffers take {growth(rows):.1f} times as long as 256, "
            f"at most {MOST_GROWTH:g} is wanted"
        )
    return found


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, times in milliseconds."""
    lines = ["| program | buffers | nodes | stock ms | patched ms | ratio |",
             "|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    for row in rows:
        lines.append(
            f"| {row.program} | {row.buffers} | {row.nodes} | {row.stock * 1e3:.1f} "
            f"| {row.patched * 1e3:.1f} | {row.ratio:.2f} |"
        )
    return "\n".join(lines)


def write_back_section(rows: Sequence[Row]) -> str:
    """The table, and whether the targets are met."""
    return "\n".join(
        [
            "## Time of the write-back pass",
            "",
            "Median CPU time of seven runs each, stock and patched in turn in one process.",
            "",
            table(rows),
            "",
            f"1024 buffers take {growth(rows):.1f} times as long as 256.",
            "",
            bullets(
                f"Every program takes at most {MOST_OF_STOCK} times stock's time, and four times "
                f"the buffers at most {MOST_GROWTH:g} times as long.",
                "Short of the target:",
                faults(rows),
            ),
            "",
        ]
    )
