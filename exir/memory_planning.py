# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import itertools
import logging
import operator
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import (
    AbstractSet,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Set,
    Tuple,
)

import torch
from executorch.exir import memory
from executorch.exir.error import internal_assert, InternalError
from executorch.exir.memory_planning import (
    _alias_inplace_result_specs,
    _compute_total_sizes,
    _contains_xnnpack_delegate,
    _handle_submodule,
    _is_inplace_node,
    _merge_bufsizes,
    AllocationSpec,
    get_cond_nodes,
    get_map_nodes,
    get_node_tensor_specs,
    get_scan_nodes,
    get_while_nodes,
    greedy,
    MemoryAlgoResult,
    SharedObject,
    SpecAllocResult,
)
from executorch.exir.offset_packing import Block, pack_blocks, peak_live_bytes
from executorch.exir.schema import TensorShapeDynamism
from executorch.exir.tensor import TensorSpec
from torch import fx
from torch.export.exported_program import ExportGraphSignature
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten


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


@dataclass(frozen=True)
class _Body:
    """A graph that a control-flow node runs: a branch, or what a loop repeats."""

    node: fx.Node
    # The get_attr node of the graph.
    attribute: fx.Node
    graph_module: fx.GraphModule
    # How many inputs, from the first, are a scan's carries: written in each round.
    carries: int = 0
    # The inputs that the loop fills with a slice in each round. All others are the
    # values of the graph around it: the emitter gives them no memory of their own.
    slices: range = range(0)
    # Whether this very graph is run elsewhere in the graph around, too.
    is_shared: bool = False

    def placeholders(self) -> List[fx.Node]:
        return [
            node for node in self.graph_module.graph.nodes if node.op == "placeholder"
        ]

    def bound_specs(self) -> Set[TensorSpec]:
        """The specs of the inputs that are values of the graph around."""
        return {
            spec
            for number, node in enumerate(self.placeholders())
            if number not in self.slices
            for spec in get_node_tensor_specs(node)
        }


def _bodies(graph_module: fx.GraphModule) -> List[_Body]:
    """The bodies of the control flow in `graph_module`, without those nested in them."""
    found: List[_Body] = []

    def add(node: fx.Node, attribute: Any, **inputs: Any) -> None:
        body = getattr(graph_module, attribute.target)
        found.append(_Body(node, attribute, body, **inputs))

    for node in get_cond_nodes(graph_module):
        add(node, node.args[1])
        add(node, node.args[2])
    for node in get_while_nodes(graph_module):
        add(node, node.args[0])
        add(node, node.args[1])
    for node in get_map_nodes(graph_module):
        add(node, node.args[0], slices=range(len(node.args[1])))
    for node in get_scan_nodes(graph_module):
        carries, scanned = len(node.args[1]), len(node.args[2])
        slices = range(carries, carries + scanned)
        add(node, node.args[0], carries=carries, slices=slices)
    times = Counter(body.graph_module for body in found)
    return [replace(body, is_shared=times[body.graph_module] > 1) for body in found]


def _viewed(node: Any) -> Any:
    """What `node` is a view of, or itself if it is none."""
    while isinstance(node, fx.Node) and node.target is memory.view:
        node = node.args[0]
    return node


def _spec_like(spec: TensorSpec) -> TensorSpec:
    """The spec of a tensor of its own that looks like the one with `spec`."""
    fresh = TensorSpec(dtype=spec.dtype, shape=torch.Size(spec.shape))
    fresh.stride = spec.stride
    fresh.dim_order = spec.dim_order
    fresh.shape_dynamism = spec.shape_dynamism
    return fresh


def _insert_copy(value: fx.Node, before: fx.Node, origin: fx.Node) -> fx.Node:
    """A copy of `value` in front of `before`, traced to where `origin` comes from."""
    graph = value.graph
    spec = _spec_like(value.meta["spec"])
    with graph.inserting_before(before):
        shape = (tuple(spec.shape), spec.dtype)
        out = graph.call_function(memory.alloc, (shape,))
        copied = graph.call_function(torch.ops.aten.clone.out, (value,), {"out": out})
    for node in (out, copied):
        node.meta["spec"] = spec
        node.meta["val"] = value.meta.get("val")
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
            if key in origin.meta:
                node.meta[key] = origin.meta[key]
    return copied


def _save_returned_carries(body: _Body) -> None:
    """Let a scan's body return copies of the carries that it returns, or views of them.

    The loop writes the new carries one after the other, and then stores the other
    results: what lies in a carry would be overwritten by then. A carry that stays what
    it is needs no copy.
    """
    numbers = {node: i for i, node in enumerate(body.placeholders()[: body.carries])}
    output = body.graph_module.graph.output_node()
    results, structure = tree_flatten(output.args[0])
    saved = [
        (
            _insert_copy(result, output, body.node)
            if numbers.get(_viewed(result), number) != number
            else result
        )
        for number, result in enumerate(results)
    ]
    if saved != results:
        output.args = (tree_unflatten(saved, structure),)
        output.meta["spec"] = tree_map(
            lambda x: x.meta.get("spec") if isinstance(x, fx.Node) else None,
            output.args[0],
        )
        body.graph_module.recompile()


def _apply_algo_to_submodules(
    algo: Callable[..., List[int]],
    graph_module: fx.GraphModule,
    alignment: int,
    graph_signature: Optional[ExportGraphSignature] = None,
) -> List[int]:
    """Plan the bodies of the control flow in `graph_module`, each from offset 0.

    Returns:
        By arena, the most bytes that any of them takes there.
    """
    bufsizes: List[int] = []
    for body in _bodies(graph_module):
        _save_returned_carries(body)
        elsewhere: AbstractSet[TensorSpec] = body.bound_specs()
        _merge_bufsizes(
            bufsizes,
            _handle_submodule(
                algo,
                graph_module,
                alignment,
                body.attribute,
                graph_signature,
                alloc_graph_input=len(body.slices) > 0,
                elsewhere=elsewhere,
            ),
        )
    return bufsizes


def _specs_with_common_storage(graph_module: fx.GraphModule) -> Set[TensorSpec]:
    """The specs of the graph that lie inside another one, or have another inside."""
    # ExecuTorch 1.4 calls the base of an in-place result `inplace_base`.
    field = "storage_base" if hasattr(TensorSpec, "inplace_base") else "inplace_base"
    found: Set[TensorSpec] = set()
    for spec in tree_leaves(
        [node.meta.get("spec") for node in graph_module.graph.nodes]
    ):
        if not isinstance(spec, TensorSpec):
            continue
        base = getattr(spec, field, None)
        if base is not None:
            found.update((_storage_spec(spec), _storage_spec(base)))
    return found


def _results_in_place(body: _Body) -> Dict[TensorSpec, TensorSpec]:
    """What a branch can write to where the graph around it has the cond's results.

    That are the tensors of a branch that runs at one node. What it is given, a view, a constant, a tensor
    that shares its storage with another, and what is returned a second time are not
    among them; the emitter copies these.

    Returns:
        The spec in the graph around by the spec in the branch.
    """
    if body.node.target is not torch.ops.higher_order.cond or body.is_shared:
        return {}
    strange = body.bound_specs() | _specs_with_common_storage(body.graph_module)
    results = tree_leaves(body.graph_module.graph.output_node().args[0])
    found: Dict[TensorSpec, TensorSpec] = {}
    for result, place in zip(results, tree_leaves(body.node.meta["spec"])):
        spec = result.meta.get("spec") if isinstance(result, fx.Node) else None
        if (
            isinstance(spec, TensorSpec)
            and isinstance(place, TensorSpec)
            and _storage_spec(spec) is spec
            and not spec.const
            and spec not in strange
            and spec.shape_dynamism != TensorShapeDynamism.DYNAMIC_UNBOUND
            # Any value that fits one of them has to fit the other.
            and spec.nbytes() == place.nbytes()
        ):
            found.setdefault(spec, place)
    return found


def _place_branch_results(graph_module: fx.GraphModule) -> None:
    """
    Let the branches of each cond, nested ones too, write their results to where the
    graph around the cond has them.

    There a view of a result, which is elided, finds it, and it survives the next
    control-flow node. No branch plans memory for it.
    """
    for body in _bodies(graph_module):
        for spec, place in _results_in_place(body).items():
            if place.mem_offset is not None:
                spec.mem_id = place.mem_id
                spec.mem_offset = place.mem_offset
        _place_branch_results(body.graph_module)


def _with_bodies(graph_module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """The graph and the bodies of its control flow, nested ones too, as often as run."""
    yield graph_module
    for body in _bodies(graph_module):
        yield from _with_bodies(body.graph_module)


def _planned_specs(graph_module: fx.GraphModule) -> Set[TensorSpec]:
    """The specs of the graph, and of the bodies in it, that have a place of their own."""
    return {
        _storage_spec(spec)
        for module in _with_bodies(graph_module)
        for node in module.graph.nodes
        for spec in tree_leaves(node.meta.get("spec"))
        if isinstance(spec, TensorSpec)
        and spec.mem_id is not None
        and spec.mem_offset is not None
    }


@dataclass(frozen=True)
class _BodyBlock:
    """The bytes of an arena that the bodies of one control-flow node need together.

    They are planned like a tensor that is alive at the node alone.
    """

    node: fx.Node
    # The arena and the first byte in which the bodies have been planned so far.
    arena: int
    spec: TensorSpec
    # What lies in it, by offsets that count from its first byte.
    tensors: List[TensorSpec]


def _body_blocks(graph_module: fx.GraphModule) -> List[_BodyBlock]:
    """The blocks of all bodies in `graph_module`, which have been planned from 0 on."""
    positions = {node: index for index, node in enumerate(graph_module.graph.nodes)}
    tensors: Dict[Tuple[fx.Node, int], Set[TensorSpec]] = defaultdict(set)
    for body in _bodies(graph_module):
        for spec in _planned_specs(body.graph_module):
            tensors[body.node, spec.mem_id].add(spec)
    blocks: List[_BodyBlock] = []
    for (node, arena), inside in tensors.items():
        size = max(spec.mem_offset + spec.allocated_memory for spec in inside)
        spec = TensorSpec(dtype=torch.uint8, shape=torch.Size([size]))
        spec.mem_id = arena
        spec.lifetime = [positions[node], positions[node]]
        blocks.append(_BodyBlock(node, arena, spec, list(inside)))
    return blocks


def _lifetime(spec: TensorSpec) -> Tuple[int, int]:
    """The first and the last node at which `spec` may be alive."""
    first, last = spec.lifetime
    return (0 if first is None else first, sys.maxsize if last is None else last)


_Placement = Tuple[Optional[int], Optional[int], Optional[int]]


@dataclass(frozen=True)
class _Plan:
    """Where an algorithm has put specs, and the sizes of the arenas in bytes."""

    placements: Dict[TensorSpec, _Placement]
    bufsizes: List[int]

    @staticmethod
    def of(specs: Iterable[TensorSpec], bufsizes: Iterable[int] = ()) -> "_Plan":
        """As the specs say now."""
        return _Plan(
            {spec: (spec.mem_id, spec.mem_offset, spec.mem_obj_id) for spec in specs},
            list(bufsizes),
        )

    def restore(self) -> None:
        for spec, placement in self.placements.items():
            spec.mem_id, spec.mem_offset, spec.mem_obj_id = placement

    def is_at_floor(self, padding: int) -> bool:
        """Whether no arena could be smaller and still have `padding` bytes at its end."""
        alive: Dict[int, List[Block]] = defaultdict(list)
        for spec in self.placements:
            if _storage_base(spec)[0] is None:
                size, life = spec.allocated_memory, _lifetime(spec)
                alive[spec.mem_id].append(Block(size, *life))
        return all(
            size <= peak_live_bytes(alive[arena]) + padding
            for arena, size in enumerate(self.bufsizes)
        )

    def needs_no_more_than(self, other: "_Plan") -> bool:
        """Whether no arena is larger than it is in `other`."""
        return all(
            size <= limit
            for size, limit in itertools.zip_longest(
                self.bufsizes, other.bufsizes, fillvalue=0
            )
        )


def _leaves_blocks_alone(
    specs: Iterable[TensorSpec], blocks: List[_BodyBlock], bufsizes: List[int]
) -> bool:
    """Whether all have a place, and each block has the bytes of it for itself."""
    planned = [*specs, *(block.spec for block in blocks)]
    if any(spec.mem_id is None or spec.mem_offset is None for spec in planned):
        return False
    for block in blocks:
        mine, now = block.spec, block.spec.lifetime[0]
        end = mine.mem_offset + mine.allocated_memory
        if mine.mem_id >= len(bufsizes) or end > bufsizes[mine.mem_id]:
            return False
        for spec in planned:
            first, last = _lifetime(spec)
            if (
                spec is not mine
                and spec.mem_id == mine.mem_id
                and first <= now <= last
                and spec.mem_offset < end
                and mine.mem_offset < spec.mem_offset + spec.allocated_memory
            ):
                return False
    return True


def _move_bodies(graph_module: fx.GraphModule, blocks: List[_BodyBlock]) -> None:
    """Move what lies in the blocks to where the blocks have been planned."""
    places: Dict[fx.Node, Dict[int, TensorSpec]] = defaultdict(dict)
    for block in blocks:
        places[block.node][block.arena] = block.spec
        for spec in block.tensors:
            spec.mem_id = block.spec.mem_id
            spec.mem_offset += block.spec.mem_offset
    for body in _bodies(graph_module):
        for module in _with_bodies(body.graph_module):
            _shift_sizes(module.meta["non_const_buffer_sizes"], places[body.node])
            _shift_sizes(module.input_mem_buffer_sizes, places[body.node])


def _shift_sizes(sizes: List[int], places: Dict[int, TensorSpec]) -> None:
    """Let the recorded sizes end where the arenas' bytes end that have been moved."""
    before = list(sizes)
    for arena, place in places.items():
        if arena < len(before) and before[arena] > 0:
            sizes[arena] -= before[arena]
            sizes.extend([0] * (place.mem_id + 1 - len(sizes)))
            sizes[place.mem_id] += place.mem_offset + before[arena]


def _plan_at_nodes(
    algo: Callable[..., List[int]],
    alignment: int,
    specs: List[TensorSpec],
    graph_module: fx.GraphModule,
    graph_signature: Optional[ExportGraphSignature],
    padding: int,
    blocks: List[_BodyBlock],
) -> Optional[_Plan]:
    """Plan the blocks of bodies among the specs; None if that can't be done.

    An algorithm may know what to do with the tensors of the graph only, and take no
    heed of the blocks, or fail.
    """
    modules = list(_with_bodies(graph_module))
    if len(set(modules)) < len(modules):
        # A body that runs at several nodes has one place for all of them.
        return None
    graph_module.input_mem_buffer_sizes = []
    tensors = [*specs, *(block.spec for block in blocks)]
    try:
        bufsizes = algo(alignment, tensors, graph_module, graph_signature, padding)
    except Exception as error:
        logging.debug(f"No plan with bodies at their nodes: {error}")
        return None
    if not _leaves_blocks_alone(specs, blocks, bufsizes):
        return None
    return _Plan.of(tensors, bufsizes)


def _plan_in_front(
    algo: Callable[..., List[int]],
    alignment: int,
    specs: List[TensorSpec],
    graph_module: fx.GraphModule,
    graph_signature: Optional[ExportGraphSignature],
    padding: int,
    reserved: List[int],
) -> _Plan:
    """Plan the specs behind the bytes that the bodies have at the arenas' fronts."""
    graph_module.input_mem_buffer_sizes = list(reserved)
    bufsizes = algo(alignment, specs, graph_module, graph_signature, padding)
    graph_module.input_mem_buffer_sizes = list(reserved)
    # An algorithm may forget the arenas in which it has nothing to plan.
    return _Plan.of(specs, _merge_bufsizes(list(bufsizes), reserved))


def _plan_around_bodies(
    algo: Callable[..., List[int]],
    alignment: int,
    specs: List[TensorSpec],
    graph_module: fx.GraphModule,
    graph_signature: Optional[ExportGraphSignature],
    extra_padding: int,
) -> List[int]:
    """Plan `specs`, and place the bodies of the graph's control flow, planned before.

    The bytes of a body are in use while its node runs, so they are planned like those
    of a tensor that is alive there. If the algorithm can't do that, or if an arena
    grows by it, the bodies stay at the fronts of the arenas, one over another, and all
    else lies behind them.

    Args:
        graph_module: Its `input_mem_buffer_sizes` are the most bytes that any body
            has in each arena, and empty where no bodies belong to `specs`.

    Returns:
        The sizes of the arenas, in bytes.
    """
    reserved = graph_module.input_mem_buffer_sizes
    if not reserved:
        return algo(alignment, specs, graph_module, graph_signature, extra_padding)
    arguments = (algo, alignment, specs, graph_module, graph_signature)
    padding = extra_padding
    if any(map(_contains_xnnpack_delegate, _with_bodies(graph_module))):
        padding = 64
    before = _Plan.of(specs)
    blocks = _body_blocks(graph_module)
    at_nodes = _plan_at_nodes(*arguments, padding, blocks)
    if at_nodes is None or not at_nodes.is_at_floor(padding):
        before.restore()
        try:
            in_front = _plan_in_front(*arguments, extra_padding, reserved)
        except Exception:
            if at_nodes is None:
                raise
        else:
            if at_nodes is None or not at_nodes.needs_no_more_than(in_front):
                return in_front.bufsizes
        at_nodes.restore()
    graph_module.input_mem_buffer_sizes = []
    _move_bodies(graph_module, blocks)
    return at_nodes.bufsizes
