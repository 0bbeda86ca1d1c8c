"""What to draw: boxes in nodes and bytes, on scales that make plans comparable.

Nothing here knows about pixels. The page and the picture both draw these panels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tools.liveness import Peak
from tools.plan.data import Method, Plan, Tensor


@dataclass(frozen=True)
class Box:
    """A tensor's rectangle: from `start` to `end` in nodes, both counted in the method's graph.

    A node is one wide. What a branch holds is squeezed into its calling node's width: the
    branches of a cond lie beside each other in there, since only one of them runs.
    """

    tensor: Tensor
    start: float
    end: float


@dataclass(frozen=True)
class Panel:
    """One arena of one method in one plan."""

    label: str
    method: str
    arena: int
    size: int
    peak: Peak
    peak_node: str
    """The name of the node at which the peak is; empty if nothing is alive."""
    nodes: int
    boxes: tuple[Box, ...]

    @property
    def over_peak(self) -> float | None:
        """Arena bytes over peak live bytes: 1.0 is the best that any planner can do."""
        return self.size / self.peak.bytes if self.peak.bytes else None


@dataclass(frozen=True)
class Row:
    """The same arena of the same method in each plan, or None where a plan hasn't got it."""

    method: str
    arena: int
    panels: tuple[Panel | None, ...]
    nodes: int
    """The width of every panel in the row."""
    bytes: int
    """The height of every panel in the row."""


def rows(plans: Sequence[Plan]) -> list[Row]:
    """Pair up the arenas of several plans, in the order of methods and arenas."""
    found: dict[tuple[str, int], list[Panel | None]] = {}
    for position, plan in enumerate(plans):
        for method in plan.methods:
            for arena in method.arenas:
                cells = found.setdefault((method.name, arena), [None] * len(plans))
                cells[position] = _panel(plan.label, method, arena)

    heights = {key: max(_height(panel) for panel in cells) for key, cells in found.items()}
    return [
        Row(
            method=method,
            arena=arena,
            panels=tuple(cells),
            nodes=max(panel.nodes for panel in cells if panel),
            bytes=heights[method, arena],
        )
        for (method, arena), cells in sorted(found.items(), key=lambda item: item[0])
        if heights[method, arena] > 0
    ]


def _height(panel: Panel | None) -> int:
    if panel is None:
        return 0
    tops = [box.tensor.offset + box.tensor.bytes for box in panel.boxes]
    # A broken plan may reach beyond its arena, and that should be seen.
    return max([panel.size, *tops])


def _panel(label: str, method: Method, arena: int) -> Panel:
    peak = method.peak(arena)
    widths = _graph_widths(method)
    boxes = []
    for tensor in method.tensors:
        if tensor.arena == arena:
            origin, unit = widths[tensor.graph]
            start, end = origin + unit * tensor.first, origin + unit * (tensor.last + 1)
            boxes.append(Box(tensor, start, end))
    return Panel(
        label=label,
        method=method.name,
        arena=arena,
        size=method.arenas[arena],
        peak=peak,
        peak_node=method.graphs[0].nodes[peak.node] if peak.bytes else "",
        nodes=len(method.graphs[0].nodes),
        boxes=tuple(boxes),
    )


def _graph_widths(method: Method) -> list[tuple[float, float]]:
    """Where each graph begins, and how wide its nodes are."""
    widths: list[tuple[float, float]] = []
    for graph in method.graphs:
        if graph.parent is None:
            widths.append((0.0, 1.0))
            continue
        origin, unit = widths[graph.parent]
        part = unit / graph.parts
        start = origin + unit * graph.call + part * graph.part
        widths.append((start, part / max(len(graph.nodes), 1)))
    return widths


def largest(plan: Plan, count: int = 10) -> list[tuple[str, Tensor]]:
    """The largest tensors of a plan, each with its method's name; ties in reading order.

    A shared buffer counts once, for the first method that has it.
    """
    found: dict[tuple[str, str], tuple[str, Tensor]] = {}
    for method in plan.methods:
        for position, tensor in enumerate(method.tensors):
            is_shared = tensor.kind == "shared buffer"
            key = ("", tensor.buffer) if is_shared else (method.name, str(position))
            found.setdefault(key, (method.name, tensor))
    return sorted(found.values(), key=lambda item: -item[1].bytes)[:count]
