# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""How a llama's step grows with its context, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import Times, bullets, markdown_table

STEP_MODELS = {
    f"llama 2x768, context {context}, XNNPACK": context
    for context in (256, 512, 1024, 2048, 4096, 8192)
}
"""The models whose steps are timed, and their contexts."""
CUSTOM_CACHE = "custom cache"
"""The side on stock whose llama writes its caches by `llama::update_cache`."""
TARGET_CONTEXT = 4096
OF_STOCK = 0.70
"""What a step at that context may take at most of stock's."""
OF_CUSTOM = 1.05
"""What a step may take at most of one with the custom operator, at every context."""


@dataclass(frozen=True)
class StepRow:
    """Milliseconds of a step at one context."""

    context: int
    stock: float
    patched: float
    custom: float

    def missed(self) -> Iterator[str]:
        """The targets that it doesn't meet."""
        if self.context == TARGET_CONTEXT and self.patched > OF_STOCK * self.stock:
            ratio = self.patched / self.stock
            yield f"context {self.context}: {ratio:.3f} of stock, target {OF_STOCK}"
        if self.patched > OF_CUSTOM * self.custom:
            ratio = self.patched / self.custom
            yield f"context {self.context}: {ratio:.3f} of the custom operator, target {OF_CUSTOM}"


def step_rows(times: Times) -> list[StepRow]:
    """The steps that all three sides have run."""
    found = []
    for model, context in STEP_MODELS.items():
        sides = times.get(model, {})
        if {"stock", "patched", CUSTOM_CACHE} <= set(sides):
            found.append(StepRow(context, sides["stock"], sides["patched"], sides[CUSTOM_CACHE]))
    return found


def steps_section(rows: Sequence[StepRow], picture: str) -> str:
    """The table, the picture, and which targets are met."""
    heads = ["context", "stock", "patched", "custom cache", "of stock", "of custom cache"]
    lines = [
        [
            str(row.context),
            *(f"{value:.3f}" for value in (row.stock, row.patched, row.custom)),
            f"{row.patched / row.stock:.3f}",
            f"{row.patched / row.custom:.3f}",
        ]
        for row in rows
    ]
    return f"""## Time of a step against the context

Median milliseconds of one token: two layers of 12 heads of 64, XNNPACK. *custom cache* is stock,
with the caches written by ExecuTorch's own operator for that, `llama::update_cache`.

{markdown_table(heads, lines)}

![Time of a step against the context]({picture})

Targets: at most {OF_STOCK} of stock at context {TARGET_CONTEXT}, and at most {OF_CUSTOM} of the
custom operator everywhere.
{bullets("All are met.", "Not met:", [text for row in rows for text in row.missed()])}
"""


def draw(rows: Sequence[StepRow], path: Path) -> None:
    """Draw the three curves into a PNG."""
    # Nothing else here needs it.
    from matplotlib.figure import Figure  # noqa: PLC0415

    contexts = [row.context for row in rows]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for label, values in {
        "stock": [row.stock for row in rows],
        "patched": [row.patched for row in rows],
        "stock with llama::update_cache": [row.custom for row in rows],
    }.items():
        axes.plot(contexts, values, marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(contexts, [str(context) for context in contexts])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("milliseconds a token")
    axes.set_title("llama, 2 layers of 12 x 64, XNNPACK")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, format="png", dpi=120)
