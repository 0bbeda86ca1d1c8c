# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Best fit over offsets for memory banks of limited size, the fastest first.

`BankedGreedy` gives each tensor a slot that others of its size or less may use after it,
so that a bank is full before its bytes are, and tensors spill to a slower one, or fit
nowhere. `BankedBestFit` takes its plan where all is in the fastest bank, and else packs
the tensors by offsets within the same sizes of banks, in a few orders, and takes what
leaves the least in slower banks. So it never spills more, and fails only if both do.

What a bank is, and that a tensor whose arena a pass has chosen stays there, is as in
`banked_memory_planning`; storage that lies in other storage moves with it, as in
`best_fit`. It takes ExecuTorch 1.5.1.
"""

import logging
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from executorch.exir.banked_memory_planning import (
    BankedGreedy,
    BankPlacementError,
    TargetMemoryMap,
)
from executorch.exir.memory_planning import (
    _blocks_by_arena,
    _compute_total_sizes,
    _shared_objects,
    _storage_root,
    MemoryAlgoResult,
    MemoryPlanningAlgorithmSuite,
    SpecAllocResult,
)
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch.exir.tensor import ALIGNMENT, TensorSpec
from torch.export.exported_program import ExportGraphSignature


@dataclass(frozen=True)
class _Item:
    """A block to place, and the arena that a pass has chosen for it, if any."""

    # With `size`, `first` and `last` node, and the `allocations` in it.
    block: Any
    pinned: Optional[int]


def _lifespan(item: _Item) -> int:
    return item.block.last - item.block.first + 1


# Which tensors come first to the fastest bank. Large ones are hard to place later; among
# short lives many share the same bytes.
_ORDERS: Tuple[Callable[[_Item], Any], ...] = (
    lambda item: -item.block.size,
    lambda item: (_lifespan(item), -item.block.size),
    lambda item: (item.block.size * _lifespan(item), -item.block.size),
    lambda item: (-item.block.size * _lifespan(item), -item.block.size),
)


class _Filling:
    """Bytes of one bank while it is filled."""

    def __init__(self, limit: Optional[int], alignment: int) -> None:
        self.limit = limit
        self.alignment = alignment
        self.blocks: List[Any] = []
        self.offsets: List[int] = []

    def take(self, block: Any) -> bool:
        """Put a block into the tightest gap of its whole life, if the bank has one."""
        size = -(-block.size // self.alignment) * self.alignment
        block = replace(block, size=size)
        taken = sorted(
            (offset, offset + other.size)
            for other, offset in zip(self.blocks, self.offsets)
            if other.first <= block.last and block.first <= other.last
        )
        place: Optional[int] = None
        room = 0
        free_from = 0
        for start, end in taken:
            gap = start - free_from
            if gap >= size and (place is None or gap < room):
                place, room = free_from, gap
            free_from = max(free_from, end)
        place = free_from if place is None else place
        if self.limit is not None and place + size > self.limit:
            return False
        self.blocks.append(block)
        self.offsets.append(place)
        return True


def spilled_bytes(target: TargetMemoryMap, result: MemoryAlgoResult) -> List[int]:
    """How many bytes of tensors are in slower banks: than the first, than two, ..."""
    in_bank = dict.fromkeys(target.mem_ids(), 0)
    for spec, alloc in result.spec_dict.items():
        if alloc.mem_id in in_bank and _storage_root(spec)[0] is spec:
            in_bank[alloc.mem_id] += spec.nbytes()
    sizes = [in_bank[mem_id] for mem_id in target.mem_ids()]
    return [sum(sizes[number:]) for number in range(1, len(sizes))]


class BankedBestFit:
    """Plan specs across a `TargetMemoryMap` so that as little as possible spills."""

    def __init__(
        self, target: TargetMemoryMap, allow_overlapping_allocations: bool = True
    ) -> None:
        self.target = target
        self.greedy = BankedGreedy(target, allow_overlapping_allocations)
        # The suite reports it.
        self.__name__ = "banked_best_fit"

    def __call__(
        self,
        alignment: int,
        tensors: Iterable[TensorSpec],
        graph_module: torch.fx.GraphModule,
        graph_signature: Optional[ExportGraphSignature] = None,
        extra_padding: int = 0,
    ) -> MemoryAlgoResult:
        """Plan the specs of one graph.

        Args:
            alignment: Of all offsets and sizes, in bytes, unless a bank's is stricter.
            tensors: Their specs, with their lifetimes.
            graph_module: What its control flow takes comes first in each bank.
            graph_signature: Passed on.
            extra_padding: Bytes to add to each bank that is used.

        Raises:
            BankPlacementError: Neither greedy nor best fit finds room for all.
        """
        specs = list(tensors)
        error: Optional[BankPlacementError] = None
        best: Optional[MemoryAlgoResult] = None
        try:
            best = self.greedy(
                alignment, specs, graph_module, graph_signature, extra_padding
            )
        except BankPlacementError as raised:
            error = raised
        if best is None or any(spilled_bytes(self.target, best)):
            for result in self._packings(alignment, specs, graph_module, extra_padding):
                if best is None or self._cost(result) < self._cost(best):
                    best = result
        if best is None:
            assert error is not None
            raise error
        self._align(specs, best, alignment)
        logging.debug(f"banked best fit returns bufsizes: {best.bufsizes}")
        return best

    def _cost(self, result: MemoryAlgoResult) -> Tuple[List[int], int]:
        return spilled_bytes(self.target, result), sum(result.bufsizes)

    def _bank_alignment(self, mem_id: int, alignment: int) -> int:
        bank = self.target.bank(mem_id) if self.target.manages(mem_id) else None
        return alignment if bank is None else bank.alignment or alignment

    def _align(
        self, specs: Sequence[TensorSpec], result: MemoryAlgoResult, alignment: int
    ) -> None:
        for spec in specs:
            mem_id = result.spec_dict[spec].mem_id
            spec.realign(self._bank_alignment(mem_id, alignment))

    def _items(self, alignment: int, specs: Sequence[TensorSpec]) -> List[_Item]:
        for spec in specs:
            spec.realign(alignment)
        return [
            _Item(
                block,
                next(
                    alloc.spec.mem_id
                    for alloc in block.allocations
                    if _storage_root(alloc.spec)[0] is alloc.spec
                ),
            )
            for blocks in _blocks_by_arena(specs).values()
            for block in blocks
        ]

    def _packings(
        self,
        alignment: int,
        specs: Sequence[TensorSpec],
        graph_module: torch.fx.GraphModule,
        extra_padding: int,
    ) -> Iterable[MemoryAlgoResult]:
        """The plans that best fit finds within the sizes of the banks."""
        # What is wrong but for sizes of banks is wrong for best fit as well.
        self.greedy._check_bank_alignments(alignment)
        self.greedy._reject_non_cpu(specs)
        items = self._items(alignment, specs)
        for order in _ORDERS:
            banks = self._fill(
                sorted(items, key=order), alignment, graph_module, extra_padding
            )
            if banks is not None:
                yield self._result(banks, graph_module, extra_padding, len(specs))

    def _fill(
        self,
        items: Sequence[_Item],
        alignment: int,
        graph_module: torch.fx.GraphModule,
        extra_padding: int,
    ) -> Optional[Dict[int, _Filling]]:
        reserved = getattr(graph_module, "input_mem_buffer_sizes", None) or []
        banks: Dict[int, _Filling] = {}
        for bank in self.target.banks:
            taken = reserved[bank.mem_id] if bank.mem_id < len(reserved) else 0
            banks[bank.mem_id] = _Filling(
                bank.size - taken - extra_padding,
                self._bank_alignment(bank.mem_id, alignment),
            )
        # As in greedy, nothing else may take the bytes of what has no other bank.
        for item in items:
            if item.pinned is not None:
                pool = banks.setdefault(item.pinned, _Filling(None, alignment))
                if not pool.take(item.block):
                    return None
        order = [banks[mem_id] for mem_id in self.target.mem_ids()]
        for item in items:
            if item.pinned is None and not any(b.take(item.block) for b in order):
                return None
        return banks

    def _result(
        self,
        banks: Dict[int, _Filling],
        graph_module: torch.fx.GraphModule,
        extra_padding: int,
        number: int,
    ) -> MemoryAlgoResult:
        objects: Dict[int, List[Any]] = defaultdict(list)
        result = MemoryAlgoResult({}, [])
        for mem_id, bank in banks.items():
            if bank.blocks:
                objects[mem_id] = _shared_objects(bank.blocks, bank.offsets)
            for block in bank.blocks:
                for alloc in block.allocations:
                    result.spec_dict[alloc.spec] = SpecAllocResult(mem_id, 0, 0)
        result.bufsizes = _compute_total_sizes(
            objects, graph_module, extra_padding, result, number
        )
        return result


def banked_best_fit_planning_pass(
    target: TargetMemoryMap, alignment: int = ALIGNMENT, **planning: Any
) -> MemoryPlanningPass:
    """A `MemoryPlanningPass` for the banks of `target`.

    Args:
        target: The banks, the fastest first.
        alignment: Of all offsets, in bytes.
        planning: More arguments of `MemoryPlanningPass`. Methods may share buffers by
            `shared_buffer_fqns`; what is kept for them counts in the size of a bank,
            unless it is in an arena of its own.
    """
    return MemoryPlanningPass(
        # Alone: the suite would let whatever is smallest in sum win, and that is a plan
        # that ignores the sizes of banks.
        memory_planning_algo=MemoryPlanningAlgorithmSuite([BankedBestFit(target)]),
        alignment=alignment,
        **planning,
    )
