# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

from typing import Iterable, List, Set

import torch
from executorch.exir.operator.convert import unwrap_op_overload
from executorch.exir.passes.alias_tolerant_kernels import takes_in_place
from executorch.exir.passes.insert_write_back_for_buffers_pass import _StorageAnalysis
from executorch.exir.passes.reinplace import _is_inplace_shape_dtype_compatible
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg

aten = torch.ops.aten


class _LaterUses:
    """
    The storages that are used after a place in the graph, gathered on the way from
    its end to its beginning.

    It goes by storages and not by nodes, since later passes turn each `view_copy`
    into a view. The outputs are used after all calls, and so is what the program
    must not change.
    """

    def __init__(self, ep: ExportedProgram, constants: Iterable[Node]) -> None:
        self._analysis = _StorageAnalysis(ep.graph_module, kept_outputs=())
        self._storages: Set[int] = set()
        self.update(ep.graph.output_node().all_input_nodes)
        self.update(constants)

    def add(self, node: Node) -> None:
        self._storages.add(self._analysis.storage(node))

    def update(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.add(node)

    def forbid(self, call: Node, written: Node) -> bool:
        """Whether `call` must not write `written`, an argument of it, in place."""
        storage = self._analysis.storage(written)
        if storage in self._storages:
            return True
        # What the call reads through another argument it may have written before.
        arguments: List[Node] = []
        map_arg((call.args, call.kwargs), arguments.append)
        aliases = [a for a in arguments if self._analysis.storage(a) == storage]
        if len(aliases) == 1:
            return False
        return set(aliases) != {written} or not _is_pointwise(call)


def _is_pointwise(call: Node) -> bool:
    """Whether an element of the result depends on no other elements than its own."""
    try:
        return torch.Tag.pointwise in unwrap_op_overload(call.target).tags
    except TypeError:
        return False


def _has_kernel_in_place(call: Node) -> bool:
    """Whether the runtime's in-place kernel, if it has one, takes this call."""
    if any("val" not in node.meta for node in call.all_input_nodes):
        return True
    try:
        is_index_put = unwrap_op_overload(call.target) is aten.index_put.default
    except TypeError:
        return True
    # Where indices may be negative, the program says by asking that they aren't.
    return not is_index_put or takes_in_place(call, trusts_indices=True) is None


def _is_safe_to_reinplace(
    written: Node,
    call: Node,
    later_uses: _LaterUses,
    inputs: Set[Node],
    mutable_inputs: Set[Node],
) -> bool:
    """Whether `call` may write its result into its argument `written`."""
    if written in inputs and written not in mutable_inputs:
        return False
    if later_uses.forbid(call, written) or not _has_kernel_in_place(call):
        return False
    # The argument's memory has to be of the result's shape and dtype.
    return _is_inplace_shape_dtype_compatible(written, call)
