# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import dataclasses
import difflib
import operator
import warnings
from contextlib import contextmanager
from dataclasses import field
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
from executorch.exir.passes.shared_buffers import (
    alignments_of,
    apply_moves,
    find_overlap,
    is_placed,
    iter_graph_modules,
    lay_out_fronts,
    owner_of_placement,
    plan_moves,
    SharingMethod,
    spans_by_arena,
)
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
        fqn: owner_of_placement(node.meta["spec"])
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
    for module in iter_graph_modules(graph_module):
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


def _describe(method: SharingMethod, spec: Optional[TensorSpec]) -> str:
    """Name a tensor for a reader: the declared buffer, or the node that makes it."""
    for fqn, shared in method.shared.items():
        if shared is spec:
            return f"shared buffer '{fqn}'"
    for module in iter_graph_modules(method.graph_module):
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


def _traits(method: SharingMethod, fqn: str, arena: int) -> Dict[str, Any]:
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


def _check_same(fqn: str, home: SharingMethod, other: SharingMethod) -> None:
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


def _unknown_buffer(fqn: str, methods: Sequence[SharingMethod]) -> ValueError:
    known = sorted(frozenset().union(*(method.buffers for method in methods)))
    known.sort(key=lambda name: -difflib.SequenceMatcher(None, fqn, name).ratio())
    nearest = ", ".join(f"'{name}'" for name in known[:3]) or "none at all"
    names = ", ".join(method.name for method in methods)
    return ValueError(
        f"Shared buffer '{fqn}' is in none of the methods ({names}); the nearest "
        f"buffers that they have: {nearest}"
    )


def _agreed_specs(
    methods: Sequence[SharingMethod], declared: Iterable[str]
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
    methods: Sequence[SharingMethod], declared: FrozenSet[str]
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
    methods: Sequence[SharingMethod], declared: FrozenSet[str]
) -> None:
    """Give each declared buffer one place in all methods, and keep it free in all.

    Raises:
        ValueError: The methods can't agree on a buffer. They are left as they were.
    """
    specs = _agreed_specs(methods, declared)
    alignments = alignments_of(methods)
    fronts = lay_out_fronts(specs, alignments)
    moves = [plan_moves(method, fronts, alignments) for method in methods]
    for method, move in zip(methods, moves):
        for fqn, spec in method.shared.items():
            # Nothing has planned it, nor aligned it, where it is only read.
            spec.realign(specs[fqn].alignment)
        apply_moves(method, fronts, move)
    _warn_of_private_copies(methods, declared)


def begin_program(planned_by: Any, methods: Iterable[str]) -> None:
    """Tell planning passes that a program starts; what they know of another is void.

    Arguments:
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
    methods: List[SharingMethod] = field(default_factory=list)

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
        method = SharingMethod(
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
        alignments = alignments_of([method])
        fronts = lay_out_fronts(method.planned(), alignments)
        apply_moves(method, fronts, plan_moves(method, fronts, alignments))
        self.state.methods.append(method)

    def _validate_shared_placement(self, method: SharingMethod) -> None:
        """Check that the algorithm gave each declared buffer bytes of its own.

        Raises:
            ValueError: Arena or offset is unset, or another tensor lies there.
        """
        for fqn, spec in method.planned().items():
            if not is_placed(spec):
                raise ValueError(
                    f"Shared buffer '{fqn}' of method {method.name}: the planning "
                    f"algorithm left it at arena {spec.mem_id}, offset "
                    f"{spec.mem_offset}; expected both to be set"
                )
        for arena, spans in sorted(spans_by_arena(method.graph_module).items()):
            overlap = find_overlap(spans, method.planned().values())
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
