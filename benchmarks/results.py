# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""The benchmark's results as a page, and what they fall short of."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.sides import Report

XNNPACK_PADDING = 64
"""Bytes that ExecuTorch adds to an arena when a method has an XNNPACK delegate."""
OVER_PEAK = 1.001
"""What an arena may be at most over its peak live bytes."""
SMALLER: Mapping[str, float] = {
    "llama 16": 0.535,
    "llama 4, XNNPACK": 0.59,
    "streaming convolutions": 0.72,
    "gated delta net": 0.84,
}
"""What an arena may be at most of stock's, where that is better than 1."""


@dataclass(frozen=True)
class Row:
    """One model on both sides; bytes and CPU seconds."""

    model: str
    mutable: int
    stock: int
    patched: int
    peak: int
    """Peak live bytes of the patched plan."""
    seconds: float
    """The export time's ratio, patched over stock."""
    wrong: Mapping[str, int]
    """Calls that differ from eager, on each side."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why the runtime runs nothing of it, on the sides where that is so."""

    @classmethod
    def of(cls, stock: Mapping[str, Any], patched: Mapping[str, Any]) -> Row:
        """Join what the two sides measured."""
        if stock["model"] != patched["model"]:
            raise ValueError(f"{stock['model']!r} is not {patched['model']!r}")
        sides = {"stock": stock, "patched": patched}
        return cls(
            model=patched["model"],
            mutable=patched["mutable"],
            stock=stock["arena"],
            patched=patched["arena"],
            peak=patched["peak"],
            seconds=patched["seconds"] / stock["seconds"],
            wrong={name: side["calls"] - side["equal"] for name, side in sides.items()},
            refused={name: side["refused"] for name, side in sides.items() if side["refused"]},
        )

    @property
    def ratio(self) -> float:
        return self.patched / self.stock

    @property
    def over_peak(self) -> float:
        padding = XNNPACK_PADDING if "XNNPACK" in self.model else 0
        return (self.patched - padding) / self.peak

    def faults(self) -> Iterator[str]:
        """What must not be: a wrong result, an arena larger than stock's."""
        if self.wrong["patched"]:
            yield f"{self.model}: {self.wrong['patched']} calls differ from eager"
        if "patched" in self.refused and "stock" not in self.refused:
            yield f"{self.model}: runs on stock only: {self.refused['patched']}"
        if self.patched > self.stock:
            yield f"{self.model}: {self.patched:,} bytes patched, {self.stock:,} stock"

    def missed(self) -> Iterator[str]:
        """The targets that it doesn't meet."""
        target = SMALLER.get(self.model, 1.0)
        if self.ratio > target:
            yield f"{self.model}: {self.ratio:.4f} of stock, target {target}"
        if self.over_peak > OVER_PEAK:
            yield f"{self.model}: arena {self.over_peak:.4f} times its peak, target {OVER_PEAK}"


def rows(stock: Report, patched: Report) -> list[Row]:
    """Join the reports, model by model."""
    return [Row.of(*pair) for pair in zip(stock.outcomes, patched.outcomes, strict=True)]


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rule, *lines])


def models_section(found: Sequence[Row]) -> str:
    """The models' table, and which targets it meets."""
    heads = ["model", "mutable bytes", "arena stock", "arena patched", "ratio"]
    heads += ["peak live bytes patched", "arena over peak", "export time ratio"]
    lines = [
        [
            row.model,
            f"{row.mutable:,}",
            f"{row.stock:,}",
            f"{row.patched:,}",
            f"{row.ratio:.3f}",
            f"{row.peak:,}",
            f"{row.over_peak:.4f}",
            f"{row.seconds:.2f}",
        ]
        for row in found
    ]
    targets = "; ".join(f"{model} at most {most}" for model, most in SMALLER.items())
    return f"""## Models

Bytes of memory-planned arenas. All are ExecuTorch's own examples or plain stacks of `torch.nn`
layers (`benchmarks/models.py`). llama is ExecuTorch's example with a key/value cache, one token a
call: 4 and 16 layers have 4 heads of 16 and a context of 256; 12x768 has 12 heads of 64 and a
context of 1024.

- *mutable bytes*: the buffers that the program changes.
- *peak live bytes*: the most bytes alive at any node, aligned as the plan aligns them. No planner
  can do with less for that order of nodes.
- *arena over peak*: without the {XNNPACK_PADDING} bytes that ExecuTorch adds where XNNPACK is.
- *export time ratio*: CPU time of export and lowering, patched over stock; the shortest of three
  runs, or one run if that takes more than 5 s.

{markdown_table(heads, lines)}

{correctness(found)}

Targets: no model larger than stock; {targets}; arena over peak at most {OVER_PEAK}.
{bullets("All are met.", "Not met:", [text for row in found for text in row.missed()])}
"""


def correctness(found: Sequence[Row]) -> str:
    """How many calls were compared with eager, which differed, and what didn't run."""
    different = [
        f"{row.model}: {count} calls on {side}"
        for row in found
        for side, count in row.wrong.items()
        if count
    ]
    not_run = [
        f"{row.model}, on {' and '.join(row.refused)}: {next(iter(row.refused.values()))}"
        for row in found
        if row.refused
    ]
    lead = "Every program was called 5 times in the runtime, stock and patched"
    text = bullets(
        f"{lead}, and each result equals eager's to 1e-4.",
        f"{lead}. Different from eager by more than 1e-4:",
        different,
    )
    if not_run:
        text += bullets("", "\n\nSave these, which the runtime refuses to run:", not_run)
        text += (
            "\n\nOn 1.5.1 the in-place `index_put_` wants values with as many dimensions as the "
            "cache has; with a\ndynamic shape the example writes its cache in a way that fits."
        )
    return text


def bullets(none: str, some: str, lines: Sequence[str]) -> str:
    """`none`, or `some` with the lines as a list below."""
    return "\n".join([some, "", *(f"- {line}" for line in lines)]) if lines else none


def page(stock: Report, patched: Report, sections: Sequence[str]) -> str:
    """The whole page: versions, then the sections."""
    return "\n".join(
        [
            "# Benchmark results",
            "",
            "Written by `make bench`; not edited by hand.",
            "",
            f"Stock is executorch {stock.executorch}, patched is executorch {patched.executorch}; "
            f"torch {patched.torch}, Python {platform.python_version()}, {platform.system()} "
            f"{platform.machine()}, one thread.",
            "",
            *sections,
        ]
    )
