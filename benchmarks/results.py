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
NO_COPIES = ("llama", "Whisper-like decoder", "GRU stack", "LSTM stack", "streaming convolutions")
"""How the names of the models begin whose state is to be written without a copy."""
SLOWER = 1.02
"""What a call may take at most of stock's."""

Times = Mapping[str, Mapping[str, float]]
"""Milliseconds of a call of each model on each side; a side that doesn't run it isn't there."""


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
    copied: Mapping[str, int] = field(default_factory=dict)
    """Bytes of state that a call copies, on each side."""
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    """The median time of a call, on the sides that run it."""

    @classmethod
    def of(
        cls,
        stock: Mapping[str, Any],
        patched: Mapping[str, Any],
        milliseconds: Mapping[str, float] | None = None,
    ) -> Row:
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
            copied={name: side["copied"] for name, side in sides.items()},
            milliseconds=milliseconds or {},
        )

    @property
    def slower(self) -> float | None:
        """The time of a call, patched over stock, if both run it."""
        if not {"stock", "patched"} <= set(self.milliseconds):
            return None
        return self.milliseconds["patched"] / self.milliseconds["stock"]

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
        if self.copied.get("patched", 0) > self.copied.get("stock", 0):
            yield f"{self.model}: copies {self.copied['patched']:,} bytes of state patched"

    def missed(self) -> Iterator[str]:
        """The targets that it doesn't meet."""
        target = SMALLER.get(self.model, 1.0)
        if self.ratio > target:
            yield f"{self.model}: {self.ratio:.4f} of stock, target {target}"
        if self.over_peak > OVER_PEAK:
            yield f"{self.model}: arena {self.over_peak:.4f} times its peak, target {OVER_PEAK}"
        if self.model.startswith(NO_COPIES) and self.copied.get("patched", 0) > 0:
            yield f"{self.model}: a call copies {self.copied['patched']:,} bytes of state, target 0"
        if self.slower is not None and self.slower > SLOWER:
            yield f"{self.model}: a call takes {self.slower:.3f} of stock's time, target {SLOWER}"


def rows(stock: Report, patched: Report, times: Times) -> list[Row]:
    """Join the reports, model by model."""
    return [
        Row.of(one, other, times.get(other["model"]))
        for one, other in zip(stock.outcomes, patched.outcomes, strict=True)
    ]


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rule, *lines])


def models_section(found: Sequence[Row]) -> str:
    """The models' table, and which targets it meets."""
    heads = ["model", "mutable bytes", "arena stock", "arena patched", "ratio"]
    heads += ["peak live bytes patched", "arena over peak", "export time ratio"]
    calls = ["model", "state bytes copied stock", "state bytes copied patched"]
    calls += ["ms a call stock", "ms a call patched", "time ratio"]
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
    call_lines = [
        [
            row.model,
            f"{row.copied.get('stock', 0):,}",
            f"{row.copied.get('patched', 0):,}",
            *(_milliseconds(row.milliseconds.get(side)) for side in ("stock", "patched")),
            "" if row.slower is None else f"{row.slower:.3f}",
        ]
        for row in found
    ]
    targets = "; ".join(f"{model} at most {most}" for model, most in SMALLER.items())
    return f"""## Models

Bytes of memory-planned arenas. All are ExecuTorch's own examples or plain stacks of `torch.nn`
layers (`benchmarks/models.py`). llama is ExecuTorch's example with a key/value cache, one token a
call: 4 and 16 layers have 4 heads of 16 and a context of 256; 12x768 has 12 heads of 64 and a
context of 1024; 2x768 is the same with 2 layers and the context that is named. The Whisper-like
decoder has the tiny Whisper's dimensions.

- *mutable bytes*: the buffers that the program changes.
- *peak live bytes*: the most bytes alive at any node, aligned as the plan aligns them. No planner
  can do with less for that order of nodes.
- *arena over peak*: without the {XNNPACK_PADDING} bytes that ExecuTorch adds where XNNPACK is.
- *export time ratio*: CPU time of export and lowering, patched over stock; the shortest of three
  runs, or one run if that takes more than 5 s.

{markdown_table(heads, lines)}

{markdown_table(calls, call_lines)}

- *state bytes copied*: by one call, of what the program changes: what a `copy_` writes, and what an
  operator moves only to bring it back (`benchmarks/state_bytes.py`).
- *ms a call*: median wall time in the runtime, stock and patched in turn in one process, with the
  threads that the runtime takes for itself.

{correctness(found)}

Targets: no model larger than stock; {targets}; arena over peak at most {OVER_PEAK}; no call
slower than {SLOWER} of stock's; no state copied by {", ".join(NO_COPIES)}.
{bullets("All are met.", "Not met:", [text for row in found for text in row.missed()])}
"""


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


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
