"""Peak live bytes: what a memory plan can't do without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A stretch of memory and the nodes during which it holds something that is needed."""

    first: int
    """The first node, by its number in the graph."""
    last: int
    """The last node, itself included."""
    bytes: int
    """What the plan sets aside for it, alignment included."""


@dataclass(frozen=True)
class Peak:
    """The most bytes alive at any node, and the first node at which they are."""

    bytes: int
    node: int


def peak_live_bytes(intervals: Iterable[Interval]) -> Peak:
    """Find the node at which most bytes are alive.

    No planner needs fewer bytes for this order of nodes: all that is alive at one node
    lies somewhere, and nowhere twice. Give each storage once; a view, or a tensor that
    lies in another's storage, is part of that storage's interval.

    Args:
        intervals: The storages of one arena, in any order.

    Returns:
        The peak; zero bytes at node 0 where there is no interval.

    Raises:
        ValueError: An interval ends before it begins, or has a negative size.
    """
    changes: defaultdict[int, int] = defaultdict(int)
    for interval in intervals:
        if interval.first > interval.last or interval.bytes < 0:
            raise ValueError(f"not a live interval: {interval}")
        changes[interval.first] += interval.bytes
        changes[interval.last + 1] -= interval.bytes

    peak = Peak(bytes=0, node=0)
    alive = 0
    for node in sorted(changes):
        alive += changes[node]
        if alive > peak.bytes:
            peak = Peak(alive, node)
    return peak
