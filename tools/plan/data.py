"""A memory plan as plain data: no torch, no ExecuTorch, and JSON both ways.

A stock and a patched ExecuTorch can't be imported into one interpreter, so each is asked
in a process of its own, and what they answer meets here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tools.liveness import Interval, Peak, peak_live_bytes

KINDS = ("shared buffer", "mutable buffer", "input", "output", "activation", "branch")


@dataclass(frozen=True)
class Tensor:
    """A piece of an arena, and what holds it.

    A view, or a tensor that lies in another's storage, has no piece of its own: it is
    named in the `aliases` of the tensor that it lies in.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    """What the plan sets aside, alignment included."""
    arena: int
    offset: int
    """Bytes from the arena's start."""
    first: int
    """The first node at which it is alive, by its number in its own graph."""
    last: int
    """The last node at which it is alive, itself included."""
    kind: str
    """One of `KINDS`."""
    operator: str
    """What produces it."""
    graph: int = 0
    """Its graph's position in `Method.graphs`."""
    buffer: str = ""
    """The buffer's fully qualified name, if it is one."""
    aliases: tuple[str, ...] = ()

    def lies_in(self, other: Tensor) -> bool:
        """Whether all of its memory is the other's."""
        return (
            self.arena == other.arena
            and self.offset >= other.offset
            and self.offset + self.bytes <= other.offset + other.bytes
        )


@dataclass(frozen=True)
class Graph:
    """The nodes of a method, or of a branch or loop body that one of its nodes calls."""

    name: str
    nodes: tuple[str, ...]
    """Their names; an allocation goes by the name of what it allocates for."""
    parent: int | None = None
    """The calling graph's position in `Method.graphs`; None for the method itself."""
    call: int = 0
    """The calling node's number in the parent."""
    part: int = 0
    """Which of the graphs that the node calls this is: 0 for a cond's true branch."""
    parts: int = 1
    """How many graphs the node calls."""


@dataclass(frozen=True)
class Method:
    """One method's plan.

    `graphs` begins with the method's own graph. A parent comes before its children.
    `arenas` maps an arena's number to its size in bytes.
    """

    name: str
    graphs: tuple[Graph, ...]
    arenas: dict[int, int]
    tensors: tuple[Tensor, ...]

    def peak(self, arena: int) -> Peak:
        """The peak of live bytes in an arena.

        A call to branches counts with what the hungriest of them needs: one of a cond's
        two runs, and a loop's body runs again in the same place. What a branch keeps in
        memory that its caller keeps, such as the caller's result, counts once.
        """
        return self._peak(arena, graph=0, kept=())

    def _peak(self, arena: int, graph: int, kept: tuple[Tensor, ...]) -> Peak:
        own = [
            tensor
            for tensor in self.tensors
            if (tensor.arena, tensor.graph) == (arena, graph)
            and not any(tensor.lies_in(other) for other in kept)
        ]
        calls: dict[int, int] = {}
        for position, child in enumerate(self.graphs):
            if child.parent == graph:
                alive = tuple(t for t in own if t.first <= child.call <= t.last)
                needs = self._peak(arena, position, kept + alive).bytes
                calls[child.call] = max(calls.get(child.call, 0), needs)
        return peak_live_bytes(
            [Interval(t.first, t.last, t.bytes) for t in own]
            + [Interval(node, node, needs) for node, needs in calls.items()]
        )


@dataclass(frozen=True)
class Plan:
    """The memory plan of a program, and which ExecuTorch made it."""

    label: str
    methods: tuple[Method, ...]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` wrote.

        Raises:
            ValueError: The text isn't JSON, or isn't a plan.
        """
        data = json.loads(text)
        try:
            return cls(data["label"], tuple(_method(method) for method in data["methods"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a memory plan: {error!r}") from error


def _method(data: dict[str, Any]) -> Method:
    return Method(
        name=data["name"],
        graphs=tuple(
            Graph(**{**graph, "nodes": tuple(graph["nodes"])}) for graph in data["graphs"]
        ),
        arenas={int(arena): size for arena, size in data["arenas"].items()},
        tensors=tuple(
            Tensor(**{**t, "shape": tuple(t["shape"]), "aliases": tuple(t["aliases"])})
            for t in data["tensors"]
        ),
    )


def with_shared(methods: Iterable[Method]) -> tuple[Method, ...]:
    """Mark the buffers that several methods hold in one place.

    A plan doesn't say what is shared. But methods that run in the same arenas share what
    they keep at the same arena, offset and size under the same name.
    """
    methods = tuple(methods)
    places: dict[str, list[tuple[int, int, int]]] = {}
    for method in methods:
        for tensor in method.tensors:
            if tensor.buffer:
                place = (tensor.arena, tensor.offset, tensor.bytes)
                places.setdefault(tensor.buffer, []).append(place)
    shared = {name for name, held in places.items() if len(held) > 1 and len(set(held)) == 1}
    return tuple(
        dataclasses.replace(
            method,
            tensors=tuple(
                dataclasses.replace(t, kind="shared buffer") if t.buffer in shared else t
                for t in method.tensors
            ),
        )
        for method in methods
    )
