"""The plan as one HTML file: inline SVG, style and script, and nothing to fetch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tools.plan.data import KINDS, Plan, Tensor
from tools.plan.panels import Box, Panel, Row, largest, rows
from tools.plan.text import bytes_text, live_text, ratio_text, shape_text, steps

HERE = Path(__file__).parent

# Sizes in SVG units, which are pixels at full width.
LEFT, RIGHT, TOP, BOTTOM = 64, 10, 18, 20
PLOT_WIDTH, PLOT_HEIGHT, LEAST_HEIGHT = 620, 440, 60
CHARACTER, LINE = 6.1, 12
"""A character of the labels' 10-pixel monospace font is 6.02 wide, 5.5 in some fonts."""
NARROWEST, FLATTEST = 1.5, 0.6
"""What lives for a node or two of thousands is seen all the same."""


@dataclass(frozen=True)
class Rectangle:
    x: float
    y: float
    width: float
    height: float
    kind: int
    index: int
    """The tensor's position in the page's list."""
    text: str
    """Its name, if there is room for it."""


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Drawing:
    """A panel in SVG units."""

    panel: Panel
    height: float
    """Of the plot alone."""
    rectangles: list[Rectangle]
    node_ticks: list[Tick]
    byte_ticks: list[Tick]
    peak_x: float
    peak_y: float
    size_y: float


def write(plans: Sequence[Plan], path: Path) -> None:
    """Write the page that shows the plans side by side."""
    path.write_text(render(plans), encoding="utf-8")


def render(plans: Sequence[Plan]) -> str:
    tensors: list[dict[str, str]] = []
    all_rows = rows(plans)
    tallest = max((row.bytes for row in all_rows), default=0)
    drawn = []
    for row in all_rows:
        # One scale for all, except that nothing is squeezed until it can't be read.
        height = max(PLOT_HEIGHT * row.bytes / tallest, LEAST_HEIGHT)
        drawings = [panel and _draw(row, panel, height, tensors) for panel in row.panels]
        drawn.append((row, drawings))
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(bytes=bytes_text, ratio=ratio_text, shape=shape_text)
    return environment.get_template("page.html").render(
        plans=plans,
        rows=drawn,
        kinds=KINDS,
        largest=[(plan.label, largest(plan)) for plan in plans],
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup((HERE / "page.js").read_text(encoding="utf-8")),
        # Nothing in there may end the script element that it stands in.
        tensors=Markup(json.dumps(tensors).replace("<", "\\u003c")),
        left=LEFT,
        top=TOP,
        plot_width=PLOT_WIDTH,
        full_width=LEFT + PLOT_WIDTH + RIGHT,
        margins=TOP + BOTTOM,
    )


def _draw(row: Row, panel: Panel, height: float, tensors: list[dict[str, str]]) -> Drawing:
    per_node = PLOT_WIDTH / row.nodes
    per_byte = height / row.bytes

    def y(offset: float) -> float:
        return TOP + height - offset * per_byte

    rectangles = []
    for box in sorted(panel.boxes, key=lambda box: (box.start, box.tensor.offset)):
        rectangles.append(_rectangle(box, per_node, per_byte, TOP + height, len(tensors)))
        tensors.append(_hover(panel, box.tensor))
    return Drawing(
        panel=panel,
        height=height,
        rectangles=rectangles,
        node_ticks=[
            Tick(LEFT + (node + 0.5) * per_node, f"{node:,}")
            for node in steps(row.nodes - 1, most=8, base=10)
        ],
        byte_ticks=[
            Tick(y(offset), bytes_text(offset))
            for offset in steps(row.bytes, most=max(int(height / 30), 1), base=2)
        ],
        peak_x=LEFT + (panel.peak.node + 0.5) * per_node,
        peak_y=y(panel.peak.bytes),
        size_y=y(panel.size),
    )


def _rectangle(box: Box, per_node: float, per_byte: float, floor: float, index: int) -> Rectangle:
    tensor = box.tensor
    width = max((box.end - box.start) * per_node, NARROWEST)
    height = max(tensor.bytes * per_byte, FLATTEST)
    fits = height >= LINE and width >= len(tensor.name) * CHARACTER + 6
    return Rectangle(
        x=LEFT + min(box.start * per_node, PLOT_WIDTH - width),
        y=floor - (tensor.offset * per_byte) - height,
        width=width,
        height=height,
        kind=KINDS.index(tensor.kind),
        index=index,
        text=tensor.name if fits else "",
    )


def _hover(panel: Panel, tensor: Tensor) -> dict[str, str]:
    """What the page tells about a tensor, in the order in which it tells it."""
    told = {
        "name": tensor.name,
        "buffer": tensor.buffer,
        "kind": tensor.kind,
        "shape": f"{shape_text(tensor.shape)} {tensor.dtype}",
        "bytes": f"{tensor.bytes:,} at {tensor.offset:,} in arena {tensor.arena}",
        "live": live_text(tensor),
        "made by": tensor.operator,
        "same memory": ", ".join(tensor.aliases),
        "plan": f"{panel.label}, {panel.method}",
    }
    return {key: value for key, value in told.items() if value}
