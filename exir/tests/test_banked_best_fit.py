# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import random
import unittest
from typing import List, Optional

import torch
from executorch.exir.tensor import TensorSpec

try:
    from executorch.exir.banked_best_fit import BankedBestFit, spilled_bytes
    from executorch.exir.banked_memory_planning import (
        Bank,
        BankedGreedy,
        BankPlacementError,
        TargetMemoryMap,
    )
except ImportError:  # before ExecuTorch 1.5.1
    BankedBestFit = None


def _alive(
    size: int, first: int, last: int, mem_id: Optional[int] = None
) -> TensorSpec:
    spec = TensorSpec(torch.uint8, torch.Size([size]))
    spec.lifetime = [first, last]
    spec.mem_id = mem_id
    return spec


def _graph(*reserved: int) -> torch.fx.GraphModule:
    graph_module = torch.fx.GraphModule({}, torch.fx.Graph())
    graph_module.input_mem_buffer_sizes = list(reserved)
    return graph_module


@unittest.skipIf(BankedBestFit is None, "needs ExecuTorch 1.5.1")
class TestBankedBestFit(unittest.TestCase):
    def banks(self, *sizes: int, **options: int) -> "TargetMemoryMap":
        return TargetMemoryMap(
            [
                Bank(f"bank{mem_id}", size, mem_id, **options)
                for mem_id, size in enumerate(sizes, start=1)
            ]
        )

    def check(
        self,
        target: "TargetMemoryMap",
        specs: List[TensorSpec],
        graph_module: torch.fx.GraphModule,
        padding: int = 0,
    ) -> List[int]:
        """Plan, and hold that none overlaps another that is alive with it."""
        result = BankedBestFit(target)(16, specs, graph_module, None, padding)
        for bank in target.banks:
            if bank.mem_id < len(result.bufsizes):
                self.assertLessEqual(result.bufsizes[bank.mem_id], bank.size)
        reserved = graph_module.input_mem_buffer_sizes
        for number, spec in enumerate(specs):
            alloc = result.spec_dict[spec]
            start, end = alloc.mem_offset, alloc.mem_offset + spec.allocated_memory
            self.assertEqual(start % spec.alignment, 0)
            self.assertLessEqual(end + padding, result.bufsizes[alloc.mem_id])
            if alloc.mem_id < len(reserved):
                self.assertGreaterEqual(start, reserved[alloc.mem_id])
            if spec.mem_id is not None:
                self.assertEqual(alloc.mem_id, spec.mem_id)
            for other in specs[:number]:
                there = result.spec_dict[other]
                if (
                    there.mem_id == alloc.mem_id
                    and other.lifetime[0] <= spec.lifetime[1]
                    and spec.lifetime[0] <= other.lifetime[1]
                    and spec.allocated_memory
                    and other.allocated_memory
                ):
                    self.assertTrue(
                        there.mem_offset + other.allocated_memory <= start
                        or end <= there.mem_offset
                    )
        return spilled_bytes(target, result)

    def test_greedy_wins_where_nothing_spills(self) -> None:
        specs = [_alive(64, 0, 0), _alive(48, 1, 1), _alive(32, 1, 1)]
        target = self.banks(96, 1024)
        greedy = BankedGreedy(target)(16, specs, _graph(), None, 0)
        ours = BankedBestFit(target)(16, specs, _graph(), None, 0)
        self.assertEqual(ours.bufsizes, greedy.bufsizes)
        self.assertEqual(ours.spec_dict, greedy.spec_dict)

    def test_what_greedy_spills(self) -> None:
        # Greedy needs 96 bytes for these, as the second slot is beside the first.
        specs = [_alive(64, 0, 0), _alive(48, 1, 1), _alive(32, 1, 1)]
        target = self.banks(80, 1024)
        greedy = BankedGreedy(target)(16, specs, _graph(), None, 0)
        self.assertEqual(spilled_bytes(target, greedy), [32])
        self.assertEqual(self.check(target, specs, _graph()), [0])

    def test_where_greedy_fails(self) -> None:
        specs = [_alive(64, 0, 0), _alive(48, 1, 1), _alive(32, 1, 1)]
        target = self.banks(80)
        with self.assertRaises(BankPlacementError):
            BankedGreedy(target)(16, specs, _graph(), None, 0)
        self.assertEqual(self.check(target, specs, _graph()), [])

    def test_where_both_fail(self) -> None:
        specs = [_alive(64, 0, 1), _alive(48, 1, 1), _alive(32, 1, 1)]
        with self.assertRaisesRegex(BankPlacementError, "No declared bank can hold"):
            BankedBestFit(self.banks(80, 48))(16, specs, _graph(), None, 0)

    def test_branches_padding_and_alignment(self) -> None:
        specs = [_alive(60, 0, 0), _alive(40, 1, 1), _alive(20, 1, 1)]
        target = self.banks(256, 1024, alignment=32)
        self.check(target, specs, _graph(0, 96), padding=64)
        self.assertEqual({spec.alignment for spec in specs}, {32})

    def test_pins_stay(self) -> None:
        # One bank is not in the map, so no bytes of it are counted.
        specs = [_alive(64, 0, 3, 2), _alive(64, 0, 3, 1), _alive(512, 0, 3, 5)]
        specs += [_alive(48, 0, 0), _alive(32, 1, 1), _alive(48, 1, 2)]
        self.check(self.banks(128, 256), specs, _graph())

    def test_storage_in_other_storage(self) -> None:
        outer, inner = _alive(64, 0, 2), _alive(32, 1, 5)
        inner.storage_base, inner.storage_base_offset = outer, 32
        specs = [outer, inner, _alive(48, 3, 4), _alive(64, 4, 4)]
        result = BankedBestFit(self.banks(96, 1024))(16, specs, _graph(), None, 0)
        there = result.spec_dict[outer], result.spec_dict[inner]
        self.assertEqual(there[0].mem_id, there[1].mem_id)
        self.assertEqual(there[0].mem_offset + 32, there[1].mem_offset)

    def test_never_more_than_greedy(self) -> None:
        draw = random.Random(0)
        better = 0
        for _ in range(60):
            specs = []
            for _ in range(draw.randint(3, 25)):
                first = draw.randint(0, 12)
                specs.append(
                    _alive(draw.randint(0, 200), first, first + draw.randint(0, 6))
                )
            target = self.banks(draw.choice([128, 256, 512]), 256, 1 << 16)
            greedy = BankedGreedy(target)(16, specs, _graph(), None, 0)
            theirs = spilled_bytes(target, greedy)
            ours = self.check(target, specs, _graph())
            self.assertLessEqual(ours, theirs)
            better += ours < theirs
        self.assertGreater(better, 20)
