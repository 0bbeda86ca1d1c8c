"""The plan as a picture, for places that show no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tools.plan.data import KINDS, Plan
from tools.plan.panels import Box, Panel, Row, rows
from tools.plan.text import bytes_text, ratio_text, steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, as in page.css.
COLOURS = dict(
    zip(KINDS, ("#0072b2", "#56b4e9", "#009e73", "#d55e00", "#c2c5ca", "#cc79a7"), strict=True)
)
MARK = "#1b1e23"


def write(plans: Sequence[Plan], path: Path) -> None:
    """Write a PNG with a row of panels for each arena of each method."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    all_rows = rows(plans)
    tallest = max((row.bytes for row in all_rows), default=0)
    heights = [max(3.6 * row.bytes / tallest, 0.8) for row in all_rows]
    figure = Figure(
        figsize=(7.5 * len(plans), sum(heights) + 0.9 * len(heights) + 0.6), layout="constrained"
    )
    FigureCanvasAgg(figure)
    grid = figure.subplots(
        max(len(all_rows), 1),
        len(plans),
        squeeze=False,
        gridspec_kw={"height_ratios": heights or [1]},
    )
    for row, line, height in zip(all_rows, grid, heights, strict=False):
        ticks = steps(row.bytes, most=max(int(height * 2), 1), base=2)
        for plan, panel, axes in zip(plans, row.panels, line, strict=True):
            axes.set_yticks(ticks, [bytes_text(tick) for tick in ticks])
            _draw(axes, row, panel, plan.label)
    figure.legend(
        handles=[
            *(Patch(facecolor=COLOURS[kind], edgecolor=MARK, label=kind) for kind in KINDS),
            Line2D([], [], color=MARK, label="arena size"),
            Line2D([], [], color=MARK, linestyle="--", label="peak live bytes, and their node"),
        ],
        loc="outside lower center",
        ncols=4,
        frameon=False,
    )
    figure.savefig(path, format="png", dpi=120)


def _draw(axes: Axes, row: Row, panel: Panel | None, label: str) -> None:
    from matplotlib.collections import PolyCollection

    axes.set_xlim(0, row.nodes)
    axes.set_ylim(0, row.bytes * 1.02)
    axes.set_xlabel("node")
    axes.spines[["top", "right"]].set_visible(False)
    where = f"{label}: {row.method}, arena {row.arena}"
    if panel is None:
        axes.set_title(f"{where}: none", loc="left", fontsize=10)
        return
    corners = [_corners(box, row.nodes) for box in panel.boxes]
    colours = [COLOURS[box.tensor.kind] for box in panel.boxes]
    axes.add_collection(
        PolyCollection(corners, facecolors=colours, edgecolors=MARK, linewidths=0.2)
    )
    axes.axhline(panel.size, color=MARK, linewidth=1)
    ratio = ratio_text(panel.over_peak)
    axes.set_title(
        f"{where}\n{bytes_text(panel.size)}, {ratio} times the peak", loc="left", fontsize=10
    )
    if panel.peak_node:
        axes.axhline(panel.peak.bytes, color=MARK, linewidth=1, linestyle="--")
        axes.axvline(panel.peak.node + 0.5, color=MARK, linewidth=1, linestyle="--")


def _corners(box: Box, nodes: int) -> list[tuple[float, float]]:
    bottom, top = box.tensor.offset, box.tensor.offset + box.tensor.bytes
    # What lives for a node or two of thousands is seen all the same.
    width = max(box.end - box.start, nodes / 500)
    start = min(box.start, nodes - width)
    return [(start, bottom), (start + width, bottom), (start + width, top), (start, top)]
