# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Layout of buffers that must have a place of their own in every method of a program.

A program is planned method by method, so that one buffer comes out of it with as many
places as there are methods that have it, and each method computes where another one
keeps its state. Here each buffer gets one place, which is then left alone by all. In
three phases, each of which only reads what the ones before have found: `lay_out_fronts`
lines the buffers up at the fronts of arenas, `plan_moves` finds out how a method makes
room for them, `apply_moves` writes offsets and the sizes of arenas.

It is assumed that the algorithm keeps such a buffer for all of its method, so that
nothing else ever lies where it was. Whether that is so, which buffers these are, and in
which arena each belongs is up to `memory_planning_pass`.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.tensor import TensorSpec
from torch.utils import _pytree as pytree


def align_up(value: int, alignment: int) -> int:
    """The least multiple of `alignment` that is not below `value`."""
    return -(-value // alignment) * alignment


def owner_of_placement(spec: TensorSpec) -> TensorSpec:
    """The spec that stores the placement: a view forwards its own to its base."""
    while isinstance(spec, _ViewSpec):
        spec = spec._base
    return spec


def resolve_inplace_root(spec: TensorSpec) -> TensorSpec:
    """The spec whose allocation holds `spec`'s bytes; itself, if it borrows none."""
    root = owner_of_placement(spec)
    while True:
        # Up to 1.4 a tensor could only borrow all of another's storage; the field's
        # old name now stands for "borrows at offset 0" and refuses other offsets.
        if hasattr(root, "storage_base"):
            base = root.storage_base
        else:
            base = root.inplace_base
        if base is None:
            return root
        root = owner_of_placement(base)


def iter_graph_modules(
    graph_module: torch.fx.GraphModule,
) -> Iterator[torch.fx.GraphModule]:
    """The graph and those of its control flow, however deep, each once.

    Delegates' own graphs are not among them: their backends plan those.
    """
    seen: Dict[torch.fx.GraphModule, None] = {graph_module: None}
    pending = [graph_module]
    while pending:
        current = pending.pop()
        yield current
        for node in current.graph.nodes:
            inner = node.op == "get_attr" and getattr(current, node.target, None)
            if isinstance(inner, torch.fx.GraphModule) and inner not in seen:
                seen[inner] = None
                pending.append(inner)


def iter_unique_specs(graph_module: torch.fx.GraphModule) -> Iterator[TensorSpec]:
    """Every spec with a placement of its own, each once, in the order of the graph.

    Control-flow graphs are included. Views are not: they have their base's placement.
    """
    seen: Dict[TensorSpec, None] = {}
    for module in iter_graph_modules(graph_module):
        for node in module.graph.nodes:
            for leaf in pytree.tree_leaves(node.meta.get("spec")):
                if not isinstance(leaf, TensorSpec):
                    continue
                spec = owner_of_placement(leaf)
                if spec not in seen:
                    seen[spec] = None
                    yield spec


def is_placed(spec: TensorSpec) -> bool:
    return spec.mem_id is not None and spec.mem_offset is not None


@dataclass(frozen=True, order=True)
class Slot:
    """A place in the program: that of a buffer, or of the state of one method.

    In the order in which they lie at a front: what methods share comes first.
    """

    # The number of the method whose state it is; -1 for what methods share.
    method: int
    name: str


@dataclass(frozen=True)
class MethodPlan:
    """What the algorithm has made of a method, as far as the layout needs to know it."""

    graph_module: torch.fx.GraphModule
    # In bytes; what the method's offsets have to be multiples of.
    alignment: int
    # In bytes; what has to follow the last tensor of an arena.
    padding: int
    # What the algorithm has planned of what goes to slots.
    planned: Mapping[Slot, TensorSpec]
    # What goes there though nothing has planned it, since the method only reads it.
    read: Sequence[Tuple[Slot, TensorSpec]]
    # The bytes at the front of each arena that are left free for slots already.
    fronts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """Bytes [start, end) of an arena, and the spec whose allocation they belong to."""

    start: int
    end: int
    root: Optional[TensorSpec]


@dataclass(frozen=True)
class Fronts:
    """Where buffers are: (arena, offset) and bytes by slot, bytes of fronts by arena."""

    places: Mapping[Slot, Tuple[int, int]]
    bytes: Mapping[int, int]
    nbytes: Mapping[Slot, int]


@dataclass(frozen=True)
class ArenaMove:
    """How an arena is laid out anew: a front is made free and gaps are closed.

    `closed[i]` counts the bytes of the gaps up to and including the one that starts
    at `gaps[i]`. A gap is where a shared buffer was, so nothing else ever lies in it;
    hence two tensors that didn't overlap still don't.
    """

    front: int
    gaps: Sequence[int]
    closed: Sequence[int]

    def moved(self, offset: int) -> int:
        """Where the byte at `offset` goes, if it isn't in a gap."""
        passed = bisect_left(self.gaps, offset)
        if not passed:
            return offset + self.front
        before = self.closed[passed - 2] if passed > 1 else 0
        # What has no bytes may be said to lie in a gap.
        start_of_gap = self.gaps[passed - 1] - before
        return self.front + max(offset - self.closed[passed - 1], start_of_gap)


def spans_by_arena(graph_module: torch.fx.GraphModule) -> Dict[int, List[Span]]:
    """The bytes that the plan gives to tensors, by arena, by where they start."""
    spans: Dict[int, List[Span]] = defaultdict(list)
    for spec in iter_unique_specs(graph_module):
        if is_placed(spec) and spec.nbytes() > 0:
            end = spec.mem_offset + spec.nbytes()
            root = resolve_inplace_root(spec)
            spans[spec.mem_id].append(Span(spec.mem_offset, end, root))
    for arena in spans.values():
        arena.sort(key=lambda span: span.start)
    return spans


def find_overlap(
    spans: Sequence[Span], shared: Iterable[TensorSpec]
) -> Optional[Tuple[Span, Span]]:
    """Two spans with bytes in common of which at least one is a shared buffer's.

    `spans` come by where they start, so the one that reaches furthest tells.
    """
    roots = frozenset(shared)
    furthest = furthest_shared = Span(0, 0, None)
    for span in spans:
        is_shared = span.root in roots
        rival = furthest if is_shared else furthest_shared
        if rival.end > span.start and rival.root is not span.root:
            return rival, span
        if span.end > furthest.end:
            furthest = span
        if is_shared and span.end > furthest_shared.end:
            furthest_shared = span
    return None


def find_gaps(
    spans: Sequence[Span],
    shared: Iterable[TensorSpec],
    alignment: int,
    arena_bytes: int,
) -> List[Tuple[int, int]]:
    """Start and bytes of what the shared buffers leave behind, in order.

    Closing a gap moves what lies behind by a multiple of `alignment`, all other
    offsets staying aligned. `spans` come by where they start.
    """
    roots = frozenset(shared)
    gaps: List[Tuple[int, int]] = []
    start, end = None, 0
    for span in (*spans, Span(arena_bytes, arena_bytes, None)):
        if span.root in roots:
            start = span.start if start is None else start
            end = max(end, span.end)
        elif start is not None:
            size = min(span.start, align_up(end, alignment)) - start
            gaps.append((start, size - size % alignment))
            start = None
    return gaps


def alignments_of(methods: Iterable[MethodPlan]) -> Dict[int, int]:
    """By arena, an alignment in bytes that does for all tensors of all methods there.

    An algorithm may align some arenas more strictly than the pass asks for.
    """
    alignments: Dict[int, int] = {}
    for method in methods:
        for spec in iter_unique_specs(method.graph_module):
            if is_placed(spec):
                known = alignments.get(spec.mem_id, method.alignment)
                alignments[spec.mem_id] = math.lcm(
                    known, method.alignment, spec.alignment
                )
    return alignments


def lay_out_fronts(
    specs: Mapping[Slot, TensorSpec],
    arenas: Mapping[Slot, int],
    alignments: Mapping[int, int],
) -> Fronts:
    """Line up buffers in the order of their slots, each in its arena."""
    places: Dict[Slot, Tuple[int, int]] = {}
    ends: Dict[int, int] = {}
    for slot, spec in sorted(specs.items()):
        arena = arenas[slot]
        offset = ends.get(arena, 0)
        places[slot] = (arena, offset)
        ends[arena] = align_up(offset + spec.nbytes(), alignments[arena])
    return Fronts(places, ends, {slot: spec.nbytes() for slot, spec in specs.items()})


def plan_moves(
    method: MethodPlan, fronts: Fronts, alignments: Mapping[int, int]
) -> Dict[int, ArenaMove]:
    """By arena, how the method makes room for the fronts."""
    spans = spans_by_arena(method.graph_module)
    sizes = method.graph_module.meta["non_const_buffer_sizes"]
    shared = method.planned.values()
    arenas = {*fronts.bytes, *method.fronts, *(spec.mem_id for spec in shared)}
    moves: Dict[int, ArenaMove] = {}
    for arena in sorted(arenas):
        if method.fronts:
            gaps = [(0, method.fronts.get(arena, 0))]
        else:
            size = sizes[arena] if arena < len(sizes) else 0
            gaps = find_gaps(spans.get(arena, []), shared, alignments[arena], size)
        moves[arena] = ArenaMove(
            front=fronts.bytes.get(arena, 0),
            gaps=[start for start, _ in gaps],
            closed=list(accumulate(size for _, size in gaps)),
        )
    return moves


def apply_moves(
    method: MethodPlan, fronts: Fronts, moves: Mapping[int, ArenaMove]
) -> MethodPlan:
    """Put the method's buffers on the fronts and all the rest behind."""
    held = [*method.planned.items(), *method.read]
    places = {spec: fronts.places[slot] for slot, spec in held if slot in fronts.places}
    moved: Dict[TensorSpec, Tuple[int, int]] = {}
    for spec in iter_unique_specs(method.graph_module):
        if spec in places or not is_placed(spec):
            continue
        root = resolve_inplace_root(spec)
        if root in places:
            arena, offset = places[root]
            moved[spec] = arena, offset + spec.mem_offset - root.mem_offset
        elif spec.mem_id in moves:
            moved[spec] = spec.mem_id, moves[spec.mem_id].moved(spec.mem_offset)
    sizes = method.graph_module.meta["non_const_buffer_sizes"]
    sizes_then = sizes_after(method, fronts, moves)
    for spec, (arena, offset) in {**moved, **places}.items():
        spec.mem_id, spec.mem_offset = arena, offset
    # The lists are changed in place. The emitter sees another module than this one,
    # and these lists are what the two have in common.
    for recorded in _recorded_sizes(method.graph_module):
        recorded[:] = _moved_sizes(recorded, moves)
    sizes[:] = sizes_then
    return replace(method, fronts=fronts.bytes)


def _recorded_sizes(graph_module: torch.fx.GraphModule) -> List[List[int]]:
    """All lists of sizes of arenas that the graph and its control flow have, each once."""
    recorded: Dict[int, List[int]] = {}
    for module in iter_graph_modules(graph_module):
        for sizes in (
            module.meta.get("non_const_buffer_sizes"),
            getattr(module, "input_mem_buffer_sizes", None),
        ):
            if sizes is not None:
                recorded[id(sizes)] = sizes
    return list(recorded.values())


def sizes_after(
    method: MethodPlan, fronts: Fronts, moves: Mapping[int, ArenaMove]
) -> List[int]:
    """The sizes of the method's arenas when `apply_moves` will have been called."""
    sizes = _moved_sizes(method.graph_module.meta["non_const_buffer_sizes"], moves)
    held = (*method.planned, *(slot for slot, _ in method.read))
    for arena in {fronts.places[slot][0] for slot in held if slot in fronts.places}:
        sizes.extend([0] * (arena + 1 - len(sizes)))
        sizes[arena] = max(sizes[arena], fronts.bytes[arena] + method.padding)
    # An arena that buffers have left for another one may be the last.
    while len(sizes) > 2 and sizes[-1] == 0 and len(sizes) - 1 in moves:
        sizes.pop()
    return sizes


def _moved_sizes(sizes: Sequence[int], moves: Mapping[int, ArenaMove]) -> List[int]:
    return [
        moves[arena].moved(size) if arena in moves and size > 0 else size
        for arena, size in enumerate(sizes)
    ]
