# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""
Give the operands of a pointwise operator one dim order.

The runtime's pointwise kernels take operands of one dim order only: all default, or
all channels last. State in channels last meets contiguous inputs and numbers of no
dimension, though, and such a call is refused when it runs. Here its operands in
another order are copied to the default one, and its result is copied back to the
order that its users were promised. A call whose operands agree is left alone.

This runs when nothing rewrites the graph any more, and before write-backs are placed.
"""

from typing import Iterable, List, Optional, Tuple

import torch
from executorch.exir.dialects._ops import ops
from executorch.exir.operator.convert import unwrap_op_overload
from executorch.exir.passes.insert_write_back_for_buffers_pass import (
    _call_like,
    _fresh_spec,
)
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule, Node

_COPY = ops.edge.dim_order_ops._to_dim_order_copy.default


def _order(node: Node) -> Optional[Tuple[int, ...]]:
    spec = node.meta.get("spec")
    if not isinstance(spec, TensorSpec):
        return None
    return tuple(int(dim) for dim in spec.dim_order)


def _is_default(order: Tuple[int, ...]) -> bool:
    return order == tuple(range(len(order)))


def _is_pointwise(node: Node) -> bool:
    if node.op != "call_function":
        return False
    try:
        overload = unwrap_op_overload(node.target)
    except TypeError:
        return False
    writes = any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in overload._schema.arguments
    )
    return torch.Tag.pointwise in overload.tags and not writes


def _is_mixed(orders: Iterable[Tuple[int, ...]]) -> bool:
    found = set(orders)
    return len(found) > 1 and not all(_is_default(order) for order in found)


def _in_order(node: Node, order: Tuple[int, ...]) -> Node:
    """A copy of `node` in another dim order, at the graph's insertion point."""
    spec = node.meta["spec"]
    kwargs = {"dtype": spec.dtype, "dim_order": list(order)}
    copy = _call_like(node, _COPY, (node,), described_by=node, kwargs=kwargs)
    copy.meta["spec"] = _spec_in_order(spec, order)
    return copy


def _spec_in_order(spec: TensorSpec, order: Tuple[int, ...]) -> TensorSpec:
    fresh = _fresh_spec(spec)
    strides = [1] * len(order)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(int(spec.shape[dim]), 1)
    fresh.stride = tuple(strides)
    fresh.dim_order = tuple(order)
    return fresh


def _match(node: Node, operands: List[Node]) -> None:
    graph, promised = node.graph, _order(node)
    for operand in operands:
        if not _is_default(_order(operand)):
            with graph.inserting_before(node):
                default = tuple(range(len(_order(operand))))
                node.replace_input_with(operand, _in_order(operand, default))
    if _is_default(promised):
        return
    with graph.inserting_after(node):
        result = _in_order(node, promised)
    result.meta["spec"], node.meta["spec"] = (
        node.meta["spec"],
        _spec_in_order(node.meta["spec"], tuple(range(len(promised)))),
    )
    node.replace_all_uses_with(result, delete_user_cb=lambda user: user is not result)


def match_dim_orders(graph_module: GraphModule) -> bool:
    """
    Copy operands and results of pointwise operators so that each call sees one dim
    order. Returns whether any call had to be changed.
    """
    changed = False
    for node in list(graph_module.graph.nodes):
        if not _is_pointwise(node) or _order(node) is None:
            continue
        operands = [n for n in node.all_input_nodes if _order(n) is not None]
        if _is_mixed([_order(node), *map(_order, operands)]):
            _match(node, operands)
            changed = True
    return changed
