# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""The results of real models as a picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.real.page import arena_ratio, call_ratio, is_wrong, mean
from benchmarks.real.store import Result

INK, PALE, WRONG = "#1f6f8b", "#c9d6df", "#c0392b"


def draw(results: Sequence[Result], file: Path) -> None:
    """Draw arena and time of a call, patched over stock, a bar a family.

    A family's bar is the mean of its models in their default configuration; a family of which
    stock runs a model wrong, in any configuration, has its name in red.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    families: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.configuration == "default" and result.both():
            families[result.family].append(result)
    wrong = {result.family for result in results if is_wrong(result, "stock")}

    def family_mean(family: str, ratio: Callable[[Result], float | None]) -> float:
        return mean([value for value in map(ratio, families[family]) if value])

    names = sorted(families, key=lambda family: family_mean(family, arena_ratio), reverse=True)
    figure, (left, right) = pyplot.subplots(
        1, 2, sharey=True, figsize=(10, 0.28 * len(names) + 1.6), layout="constrained"
    )
    measures = ((left, arena_ratio, "memory: arena"), (right, call_ratio, "time of a call"))
    for axes, ratio, title in measures:
        values = [family_mean(family, ratio) for family in names]
        axes.barh(names, [1.0] * len(names), color=PALE, label="stock")
        axes.barh(names, values, color=INK, height=0.5, label="patched")
        for position, value in enumerate(values):
            axes.text(max(value, 1.0) + 0.01, position, f"{value:.2f}", va="center", fontsize=8)
        axes.set_title(f"{title}, stock = 1", fontsize=10)
        axes.set_xlim(0, max([1.0, *values]) + 0.14)
        axes.spines[["top", "right"]].set_visible(False)
    for label in left.get_yticklabels():
        label.set_fontsize(8)
        if label.get_text() in wrong:
            label.set_color(WRONG)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower right", ncols=2, fontsize=8)
    figure.supxlabel("red: stock runs a model of this family wrong", fontsize=8, color=WRONG, x=0.2)
    figure.savefig(file, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
