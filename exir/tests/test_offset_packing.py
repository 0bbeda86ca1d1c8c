# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import random
import unittest
from typing import List, Sequence

from executorch.exir.offset_packing import Block, pack_blocks, peak_live_bytes


def _overlaps(blocks: Sequence[Block], offsets: Sequence[int]) -> List[str]:
    """The pairs that share bytes and are needed at one node."""
    placed = list(zip(blocks, offsets))
    return [
        f"{one} at {at} and {other} at {other_at}"
        for n, (one, at) in enumerate(placed)
        for other, other_at in placed[:n]
        if one.first <= other.last and other.first <= one.last
        if at < other_at + other.size and other_at < at + one.size
    ]


def _top(blocks: Sequence[Block], offsets: Sequence[int]) -> int:
    return max(
        (offset + block.size for block, offset in zip(blocks, offsets)), default=0
    )


class TestOffsetPacking(unittest.TestCase):
    def test_tightest_gap(self) -> None:
        # For the last one, 48 bytes are free from 160 on, and 32 from 256 on.
        blocks = [
            Block(160, 0, 1),
            Block(48, 0, 0),
            Block(48, 0, 1),
            Block(32, 0, 0),
            Block(32, 0, 1),
            Block(32, 1, 1),
        ]
        self.assertEqual(pack_blocks(blocks, effort=0), [0, 160, 208, 256, 288, 256])

    def test_search_lowers_to_the_peak(self) -> None:
        # By size, and then in this order, both of 48 bytes go to the bottom and the
        # first of 16 bytes above them, so that the other finds no room below 64. But
        # no more than 64 bytes are needed at any node.
        blocks = [Block(16, 3, 4), Block(48, 4, 4), Block(48, 2, 2), Block(16, 2, 3)]
        self.assertEqual(peak_live_bytes(blocks), 64)
        self.assertEqual(pack_blocks(blocks, effort=0), [48, 0, 0, 64])
        self.assertEqual(pack_blocks(blocks), [48, 0, 16, 0])

    def test_search_gets_out_of_a_circle(self) -> None:
        # Two blocks of 64 bytes want one place, and 16 bytes are in the way of both.
        blocks = [
            Block(32, 2, 2),
            Block(64, 0, 0),
            Block(16, 0, 2),
            Block(32, 2, 3),
            Block(64, 0, 2),
            Block(64, 3, 3),
        ]
        # All that is needed at node 0, and at node 2, has 144 bytes.
        self.assertEqual(peak_live_bytes(blocks), 144)
        offsets = pack_blocks(blocks)
        self.assertEqual(_overlaps(blocks, offsets), [])
        self.assertEqual(_top(blocks, offsets), 144)

    def test_empty(self) -> None:
        self.assertEqual(pack_blocks([]), [])
        self.assertEqual(peak_live_bytes([]), 0)
        blocks = [Block(0, 0, 1), Block(16, 0, 1), Block(0, 0, 1)]
        self.assertEqual(pack_blocks(blocks), [0, 0, 0])

    def test_random_blocks(self) -> None:
        rng = random.Random(3)
        for _ in range(500):
            blocks = []
            for _ in range(rng.randint(1, 30)):
                first = rng.randrange(12)
                last = first + rng.choice([0, 1, 1, 2, 12])
                blocks.append(Block(rng.choice([0, 16, 48, 64, 256]), first, last))
            offsets = pack_blocks(blocks)
            self.assertEqual(_overlaps(blocks, offsets), [])
            self.assertEqual([offset % 16 for offset in offsets], [0] * len(blocks))
            self.assertGreaterEqual(_top(blocks, offsets), peak_live_bytes(blocks))
            first_pass = _top(blocks, pack_blocks(blocks, effort=0))
            self.assertLessEqual(_top(blocks, offsets), first_pass)
            self.assertEqual(pack_blocks(blocks), offsets)
