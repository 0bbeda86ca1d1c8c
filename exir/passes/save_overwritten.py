# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import operator
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import Dict, Iterable, List, Set, Tuple

import torch
from executorch.exir.dialects._ops import ops
from executorch.exir.passes.insert_write_back_for_buffers_pass import (
    _CallEffects,
    _StorageAnalysis,
)
from torch._higher_order_ops.auto_functionalize import (
    auto_functionalized,
    auto_functionalized_v2,
)
from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized
from torch.export.exported_program import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree


_FUNCTIONALIZED = (auto_functionalized, auto_functionalized_v2)

# What passes remove of a functional program, where the dim order stays.
_CLONES = (
    torch.ops.aten.clone.default,
    ops.edge.aten.clone.default,
    ops.edge.dim_order_ops._clone_dim_order.default,
)

# What emission and debugging ask of a node beside its value.
_DEBUG_KEYS = ("debug_handle", "from_node", "nn_module_stack", "stack_trace")


def _overwritten_keywords(call: Node) -> Tuple[str, ...]:
    """The keywords whose nodes `call` will overwrite once it isn't functional."""
    if call.target is auto_functionalized_v2:
        return ("_all_bases",)
    return tuple(
        argument.name
        for argument in call.args[0]._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _overwritten(call: Node) -> List[List[Node]]:
    """What `call` will overwrite, by the results that it returns for it."""
    overwritten: List[List[Node]] = []
    for keyword in _overwritten_keywords(call):
        argument = call.kwargs.get(keyword)
        parts = argument if call.target is auto_functionalized_v2 else [argument]
        for part in parts:
            overwritten.append([])
            map_arg(part, overwritten[-1].append)
    return overwritten


class _Analysis(_StorageAnalysis):
    """
    The storages of a graph as they will be once its functionalized calls write to
    what they are given.
    """

    def __init__(self, graph_module: GraphModule) -> None:
        # By storage, the calls that overwrite it; a storage may be joined later.
        self._writers: List[Tuple[int, Node]] = []
        super().__init__(graph_module, kept_outputs=())

    def _visit_call(self, node: Node, position: int) -> None:
        if node.target not in _FUNCTIONALIZED:
            super()._visit_call(node, position)
            return
        overwritten = _overwritten(node)
        for operand in node.all_input_nodes:
            self.storages.use(self._storages_by_node[operand], position)
        for operand in {o for part in overwritten for o in part}:
            storage = self._storages_by_node[operand]
            self.storages.write(storage, position)
            self._writers.append((storage, node))
        own_results = max(1, len(node.args[0]._schema.returns))
        self._set_results(
            node,
            _CallEffects(
                reads=(),
                results=((),) * own_results + tuple(overwritten),
                returns_container=True,
            ),
        )

    def writers(self) -> Dict[int, List[Node]]:
        """By storage, the functionalized calls that overwrite it, in their order."""
        writers: Dict[int, List[Node]] = defaultdict(list)
        for storage, node in self._writers:
            writers[self.storages.find(storage)].append(node)
        return writers


@dataclass(frozen=True)
class _Save:
    """Before `call` overwrites it, save `value` for those who still need it."""

    value: Node
    call: Node
    # Who reads the saved value from then on.
    readers: Tuple[Node, ...]
    # The call is to overwrite the saved value and leave the other as it is.
    is_overwritten: bool = False


def _made_at(node: Node, analysis: _Analysis) -> int:
    """Where the contents of `node` are made: a getitem only gives them a name."""
    while node.target is operator.getitem:
        node = node.args[0]
    return analysis.positions[node]


def _reads(user: Node, value: Node) -> bool:
    """Whether a functionalized call reads `value` otherwise than to overwrite it."""
    overwritten = _overwritten_keywords(user)
    read: List[Node] = []
    for keyword, argument in user.kwargs.items():
        if keyword not in overwritten:
            map_arg(argument, read.append)
    return value in read


def _is_container(node: Node) -> bool:
    """Whether `node` is a tuple or a list, of which only the elements are read."""
    users = [user for user in node.users if user.op != "output"]
    return bool(users) and all(u.target is operator.getitem for u in users)


def _plan_saves(graph_module: GraphModule, mutable: Set[Node]) -> List[_Save]:
    """
    What has to be saved as the graph is now. `mutable` are the inputs that may be
    overwritten; all others are the caller's or constant.
    """
    analysis = _Analysis(graph_module)
    writers = analysis.writers()
    if not writers:
        return []
    copies = _private_copies(analysis, writers, mutable)
    if copies:
        return copies
    saves: List[_Save] = []
    for node in graph_module.graph.nodes:
        if node.op == "output" or _is_container(node):
            continue
        calls = writers.get(analysis.storage(node))
        if calls is None:
            continue
        positions = [analysis.positions[call] for call in calls]
        later = bisect_right(positions, _made_at(node, analysis))
        if later == len(calls):
            continue
        first, call = positions[later], calls[later]
        readers = tuple(
            user
            for user in node.users
            if analysis.positions[user] > first or user is call and _reads(user, node)
        )
        if not readers:
            continue
        saves.append(_Save(node, call, readers))
        if any(r.target in _FUNCTIONALIZED for r in readers):
            # It may overwrite what was saved, and then leaves the others alone.
            break
    return saves


def _private_copies(
    analysis: _Analysis, writers: Dict[int, List[Node]], mutable: Set[Node]
) -> List[_Save]:
    """For each input that must not change, a copy for the call that would change it."""
    copies: List[_Save] = []
    inputs = [n for n in analysis.positions if n.op in ("placeholder", "get_attr")]
    protected = {analysis.storage(n) for n in inputs if n not in mutable}
    for storage in protected & writers.keys():
        call = writers[storage][0]
        for part in _overwritten(call):
            for value in part:
                if analysis.storage(value) == storage:
                    copies.append(_Save(value, call, (call,), is_overwritten=True))
    return copies


def _insert_copy(save: _Save) -> Node:
    """
    Copy a value in front of the call that overwrites it.

    By aten.copy, as passes that remove clones are right to do so in a functional
    program, but not here.
    """
    graph, value = save.call.graph, save.value
    with graph.inserting_before(save.call):
        copied = graph.call_function(torch.ops.aten.copy.default, (value, value))
    copied.meta = {k: v for k, v in save.call.meta.items() if k in _DEBUG_KEYS}
    # A value of its own, since calls are traced again, and tell nodes by their values.
    copied.meta["val"] = value.meta["val"].detach().clone()
    return copied


def _carry_out(save: _Save) -> None:
    copied = _insert_copy(save)

    def replace(node: Node) -> Node:
        return copied if node is save.value else node

    for reader in save.readers:
        if reader is not save.call:
            reader.replace_input_with(save.value, copied)
            continue
        overwritten = _overwritten_keywords(reader)
        reader.kwargs = {
            keyword: (
                map_arg(argument, replace)
                if (keyword in overwritten) == save.is_overwritten
                else argument
            )
            for keyword, argument in reader.kwargs.items()
        }


def _gather_elements(graph_module: GraphModule) -> None:
    """Take each functionalized call's results apart right behind it, since a copy may
    have to be made of them before the next call."""
    for node in list(graph_module.graph.nodes):
        if node.target is operator.getitem and node.args[0].target in _FUNCTIONALIZED:
            if node.prev is not node.args[0] and node.prev.target is not node.target:
                node.args[0].append(node)


def _is_needed_clone(
    clone: Node, analysis: _Analysis, writers: Dict[int, List[Node]]
) -> bool:
    """
    Whether a clone tells old contents from new ones: it is overwritten, or what it is
    of is, before the last use of the clone.
    """
    own, source = analysis.storage(clone), analysis.storage(clone.args[0])
    if own in writers:
        return True
    last_use = analysis.storages.last_use(own)
    return any(
        analysis.positions[clone] < analysis.positions[call] < last_use
        for call in writers.get(source, ())
    )


def _keep_clones(graph_module: GraphModule) -> None:
    """
    Make copies of the clones that are needed. Passes that run later remove clones, as
    they may in a functional program.
    """
    analysis = _Analysis(graph_module)
    writers = analysis.writers()
    for output in graph_module.graph.output_node().all_input_nodes:
        analysis.storages.use(analysis.storage(output), len(analysis.positions))
    for node in graph_module.graph.nodes:
        if node.target not in _CLONES or not _is_needed_clone(node, analysis, writers):
            continue
        value, source = node.meta.get("val"), node.args[0].meta.get("val")
        if value is None or source is None or value.stride() != source.stride():
            continue
        node.target = torch.ops.aten.copy.default
        node.args, node.kwargs = (node.args[0], node.args[0]), {}


def _save_in(graph_module: GraphModule, mutable: Iterable[Node]) -> bool:
    """Save what has to be in one graph; return whether it has functionalized calls."""
    graph = graph_module.graph
    if not any(node.target in _FUNCTIONALIZED for node in graph.nodes):
        return False
    _gather_elements(graph_module)
    mutable = set(mutable)
    # Each round may change who overwrites what.
    while saves := _plan_saves(graph_module, mutable):
        for save in saves:
            _carry_out(save)
    _keep_clones(graph_module)
    return True


def _mutable_inputs(ep: ExportedProgram) -> List[Node]:
    signature = ep.graph_signature
    fqns = set(signature.buffers_to_mutate.values())
    names = set(signature.user_inputs_to_mutate.values())
    return [
        node
        for node in ep.graph.find_nodes(op="placeholder")
        if node.name in names or signature.inputs_to_buffers.get(node.name) in fqns
    ]


def save_what_is_overwritten(ep: ExportedProgram) -> ExportedProgram:
    """
    Prepare a program, in place, for calls of custom operators that write to their
    arguments: until `unsafe_remove_auto_functionalized_pass` such a call returns the
    new contents under a name of their own, and from then on they have the same name
    as the old ones. Who needs the old contents later is given a copy.

    A call in a body of control flow isn't reached by that pass, so it is replaced
    here.
    """
    if _save_in(ep.graph_module, _mutable_inputs(ep)):
        outputs = pytree.tree_leaves(ep.graph.output_node().args)
        for spec, output in zip(ep.graph_signature.output_specs, outputs):
            if isinstance(output, Node):
                spec.arg.name = output.name
    for module in ep.graph_module.modules():
        if isinstance(module, GraphModule) and module is not ep.graph_module:
            # The inputs of a body are values of the graph around it.
            if _save_in(module, mutable=()):
                _remove_functionalized(module)
    return ep


def _remove_functionalized(body: GraphModule) -> None:
    for node in body.graph.nodes:
        if node.target in _FUNCTIONALIZED:
            # None of them is to work on a copy.
            node.meta["only_clone_these_tensors"] = []
    decompose_auto_functionalized(body.graph)
    body.graph.eliminate_dead_code()
    body.recompile()
