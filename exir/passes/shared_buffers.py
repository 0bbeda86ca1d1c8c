# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Layout of buffers that the methods of a program share.

A program is planned method by method, so that one buffer comes out of it with as many
places as there are methods that have it. Here it gets one, at the front of the arena
that it is in, which is then its own in every method. In three phases, each of which
only reads what the ones before have found: `lay_out_fronts` lines the buffers up,
`plan_moves` finds out how a method makes room for them, `apply_moves` writes offsets
and sizes of arenas.

It is assumed that the algorithm keeps a shared buffer for all of the method, so that
nothing else ever lies where the buffer was. Whether that is so, which buffers are to
be shared, and whether methods agree on them is up to `memory_planning_pass`.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import (
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

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


@dataclass(frozen=True)
class SharingMethod:
    """A method that is planned, as the whole program's layout needs to know it."""

    name: str
    graph_module: torch.fx.GraphModule
    # In bytes; what the method's offsets have to be multiples of.
    alignment: int
    # The declared buffers that it has, by FQN.
    shared: Mapping[str, TensorSpec]
    # FQNs of all the buffers that it has (an exported method also lists those that it
    # has no use for), of those that it uses, and of those that it writes.
    buffers: FrozenSet[str]
    used: FrozenSet[str]
    mutated: FrozenSet[str]

    def planned(self) -> Dict[str, TensorSpec]:
        """The declared buffers that the algorithm has planned in this method."""
        return {f: spec for f, spec in self.shared.items() if f in self.mutated}


@dataclass(frozen=True)
class Span:
    """Bytes [start, end) of an arena, and the spec whose allocation they belong to."""

    start: int
    end: int
    root: Optional[TensorSpec]


@dataclass(frozen=True)
class Fronts:
    """What the front of each arena holds: (arena, offset) by FQN, and bytes by arena."""

    places: Mapping[str, Tuple[int, int]]
    bytes: Mapping[int, int]


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
        return offset + self.front - (self.closed[passed - 1] if passed else 0)


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


def alignments_of(methods: Iterable[SharingMethod]) -> Dict[int, int]:
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
    specs: Mapping[str, TensorSpec], alignments: Mapping[int, int]
) -> Fronts:
    """Line up buffers in the order of their FQNs, each in the arena that it is in."""
    places: Dict[str, Tuple[int, int]] = {}
    ends: Dict[int, int] = {}
    for fqn, spec in sorted(specs.items()):
        offset = ends.get(spec.mem_id, 0)
        places[fqn] = (spec.mem_id, offset)
        ends[spec.mem_id] = align_up(offset + spec.nbytes(), alignments[spec.mem_id])
    return Fronts(places, ends)


def plan_moves(
    method: SharingMethod, fronts: Fronts, alignments: Mapping[int, int]
) -> Dict[int, ArenaMove]:
    """By arena, how the method makes room for the fronts."""
    spans = spans_by_arena(method.graph_module)
    sizes = method.graph_module.meta["non_const_buffer_sizes"]
    shared = method.planned().values()
    moves: Dict[int, ArenaMove] = {}
    for arena, front in fronts.bytes.items():
        size = sizes[arena] if arena < len(sizes) else 0
        gaps = find_gaps(spans.get(arena, []), shared, alignments[arena], size)
        moves[arena] = ArenaMove(
            front=front,
            gaps=[start for start, _ in gaps],
            closed=list(accumulate(size for _, size in gaps)),
        )
    return moves


def apply_moves(
    method: SharingMethod, fronts: Fronts, moves: Mapping[int, ArenaMove]
) -> None:
    """Put the method's shared buffers on the fronts and all the rest behind."""
    places = {
        spec: fronts.places[fqn]
        for fqn, spec in method.shared.items()
        if fqn in fronts.places
    }
    offsets: Dict[TensorSpec, int] = {}
    for spec in iter_unique_specs(method.graph_module):
        if spec in places or not is_placed(spec):
            continue
        root = resolve_inplace_root(spec)
        if root in places:
            offsets[spec] = places[root][1] + spec.mem_offset - root.mem_offset
        elif spec.mem_id in moves:
            offsets[spec] = moves[spec.mem_id].moved(spec.mem_offset)
    for spec, offset in offsets.items():
        spec.mem_offset = offset
    for spec, (arena, offset) in places.items():
        spec.mem_id, spec.mem_offset = arena, offset
    resize_arenas(method, moves, {arena for arena, _ in places.values()})


def resize_arenas(
    method: SharingMethod, moves: Mapping[int, ArenaMove], held: Iterable[int]
) -> None:
    """Let the recorded sizes follow the moves; arenas that are `held` have their front.

    The lists are changed in place. The emitter sees another module than this one, and
    these lists are what the two have in common.
    """
    recorded: Dict[int, List[int]] = {}
    for module in iter_graph_modules(method.graph_module):
        for sizes in (
            module.meta.get("non_const_buffer_sizes"),
            getattr(module, "input_mem_buffer_sizes", None),
        ):
            if sizes is not None:
                recorded[id(sizes)] = sizes
    for sizes in recorded.values():
        for arena, move in moves.items():
            if arena < len(sizes) and sizes[arena] > 0:
                sizes[arena] = move.moved(sizes[arena])
    sizes = method.graph_module.meta["non_const_buffer_sizes"]
    for arena in held:
        sizes.extend([0] * (arena + 1 - len(sizes)))
        sizes[arena] = max(sizes[arena], moves[arena].front)
