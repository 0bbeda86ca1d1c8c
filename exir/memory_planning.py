# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import logging
import operator
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch
from executorch.exir.error import internal_assert, InternalError
from executorch.exir.memory_planning import (
    _alias_inplace_result_specs,
    _compute_total_sizes,
    _is_inplace_node,
    AllocationSpec,
    get_cond_nodes,
    get_node_tensor_specs,
    greedy,
    MemoryAlgoResult,
    SharedObject,
    SpecAllocResult,
)
from executorch.exir.offset_packing import Block, pack_blocks
from executorch.exir.tensor import TensorSpec
from torch import fx
from torch.export.exported_program import ExportGraphSignature
from torch.utils._pytree import tree_flatten


def _storage_spec(spec: Any) -> Any:
    """The spec that memory is planned for: that of the base, if `spec` is a view's."""
    while (base := getattr(spec, "_base", None)) is not None:
        spec = base
    return spec


def _keep_inplace_results_alive(graph_module: fx.GraphModule) -> None:
    """Let what an in-place node changes live as long as the node's result is used.

    The result is that tensor. The lifetimes that are found later start from what is
    noted here.
    """
    for index, node in enumerate(graph_module.graph.nodes):
        if _is_inplace_node(node) and get_node_tensor_specs(node):
            _alias_inplace_result_specs(node)
        for used in node.all_input_nodes:
            result = used.args[0] if used.target is operator.getitem else used
            if not _is_inplace_node(result):
                continue
            for spec in get_node_tensor_specs(used):
                # A view's lifetime is that of its base.
                start, end = spec.lifetime
                spec.lifetime = [start, index if end is None else max(end, index)]


def _storage_base(spec: TensorSpec) -> Tuple[Optional[TensorSpec], int]:
    """The spec inside whose storage `spec` lies, if any, and its byte offset there."""
    # `inplace_base` is the one name that every release has, but it has no offset.
    offset = getattr(spec, "storage_base_offset", 0)
    return (spec.storage_base if offset else spec.inplace_base), offset


def _storage_root(spec: TensorSpec) -> Tuple[TensorSpec, int]:
    """The spec that owns the bytes in which `spec` lies, and its byte offset there.

    Raises:
        InternalError: The chain of storage bases is circular, or one of its specs
            reaches out of its base or is not aligned in it.
    """
    root, root_offset = spec, 0
    seen = {spec}
    while True:
        base, offset = _storage_base(root)
        if base is None:
            return root, root_offset
        internal_assert(
            base not in seen, f"{spec} lies in its own storage: circular storage_base."
        )
        internal_assert(
            0 <= offset <= base.allocated_memory - root.allocated_memory,
            f"{root} has {root.allocated_memory} bytes at offset {offset} and does "
            f"not fit into the {base.allocated_memory} bytes of its storage_base.",
        )
        internal_assert(
            offset % root.alignment == 0,
            f"{root} lies at offset {offset} of its storage_base, which breaks the "
            f"alignment of {root.alignment} bytes.",
        )
        seen.add(base)
        root, root_offset = base, root_offset + offset


@dataclass(frozen=True)
class _StorageBlock(Block):
    """The bytes of a tensor and of all that lies inside it."""

    # The tensors, with their offsets from the start of the block.
    allocations: List[AllocationSpec]


def _storage_block(
    root: TensorSpec, allocations: List[AllocationSpec]
) -> _StorageBlock:
    # A tensor whose life is not known may be alive at any time.
    lifetimes = [alloc.spec.lifetime for alloc in allocations]
    return _StorageBlock(
        size=root.allocated_memory,
        first=min(0 if first is None else first for first, _ in lifetimes),
        last=max(sys.maxsize if last is None else last for _, last in lifetimes),
        allocations=allocations,
    )


def _blocks_by_arena(specs: Iterable[TensorSpec]) -> Dict[int, List[_StorageBlock]]:
    """The blocks of each arena by mem_id, in the order in which they appear.

    Raises:
        InternalError: A spec lies in the storage of one that is not planned here.
    """
    lying_in: Dict[TensorSpec, List[AllocationSpec]] = defaultdict(list)
    for spec in specs:
        root, offset = _storage_root(spec)
        lying_in[root].append(AllocationSpec(offset, spec))

    arenas: Dict[int, List[_StorageBlock]] = defaultdict(list)
    for root, allocations in lying_in.items():
        if all(alloc.spec is not root for alloc in allocations):
            raise InternalError(
                f"{allocations[0].spec} lies in the storage of {root}, for which no "
                "memory is planned. Plan both, or clear the storage_base."
            )
        arenas[1 if root.mem_id is None else root.mem_id].append(
            _storage_block(root, allocations)
        )
    return arenas


def _shared_objects(
    blocks: List[_StorageBlock], offsets: List[int]
) -> List[SharedObject]:
    """The runs of bytes that overlapping blocks chain together, from the bottom up.

    A spec's mem_obj_id says with which others it may share bytes, so that blocks
    which overlap, directly or through others, belong to one object. An empty block
    has one of its own.
    """
    objects: List[SharedObject] = []
    empty_first = sorted(
        range(len(blocks)), key=lambda i: (bool(blocks[i].size), -blocks[i].size)
    )
    for i in sorted(empty_first, key=offsets.__getitem__):
        block, start = blocks[i], offsets[i]
        if not objects or start >= objects[-1].offset + objects[-1].size:
            objects.append(
                SharedObject(len(objects), start, 0, block.first, block.last)
            )
        shared = objects[-1]
        shared.size = max(shared.size, start + block.size - shared.offset)
        shared.first_used_index = min(shared.first_used_index, block.first)
        shared.last_used_index = max(shared.last_used_index, block.last)
        shared.allocations += [
            AllocationSpec(start - shared.offset + alloc.offset, alloc.spec)
            for alloc in block.allocations
        ]
    return objects


def _keep_smaller_arenas(result: MemoryAlgoResult, other: MemoryAlgoResult) -> None:
    """Takes over into `result` each arena that is smaller in `other`."""
    for spec, alloc in other.spec_dict.items():
        if other.bufsizes[alloc.mem_id] < result.bufsizes[alloc.mem_id]:
            result.spec_dict[spec] = alloc
    result.bufsizes = list(map(min, result.bufsizes, other.bufsizes))


def best_fit(
    alignment: int,
    specs: Iterable[TensorSpec],
    graph_module: torch.fx.GraphModule,
    graph_signature: ExportGraphSignature,
    extra_padding: int = 0,
    *,
    effort: int = 1,
) -> MemoryAlgoResult:
    """Packs tensors into the tightest gaps between offsets, the largest first.

    Any tensor may share bytes with any others that are not alive with it, whatever
    their sizes. Where that takes more than the peak live bytes, a search moves
    tensors about until the arena is as small as that, or the search has compared as
    many tensors as it may. The result depends on the order of `specs`, since the first
    of several tensors of one size is placed first.

    No arena is larger than `greedy` makes it where there are several of them; where
    there is but one, `MemoryPlanningAlgorithmSuite` sees to that.

    Args:
        alignment: Of all offsets and sizes, in bytes.
        specs: The tensors, with their lifetimes. One without is alive all the time.
        graph_module: Each arena begins behind the bytes in its `input_mem_buffer_sizes`.
        graph_signature: Not used.
        extra_padding: Bytes to add to each arena that is used.
        effort: How many times the default bound on comparisons the search in each
            arena may take. 0 leaves it at the first pass.

    Returns:
        The arena (mem_id), the offset in it, in bytes, and the mem_obj_id of each
        spec, and the sizes of the arenas in bytes.

    Raises:
        InternalError: A storage_base is circular, not among `specs`, or too small.
    """
    specs = list(specs)
    for spec in specs:
        spec.realign(alignment)
    arenas = {
        mem_id: _shared_objects(blocks, pack_blocks(blocks, effort))
        for mem_id, blocks in _blocks_by_arena(specs).items()
    }
    result = MemoryAlgoResult(
        {
            alloc.spec: SpecAllocResult(mem_id, 0, 0)
            for mem_id, objects in arenas.items()
            for shared in objects
            for alloc in shared.allocations
        },
        [],
    )
    result.bufsizes = _compute_total_sizes(
        arenas, graph_module, extra_padding, result, len(specs)
    )
    if len(arenas) > 1:
        # Whoever chooses by the sum could else let one arena grow for another.
        _keep_smaller_arenas(
            result,
            greedy(alignment, specs, graph_module, graph_signature, extra_padding),
        )
    logging.debug(f"best fit algorithm returns bufsizes: {result.bufsizes}")
    return result


def _borrows_or_lends_storage(graph_module: fx.GraphModule, spec: TensorSpec) -> bool:
    """Whether `spec` lies inside another spec of the graph, or another one inside it."""
    # ExecuTorch 1.4 calls the base of an in-place result `inplace_base`.
    base = "storage_base" if hasattr(spec, "storage_base") else "inplace_base"
    specs = tree_flatten([nd.meta.get("spec") for nd in graph_module.graph.nodes])[0]
    return getattr(spec, base, None) is not None or any(
        getattr(other, base, None) is spec
        for other in specs
        if isinstance(other, TensorSpec)
    )


def _place_branch_result(
    branch: fx.GraphModule, number: int, place: TensorSpec
) -> None:
    """
    Let `branch` write its result `number` to where the graph around it planned it.

    A result that has no memory of the branch's own (an input handed through, a
    constant, a tensor that the runtime allocates) stays where it is, and so does one
    that shares its storage with another tensor or wouldn't fit.
    """
    result = tree_flatten(branch.graph.output_node().args)[0][number]
    spec = result.meta.get("spec") if isinstance(result, fx.Node) else None
    if (
        isinstance(spec, TensorSpec)
        and not spec.const
        and spec.mem_offset is not None
        and spec.allocated_memory <= place.allocated_memory
        and not _borrows_or_lends_storage(branch, spec)
    ):
        spec.mem_id = place.mem_id
        spec.mem_offset = place.mem_offset


def _place_branch_results(graph_module: fx.GraphModule) -> None:
    """
    Let the branches of each cond, nested ones too, write their results to where the
    graph around the cond has them.

    The runtime takes a branch's result over by pointer, and all branches are planned
    over one another at the front of the arena: left there, the result is lost when
    the next control-flow node runs, and a view of it, which reads the memory that the
    surrounding graph planned, never sees it. No arena changes its size by this.
    """
    for cond_node in get_cond_nodes(graph_module):
        for branch_node in cond_node.args[1:3]:
            branch = getattr(graph_module, branch_node.target)
            for number, place in enumerate(tree_flatten(cond_node.meta["spec"])[0]):
                if isinstance(place, TensorSpec) and place.mem_offset is not None:
                    _place_branch_result(branch, number, place)
            _place_branch_results(branch)
