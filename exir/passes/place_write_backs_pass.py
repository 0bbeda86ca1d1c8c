# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""
Decide where buffers are written, at the last point at which a graph is rewritten.

A copy to a buffer may stand as early as no run can tell it from one at the end; but a
pass that runs afterwards may move a read of the old contents past it. So the copies
stand at the end of the graph until all passes of the user's have run and views are
views. Then, before out variants are made and memory is planned:

1. Take the copies out again: all of them are one parallel assignment, from what the
   values are at the end of the graph. A copy that something reads after it, or whose
   value is written after it, is a write of the user's own and stays where it is.
2. Write in place what the reinplace pass is asked to.
3. Find the earliest place of each copy, by the storages of the graph as it is now,
   and put it there.

What placeholders and outputs are is told by their order, since passes rename nodes.
"""

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Callable, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

import torch
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.dialects._ops import ops
from executorch.exir.operator.convert import unwrap_op_overload
from executorch.exir.passes.insert_write_back_for_buffers_pass import (
    _earliest_position,
    _find_write_backs,
    _insert_copies,
    _mutated_placeholders,
    _plan_copies,
    _returned_nodes,
    _set_outputs,
    _StorageAnalysis,
)
from executorch.exir.passes.match_dim_orders import match_dim_orders
from executorch.exir.passes.reinplace import DEFAULT_INPLACEABLE_OPS, reinplace_pass
from executorch.exir.passes.spec_prop_pass import SpecPropPass
from executorch.exir.passes.write_state_in_place import write_state_in_place
from torch.export.exported_program import (
    ExportedProgram,
    ExportGraphSignature,
    OutputKind,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult
from torch.utils import _pytree as pytree

_CLONES = (
    torch.ops.aten.clone.default,
    ops.edge.aten.clone.default,
    ops.edge.dim_order_ops._clone_dim_order.default,
)


@dataclass(frozen=True)
class _Program:
    """As much of an exported program as passes need that settle its mutations."""

    graph_module: GraphModule
    graph_signature: ExportGraphSignature

    @property
    def graph(self) -> Graph:
        return self.graph_module.graph


def _follow_renamed_inputs(
    graph_module: GraphModule, signature: ExportGraphSignature
) -> PassResult:
    """Let the signature name the placeholders as a pass may have renamed them."""
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    if len(placeholders) != len(signature.input_specs):
        raise ValueError(
            f"The signature has {len(signature.input_specs)} inputs but the graph has "
            f"{len(placeholders)} placeholders. A pass that adds or removes "
            "placeholders has to update the signature."
        )
    renamed: Dict[str, str] = {}
    for placeholder, spec in zip(placeholders, signature.input_specs):
        if getattr(spec.arg, "name", placeholder.target) != placeholder.target:
            renamed[spec.arg.name] = placeholder.target
            spec.arg.name = placeholder.target
    for output in signature.output_specs:
        if output.kind == OutputKind.USER_INPUT_MUTATION:
            output.target = renamed.get(output.target, output.target)
    return PassResult(graph_module, bool(renamed))


def _checked_outputs(
    graph: Graph, signature: ExportGraphSignature, mutated: Sequence[Optional[Node]]
) -> List[object]:
    """
    What the graph returns, flat.

    Raises:
        ValueError: A pass has changed the number of outputs, or what becomes of a
            buffer is no tensor any more.
    """
    outputs = pytree.tree_leaves(graph.output_node().args)
    if len(outputs) != len(signature.output_specs):
        raise ValueError(
            f"The signature has {len(signature.output_specs)} outputs but the graph "
            f"returns {len(outputs)}. A pass of ExecutorchBackendConfig.passes that "
            "adds or removes outputs has to update the signature."
        )
    for spec, placeholder, output in zip(signature.output_specs, mutated, outputs):
        if placeholder is not None and not isinstance(output, Node):
            raise ValueError(
                f"'{spec.target}' is mutated, but a pass has made the output that it "
                f"becomes {output!r}; expected a node of the graph. Let the pass "
                "leave the outputs alone that are mutations."
            )
    return outputs


def _is_copy_to(node: object, mutated: Node) -> bool:
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    try:
        overload = unwrap_op_overload(node.target)
    except TypeError:
        return False
    return overload is torch.ops.aten.copy_.default and node.args[0] is mutated


def _is_only_returned(node: Node, others: Set[Node]) -> bool:
    """Whether only the output uses `node`, and calls that are to be taken out."""
    return all(user.op == "output" or user in others for user in node.users)


@dataclass(frozen=True)
class _TakenOut:
    """What can be taken out of a graph, since its outputs tell it."""

    # Write-backs at the end of the graph, by their output.
    copies: Dict[int, Node]
    # Clones that keep old contents of a buffer for the outputs or these copies.
    saves: Set[Node]

    def calls(self) -> Set[Node]:
        return {*self.copies.values(), *self.saves}

    def without(self, moved: Set[Node]) -> "_TakenOut":
        copies = {i: copy for i, copy in self.copies.items() if copy not in moved}
        return _TakenOut(copies, self.saves - moved)


def _candidates(
    outputs: Sequence[object], mutated: Sequence[Optional[Node]]
) -> _TakenOut:
    copies = {
        index: output
        for index, (output, placeholder) in enumerate(zip(outputs, mutated))
        if placeholder is not None
        and _is_copy_to(output, placeholder)
        and _is_only_returned(output, set())
    }
    ends = set(copies.values())
    written = {copy.args[0] for copy in ends}
    values = [*(copy.args[1] for copy in ends), *outputs]
    saves = {
        value
        for value in values
        if isinstance(value, Node)
        and value.target in _CLONES
        and value.args[0] in written
        and _is_only_returned(value, ends)
    }
    return _TakenOut(copies, saves)


def _staying(found: _TakenOut, analysis: _StorageAnalysis) -> Set[Node]:
    """Those of the calls to take out that another call must find where they are."""
    positions, storages = analysis.positions, analysis.storages
    staying = {
        copy
        for copy in found.copies.values()
        if storages.last_use(analysis.storage(copy.args[0])) > positions[copy]
        or storages.last_write(analysis.storage(copy.args[1])) > positions[copy]
    }
    staying |= {
        save
        for save in found.saves
        if storages.last_write(analysis.storage(save.args[0])) > positions[save]
    }
    return staying


def _serving_each_other(found: _TakenOut) -> _TakenOut:
    """Leave the saves where they are that serve a copy which stays."""
    ends = set(found.copies.values())
    written = {copy.args[0] for copy in ends}
    return found.without(
        {
            save
            for save in found.saves
            if save.args[0] not in written or not _is_only_returned(save, ends)
        }
    )


def _find_what_to_take_out(
    program: _Program,
    outputs: Sequence[object],
    mutated: Sequence[Optional[Node]],
) -> Tuple[_TakenOut, _StorageAnalysis]:
    """Also returns the storages of the graph without it."""
    found = _candidates(outputs, mutated)
    while True:
        analysis = _StorageAnalysis(
            program.graph_module, kept_outputs=None, passed_over=found.calls()
        )
        staying = _staying(found, analysis)
        if not staying:
            return found, analysis
        found = _serving_each_other(found.without(staying))


def _take_out(
    found: _TakenOut, program: _Program, outputs: Sequence[object]
) -> List[object]:
    """Returns the outputs as they would be if no buffer were written at the end."""

    def source(node: object) -> object:
        return node.args[0] if node in found.saves else node

    values = {copy: source(copy.args[1]) for copy in found.copies.values()}
    outputs = [values.get(output, source(output)) for output in outputs]
    _set_outputs(program.graph, program.graph_signature, outputs)
    for call in [*found.copies.values(), *found.saves]:
        program.graph.erase_node(call)
    return outputs


def _mutated_buffers(
    signature: ExportGraphSignature, mutated: Sequence[Optional[Node]]
) -> Set[Node]:
    return {
        placeholder
        for spec, placeholder in zip(signature.output_specs, mutated)
        if placeholder is not None and spec.kind == OutputKind.BUFFER_MUTATION
    }


def _plans_mutable_buffers(config: ExecutorchBackendConfig) -> bool:
    """Whether memory is planned for mutable buffers in all methods."""
    planned_by = config.memory_planning_pass
    passes = planned_by.values() if isinstance(planned_by, dict) else [planned_by]
    return all(getattr(each, "alloc_mutable_buffers", False) for each in passes)


def place_write_backs(
    graph_module: GraphModule,
    signature: ExportGraphSignature,
    ops_to_inplace: FrozenSet[object] = frozenset(),
    writes_in_place: bool = False,
) -> PassResult:
    """
    Put each write-back at the first place in the graph where no run can tell it from
    one at the end, so that the value that it copies needn't live any longer.

    Args:
        graph_module: As it will be planned, but for out variants.
        signature: Of the program. Its outputs are named as they are then.
        ops_to_inplace: Operators for `reinplace_pass`; with none it doesn't run.
        writes_in_place: Let new contents of buffers be made in them where that is
            right, without a copy. Memory has to be planned for mutable buffers.

    Raises:
        ValueError: A pass has changed the number of inputs or outputs, or what
            becomes of a buffer is no tensor any more. The graph is as it was.
    """
    program = _Program(graph_module, signature)
    graph = program.graph
    _follow_renamed_inputs(graph_module, signature)
    mutated = _mutated_placeholders(graph, signature)
    outputs = _checked_outputs(graph, signature, mutated)
    for module in graph_module.modules():
        if isinstance(module, GraphModule) and match_dim_orders(module):
            outputs = pytree.tree_leaves(graph.output_node().args)
    if not ops_to_inplace and all(each is None for each in mutated):
        return PassResult(graph_module, False)
    found, analysis = _find_what_to_take_out(program, outputs, mutated)
    nodes = list(graph.nodes)
    outputs = _take_out(found, program, outputs)
    if ops_to_inplace:
        reinplace_pass(program, ops_to_inplace=ops_to_inplace)
        outputs = pytree.tree_leaves(graph.output_node().args)
        analysis = _StorageAnalysis(graph_module, kept_outputs=None)
        nodes = list(graph.nodes)
    is_returned = _returned_nodes(signature, outputs)
    write_backs = _find_write_backs(mutated, outputs)
    returned = list(itertools.compress(outputs, is_returned))
    plan = _plan_copies(
        analysis,
        write_backs,
        returned,
        earliest=[_earliest_position(each, analysis) for each in write_backs],
    )
    if writes_in_place:
        buffers = _mutated_buffers(signature, mutated)
        plan = write_state_in_place(analysis, plan, returned, buffers)
    copies, saved = _insert_copies(nodes, plan)
    outputs = [
        copies.get(index, saved.get(output, output) if returned else output)
        for index, (output, returned) in enumerate(zip(outputs, is_returned))
    ]
    _set_outputs(graph, signature, outputs)
    # Code for the graph is made once, when its memory is planned.
    return PassResult(graph_module, True)


def with_write_backs_placed(
    passes: Sequence[Callable[[GraphModule], Optional[PassResult]]],
    program: ExportedProgram,
    config: ExecutorchBackendConfig,
) -> List[Callable[[GraphModule], Optional[PassResult]]]:
    """
    The passes that lower `program`, and among them what decides where it writes its
    buffers: before the last one, which makes out variants.
    """
    signature = program.graph_signature
    ops_to_inplace: FrozenSet[object] = frozenset()
    if config.run_reinplace_pass or config.reinplace_extra_ops:
        extra = config.reinplace_extra_ops or frozenset()
        ops_to_inplace = DEFAULT_INPLACEABLE_OPS | extra
    placed: List[Callable[[GraphModule], Optional[PassResult]]] = []
    for each in passes[:-1]:
        if isinstance(each, SpecPropPass):
            # What is constant is told by the names of placeholders.
            placed.append(partial(_follow_renamed_inputs, signature=signature))
        placed.append(each)
    placed.append(
        partial(
            place_write_backs,
            signature=signature,
            ops_to_inplace=ops_to_inplace,
            writes_in_place=getattr(config, "write_state_in_place", False)
            and _plans_mutable_buffers(config),
        )
    )
    return [*placed, passes[-1]]
