# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Offsets in one arena for blocks of bytes that are needed for a time.

Blocks that are needed at one node mustn't share bytes; any others may, whatever their
sizes. To find the smallest arena is NP-hard (dynamic storage allocation: Garey and
Johnson, 1979, problem SR2). No arena is smaller than the most bytes needed at one node.

Two phases. First each block, the largest first, goes into the tightest gap that is free
for its whole life ("greedy by size" of Pisarchyk and Lee, "Efficient Memory Management
for Deep Neural Net Inference", 2020). Where the arena is then above that bound, a guided
ejection search lowers its top step by step (Nagata and Bräysy, "A powerful route
minimization heuristic for the vehicle routing problem with time windows", 2009). It ends
at the bound or after a count of comparisons, never by a clock, so that the same blocks
have the same offsets on any machine.

Tensors, their alignment, and storage that lies in other storage are elsewhere: see
best_fit in memory_planning.py. This module needs neither torch nor the rest of exir.
"""

import functools
import heapq
import itertools
import operator
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Sequence, Tuple


@dataclass(frozen=True)
class Block:
    """Bytes that keep one place in the arena while they are needed."""

    size: int
    # The first and the last node at which any of them is needed, both included.
    first: int
    last: int


def pack_blocks(blocks: Sequence[Block], effort: int = 1) -> List[int]:
    """Finds an offset in bytes for each of `blocks`, in their order.

    The larger blocks are placed first. Among blocks of one size, the order in which
    they are given counts. Offsets are sums of sizes, so they are multiples of whatever
    all sizes are multiples of. What is empty goes to 0.

    Args:
        blocks: The blocks of one arena.
        effort: How many times the default bound on comparisons the search may take.
            0 leaves the blocks where the first phase put them.
    """
    order = sorted(
        (i for i, block in enumerate(blocks) if block.size),
        key=lambda i: -blocks[i].size,
    )
    packer = _Packer([blocks[i] for i in order])
    packed = packer.lower(packer.best_fit(), peak_live_bytes(blocks), effort)
    offsets = [0] * len(blocks)
    for i, offset in zip(order, packed):
        offsets[i] = offset
    return offsets


def peak_live_bytes(blocks: Iterable[Block]) -> int:
    """The most bytes alive at one node: no packing of `blocks` needs fewer."""
    changes: Dict[int, int] = defaultdict(int)
    for block in blocks:
        changes[block.first] += block.size
        changes[block.last + 1] -= block.size
    alive = peak = 0
    for node in sorted(changes):
        alive += changes[node]
        peak = max(peak, alive)
    return peak


def _tightest_gap(size: int, taken: List[Tuple[int, int]]) -> int:
    """The start of the smallest gap of at least `size` bytes, or else where all ends.

    Args:
        taken: The bytes that are in use, as (start, end) in ascending order.
    """
    tightest, room = None, sys.maxsize
    free_from = 0
    for start, end in taken:
        if size <= start - free_from < room:
            tightest, room = free_from, start - free_from
        free_from = max(free_from, end)
    return free_from if tightest is None else tightest


# The bytes that a block is in, from start to end, and how hard it is to place.
_WeightedSpan = Tuple[int, int, int]


def _cheapest_place(
    size: int, limit: int, taken: List[_WeightedSpan]
) -> Tuple[int, int]:
    """Where `size` bytes below `limit` are in the way of the least weight.

    The lowest such place is at the bottom or on the end of something, so that only
    those are tried, in one walk upwards.

    Args:
        taken: What is in use, in any order.

    Returns:
        The offset, and the weight of all that overlaps it there; the lowest offset
        where several are equally good.
    """
    # In the way is what starts below the end of the place and doesn't end below it.
    by_start = sorted(taken)
    entered = place = weight_here = 0
    least = sys.maxsize
    for _, bottom, leaving in [(0, 0, 0), *sorted(taken, key=operator.itemgetter(1))]:
        if least == 0 or bottom + size > limit:
            break
        weight_here -= leaving
        while entered < len(taken) and by_start[entered][0] < bottom + size:
            weight_here += by_start[entered][2]
            entered += 1
        if weight_here < least:
            place, least = bottom, weight_here
    return place, least


# Every so many blocks, in the order in which they begin, is a checkpoint.
_CHECKPOINT_STRIDE = 64

# The search lowers the top by this part of what is above the floor, and from within that
# part of the floor it goes there at once: many small steps take more comparisons.
_STEP = 20
_NEAR = 50

# A block that has found no place this many times tries any place for once: two blocks
# may want the same place for ever.
_PATIENCE = 32

# To let a block sink takes about an eighth of what it takes to place it: nothing is sorted.
_PLACE_OVER_SINK = 8

# About 0.1 s for a few hundred tensors, and a few seconds for tens of thousands.
_COMPARISONS_PER_BLOCK = 500
_MAX_COMPARISONS = 5_000_000


class _OutOfComparisons(Exception):
    """The search has looked at as many pairs of blocks as it may."""


class _Budget:
    """Comparisons of two blocks that are left to a search.

    They are what the time of a search goes with. A count of placements isn't: next to
    thousands of others, one placement takes as long as hundreds elsewhere.
    """

    def __init__(self, comparisons: int) -> None:
        self.left = comparisons

    def spend(self, comparisons: int) -> None:
        self.left -= comparisons
        if self.left < 0:
            raise _OutOfComparisons()


class _Packer:
    """The two phases on blocks none of which is larger than the one before or empty.

    Blocks go by their position in `blocks`, and offsets are lists in that order.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self.sizes: List[int] = [block.size for block in self.blocks]
        self._by_first: List[int] = sorted(
            range(len(self.blocks)), key=lambda i: self.blocks[i].first
        )
        self._firsts: List[int] = [self.blocks[i].first for i in self._by_first]
        self._alive: List[List[int]] = self._alive_at_checkpoints()
        lasts = sorted(block.last for block in self.blocks)
        # Each counts itself, too, so that none is 0.
        self.conflict_counts: List[int] = [
            bisect_right(self._firsts, block.last) - bisect_left(lasts, block.first)
            for block in self.blocks
        ]
        # Bounded, since in a graph of long lives nearly all blocks conflict.
        self.conflicts = functools.lru_cache(maxsize=1024)(self._find_conflicts)

    def _alive_at_checkpoints(self) -> List[List[int]]:
        """The blocks already alive when the block of each checkpoint begins."""
        checkpoints: List[List[int]] = []
        alive: List[int] = []
        for begun in range(0, len(self.blocks), _CHECKPOINT_STRIDE):
            now = self._firsts[begun]
            alive = [j for j in alive if self.blocks[j].last >= now]
            checkpoints.append(alive)
            alive = alive + self._by_first[begun : begun + _CHECKPOINT_STRIDE]
        return checkpoints

    def _find_conflicts(self, i: int) -> List[int]:
        """The other blocks that are alive at some node at which block `i` is."""
        blocks, first = self.blocks, self.blocks[i].first
        checkpoint = bisect_left(self._firsts, first) // _CHECKPOINT_STRIDE
        begun = bisect_right(self._firsts, blocks[i].last)
        candidates = itertools.chain(
            self._alive[checkpoint],
            self._by_first[checkpoint * _CHECKPOINT_STRIDE : begun],
        )
        return [j for j in candidates if blocks[j].last >= first and j != i]

    def top(self, offsets: List[int]) -> int:
        """The bytes that the arena needs."""
        return max(map(int.__add__, offsets, self.sizes), default=0)

    def best_fit(self) -> List[int]:
        """Puts each block into the tightest gap that is free for its whole life."""
        offsets: List[int] = []
        for i, size in enumerate(self.sizes):
            taken = [
                (offsets[j], offsets[j] + self.sizes[j])
                for j in self.conflicts(i)
                if j < i
            ]
            offsets.append(_tightest_gap(size, sorted(taken)))
        return offsets

    def settle(self, offsets: List[int]) -> List[int]:
        """Lets each block, the lowest first, sink onto the ones below it."""
        settled = list(offsets)
        # Two blocks that are ever alive together are so where one of them begins.
        heights = [0] * len(self._firsts)
        for i in sorted(range(len(offsets)), key=offsets.__getitem__):
            begins = bisect_left(self._firsts, self.blocks[i].first)
            ends = bisect_right(self._firsts, self.blocks[i].last)
            settled[i] = max(heights[begins:ends])
            heights[begins:ends] = [settled[i] + self.sizes[i]] * (ends - begins)
        return settled

    def lower(self, offsets: List[int], floor: int, effort: int) -> List[int]:
        """Lowers the top towards `floor` in steps, until the budget is spent."""
        budget = _Budget(
            effort * min(_COMPARISONS_PER_BLOCK * len(offsets), _MAX_COMPARISONS)
        )
        hardness = list(self.conflict_counts)
        try:
            while (top := self.top(offsets)) > floor:
                left = top - floor
                near = left * _NEAR <= floor
                limit = floor if near else floor + left * (_STEP - 1) // _STEP
                offsets = self._repack(offsets, limit, hardness, budget)
                budget.spend(sum(self.conflict_counts) // _PLACE_OVER_SINK)
                offsets = self.settle(offsets)
        except _OutOfComparisons:
            pass
        return offsets

    def _repack(
        self, offsets: List[int], limit: int, hardness: List[int], budget: _Budget
    ) -> List[int]:
        """Moves blocks until all of them end at or below `limit`.

        Blocks that reach above the limit wait for a place, the largest first. One
        that finds none takes the place of those that are least hard to place, which
        then wait in turn; and it counts as harder from then on, so that it is not
        soon ejected itself.

        Args:
            hardness: How hard each block is to place: its conflicts, times one more
                than how often it found no place. Updated.

        Raises:
            _OutOfComparisons: `budget` is spent.
        """
        placed: List[Optional[_WeightedSpan]] = [
            (offset, offset + size, weight) if offset + size <= limit else None
            for offset, size, weight in zip(offsets, self.sizes, hardness)
        ]
        waiting = [i for i, span in enumerate(placed) if span is None]
        while waiting:
            i = heapq.heappop(waiting)
            size, conflicts = self.sizes[i], self.conflicts(i)
            budget.spend(len(conflicts))
            taken = [span for j in conflicts if (span := placed[j]) is not None]
            place, ejected = _cheapest_place(size, limit, taken)
            if ejected:
                hardness[i] += self.conflict_counts[i]
                turn, rest = divmod(hardness[i] // self.conflict_counts[i], _PATIENCE)
                if rest == 0:
                    places = [0] + [e for _, e, _ in taken if e + size <= limit]
                    place = places[turn % len(places)]
                for j in conflicts:
                    span = placed[j]
                    if span and span[0] < place + size and place < span[1]:
                        placed[j] = None
                        heapq.heappush(waiting, j)
            placed[i] = (place, place + size, hardness[i])
        return [span[0] for span in placed if span is not None]
