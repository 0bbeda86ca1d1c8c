# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import dataclasses
import difflib
import math
import operator
import warnings
from bisect import bisect_left
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import (
    Any,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.memory_planning import (
    _alias_inplace_result_specs,
    _is_inplace_node,
    get_node_tensor_specs,
)
from executorch.exir.pass_base import PassBase
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.schema import DeviceType, TensorShapeDynamism
from executorch.exir.tensor import TensorSpec
from torch.export.exported_program import ExportGraphSignature
from torch.fx import Node
from torch.utils import _pytree as pytree


def _mutated_input_specs(
    graph_module: torch.fx.GraphModule, graph_signature: ExportGraphSignature
) -> Set[TensorSpec]:
    """The specs of the buffers and user inputs that the signature says are mutated."""
    mutated = {
        name
        for name, fqn in graph_signature.inputs_to_buffers.items()
        if fqn in graph_signature.buffers_to_mutate.values()
    }
    mutated.update(graph_signature.user_inputs_to_mutate.values())
    return {
        spec
        for node in graph_module.graph.nodes
        if node.op == "placeholder" and node.target in mutated
        for spec in get_node_tensor_specs(node)
    }


def _settle_inplace_specs(
    graph_module: torch.fx.GraphModule, mutated: Set[TensorSpec]
) -> None:
    """Make every mention of an in-place result mention the spec of what was changed.

    The planner ties an in-place node to its argument, but the specs that were copied
    off the node before that, by a getitem or by the output node, would still be the
    node's old ones: tensors that nothing computes and that still get memory.
    """
    untied: Dict[Node, Any] = {}
    for node in graph_module.graph.nodes:
        if _is_inplace_node(node) and get_node_tensor_specs(node):
            untied[node] = node.meta["spec"]
            _alias_inplace_result_specs(node)
        elif node.target is operator.getitem and _is_inplace_node(node.args[0]):
            node.meta["spec"] = node.args[0].meta["spec"][node.args[1]]

    def spec_of_output(arg: Any) -> Any:
        spec = arg.meta.get("spec") if isinstance(arg, Node) else None
        if not isinstance(spec, _ViewSpec):
            return spec
        # Memory is planned for what the view is of. If that is no input, it still has
        # to be planned where the caller allocates the outputs: the caller allocates
        # the view, and the kernels before it write to what it is of.
        return spec._base if spec._base in mutated else untied.get(arg, spec)

    if untied:
        output = graph_module.graph.output_node()
        output.meta["spec"] = pytree.tree_map(spec_of_output, output.args[0])


@contextmanager
def _mutations_take_no_output_memory(
    graph_module: torch.fx.GraphModule,
    graph_signature: Optional[ExportGraphSignature],
) -> Iterator[None]:
    """Keep what is written back out of the graph's outputs while memory is planned.

    The result of a write-back is the buffer, or the user input. It is an output of the
    graph and mostly not of the program; as an output it needs no memory, and where the
    caller allocates the outputs the buffer needs its memory nevertheless. Afterwards the
    output node's specs are those that the emitter uses: for what was written back, the
    buffer's own. Without a signature nothing is known to be written back, and nothing
    changes.
    """
    if graph_signature is None:
        yield
        return
    mutated = _mutated_input_specs(graph_module, graph_signature)
    _settle_inplace_specs(graph_module, mutated)
    meta = graph_module.graph.output_node().meta
    specs = meta["spec"]
    meta["spec"] = pytree.tree_map_only(
        TensorSpec, lambda spec: None if spec in mutated else spec, specs
    )
    try:
        yield
    finally:
        meta["spec"] = specs


def _align_up(value: int, alignment: int) -> int:
    """The least multiple of `alignment` that is not below `value`."""
    return -(-value // alignment) * alignment


def _owner_of_placement(spec: TensorSpec) -> TensorSpec:
    """The spec that stores the placement: a view forwards its own to its base."""
    while isinstance(spec, _ViewSpec):
        spec = spec._base
    return spec


def _resolve_inplace_root(spec: TensorSpec) -> TensorSpec:
    """The spec whose allocation holds `spec`'s bytes; itself, if it borrows none."""
    root = _owner_of_placement(spec)
    while True:
        # Up to 1.4 a tensor could only borrow all of another's storage; the field's
        # old name now stands for "borrows at offset 0" and refuses other offsets.
        if hasattr(root, "storage_base"):
            base = root.storage_base
        else:
            base = root.inplace_base
        if base is None:
            return root
        root = _owner_of_placement(base)


def _iter_graph_modules(
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


def _iter_unique_specs(graph_module: torch.fx.GraphModule) -> Iterator[TensorSpec]:
    """Every spec with a placement of its own, each once, in the order of the graph.

    Control-flow graphs are included. Views are not: they have their base's placement.
    """
    seen: Dict[TensorSpec, None] = {}
    for module in _iter_graph_modules(graph_module):
        for node in module.graph.nodes:
            for leaf in pytree.tree_leaves(node.meta.get("spec")):
                if not isinstance(leaf, TensorSpec):
                    continue
                spec = _owner_of_placement(leaf)
                if spec not in seen:
                    seen[spec] = None
                    yield spec


def _is_placed(spec: TensorSpec) -> bool:
    return spec.mem_id is not None and spec.mem_offset is not None


def _declared_placeholders(
    graph_module: torch.fx.GraphModule,
    graph_signature: ExportGraphSignature,
    declared: Iterable[str],
) -> Iterator[Tuple[str, Node]]:
    """The placeholders of the declared buffers that this method has, with their FQNs."""
    names = frozenset(declared)
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            fqn = graph_signature.inputs_to_buffers.get(node.target)
            if fqn in names:
                yield fqn, node


def _collect_declared_shared_specs(
    graph_module: torch.fx.GraphModule,
    graph_signature: ExportGraphSignature,
    declared: Iterable[str],
) -> Dict[str, TensorSpec]:
    """Specs of the declared buffers that this method has, by FQN and in its order.

    Buffers that the method only reads are included, though nothing has planned them.
    """
    found = {
        fqn: _owner_of_placement(node.meta["spec"])
        for fqn, node in _declared_placeholders(graph_module, graph_signature, declared)
    }
    return dict(sorted(found.items()))


def _keep_in_program(
    graph_module: torch.fx.GraphModule,
    graph_signature: ExportGraphSignature,
    declared: Iterable[str],
) -> None:
    """Take back that a declared buffer goes to a file of constants.

    `external_constants` has tagged what this method only reads, though others write it.
    """
    for _, node in _declared_placeholders(graph_module, graph_signature, declared):
        node.meta.pop("constant_tag", None)


@dataclass(frozen=True)
class _SharingMethod:
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
class _Span:
    """Bytes [start, end) of an arena, and the spec whose allocation they belong to."""

    start: int
    end: int
    root: Optional[TensorSpec]


@dataclass(frozen=True)
class _Fronts:
    """What the front of each arena holds: (arena, offset) by FQN, and bytes by arena."""

    places: Mapping[str, Tuple[int, int]]
    bytes: Mapping[int, int]


@dataclass(frozen=True)
class _ArenaMove:
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


def _spans_by_arena(graph_module: torch.fx.GraphModule) -> Dict[int, List[_Span]]:
    """The bytes that the plan gives to tensors, by arena, by where they start."""
    spans: Dict[int, List[_Span]] = defaultdict(list)
    for spec in _iter_unique_specs(graph_module):
        if _is_placed(spec) and spec.nbytes() > 0:
            end = spec.mem_offset + spec.nbytes()
            root = _resolve_inplace_root(spec)
            spans[spec.mem_id].append(_Span(spec.mem_offset, end, root))
    for arena in spans.values():
        arena.sort(key=lambda span: span.start)
    return spans


def _find_overlap(
    spans: Sequence[_Span], shared: Iterable[TensorSpec]
) -> Optional[Tuple[_Span, _Span]]:
    """Two spans with bytes in common of which at least one is a shared buffer's.

    `spans` come by where they start, so the one that reaches furthest tells.
    """
    roots = frozenset(shared)
    furthest = furthest_shared = _Span(0, 0, None)
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


def _find_gaps(
    spans: Sequence[_Span],
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
    for span in (*spans, _Span(arena_bytes, arena_bytes, None)):
        if span.root in roots:
            start = span.start if start is None else start
            end = max(end, span.end)
        elif start is not None:
            size = min(span.start, _align_up(end, alignment)) - start
            gaps.append((start, size - size % alignment))
            start = None
    return gaps


def _alignments_of(methods: Iterable[_SharingMethod]) -> Dict[int, int]:
    """By arena, an alignment in bytes that does for all tensors of all methods there.

    An algorithm may align some arenas more strictly than the pass asks for.
    """
    alignments: Dict[int, int] = {}
    for method in methods:
        for spec in _iter_unique_specs(method.graph_module):
            if _is_placed(spec):
                known = alignments.get(spec.mem_id, method.alignment)
                alignments[spec.mem_id] = math.lcm(
                    known, method.alignment, spec.alignment
                )
    return alignments


def _lay_out_fronts(
    specs: Mapping[str, TensorSpec], alignments: Mapping[int, int]
) -> _Fronts:
    """Line up buffers in the order of their FQNs, each in the arena that it is in."""
    places: Dict[str, Tuple[int, int]] = {}
    ends: Dict[int, int] = {}
    for fqn, spec in sorted(specs.items()):
        offset = ends.get(spec.mem_id, 0)
        places[fqn] = (spec.mem_id, offset)
        ends[spec.mem_id] = _align_up(offset + spec.nbytes(), alignments[spec.mem_id])
    return _Fronts(places, ends)


def _plan_moves(
    method: _SharingMethod, fronts: _Fronts, alignments: Mapping[int, int]
) -> Dict[int, _ArenaMove]:
    """By arena, how the method makes room for the fronts."""
    spans = _spans_by_arena(method.graph_module)
    sizes = method.graph_module.meta["non_const_buffer_sizes"]
    shared = method.planned().values()
    moves: Dict[int, _ArenaMove] = {}
    for arena, front in fronts.bytes.items():
        size = sizes[arena] if arena < len(sizes) else 0
        gaps = _find_gaps(spans.get(arena, []), shared, alignments[arena], size)
        moves[arena] = _ArenaMove(
            front=front,
            gaps=[start for start, _ in gaps],
            closed=list(accumulate(size for _, size in gaps)),
        )
    return moves


def _apply_moves(
    method: _SharingMethod, fronts: _Fronts, moves: Mapping[int, _ArenaMove]
) -> None:
    """Put the method's shared buffers on the fronts and all the rest behind."""
    places = {
        spec: fronts.places[fqn]
        for fqn, spec in method.shared.items()
        if fqn in fronts.places
    }
    offsets: Dict[TensorSpec, int] = {}
    for spec in _iter_unique_specs(method.graph_module):
        if spec in places or not _is_placed(spec):
            continue
        root = _resolve_inplace_root(spec)
        if root in places:
            offsets[spec] = places[root][1] + spec.mem_offset - root.mem_offset
        elif spec.mem_id in moves:
            offsets[spec] = moves[spec.mem_id].moved(spec.mem_offset)
    for spec, offset in offsets.items():
        spec.mem_offset = offset
    for spec, (arena, offset) in places.items():
        spec.mem_id, spec.mem_offset = arena, offset
    _resize_arenas(method, moves, {arena for arena, _ in places.values()})


def _resize_arenas(
    method: _SharingMethod, moves: Mapping[int, _ArenaMove], held: Iterable[int]
) -> None:
    """Let the recorded sizes follow the moves; arenas that are `held` have their front.

    The lists are changed in place. The emitter sees another module than this one, and
    these lists are what the two have in common.
    """
    recorded: Dict[int, List[int]] = {}
    for module in _iter_graph_modules(method.graph_module):
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


def _checked_shared_fqns(
    fqns: Optional[Iterable[str]], share_mutable_buffers: bool
) -> Optional[FrozenSet[str]]:
    """`shared_buffer_fqns` as a set, if it makes sense; raises ValueError if not."""
    if fqns is None:
        return None
    if isinstance(fqns, (str, bytes)):
        raise ValueError(
            f"shared_buffer_fqns is the single string {fqns!r}, not a collection of "
            f"names; did you mean [{fqns!r}]?"
        )
    names = frozenset(fqns)
    strange = [name for name in names if not isinstance(name, str)]
    if strange:
        raise ValueError(
            f"shared_buffer_fqns holds {strange[0]!r}, a {type(strange[0]).__name__}; "
            "expected fully qualified names of buffers, which are strings"
        )
    if not names:
        raise ValueError(
            "shared_buffer_fqns is empty; name the buffers to share, or leave it at "
            "None to share all mutable buffers in an arena of their own"
        )
    if not share_mutable_buffers:
        raise ValueError(
            f"shared_buffer_fqns names {', '.join(sorted(names))} but "
            "share_mutable_buffers is False; set share_mutable_buffers=True to share"
        )
    return names


def _check_declared_inputs(
    graph_module: torch.fx.GraphModule,
    graph_signature: Optional[ExportGraphSignature],
    declared: Iterable[str],
    method: str,
) -> None:
    """Refuse, before anything is planned, what can't be shared; raises ValueError."""
    if graph_signature is None:
        raise ValueError(
            f"Method {method}: shared_buffer_fqns needs the graph signature, which "
            "tells buffers from other inputs, but None was given; call "
            "run(graph_module, graph_signature)"
        )
    kinds = {
        "parameter": graph_signature.inputs_to_parameters,
        "constant": graph_signature.inputs_to_lifted_tensor_constants,
    }
    for fqn in sorted(declared):
        for kind, inputs in kinds.items():
            if fqn in inputs.values():
                raise ValueError(
                    f"Shared buffer '{fqn}' is a {kind} in method {method}; expected "
                    "a buffer. Constants are stored once for all methods as it is: "
                    "take the name out of shared_buffer_fqns"
                )
    specs = _collect_declared_shared_specs(graph_module, graph_signature, declared)
    for fqn, spec in specs.items():
        if spec.shape_dynamism == TensorShapeDynamism.DYNAMIC_UNBOUND:
            raise ValueError(
                f"Shared buffer '{fqn}' of method {method} has the shape "
                f"{list(spec.shape)}, which has no upper bound; expected a bounded "
                "one, since a shared buffer has a fixed place"
            )
    _check_backends_own_none(graph_module, declared, method)


def _check_backends_own_none(
    graph_module: torch.fx.GraphModule, declared: Iterable[str], method: str
) -> None:
    """Refuse what a backend has taken over, with the contents of now; ValueError."""
    names = frozenset(declared)
    for module in _iter_graph_modules(graph_module):
        for node in module.graph.nodes:
            if node.target is not executorch_call_delegate:
                continue
            lowered = getattr(module, node.args[0].target)
            owned = lowered.original_module.graph_signature.inputs_to_buffers
            for fqn in sorted(names.intersection(owned.values())):
                raise ValueError(
                    f"Shared buffer '{fqn}' of method {method} belongs to a delegate "
                    f"to {lowered.backend_id}, which keeps a copy of its own; expected "
                    "an input of the method. Keep the operators that read it out of "
                    "the partition, or take the name out of shared_buffer_fqns"
                )


def _describe(method: _SharingMethod, spec: Optional[TensorSpec]) -> str:
    """Name a tensor for a reader: the declared buffer, or the node that makes it."""
    for fqn, shared in method.shared.items():
        if shared is spec:
            return f"shared buffer '{fqn}'"
    for module in _iter_graph_modules(method.graph_module):
        for node in module.graph.nodes:
            leaves = pytree.tree_leaves(node.meta.get("spec"))
            if any(leaf is spec for leaf in leaves):
                return f"tensor '{node.name}'"
    return "another tensor"


def _device_of_arena(graph_module: torch.fx.GraphModule, arena: int) -> str:
    for entry in graph_module.meta.get("non_const_buffer_device") or ():
        if entry.buffer_idx == arena:
            return f"{entry.device_type.name}:{entry.device_index}"
    return f"{DeviceType.CPU.name}:0"


def _traits(method: _SharingMethod, fqn: str, arena: int) -> Dict[str, Any]:
    """What all methods have to agree on about a buffer.

    Who only reads it has no say in the arena, but must be able to have it there.
    """
    spec = method.shared[fqn]
    return {
        "dtype": spec.dtype,
        "size": f"{list(spec.shape)} ({spec.nbytes()} bytes)",
        "dim order": list(spec.dim_order),
        "arena": spec.mem_id if fqn in method.mutated else arena,
        f"arena {arena}'s device": _device_of_arena(method.graph_module, arena),
    }


def _check_same(fqn: str, home: _SharingMethod, other: _SharingMethod) -> None:
    arena = home.shared[fqn].mem_id
    found = _traits(other, fqn, arena)
    for trait, wanted in _traits(home, fqn, arena).items():
        if found[trait] != wanted:
            raise ValueError(
                f"Shared buffer '{fqn}' has {trait} {wanted} in method {home.name} "
                f"but {trait} {found[trait]} in method {other.name}; one place can't "
                "serve both. Export both methods from the same buffer and plan it "
                "alike, or take the name out of shared_buffer_fqns"
            )


def _unknown_buffer(fqn: str, methods: Sequence[_SharingMethod]) -> ValueError:
    known = sorted(frozenset().union(*(method.buffers for method in methods)))
    known.sort(key=lambda name: -difflib.SequenceMatcher(None, fqn, name).ratio())
    nearest = ", ".join(f"'{name}'" for name in known[:3]) or "none at all"
    names = ", ".join(method.name for method in methods)
    return ValueError(
        f"Shared buffer '{fqn}' is in none of the methods ({names}); the nearest "
        f"buffers that they have: {nearest}"
    )


def _agreed_specs(
    methods: Sequence[_SharingMethod], declared: Iterable[str]
) -> Dict[str, TensorSpec]:
    """Each declared buffer's spec in the first method that writes it.

    Raises:
        ValueError: No method has the buffer, or none writes it, or two methods have
            it with another size, dtype or arena.
    """
    specs: Dict[str, TensorSpec] = {}
    for fqn in sorted(declared):
        having = [method for method in methods if fqn in method.shared]
        if not having:
            raise _unknown_buffer(fqn, methods)
        home = next((each for each in having if fqn in each.mutated), None)
        if home is None:
            names = ", ".join(method.name for method in having)
            raise ValueError(
                f"Shared buffer '{fqn}' is a constant: {names} only read it, and "
                "expected was a method that writes it. Constants are stored once for "
                "all methods as it is: take the name out of shared_buffer_fqns"
            )
        for method in having:
            _check_same(fqn, home, method)
        specs[fqn] = home.shared[fqn]
    return specs


def _warn_of_private_copies(
    methods: Sequence[_SharingMethod], declared: FrozenSet[str]
) -> None:
    """Warn, once for all, of state that several methods have and that isn't shared."""
    mutated = frozenset().union(*(method.mutated for method in methods))
    lines: List[str] = []
    for fqn in sorted(mutated - declared):
        using = [method.name for method in methods if fqn in method.used]
        if len(using) > 1:
            lines.append(f"'{fqn}' ({', '.join(using)})")
    if lines:
        warnings.warn(
            "Mutable buffers that are not in shared_buffer_fqns though several "
            f"methods use them: {'; '.join(lines)}. Each method keeps a copy of its "
            "own, so none sees what another writes.",
            stacklevel=3,
        )


def _share_in_second_arena(state: "_MemoryPlanningState", alignment: int) -> None:
    """Line up all mutable buffers in arena 2, at the same offsets in every method.

    Raises:
        ValueError: A method uses other arenas than the default one.
    """
    arenas = [each.meta["non_const_buffer_sizes"] for each in state.graph_modules]
    if any(len(sizes) != 2 for sizes in arenas):
        raise ValueError("Cannot share mutable state if not using default memory ids")
    front = 0
    for fqn, mutable in state.mutable_buffers.items():
        specs = [*mutable, *state.maybe_mutable_buffers.get(fqn, ())]
        for spec in specs:
            spec.realign(alignment)
            spec.mem_id, spec.mem_offset = 2, front
        front += specs[0].allocated_memory
    for sizes in arenas:
        sizes.append(front)


def _share_on_fronts(
    methods: Sequence[_SharingMethod], declared: FrozenSet[str]
) -> None:
    """Give each declared buffer one place in all methods, and keep it free in all.

    Raises:
        ValueError: The methods can't agree on a buffer. They are left as they were.
    """
    specs = _agreed_specs(methods, declared)
    alignments = _alignments_of(methods)
    fronts = _lay_out_fronts(specs, alignments)
    moves = [_plan_moves(method, fronts, alignments) for method in methods]
    for method, move in zip(methods, moves):
        for fqn, spec in method.shared.items():
            # Nothing has planned it, nor aligned it, where it is only read.
            spec.realign(specs[fqn].alignment)
        _apply_moves(method, fronts, move)
    _warn_of_private_copies(methods, declared)


def begin_program(planned_by: Any, methods: Iterable[str]) -> None:
    """Tell planning passes that a program starts; what they know of another is void.

    Args:
        planned_by: the pass for all methods, or a dict of passes by method
        methods: the program's methods, in the order in which they will be planned
    """
    passes = planned_by if isinstance(planned_by, dict) else {None: planned_by}
    by_method = {name: passes.get(name, passes.get(None)) for name in methods}
    for each in passes.values():
        if isinstance(each, MemoryPlanningPass):
            names = [name for name, planner in by_method.items() if planner is each]
            each.state = _MemoryPlanningState(method_names=names)


def _join_sharing_passes(by_method: Mapping[str, Optional[PassBase]]) -> None:
    """Let the passes of one program that share buffers know of each other's methods.

    Raises:
        ValueError: Some methods share buffers and others don't know of them.
    """
    fqns = {
        name: getattr(each, "shared_buffer_fqns", None)
        for name, each in by_method.items()
    }
    sharing = next((name for name, declared in fqns.items() if declared), None)
    if sharing is None:
        return
    for name, declared in fqns.items():
        if declared != fqns[sharing]:
            raise ValueError(
                f"Method '{sharing}' is planned with shared_buffer_fqns "
                f"{sorted(fqns[sharing])} but method '{name}' with "
                f"{sorted(declared) if declared else None}; every method has to leave "
                "the shared buffers' places alone, so plan all of them with a "
                "MemoryPlanningPass that has the same shared_buffer_fqns"
            )
    state = _MemoryPlanningState(method_names=list(by_method))
    for each in by_method.values():
        each.state = state


class _MemoryPlanningState:
    # The program's methods in the order of planning, if the caller told.
    method_names: List[str] = field(default_factory=list)
    # Whether a method is being planned; still set when that has failed.
    in_method: bool = False
    methods: List[_SharingMethod] = field(default_factory=list)

    def take(self) -> "_MemoryPlanningState":
        """All that is known of the program, which is forgotten here."""
        taken = dataclasses.replace(self)
        vars(self).update(vars(_MemoryPlanningState()))
        return taken

    def next_method(self) -> str:
        """The name of the method at hand, in quotes, or else its number."""
        index = len(self.methods)
        if index < len(self.method_names):
            return f"'{self.method_names[index]}'"
        return f"{index + 1} of the program"


class MemoryPlanningPass(PassBase):
    @property
    def _shares_in_second_arena(self) -> bool:
        return self.share_mutable_buffers and self.shared_buffer_fqns is None

    def _begin_method(self) -> None:
        # The last one has failed, and with it the program that it was part of.
        if self.state.in_method:
            self.state.take()
        self.state.in_method = True

    def _front_pack_shared_buffers(
        self,
        graph_module: torch.fx.GraphModule,
        graph_signature: ExportGraphSignature,
    ) -> None:
        """Move the method's declared buffers to the fronts of their arenas.

        They stand in the order of their FQNs, at aligned offsets, and all else that
        the method has there follows; no arena grows. Buffers that the method only
        reads get their places in `run_multimethod`: other methods decide on those.

        Raises:
            ValueError: The algorithm's placement of a declared buffer is missing, or
                isn't the buffer's alone.
        """
        buffers = graph_signature.inputs_to_buffers
        method = _SharingMethod(
            name=self.state.next_method(),
            graph_module=graph_module,
            alignment=self.alignment,
            shared=_collect_declared_shared_specs(
                graph_module, graph_signature, self.shared_buffer_fqns
            ),
            buffers=frozenset(buffers.values()),
            used=frozenset(
                buffers[node.target]
                for node in graph_module.graph.nodes
                if node.op == "placeholder" and node.target in buffers and node.users
            ),
            mutated=frozenset(graph_signature.buffers_to_mutate.values()),
        )
        self._validate_shared_placement(method)
        _keep_in_program(graph_module, graph_signature, self.shared_buffer_fqns)
        alignments = _alignments_of([method])
        fronts = _lay_out_fronts(method.planned(), alignments)
        _apply_moves(method, fronts, _plan_moves(method, fronts, alignments))
        self.state.methods.append(method)

    def _validate_shared_placement(self, method: _SharingMethod) -> None:
        """Check that the algorithm gave each declared buffer bytes of its own.

        Raises:
            ValueError: Arena or offset is unset, or another tensor lies there.
        """
        for fqn, spec in method.planned().items():
            if not _is_placed(spec):
                raise ValueError(
                    f"Shared buffer '{fqn}' of method {method.name}: the planning "
                    f"algorithm left it at arena {spec.mem_id}, offset "
                    f"{spec.mem_offset}; expected both to be set"
                )
        for arena, spans in sorted(_spans_by_arena(method.graph_module).items()):
            overlap = _find_overlap(spans, method.planned().values())
            if overlap is not None:
                first, second = (
                    f"{_describe(method, span.root)} at bytes {span.start} to {span.end}"
                    for span in overlap
                )
                raise ValueError(
                    f"In method {method.name}, {first} of arena {arena} overlaps "
                    f"{second}; expected each shared buffer to have its bytes for "
                    "itself. The planning algorithm must keep mutable buffers for "
                    "all of the method"
                )

    def run_multimethod(self) -> None:
        """Settle what takes all methods to know; called when each has been planned.

        The next `run` starts another program, whether this succeeds or not.

        Raises:
            ValueError: The methods can't share their buffers.
        """
        state = self.state.take()
        if self.share_mutable_buffers:
            _share_in_second_arena(state, self.alignment)
