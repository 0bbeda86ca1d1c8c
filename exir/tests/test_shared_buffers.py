# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import List, Mapping, Optional, Sequence, Tuple

import torch
from executorch.exir.passes.shared_buffers import (
    alignments_of,
    apply_moves,
    ArenaMove,
    find_gaps,
    find_overlap,
    Fronts,
    iter_unique_specs,
    lay_out_fronts,
    MethodPlan,
    plan_moves,
    sizes_after,
    Slot,
    Span,
)
from executorch.exir.tensor import TensorSpec


def _at(offset: Optional[int], size: int, arena: int = 1) -> TensorSpec:
    spec = TensorSpec(torch.uint8, torch.Size([size]))
    spec.realign(16)
    if offset is not None:
        spec.mem_id, spec.mem_offset = arena, offset
    return spec


def _graph(sizes: List[int], *specs: TensorSpec) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    for number, spec in enumerate(specs):
        graph.placeholder(f"p{number}").meta["spec"] = spec
    graph.output(None)
    graph_module = torch.fx.GraphModule({}, graph)
    graph_module.meta["non_const_buffer_sizes"] = sizes
    return graph_module


def _shared(name: str) -> Slot:
    return Slot(-1, name)


def _plan(
    sizes: List[int],
    planned: Mapping[Slot, TensorSpec],
    *others: TensorSpec,
    read: Sequence[Tuple[Slot, TensorSpec]] = (),
    padding: int = 0,
) -> MethodPlan:
    graph_module = _graph(sizes, *planned.values(), *others, *(s for _, s in read))
    return MethodPlan(graph_module, 16, padding, planned, read)


def _fronts(arena: int, *slots: Tuple[Slot, int]) -> Fronts:
    """A front of one arena with buffers of so many bytes."""
    specs = {slot: _at(0, size, arena) for slot, size in slots}
    return lay_out_fronts(specs, dict.fromkeys(specs, arena), {arena: 16})


class TestLayout(unittest.TestCase):
    def lay_out(self, plan: MethodPlan, fronts: Fronts) -> MethodPlan:
        alignments = {**dict.fromkeys(fronts.bytes, 16), **alignments_of([plan])}
        moves = plan_moves(plan, fronts, alignments)
        foretold = sizes_after(plan, fronts, moves)
        moved = apply_moves(plan, fronts, moves)
        self.assertEqual(plan.graph_module.meta["non_const_buffer_sizes"], foretold)
        return moved

    def places(self, plan: MethodPlan) -> List[Tuple[int, int]]:
        specs = iter_unique_specs(plan.graph_module)
        return [(spec.mem_id, spec.mem_offset) for spec in specs]

    def test_order_of_slots(self) -> None:
        fronts = _fronts(2, (Slot(1, "a"), 4), (_shared("z"), 20), (_shared("b"), 16))
        self.assertEqual(
            fronts.places,
            {_shared("b"): (2, 0), _shared("z"): (2, 16), Slot(1, "a"): (2, 48)},
        )
        self.assertEqual(fronts.bytes, {2: 64})

    def test_front_and_gaps(self) -> None:
        # "a" lies between two others, "b" at the end.
        a, b = _at(32, 16), _at(80, 32)
        plan = _plan(
            [0, 112], {_shared("a"): a, _shared("b"): b}, _at(0, 32), _at(48, 32)
        )
        self.lay_out(plan, _fronts(1, (_shared("a"), 16), (_shared("b"), 32)))
        self.assertEqual(self.places(plan), [(1, 0), (1, 16), (1, 48), (1, 80)])
        self.assertEqual(plan.graph_module.meta["non_const_buffer_sizes"], [0, 112])

    def test_again_with_a_larger_front(self) -> None:
        plan = _plan([0, 64], {_shared("b"): _at(32, 32)}, _at(0, 32))
        fronts = _fronts(1, (_shared("b"), 32))
        plan = self.lay_out(plan, fronts)
        self.assertEqual(self.places(plan), [(1, 0), (1, 32)])
        plan = self.lay_out(plan, _fronts(1, (_shared("a"), 48), (_shared("b"), 32)))
        self.assertEqual(self.places(plan), [(1, 48), (1, 80)])
        self.assertEqual(plan.graph_module.meta["non_const_buffer_sizes"], [0, 112])
        self.lay_out(plan, fronts)
        self.assertEqual(self.places(plan), [(1, 0), (1, 32)])
        self.assertEqual(plan.graph_module.meta["non_const_buffer_sizes"], [0, 64])

    def test_an_arena_of_their_own(self) -> None:
        slot = _shared("a")
        plan = _plan([0, 96], {slot: _at(32, 32)}, _at(0, 32), _at(64, 32), padding=64)
        front = _fronts(3, (slot, 32))
        plan = self.lay_out(plan, front)
        self.assertEqual(self.places(plan), [(3, 0), (1, 0), (1, 32)])
        sizes = plan.graph_module.meta["non_const_buffer_sizes"]
        self.assertEqual(sizes, [0, 64, 0, 96])
        # It turns out that another method has an arena 3 for other things.
        self.lay_out(plan, _fronts(4, (slot, 32)))
        self.assertEqual(self.places(plan), [(4, 0), (1, 0), (1, 32)])

    def test_what_is_only_read_and_what_is_not_there(self) -> None:
        read = (_shared("a"), _at(None, 32))
        front = _fronts(1, read[:1] + (32,), (Slot(0, "other"), 16))
        reading = _plan([0, 16], {}, _at(0, 16), read=[read])
        self.lay_out(reading, front)
        self.assertEqual(self.places(reading), [(1, 48), (1, 0)])
        self.assertEqual(reading.graph_module.meta["non_const_buffer_sizes"], [0, 64])
        without = _plan([0, 16], {}, _at(0, 16))
        self.lay_out(without, front)
        self.assertEqual(self.places(without), [(1, 48)])
        empty = _plan([0, 0], {})
        self.lay_out(empty, front)
        self.assertEqual(empty.graph_module.meta["non_const_buffer_sizes"], [0, 0])

    def test_nothing_in_a_gap(self) -> None:
        # A tensor without bytes may be said to lie in the middle of a buffer.
        slot = _shared("a")
        plan = _plan([0, 96], {slot: _at(32, 64)}, _at(0, 32), _at(48, 0))
        self.lay_out(plan, _fronts(2, (slot, 64)))
        self.assertEqual(self.places(plan), [(2, 0), (1, 0), (1, 32)])

    def test_move(self) -> None:
        move = ArenaMove(front=16, gaps=[32, 96], closed=[32, 48])
        self.assertEqual(
            [move.moved(offset) for offset in (0, 32, 64, 96, 112)],
            [16, 48, 48, 80, 80],
        )

    def test_gaps_keep_the_alignment(self) -> None:
        shared, rest = _at(0, 20), _at(32, 16)
        spans = [Span(0, 20, shared), Span(32, 48, rest)]
        self.assertEqual(find_gaps(spans, [shared], 16, 48), [(0, 32)])
        self.assertEqual(find_gaps(spans, [shared], 64, 48), [(0, 0)])
        self.assertEqual(find_gaps(spans, [rest], 16, 48), [(32, 16)])

    def test_overlap(self) -> None:
        shared, other, third = _at(0, 64), _at(16, 16), _at(80, 16)
        spans = [Span(0, 64, shared), Span(16, 32, other), Span(80, 96, third)]
        self.assertEqual(find_overlap(spans, [shared]), (spans[0], spans[1]))
        self.assertEqual(find_overlap(spans, [other]), (spans[0], spans[1]))
        # What isn't shared may overlap as it will.
        self.assertIsNone(find_overlap(spans, [third]))
