# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""
Let an operator make the new value of a buffer in the buffer itself.

A write-back that may stand right behind the operator that makes its value needs no copy:
the operator's `out` is the buffer. Value and buffer share one spec then, and the value
takes no memory. This is a phase of placing write-backs, on the plan of the copies:

1. `_why_not_written_through` tells what speaks against it: the value is an output, or has
   other sizes, dtype or dim order, or memory of its own by somebody's wish; old contents
   are still wanted; or the kernel reads what it would overwrite.
2. The value gets the buffer's spec. Where the runtime has an in-place kernel that surely
   takes the call, that one is called, which writes less.

What a kernel tolerates is in alias_tolerant_kernels.py, which memory may be the same in
storage analysis. What is decided holds because nothing rewrites the graph any more.
"""

from dataclasses import dataclass
from typing import Collection, Dict, List, Mapping, Optional, Sequence

import torch
from executorch.exir.dialects._ops import ops
from executorch.exir.operator.convert import unwrap_op_overload
from executorch.exir.passes.alias_tolerant_kernels import takes_in_place, why_not_over
from executorch.exir.passes.insert_write_back_for_buffers_pass import (
    _Copy,
    _StorageAnalysis,
)
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.schema import TensorShapeDynamism
from executorch.exir.tensor import TensorSpec
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class _Surroundings:
    """What the decision on one write-back needs to know of all the rest."""

    analysis: _StorageAnalysis
    # By storage, the position of the last write-back that takes its value from there.
    last_taken: Mapping[int, int]
    # Storages that the caller is given a part of.
    returned: Collection[int]
    # The buffers that memory is planned for.
    buffers: Collection[Node]


def _last_taken(analysis: _StorageAnalysis, plan: Sequence[_Copy]) -> Dict[int, int]:
    # The plan is in the order of positions, so the last one stays.
    return {analysis.storage(step.write_back.value): step.position for step in plan}


def _is_functional_operator(node: Node) -> bool:
    """Whether `node` calls an operator that makes one tensor and writes no argument."""
    if node.op != "call_function":
        return False
    try:
        schema = unwrap_op_overload(node.target)._schema
    except TypeError:
        return False
    aliases = [*schema.arguments, *schema.returns]
    return (
        all(each.alias_info is None for each in aliases)
        and len(schema.returns) == 1
        and isinstance(schema.returns[0].type, torch.TensorType)
        and "_share_alloc_with_arg_idx" not in node.meta
    )


def _why_specs_differ(value: Node, buffer: Node) -> Optional[str]:
    ours, theirs = value.meta.get("spec"), buffer.meta.get("spec")
    for spec in (ours, theirs):
        if not isinstance(spec, TensorSpec) or isinstance(spec, _ViewSpec):
            return "the value or the buffer has no spec of its own"
        if spec.shape_dynamism != TensorShapeDynamism.STATIC or spec.const:
            return "the value or the buffer has no fixed sizes, or is a constant"
    for name in ("dtype", "device", "device_index", "mem_id"):
        if getattr(ours, name, None) != getattr(theirs, name, None):
            return f"value and buffer differ in {name}"
    if list(ours.shape) != list(theirs.shape):
        return "value and buffer differ in sizes"
    if list(map(int, ours.dim_order)) != list(map(int, theirs.dim_order)):
        return "value and buffer differ in dim order"
    if getattr(ours, "storage_base", None) is not None:
        return "the value lies in the storage of another tensor"
    return None


def _why_old_contents_are_wanted(step: _Copy, around: _Surroundings) -> Optional[str]:
    analysis = around.analysis
    buffer, value = step.write_back.mutated, step.write_back.value
    storage = analysis.storage(buffer)
    if step.position != analysis.positions[value]:
        return "the old contents are read after the value is made"
    if step.saves or step.reads_saved:
        return "the old contents are saved"
    if around.last_taken.get(storage, -1) >= step.position:
        return "another buffer takes the old contents after the value is made"
    return None


def _why_kernel_may_not(
    value: Node, buffer: Node, analysis: _StorageAnalysis
) -> Optional[str]:
    storage = analysis.storage(buffer)
    aliases = {n for n in value.all_input_nodes if analysis.storage(n) == storage}
    if not aliases:
        return None
    if aliases != {buffer}:
        return "the operator reads the buffer through a view or under another name"
    return why_not_over(value, buffer)


def _why_not_written_through(step: _Copy, around: _Surroundings) -> Optional[str]:
    """Why the value of a write-back can't be made in its buffer; None if it can."""
    buffer, value = step.write_back.mutated, step.write_back.value
    analysis = around.analysis
    if buffer not in around.buffers:
        return "no memory is planned for what is written"
    if not _is_functional_operator(value):
        return "the value is not made by an operator that makes one tensor"
    if analysis.storage(value) in around.returned:
        return "the caller is given the value"
    return (
        _why_specs_differ(value, buffer)
        or _why_old_contents_are_wanted(step, around)
        or _why_kernel_may_not(value, buffer, analysis)
    )


def _call_in_place(value: Node, buffer: Node) -> None:
    """Call the runtime's in-place kernel, where it has one that takes this call."""
    if not (value.args and value.args[0] is buffer) or takes_in_place(value):
        return
    if unwrap_op_overload(value.target) is torch.ops.aten.index_put.default:
        value.target = ops.edge.aten.index_put_.default


def _share_specs(graph: Graph, shared: Mapping[TensorSpec, TensorSpec]) -> None:
    """Let all nodes that mention a spec, or a view of it, mention another one."""

    def share(spec: object) -> object:
        if isinstance(spec, _ViewSpec):
            spec._base = shared.get(spec._base, spec._base)
            return spec
        return shared.get(spec, spec)

    for node in graph.nodes:
        if "spec" in node.meta:
            node.meta["spec"] = pytree.tree_map_only(
                TensorSpec, share, node.meta["spec"]
            )


def write_state_in_place(
    analysis: _StorageAnalysis,
    plan: Sequence[_Copy],
    returned: Sequence[Node],
    buffers: Collection[Node],
) -> List[_Copy]:
    """
    Make values of write-backs in their buffers, where that is right.

    Args:
        analysis: Of the graph without write-backs.
        plan: All of its write-backs.
        returned: What the graph gives to the caller.
        buffers: The placeholders of buffers for which memory is planned.

    Returns:
        The write-backs that are left to be copied.
    """
    around = _Surroundings(
        analysis,
        _last_taken(analysis, plan),
        {analysis.storage(node) for node in returned},
        buffers,
    )
    left: List[_Copy] = []
    # By value, since one value can be made in one place only.
    through: Dict[Node, Node] = {}
    for step in plan:
        buffer, value = step.write_back.mutated, step.write_back.value
        if value in through or _why_not_written_through(step, around) is not None:
            left.append(step)
        else:
            through[value] = buffer
    shared: Dict[TensorSpec, TensorSpec] = {}
    for value, buffer in through.items():
        shared[value.meta["spec"]] = buffer.meta["spec"]
        _call_in_place(value, buffer)
    if shared:
        _share_specs(next(iter(through)).graph, shared)
    return left
