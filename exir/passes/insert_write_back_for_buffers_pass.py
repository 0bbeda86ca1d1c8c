# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import itertools
import operator
from collections import defaultdict, deque
from dataclasses import dataclass
from functools import lru_cache
from typing import (
    Collection,
    Deque,
    Dict,
    Iterable,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import torch
from executorch.exir import memory
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.dialects._ops import ops
from executorch.exir.operator.convert import unwrap_op_overload
from executorch.exir.passes.insert_write_back_for_buffers_pass import _is_inplace_node
from executorch.exir.passes.replace_view_copy_with_view_pass import _is_view_copy
from executorch.exir.tensor import TensorSpec
from torch.export.exported_program import (
    ExportedProgram,
    ExportGraphSignature,
    InputKind,
    OutputKind,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.utils import _pytree as pytree


# Outputs that the caller is given as values of their own.
_RETURNED_KINDS = (
    OutputKind.USER_OUTPUT,
    OutputKind.LOSS_OUTPUT,
    OutputKind.GRADIENT_TO_PARAMETER,
    OutputKind.GRADIENT_TO_USER_INPUT,
)


def _inplace_root(node: object) -> object:
    """What in-place operators only have made `node` of."""
    while isinstance(node, Node) and _is_inplace_node(node):
        # Every in-place operator of ATen returns its first argument.
        node = node.args[0] if node.args else None
    return node


def _inplace_lineage(output_arg: object, mutated: Node) -> bool:
    """
    Whether `output_arg` is `mutated` itself, reached through in-place operators
    only, so that nothing is left to be copied.
    """
    return _inplace_root(output_arg) is mutated


# These look at the shape of a tensor only, so they may follow a write to it.
_SHAPE_OPERATORS = (
    "aten::sym_size",
    "aten::sym_stride",
    "aten::sym_numel",
    "aten::sym_storage_offset",
)


@dataclass(frozen=True)
class _Parameter:
    """A parameter of an operator: where a call may pass its argument."""

    index: int
    name: str

    def nodes(self, call: Node) -> List[Node]:
        """What `call` passes here, also inside a list."""
        nodes: List[Node] = []
        if self.index < len(call.args):
            map_arg(call.args[self.index], nodes.append)
        else:
            map_arg(call.kwargs.get(self.name), nodes.append)
        return nodes


@dataclass(frozen=True)
class _OperatorEffects:
    """What an operator's schema says of the memory of its arguments."""

    reads: bool
    writes: Tuple[_Parameter, ...]
    # For each result, the parameters whose memory it may lie in.
    results: Tuple[Tuple[_Parameter, ...], ...]
    # The operator returns a tuple or a list, which getitem takes apart.
    returns_container: bool


@dataclass(frozen=True)
class _CallEffects:
    """What one call does to the memory of the nodes that it is given."""

    reads: Sequence[Node]
    writes: Sequence[Node] = ()
    # For each result, the nodes whose memory it may lie in; none if it is fresh.
    results: Tuple[Sequence[Node], ...] = ((),)
    returns_container: bool = False
    # The node that the result is, whole and in the same layout.
    same_as: Optional[Node] = None


def _may_alias(result: torch.Argument, argument: torch.Argument) -> bool:
    if result.alias_info is None or argument.alias_info is None:
        return False
    of_result = result.alias_info.before_set | result.alias_info.after_set
    of_argument = argument.alias_info.before_set
    # The letters of a list, as in `Tensor(a)[]`, don't reach Python.
    unknown = not of_result or not of_argument or "*" in of_result
    return unknown or not of_result.isdisjoint(of_argument)


@lru_cache(maxsize=None)
def _operator_effects(overload: torch._ops.OpOverload) -> _OperatorEffects:
    schema = overload._schema
    parameters = [
        (_Parameter(index, argument.name), argument)
        for index, argument in enumerate(schema.arguments)
    ]
    return _OperatorEffects(
        reads=schema.name not in _SHAPE_OPERATORS,
        writes=tuple(
            parameter
            for parameter, argument in parameters
            if argument.alias_info is not None and argument.alias_info.is_write
        ),
        results=tuple(
            tuple(p for p, argument in parameters if _may_alias(result, argument))
            for result in schema.returns
        ),
        returns_container=len(schema.returns) != 1
        or isinstance(schema.returns[0].type, torch.ListType),
    )


def _schema_effects(call: Node) -> Optional[_CallEffects]:
    """The effects of a call of an operator; None if it has no schema."""
    try:
        effects = _operator_effects(unwrap_op_overload(call.target))
    except TypeError:
        return None
    reads = call.all_input_nodes if effects.reads else ()
    if not effects.writes and not any(effects.results):
        return _CallEffects(
            reads,
            results=((),) * len(effects.results),
            returns_container=effects.returns_container,
        )
    writes = [node for parameter in effects.writes for node in parameter.nodes(call)]
    results = tuple(
        [node for parameter in parameters for node in parameter.nodes(call)]
        for parameters in effects.results
    )
    return _CallEffects(
        reads=reads,
        writes=writes,
        results=results,
        returns_container=effects.returns_container,
        same_as=_written_result(writes, results),
    )


def _written_result(
    writes: Sequence[Node], results: Tuple[Sequence[Node], ...]
) -> Optional[Node]:
    """The argument that an in-place operator returns, if that is all it returns."""
    if len(writes) == 1 and len(results) == 1 and list(results[0]) == list(writes):
        return writes[0]
    return None


def _shared_allocation_effects(call: Node) -> Optional[_CallEffects]:
    """
    The effects of a call that the reinplace pass has marked: memory planning will
    put its result into the memory of an argument, whatever the schema says.
    """
    index = call.meta.get("_share_alloc_with_arg_idx")
    if index is None:
        return None
    shared = call.args[index]
    assert isinstance(shared, Node)
    whole = call.meta.get("_shared_alloc_offset", 0) == 0
    return _CallEffects(
        reads=call.all_input_nodes,
        writes=[shared],
        results=([shared],),
        same_as=shared if whole else None,
    )


def _delegate_effects(call: Node) -> Optional[_CallEffects]:
    """A backend reads what it is given and returns memory of its own."""
    if call.target is not executorch_call_delegate:
        return None
    return _CallEffects(call.all_input_nodes, results=(), returns_container=True)


@dataclass(frozen=True)
class _ControlFlow:
    """A call of control flow, by what the emitter makes of it."""

    branches: Tuple[object, ...]
    # What each placeholder of a branch is; None where it is a copy.
    operands: Tuple[object, ...]
    # The results are those of the branch, moved by pointer and not copied.
    moves_results: bool


def _control_flow(call: Node) -> Optional[_ControlFlow]:
    if call.target is torch.ops.higher_order.cond:
        _, if_true, if_false, operands = call.args
        return _ControlFlow((if_true, if_false), tuple(operands), True)
    if call.target is torch.ops.higher_order.map_impl:
        body, mapped, operands = call.args
        return _ControlFlow((body,), (None,) * len(mapped) + tuple(operands), False)
    if call.target is torch.ops.higher_order.scan:
        body, initial, scanned, operands = call.args
        copied = (None,) * (len(initial) + len(scanned))
        return _ControlFlow((body,), copied + tuple(operands), False)
    return None


def _control_flow_effects(
    call: Node, graph_module: GraphModule
) -> Optional[_CallEffects]:
    """The effects of control flow are those of its branches together."""
    control_flow = _control_flow(call)
    if control_flow is None:
        return None
    writes: List[Node] = []
    results: Dict[int, List[Node]] = defaultdict(list)
    for branch in control_flow.branches:
        if not isinstance(branch, Node) or branch.op != "get_attr":
            return None
        module = operator.attrgetter(branch.target)(graph_module)
        effects = _branch_effects(module, control_flow.operands)
        writes.extend(effects.writes)
        if control_flow.moves_results:
            for index, operands in enumerate(effects.results):
                results[index].extend(operands)
    return _CallEffects(
        reads=call.all_input_nodes,
        writes=writes,
        results=tuple(results[index] for index in range(len(results))),
        returns_container=True,
    )


def _branch_effects(branch: GraphModule, operands: Sequence[object]) -> _CallEffects:
    """What a branch does to its operands, given in the order of its placeholders."""
    outputs = pytree.tree_leaves(branch.graph.output_node().args[0])
    analysis = _StorageAnalysis(branch, outputs)
    operands_in: Dict[int, List[Node]] = defaultdict(list)
    for placeholder, operand in zip(analysis.placeholders, operands):
        if isinstance(operand, Node):
            operands_in[analysis.storage(placeholder)].append(operand)
    return _CallEffects(
        reads=(),
        writes=[
            operand
            for storage, nodes in operands_in.items()
            if analysis.storages.last_write(storage) >= 0
            for operand in nodes
        ],
        results=tuple(
            (
                operands_in.get(analysis.storage(output), ())
                if isinstance(output, Node)
                else ()
            )
            for output in outputs
        ),
    )


class _Storages:
    """
    The storages of a graph as disjoint sets: two that may share memory are one.

    A position is a node's place in the graph, counted from 0; -1 stands for never.
    """

    def __init__(self) -> None:
        self._parents: List[int] = []
        self._last_uses: List[int] = []
        self._last_writes: List[int] = []

    def new(self) -> int:
        self._parents.append(len(self._parents))
        self._last_uses.append(-1)
        self._last_writes.append(-1)
        return len(self._parents) - 1

    def find(self, storage: int) -> int:
        parents = self._parents
        while parents[storage] != storage:
            parents[storage] = parents[parents[storage]]
            storage = parents[storage]
        return storage

    def join(self, storages: Iterable[int]) -> int:
        """Make one storage of these, or a new one of none."""
        roots = {self.find(storage) for storage in storages}
        if not roots:
            return self.new()
        joined = min(roots)
        for root in roots - {joined}:
            self._parents[root] = joined
            self._last_uses[joined] = max(
                self._last_uses[joined], self._last_uses[root]
            )
            self._last_writes[joined] = max(
                self._last_writes[joined], self._last_writes[root]
            )
        return joined

    def use(self, storage: int, position: int) -> None:
        self._last_uses[self.find(storage)] = position

    def write(self, storage: int, position: int) -> None:
        self.use(storage, position)
        self._last_writes[self.find(storage)] = position

    def last_use(self, storage: int) -> int:
        """Where memory of this storage is last read or written, or given a new name."""
        return self._last_uses[self.find(storage)]

    def last_write(self, storage: int) -> int:
        return self._last_writes[self.find(storage)]


class _StorageAnalysis:
    """
    One walk over a graph that finds the storage of each node and the last uses of
    each storage.

    Before `view_copy` becomes a view, which it does unless it is an output, that has
    to be foreseen: `kept_outputs` are the nodes that will still be outputs then.
    Where it is None nothing is foreseen, and a `view_copy` is a copy.

    Calls that are `passed_over` will be taken out of the graph: they use nothing.
    """

    def __init__(
        self,
        graph_module: GraphModule,
        kept_outputs: Optional[Iterable[object]],
        passed_over: Collection[Node] = (),
    ) -> None:
        self.storages = _Storages()
        self.placeholders: List[Node] = []
        self.positions: Dict[Node, int] = {}
        self._graph_module = graph_module
        self._foresees_views = kept_outputs is not None
        self._kept_outputs: Set[object] = set(kept_outputs or ())
        self._passed_over = passed_over
        self._storages_by_node: Dict[Node, int] = {}
        # Of a result with several tensors, by index, as far as it is taken apart.
        self._elements: Dict[Node, Dict[object, int]] = {}
        # What a view_copy of this view_copy will be a view of.
        self._bases: Dict[Node, int] = {}
        self._attributes: Dict[object, int] = {}
        self._same_as: Dict[Node, Node] = {}
        for position, node in enumerate(graph_module.graph.nodes):
            self.positions[node] = position
            if node.op != "output":
                self._visit(node, position)

    def storage(self, node: Node) -> int:
        return self.storages.find(self._storages_by_node[node])

    def is_whole(self, node: Node, placeholder: Node) -> bool:
        """Whether `node` is the memory of `placeholder`, whole and in its layout."""
        return self._same_as.get(node, node) is placeholder

    def _visit(self, node: Node, position: int) -> None:
        if node.op == "placeholder":
            self.placeholders.append(node)
            self._storages_by_node[node] = self.storages.new()
        elif node.op == "get_attr":
            if node.target not in self._attributes:
                self._attributes[node.target] = self.storages.new()
            self._storages_by_node[node] = self._attributes[node.target]
        elif node.target is operator.getitem:
            self._visit_getitem(node, position)
        elif node in self._passed_over:
            self._storages_by_node[node] = self._storages_by_node[node.args[0]]
        elif node.target is memory.view or (
            self._foresees_views and _is_view_copy(node)
        ):
            self._visit_view(node, position)
        else:
            self._visit_call(node, position)

    def _visit_getitem(self, node: Node, position: int) -> None:
        container, index = node.args
        elements = self._elements.get(container)
        if elements is None:
            # A list of views of one storage, for instance what split returns.
            storage = self._storages_by_node[container]
            self.storages.use(storage, position)
        else:
            storage = elements.get(index)
            if storage is None:
                storage = elements[index] = self.storages.new()
        self._storages_by_node[node] = storage

    def _visit_view(self, node: Node, position: int) -> None:
        viewed = node.args[0]
        base = self._bases.get(viewed, self._storages_by_node[viewed])
        self._bases[node] = base
        self.storages.use(base, position)
        self.storages.use(self._storages_by_node[viewed], position)
        is_kept = node in self._kept_outputs
        self._storages_by_node[node] = self.storages.new() if is_kept else base
        self._same_as[node] = self._same_as.get(viewed, viewed)

    def _visit_call(self, node: Node, position: int) -> None:
        effects = (
            _shared_allocation_effects(node)
            or _schema_effects(node)
            or _delegate_effects(node)
            or _control_flow_effects(node, self._graph_module)
            or _CallEffects(
                # Of what isn't known, the worst: it reads, writes and returns
                # all that it is given.
                reads=node.all_input_nodes,
                writes=node.all_input_nodes,
                results=(node.all_input_nodes,),
            )
        )
        for operand in effects.reads:
            self.storages.use(self._storages_by_node[operand], position)
        for operand in effects.writes:
            self.storages.write(self._storages_by_node[operand], position)
        if effects.same_as is not None:
            self._same_as[node] = self._same_as.get(effects.same_as, effects.same_as)
        self._set_results(node, effects)

    def _set_results(self, node: Node, effects: _CallEffects) -> None:
        results = [
            [self._storages_by_node[operand] for operand in result]
            for result in effects.results
        ]
        if effects.returns_container and all(
            user.target is operator.getitem for user in node.users
        ):
            if not (len(results) == 1 and results[0]):
                self._elements[node] = {
                    index: self.storages.join(result)
                    for index, result in enumerate(results)
                    if result
                }
                # The container itself lies in none of their memory.
                results = []
        self._storages_by_node[node] = self.storages.join(
            storage for result in results for storage in result
        )


@dataclass(frozen=True)
class _WriteBack:
    """Output number `output` of the graph: `mutated` is to become `value`."""

    output: int
    mutated: Node
    value: Node


@dataclass(frozen=True)
class _Copy:
    """One step of the plan: after the node at `position`, carry out `write_back`."""

    write_back: _WriteBack
    position: int
    # What has to be saved just before, because this overwrites it.
    saves: Tuple[Node, ...]
    reads_saved: bool


class _CopyOrder:
    """
    Orders the copies so that none overwrites what another has still to read, each
    at the earliest position that this leaves it.

    Whatever order there is, the positions are the same, for a copy waits only for
    those that must come first. In a cycle one value has to be saved, which takes
    its copy out of the way of the others.
    """

    def __init__(
        self,
        earliest: Sequence[int],
        overwritten: Sequence[int],
        read: Sequence[Optional[int]],
        prefer_to_save: Set[int],
    ) -> None:
        self.order: List[int] = []
        self.saved: Set[int] = set()
        self.positions: List[int] = list(earliest)
        self._overwritten = overwritten
        self._read = read
        self._prefer_to_save = prefer_to_save
        # The unplaced readers of a storage, first come first; a dict for its order.
        self._readers: Dict[int, Dict[int, None]] = defaultdict(dict)
        self._writers: Dict[int, List[int]] = defaultdict(list)
        for copy, storage in enumerate(read):
            if storage is not None:
                self._readers[storage][copy] = None
        for copy, storage in enumerate(overwritten):
            self._writers[storage].append(copy)
        self._place_all()

    def _place_all(self) -> None:
        placeable = deque(
            copy
            for copy, storage in enumerate(self._overwritten)
            if not self._readers[storage]
        )
        self._place(placeable)
        for copy, storage in enumerate(self._overwritten):
            while self._readers[storage]:
                saved = self._copy_to_save(self._cycle(copy))
                self.saved.add(saved)
                self._place(deque(self._finish_reading(saved, -1)))

    def _place(self, placeable: Deque[int]) -> None:
        while placeable:
            copy = placeable.popleft()
            self.order.append(copy)
            if copy not in self.saved:
                placeable.extend(self._finish_reading(copy, self.positions[copy]))

    def _finish_reading(self, copy: int, position: int) -> List[int]:
        """Return the copies that waited for this one only."""
        storage = self._read[copy]
        if storage is None:
            return []
        for writer in self._writers[storage]:
            self.positions[writer] = max(self.positions[writer], position)
        del self._readers[storage][copy]
        return [] if self._readers[storage] else self._writers[storage]

    def _cycle(self, blocked: int) -> List[int]:
        """Copies each of which has to precede the next, and the last the first."""
        seen: Dict[int, int] = {}
        while blocked not in seen:
            seen[blocked] = len(seen)
            blocked = next(iter(self._readers[self._overwritten[blocked]]))
        return list(seen)[seen[blocked] :][::-1]

    def _copy_to_save(self, cycle: List[int]) -> int:
        """
        The copy of a cycle whose value is best saved: the sum of all positions is
        then the least.
        """
        latest = max(range(len(cycle)), key=lambda index: self.positions[cycle[index]])
        cycle = cycle[latest + 1 :] + cycle[: latest + 1]
        sums = _sums_of_running_maxima([self.positions[copy] for copy in cycle])
        # If the copy before `first` is saved, those from `first` on come at their
        # running maxima, and then, after the latest of all, those before `first`.
        costs = {
            cycle[first - 1]: sums[first] + first * self.positions[cycle[-1]]
            for first in range(len(cycle))
        }
        candidates = [copy for copy in cycle if copy in self._prefer_to_save] or cycle
        return min(candidates, key=lambda copy: (costs[copy], copy))


def _sums_of_running_maxima(values: Sequence[int]) -> List[int]:
    """For each index, the sum of the running maxima of the values from there on."""
    sums = [0] * (len(values) + 1)
    larger: List[int] = [len(values)]
    for index in reversed(range(len(values))):
        while larger[-1] < len(values) and values[larger[-1]] < values[index]:
            larger.pop()
        sums[index] = values[index] * (larger[-1] - index) + sums[larger[-1]]
        larger.append(index)
    return sums


class _InPlaceAliases:
    """
    Which nodes are a mutated placeholder, as far as in-place operators tell.

    That is enough for copies at the end of a graph: nothing comes after them, and
    what else may alias is asked when they are placed.
    """

    def __init__(self, write_backs: Sequence[_WriteBack]) -> None:
        self._storages = {each.mutated: i for i, each in enumerate(write_backs)}

    def storage(self, node: Node) -> int:
        return self._storages.get(_inplace_root(node), -1)

    def is_whole(self, node: Node, placeholder: Node) -> bool:
        return _inplace_root(node) is placeholder


def _plan_copies(
    aliases: Union[_StorageAnalysis, _InPlaceAliases],
    write_backs: Sequence[_WriteBack],
    returned: Iterable[Node],
    earliest: Sequence[int],
) -> List[_Copy]:
    """
    Decide where the copies go.

    Args:
        returned: Those of the outputs that have to be as they are before any copy.
        earliest: For each copy, where it may stand if there were no other.
    """
    if not write_backs:
        return []
    overwritten = [aliases.storage(each.mutated) for each in write_backs]
    saves: Dict[int, Dict[Node, None]] = {storage: {} for storage in overwritten}
    for node in returned:
        if aliases.storage(node) in saves:
            saves[aliases.storage(node)][node] = None
    order = _CopyOrder(
        earliest=earliest,
        overwritten=overwritten,
        read=[_storage_read(each, aliases, saves) for each in write_backs],
        prefer_to_save={
            copy
            for copy, each in enumerate(write_backs)
            if each.value in saves.get(aliases.storage(each.value), ())
        },
    )
    for copy in sorted(order.saved):
        value = write_backs[copy].value
        saves[aliases.storage(value)][value] = None
    return [
        _Copy(
            write_backs[copy],
            order.positions[copy],
            tuple(saves.pop(overwritten[copy], ())),
            copy in order.saved,
        )
        for copy in sorted(order.order, key=lambda copy: order.positions[copy])
    ]


def _earliest_position(write_back: _WriteBack, analysis: _StorageAnalysis) -> int:
    """The node that this copy has to follow if there were no other copy."""
    return max(
        analysis.positions[analysis.placeholders[-1]],
        analysis.positions[write_back.value],
        analysis.storages.last_use(analysis.storage(write_back.mutated)),
        analysis.storages.last_write(analysis.storage(write_back.value)),
    )


def _storage_read(
    write_back: _WriteBack,
    aliases: Union[_StorageAnalysis, _InPlaceAliases],
    overwritten: Iterable[int],
) -> Optional[int]:
    """The storage that this copy reads, if some copy overwrites it."""
    storage = aliases.storage(write_back.value)
    if storage not in overwritten or aliases.is_whole(
        write_back.value, write_back.mutated
    ):
        return None
    return storage


def _insert_copies(
    nodes: Sequence[Node], plan: Sequence[_Copy]
) -> Tuple[Dict[int, Node], Dict[Node, Node]]:
    """
    Carry out the plan on the graph of `nodes`, whose places are those of the plan.
    Returns the copies, by the number of their output, and what was saved, by the
    node that it was saved from.
    """
    output = nodes[-1]
    # Made in the order of the outputs, so that their names are in that order, too.
    copies: Dict[int, Node] = {}
    for each in sorted((step.write_back for step in plan), key=lambda w: w.output):
        with output.graph.inserting_before(output):
            copies[each.output] = _make_copy(each)
    saved: Dict[Node, Node] = {}
    last, position = output, -1
    for step in plan:
        if step.position != position:
            last, position = nodes[step.position], step.position
        for node in step.saves:
            with output.graph.inserting_after(last):
                last = saved[node] = _make_save(node)
        copy = copies[step.write_back.output]
        if step.reads_saved:
            copy.update_arg(1, saved[step.write_back.value])
        last.append(copy)
        last = _in_dim_order_of_target(copy)
    return copies, saved


# What emission and debugging ask of a node besides its value.
_DESCRIPTION = (
    "from_node",
    "nn_module_stack",
    "source_fn_stack",
    "stack_trace",
    "torch_fn",
)


def _call_like(
    node: Node,
    target: object,
    args: Tuple[object, ...],
    described_by: Node,
    kwargs: Optional[Dict[str, object]] = None,
) -> Node:
    """Call an operator whose result is a tensor like `node`."""
    call = node.graph.call_function(target, args, kwargs)
    for key in ("val", "tensor_meta"):
        if key in node.meta:
            call.meta[key] = node.meta[key]
    if isinstance(node.meta.get("val"), torch.Tensor):
        call.meta.setdefault("tensor_meta", _extract_tensor_metadata(call.meta["val"]))
    for key in _DESCRIPTION:
        if key in described_by.meta:
            call.meta[key] = described_by.meta[key]
    return call


def _make_copy(write_back: _WriteBack) -> Node:
    mutated, value = write_back.mutated, write_back.value
    copy = _call_like(mutated, torch.ops.aten.copy_.default, (mutated, value), value)
    if "spec" in mutated.meta:
        copy.meta["spec"] = mutated.meta["spec"]
    return copy


def _make_save(node: Node) -> Node:
    save = _call_like(node, torch.ops.aten.clone.default, (node,), node)
    if isinstance(node.meta.get("spec"), TensorSpec):
        save.meta["spec"] = _fresh_spec(node.meta["spec"])
    return save


def _fresh_spec(spec: TensorSpec) -> TensorSpec:
    """The spec of a tensor like the one of `spec`, in memory of its own."""
    fresh = TensorSpec(spec.dtype, spec.shape, spec.layout, spec.is_sparse)
    fresh.stride = spec.stride
    fresh.dim_order = spec.dim_order
    fresh.shape_dynamism = spec.shape_dynamism
    for name in ("device", "device_index"):
        if hasattr(spec, name):
            setattr(fresh, name, getattr(spec, name))
    return fresh


def _dim_order(node: Node) -> Optional[Tuple[int, ...]]:
    spec = node.meta.get("spec")
    if not isinstance(spec, TensorSpec):
        return None
    return tuple(int(dim) for dim in spec.dim_order)


def _are_mixed(dim_orders: Iterable[Tuple[int, ...]]) -> bool:
    """Whether tensors in these dim orders don't go together, of whatever ranks."""
    found = set(dim_orders)
    return len(found) > 1 and any(
        dim_order != tuple(range(len(dim_order))) for dim_order in found
    )


def _spec_in_dim_order(spec: TensorSpec, dim_order: Tuple[int, ...]) -> TensorSpec:
    """The spec of a tensor like the one of `spec`, laid out anew in other memory."""
    fresh = _fresh_spec(spec)
    strides = [1] * len(dim_order)
    step = 1
    for dim in reversed(dim_order):
        strides[dim] = step
        step *= max(int(spec.shape[dim]), 1)
    fresh.stride = tuple(strides)
    fresh.dim_order = tuple(dim_order)
    return fresh


def _in_dim_order(node: Node, dim_order: Tuple[int, ...]) -> Node:
    """A copy of `node` in another dim order, at the graph's insertion point."""
    spec = node.meta["spec"]
    copy = _call_like(
        node,
        ops.edge.dim_order_ops._to_dim_order_copy.default,
        (node,),
        described_by=node,
        kwargs={"dtype": spec.dtype, "dim_order": list(dim_order)},
    )
    copy.meta["spec"] = _spec_in_dim_order(spec, dim_order)
    return copy


def _in_dim_order_of_target(copy: Node) -> Node:
    """
    Let a copy read its value in the dim order of what it overwrites: the runtime's
    kernel takes no other. Returns the copy.
    """
    mutated, value = copy.args
    wanted, found = _dim_order(mutated), _dim_order(value)
    if wanted is None or found is None or len(wanted) != len(found):
        # A value of fewer dimensions is broadcast as it is.
        return copy
    if _are_mixed([wanted, found]):
        with copy.graph.inserting_before(copy):
            copy.update_arg(1, _in_dim_order(value, wanted))
    return copy


def _mutable_placeholders(
    graph: Graph, signature: ExportGraphSignature
) -> Dict[Tuple[OutputKind, str], Node]:
    """The placeholders that an output may write back to, by its kind and target."""
    placeholders = graph.find_nodes(op="placeholder")
    specs = signature.input_specs
    if len(placeholders) != len(specs):
        raise ValueError(
            f"The signature has {len(specs)} inputs but the graph has "
            f"{len(placeholders)} placeholders. A pass that adds or removes "
            "placeholders has to update the signature."
        )
    mutable: Dict[Tuple[OutputKind, str], Node] = {}
    for placeholder, spec in zip(placeholders, specs):
        # A buffer and a user input may have the same name, hence the kind.
        if spec.kind == InputKind.BUFFER:
            mutable[OutputKind.BUFFER_MUTATION, spec.target] = placeholder
        elif spec.kind == InputKind.USER_INPUT:
            mutable[OutputKind.USER_INPUT_MUTATION, spec.arg.name] = placeholder
    return mutable


def _mutated_placeholders(
    graph: Graph, signature: ExportGraphSignature
) -> List[Optional[Node]]:
    """For each output, the placeholder that it is what becomes of, if any."""
    mutable = _mutable_placeholders(graph, signature)
    return [mutable.get((spec.kind, spec.target)) for spec in signature.output_specs]


def _find_write_backs(
    mutated: Sequence[Optional[Node]], outputs: Sequence[object]
) -> List[_WriteBack]:
    """The mutations of the signature that no in-place operator has done already."""
    return [
        _WriteBack(index, placeholder, output)
        for index, (placeholder, output) in enumerate(zip(mutated, outputs))
        if placeholder is not None and not _inplace_lineage(output, placeholder)
    ]


def _returned_nodes(
    signature: ExportGraphSignature, outputs: Sequence[object]
) -> List[bool]:
    """For each output, whether the caller is given it as a value of its own."""
    return [
        spec.kind in _RETURNED_KINDS and isinstance(output, Node)
        for spec, output in zip(signature.output_specs, outputs)
    ]


def _set_outputs(
    graph: Graph, signature: ExportGraphSignature, outputs: Sequence[object]
) -> None:
    """Let the graph return `outputs`, and the signature and the specs say so."""
    node = graph.output_node()
    if "spec" in node.meta:
        before = pytree.tree_leaves(node.args)
        specs = list(node.meta["spec"])
        for index, (old, new) in enumerate(zip(before, outputs)):
            if old is not new and isinstance(new, Node):
                specs[index] = new.meta["spec"]
        node.meta["spec"] = type(node.meta["spec"])(specs)
    node.args = (tuple(outputs),)
    for spec, output in zip(signature.output_specs, outputs):
        if isinstance(output, Node):
            spec.arg.name = output.name


def insert_write_back_for_buffers_pass(
    ep: ExportedProgram,
) -> Tuple[GraphModule, ExportGraphSignature]:
    """
    Insert a `copy_` for each buffer and user input that the signature says is
    mutated, unless in-place operators have done it already.

    The copies stand at the end of the graph, where no pass that runs later can move
    a read past them, in an order in which none overwrites what another reads.
    `place_write_backs` moves them to where they may stand, when nothing rewrites
    the graph any more.
    """
    graph, signature = ep.graph, ep.graph_signature
    # What is never used must not hold a copy up.
    graph.eliminate_dead_code()
    outputs = pytree.tree_leaves(graph.output_node().args)
    is_returned = _returned_nodes(signature, outputs)
    write_backs = _find_write_backs(_mutated_placeholders(graph, signature), outputs)
    if write_backs:
        nodes = list(graph.nodes)
        plan = _plan_copies(
            _InPlaceAliases(write_backs),
            write_backs,
            returned=itertools.compress(outputs, is_returned),
            earliest=[len(nodes) - 2] * len(write_backs),
        )
        copies, saved = _insert_copies(nodes, plan)
        outputs = [
            copies.get(index, saved.get(output, output) if returned else output)
            for index, (output, returned) in enumerate(zip(outputs, is_returned))
        ]
    _set_outputs(graph, signature, outputs)
    graph.lint()
    ep.graph_module.recompile()
    return ep.graph_module, ExportGraphSignature(
        input_specs=signature.input_specs, output_specs=signature.output_specs
    )
