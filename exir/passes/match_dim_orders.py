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

from typing import List, Tuple

import torch
from executorch.exir.operator.convert import unwrap_op_overload
from executorch.exir.passes.insert_write_back_for_buffers_pass import (
    _are_mixed,
    _dim_order,
    _in_dim_order,
    _spec_in_dim_order,
)
from torch.fx import GraphModule, Node


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


def _default(node: Node) -> Tuple[int, ...]:
    return tuple(range(len(_dim_order(node))))


def _match(node: Node, operands: List[Node]) -> None:
    graph, promised = node.graph, _dim_order(node)
    for operand in operands:
        if _dim_order(operand) != _default(operand):
            with graph.inserting_before(node):
                copy = _in_dim_order(operand, _default(operand))
            node.replace_input_with(operand, copy)
    if promised == _default(node):
        return
    with graph.inserting_after(node):
        result = _in_dim_order(node, promised)
    result.meta["spec"] = node.meta["spec"]
    node.meta["spec"] = _spec_in_dim_order(node.meta["spec"], _default(node))
    node.replace_all_uses_with(result, delete_user_cb=lambda user: user is not result)


def match_dim_orders(graph_module: GraphModule) -> bool:
    """
    Copy operands and results of pointwise operators so that each call sees one dim
    order. Returns whether any call had to be changed.
    """
    changed = False
    for node in list(graph_module.graph.nodes):
        if not _is_pointwise(node) or _dim_order(node) is None:
            continue
        operands = [n for n in node.all_input_nodes if _dim_order(n) is not None]
        if _are_mixed(map(_dim_order, [node, *operands])):
            _match(node, operands)
            changed = True
    return changed
