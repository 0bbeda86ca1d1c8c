# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import dataclasses
import operator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Union,
)

import torch
from executorch.exir.memory_planning import (  # noqa: F401
    _alias_inplace_result_specs,
    _contains_xnnpack_delegate,
    _is_inplace_node,
    _storage_spec,
    get_node_tensor_specs,
)
from executorch.exir.pass_base import PassBase
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.passes.shared_buffer_agreement import (
    agree,
    check_apart,
    check_bounded,
    describe_method,
    device_entry,
    SharingMethod,
    warn_of_lone_buffers,
    warn_of_lost_state,
    warn_of_private_copies,
)
from executorch.exir.passes.shared_buffer_names import (  # noqa: F401
    check_names_of_method,
    checked_names,
    MethodNames,
    names_of_program,
    names_of_signature,
    resolve_names,
    ResolvedNames,
    SharedBufferFqns,
    SharedNames,
)
from executorch.exir.passes.shared_buffer_placement import (
    banks_of,
    check_capacity,
    first_free_arena,
    lay_out,
    pinned_arenas,
    place,
    PlannedMethod,
    shared_slot,
)
from executorch.exir.passes.shared_buffers import (
    is_placed,
    iter_unique_specs,
    MethodPlan,
    plan_moves,
    Slot,
)
from executorch.exir.schema import DeviceType
from executorch.exir.tensor import TensorSpec
from torch.export.exported_program import ExportedProgram, ExportGraphSignature
from torch.fx import Node
from torch.utils import _pytree as pytree


def _mutated_input_specs(
    graph_module: torch.fx.GraphModule, graph_signature: ExportGraphSignature
) -> Set[TensorSpec]:
    """The specs of the buffers and user inputs that the signature says are mutated."""
    # The signature looks all of them up again, each time that it is asked.
    fqns = frozenset(graph_signature.buffers_to_mutate.values())
    buffers = graph_signature.inputs_to_buffers.items()
    mutated = {name for name, fqn in buffers if fqn in fqns}
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


# What an XNNPACK delegate may read behind a tensor, in bytes.
_XNNPACK_PADDING = 64

SHARED_ARENAS = ("front", "own")


def mutable_buffer_fqns(manager: Any) -> List[str]:
    """The names of all buffers that some method of a program mutates, sorted.

    `shared_buffer_fqns=mutable_buffer_fqns(edge)` shares all state by name. State that
    a backend keeps for itself isn't among it.

    Args:
        manager: an `EdgeProgramManager`, or what else has `methods` and
            `exported_program(method)`
    """
    signatures = (
        manager.exported_program(method).graph_signature for method in manager.methods
    )
    return sorted(
        {fqn for each in signatures for fqn in each.buffers_to_mutate.values()}
    )


def _checked_shared_arena(shared_arena: str, names: Optional[SharedNames]) -> str:
    """`shared_arena`, if it makes sense; raises ValueError if not."""
    if shared_arena not in SHARED_ARENAS:
        raise ValueError(
            f"shared_arena is {shared_arena!r}; expected one of "
            f"{', '.join(map(repr, SHARED_ARENAS))}"
        )
    if shared_arena == "own" and names is None:
        raise ValueError(
            "shared_arena='own' takes shared_buffer_fqns; without it "
            "share_mutable_buffers puts all mutable buffers in arena 2 as it is"
        )
    return shared_arena


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


def begin_program(
    planned_by: Any, methods: Union[Iterable[str], Mapping[str, ExportedProgram]]
) -> None:
    """Tell planning passes that a program starts; what they know of another is void.

    Args:
        planned_by: the pass for all methods, or a dict of passes by method
        methods: the program's methods, in the order in which they will be planned; by
            name, if what they know of buffers' names is to be used

    Raises:
        ValueError: Some methods share buffers and others don't know of them, or some
            names to share are no buffer's.
    """
    passes = planned_by if isinstance(planned_by, dict) else {None: planned_by}
    by_method = {name: passes.get(name, passes.get(None)) for name in methods}
    for each in passes.values():
        if isinstance(each, MemoryPlanningPass):
            names = [name for name, planner in by_method.items() if planner is each]
            each.state = _MemoryPlanningState(method_names=names)


def _join_sharing_passes(
    by_method: Mapping[str, Optional[PassBase]],
    programs: Optional[Mapping[str, ExportedProgram]],
) -> None:
    """Let the passes of one program that share buffers know of each other's methods.

    Raises:
        ValueError: Some methods share buffers and others don't know of them, or some
            names are no buffer's.
    """
    ways = {name: _way_of_sharing(each) for name, each in by_method.items()}
    sharing = next((name for name, way in ways.items() if way is not None), None)
    if sharing is None:
        return
    for name, way in ways.items():
        if way != ways[sharing]:
            raise ValueError(
                f"Method '{sharing}' is planned with {ways[sharing]} but method "
                f"'{name}' with {way or 'shared_buffer_fqns=None'}; every method has to "
                "leave the shared buffers' places alone, so plan all of them with a "
                "MemoryPlanningPass that shares alike"
            )
    state = _MemoryPlanningState(method_names=list(by_method))
    if programs is not None:
        names = {name: names_of_program(program) for name, program in programs.items()}
        state.resolved = resolve_names(ways[sharing].names, names)
    for each in by_method.values():
        each.state = state


@dataclass(frozen=True)
class _WayOfSharing:
    """What the passes for the methods of a program have to have in common."""

    names: SharedNames
    shared_arena: str
    methods_share_arenas: bool

    def __str__(self) -> str:
        return (
            f"shared_buffer_fqns [{self.names}], shared_arena {self.shared_arena!r}, "
            f"methods_share_arenas {self.methods_share_arenas}"
        )


def _way_of_sharing(planner: Optional[PassBase]) -> Optional[_WayOfSharing]:
    names = getattr(planner, "shared_buffer_fqns", None)
    if names is None:
        return None
    return _WayOfSharing(names, planner.shared_arena, planner.methods_share_arenas)


@dataclass
class _LostState:
    """State of methods that nothing keeps from other methods."""

    # How many methods the program has, by whichever pass each is planned.
    methods: int = 0
    # By method, the FQNs of its mutable buffers.
    fqns: Dict[str, List[str]] = field(default_factory=dict)


class _MemoryPlanningState:
    # The program's methods in the order of planning, if the caller told.
    method_names: List[str] = field(default_factory=list)
    # Whether a method is being planned; still set when that has failed.
    in_method: bool = False
    # How many methods have been begun.
    begun: int = 0
    lost: _LostState = field(default_factory=_LostState)
    planned: List[PlannedMethod] = field(default_factory=list)
    # What the names to share mean, if the caller gave the programs.
    resolved: Optional[ResolvedNames] = None
    # By method, what its signature says of names.
    known: Dict[str, MethodNames] = field(default_factory=dict)

    def take(self) -> "_MemoryPlanningState":
        """All that is known of the program, which is forgotten here."""
        taken = dataclasses.replace(self)
        vars(self).update(vars(_MemoryPlanningState()))
        return taken

    def bare_name(self) -> str:
        """The name of the method at hand; empty, if the caller didn't tell."""
        names = self.method_names
        return names[self.begun - 1] if self.begun <= len(names) else ""

    def method_name(self) -> str:
        """The name of the method at hand, in quotes, or else its number."""
        name = self.bare_name()
        return f"'{name}'" if name else f"{self.begun} of the program"

    def methods(self) -> List[SharingMethod]:
        return [each.method for each in self.planned]


class MemoryPlanningPass(PassBase):
    @property
    def _shares_in_second_arena(self) -> bool:
        return self.share_mutable_buffers and self.shared_buffer_fqns is None

    def _begin_method(self) -> None:
        # The last one has failed, and with it the program that it was part of.
        if self.state.in_method:
            self.state.take()
        self.state.in_method = True
        self.state.begun += 1

    def _note_lost_state(self, graph_signature: Optional[ExportGraphSignature]) -> None:
        """Note what no method keeps from the others, for a warning in the end."""
        apart = self.share_mutable_buffers or not self.methods_share_arenas
        if graph_signature is not None and self.alloc_mutable_buffers and not apart:
            fqns = sorted(graph_signature.buffers_to_mutate.values())
            self.state.lost.fqns[self.state.method_name()] = fqns

    def _warn_of_lost_state(self, lost: _LostState) -> None:
        if max(lost.methods, len(lost.fqns)) > 1 and any(lost.fqns.values()):
            warn_of_lost_state(lost.fqns)
        # Other passes for the program have nothing to add.
        lost.fqns.clear()

    def _describe_method(
        self,
        graph_module: torch.fx.GraphModule,
        graph_signature: ExportGraphSignature,
        *,
        is_planned: bool,
    ) -> SharingMethod:
        state, name = self.state, self.state.bare_name()
        names = names_of_signature(graph_signature)
        if state.resolved is not None:
            labels = state.resolved.labels[name]
        elif self.shared_buffer_fqns.by_method and not name:
            raise ValueError(
                "shared_buffer_fqns has names by method, but it isn't known which "
                f"method {state.method_name()} is; call begin_program first"
            )
        else:
            check_names_of_method(self.shared_buffer_fqns, name, names)
            declared = self.shared_buffer_fqns.in_method(name)
            labels = {fqn: label for label, fqn in declared.items()}
        state.known[name or state.method_name()] = names
        return describe_method(
            state.method_name(),
            graph_module,
            graph_signature,
            labels,
            is_planned=is_planned,
        )

    def _agree(self, methods: Sequence[SharingMethod]) -> Dict[str, SharingMethod]:
        return agree(methods, keeps_arenas=self.shared_arena == "front")

    def _prepare_sharing(
        self,
        graph_module: torch.fx.GraphModule,
        graph_signature: Optional[ExportGraphSignature],
    ) -> None:
        """Refuse, before anything is planned, what can't be shared; raises ValueError.

        Then say in which arenas the algorithm is to plan mutable buffers, where this
        isn't up to the algorithm.
        """
        if graph_signature is None:
            raise ValueError(
                f"Method {self.state.method_name()}: shared_buffer_fqns needs the "
                "graph signature, which tells buffers from other inputs, but None was "
                "given; call run(graph_module, graph_signature)"
            )
        method = self._describe_method(graph_module, graph_signature, is_planned=False)
        check_bounded(method)
        homes = self._agree([*self.state.methods(), method])
        banks = banks_of(self.memory_planning_algo)
        written = method.written
        if self.shared_arena == "own" and not self._plans_devices(graph_module):
            state = [*written.values(), *self._private_state(method).values()]
            buffers = {*state, *(each.spec for each in method.read())}
            behind = max((1, *pinned_arenas(graph_module, buffers), *banks)) + 1
            for spec in state:
                spec.mem_id = max(behind, self._first_own_arena(self.state.planned))
        elif banks:
            for label, spec in written.items():
                arena = homes[label].arenas.get(label)
                if spec.mem_id is None and arena in banks:
                    spec.mem_id = arena

    def _plans_devices(self, graph_module: torch.fx.GraphModule) -> bool:
        """Whether arenas are numbered by device, which leaves no choice of them."""
        return self.enable_non_cpu_memory_planning and any(
            getattr(spec, "device", DeviceType.CPU) != DeviceType.CPU
            for spec in iter_unique_specs(graph_module)
        )

    def _private_state(self, method: SharingMethod) -> Mapping[str, TensorSpec]:
        return method.private if self.methods_share_arenas else {}

    def _first_own_arena(self, planned: Sequence[PlannedMethod]) -> int:
        banks = banks_of(self.memory_planning_algo)
        behind_banks = max((1, *banks)) + 1
        return max((behind_banks, *(each.first_free_arena for each in planned)))

    def _front_pack_shared_buffers(
        self,
        graph_module: torch.fx.GraphModule,
        graph_signature: ExportGraphSignature,
    ) -> None:
        """Move the method's mutable buffers to the fronts of their arenas.

        They stand in the order of their labels, behind them the state that methods
        have for themselves, at aligned offsets, and all else that the method has there
        follows; no arena grows, but by what other methods have at its front. Places
        are final as far as the methods up to this one tell.

        Raises:
            ValueError: The algorithm's placement of a mutable buffer is missing, or
                isn't the buffer's alone, or the methods so far disagree.
        """
        method = self._describe_method(graph_module, graph_signature, is_planned=True)
        planned = self._validate_shared_placement(method)
        self.state.planned = self._place_all([*self.state.planned, planned], [planned])

    def _validate_shared_placement(self, method: SharingMethod) -> PlannedMethod:
        """Check that the algorithm gave each mutable buffer bytes of its own.

        Raises:
            ValueError: Arena or offset is unset, or another tensor lies there.
        """
        index = len(self.state.planned)
        private = {
            Slot(index, fqn): spec
            for fqn, spec in self._private_state(method).items()
            if is_placed(spec)
        }
        written = method.written.items()
        specs = {**{shared_slot(label): spec for label, spec in written}, **private}
        check_apart(method, specs)
        gm = method.graph_module
        plan = MethodPlan(
            graph_module=gm,
            alignment=self.alignment,
            padding=_XNNPACK_PADDING if _contains_xnnpack_delegate(gm) else 0,
            planned=specs,
            read=[(shared_slot(each.label), each.spec) for each in method.read()],
        )
        return PlannedMethod(
            method=method,
            plan=plan,
            private=private,
            devices={s: device_entry(gm, spec.mem_id) for s, spec in specs.items()},
            first_free_arena=first_free_arena(gm, frozenset(specs.values())),
        )

    def _place_all(
        self, planned: Sequence[PlannedMethod], moving: Sequence[PlannedMethod]
    ) -> List[PlannedMethod]:
        """Lay out the methods `moving` with what all the methods `planned` need.

        Returns:
            The methods `planned` as they are then.

        Raises:
            ValueError: The methods can't share their buffers. They are left as they
                were.
        """
        homes = self._agree([each.method for each in planned])
        own_arena = (
            self._first_own_arena(planned) if self.shared_arena == "own" else None
        )
        fronts, alignments, own = lay_out(planned, homes, own_arena)
        moves = [plan_moves(each.plan, fronts, alignments) for each in moving]
        banks = banks_of(self.memory_planning_algo)
        for each, move in zip(moving, moves):
            check_capacity(each, fronts, move, banks)
        of_slots = {
            shared_slot(label): home.written[label].alignment
            for label, home in homes.items()
        }
        placed = {
            id(each): place(each, fronts, move, own, of_slots)
            for each, move in zip(moving, moves)
            if each.fronts != fronts
        }
        return [placed.get(id(each), each) for each in planned]

    def _share_on_fronts(self, state: "_MemoryPlanningState") -> None:
        """Give each declared buffer one place in all methods, and keep it free in all.

        Raises:
            ValueError: The methods can't agree on a buffer, or none has it.
        """
        resolved = state.resolved
        if resolved is None:
            resolved = resolve_names(self.shared_buffer_fqns, state.known)
        self._place_all(state.planned, state.planned)
        warn_of_private_copies(state.methods())
        if len(state.planned) > 1:
            warn_of_lone_buffers(resolved.known_in)

    def run_multimethod(self) -> None:
        """Settle what takes all methods to know; called when each has been planned.

        The next `run` starts another program, whether this succeeds or not.

        Raises:
            ValueError: The methods can't share their buffers.
        """
        state = self.state.take()
        if self.share_mutable_buffers:
            _share_in_second_arena(state, self.alignment)
