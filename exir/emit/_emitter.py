# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import typing
from typing import Dict, Iterable, List, Tuple

import torch
import torch.fx
from executorch.exir.emit._emitter import (
    _AbstractValue,
    _Argument,
    _EmitterValue,
    _Target,
)
from executorch.exir.error import InternalError
from executorch.exir.schema import (
    EValue,
    FrameList,
    Instruction,
    KernelCall,
    MoveCall,
    Null,
    TensorShapeDynamism,
)
from torch.utils import _pytree as pytree


def _fill_up_stacktraces(stacktraces: List[FrameList], instructions: int) -> None:
    """
    Give an empty stack trace to each instruction that has none, as those of
    delegates, views and control flow.
    """
    missing = instructions - len(stacktraces)
    stacktraces.extend(FrameList(items=[]) for _ in range(missing))


class _Emitter(torch.fx.Interpreter):
    def _stacked_results(
        self,
        target: _Target,
        args: Tuple[_Argument, ...],
        results: Iterable[_AbstractValue],
    ) -> Iterable[_AbstractValue]:
        """The results of a loop that grow by one element in each round."""
        if target is torch.ops.higher_order.map_impl:
            return list(results)
        if target is torch.ops.higher_order.scan:
            return list(results)[len(typing.cast(Tuple[_Argument, ...], args[1])) :]
        return []

    def _emit_control_flow(
        self, target: _Target, args: Tuple[_Argument, ...], kwargs: Dict[str, _Argument]
    ) -> _EmitterValue:
        """Emits the instructions of a control-flow node and, inlined, of its bodies."""
        emit = {
            torch.ops.higher_order.cond: self._emit_cond,
            torch.ops.higher_order.map_impl: self._emit_map,
            torch.ops.higher_order.scan: self._emit_scan,
        }.get(target)
        if emit is None:
            raise InternalError(
                self._emit_node_specific_error(
                    self.node,
                    f"Unsupported control flow operator: {target}. ExecuTorch has "
                    "cond, map and scan; write the loop as one of them.",
                )
            )
        results = pytree.tree_map(self._emit_spec, self.node.meta["spec"])
        for result in self._stacked_results(target, args, results):
            # The runtime resizes it in each round, which it does for no static tensor.
            # Its spec stays static: views of it are, and it has its full size by then.
            result.tensor.shape_dynamism = TensorShapeDynamism.DYNAMIC_BOUND
        return emit(args, results)

    def _hand_over(self, result: _AbstractValue, to: _AbstractValue) -> Instruction:
        """The instruction by which a branch hands a result over to the graph around.

        That graph reads the result at the place that it has for it, by views, also
        after later branches have run, and so does the caller who brought the memory.
        So the result has to be there: if the branch hasn't written it there, it is
        copied. By pointer go a result that is there (for its sizes, if it is dynamic),
        what isn't a tensor, and what lies in other order than is expected.
        """
        source, target = result.tensor, to.tensor
        if (
            source is None
            or target is None
            or source.scalar_type != target.scalar_type
            or source.dim_order != target.dim_order
            # Without a bound there is no place for it.
            or target.shape_dynamism == TensorShapeDynamism.DYNAMIC_UNBOUND
            or (
                target.allocation_info is not None
                and source.allocation_info == target.allocation_info
            )
        ):
            return Instruction(MoveCall(move_from=result.id, move_to=to.id))
        clone, _ = self._get_operator(name="aten::clone", overload="out")
        layout = self._emit_evalue(EValue(Null()))
        return Instruction(KernelCall(clone, args=[result.id, layout.id, to.id, to.id]))
