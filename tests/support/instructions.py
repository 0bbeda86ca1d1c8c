# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Read the instructions of an emitted program.

    print(print_instructions(program))

    0: aten::add.out(state, x, 1, out=state)
    1: XnnpackBackend(state, out=t0)
    2: aten::copy_(other, t0, False)
    return t0

What lies in a mutable buffer's place bears its FQN, whichever value of the program it is: that
`out=state` says that the kernel writes there. `state+64` begins 64 bytes behind its front. A user
input has its name in the graph, a constant is `c0`, `c1`, ..., and all else is `t0`, `t1`, ... in
the order in which the instructions write it. A view that isn't executed has its base's name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.exir import ExecutorchProgramManager
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.schema import (
    Bool,
    BoolList,
    DelegateCall,
    Double,
    DoubleList,
    ExecutionPlan,
    FreeCall,
    Int,
    IntList,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    Null,
    OptionalTensorList,
    String,
    Tensor,
    TensorList,
)
from executorch.exir.tensor import TensorSpec
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

# Where each kind of value has what it is, if it is anything.
_LITERALS = {
    Null: "",
    Int: "int_val",
    Bool: "bool_val",
    Double: "double_val",
    String: "string_val",
    BoolList: "items",
    DoubleList: "items",
}


@dataclass(frozen=True)
class _BufferPlace:
    fqn: str
    arena: int
    offset: int
    bytes: int


@dataclass
class _Names:
    """What each value of a method is called, given as they are asked for."""

    plan: ExecutionPlan
    user_inputs: dict[int, str]
    buffers: list[_BufferPlace]
    with_places: bool
    _given: dict[int, str] = field(default_factory=dict)
    _last_written: dict[tuple[int, int], str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=lambda: {"t": 0, "c": 0})

    def __call__(self, index: int) -> str:
        if index < 0:
            return "None"
        value = self.plan.values[index].val
        if isinstance(value, Tensor):
            return self._tensor(index, value)
        if isinstance(value, (TensorList, OptionalTensorList)):
            return f"[{', '.join(self(i) for i in value.items)}]"
        return self._scalar(index, value)

    def _scalar(self, index: int, value: Any) -> str:
        if index in self._given or index in self.user_inputs:
            return self.user_inputs.get(index, self._given.get(index, ""))
        if isinstance(value, IntList):
            # Its items are values of their own, since some may be computed.
            return f"[{', '.join(self(i) for i in value.items)}]"
        for kind, attribute in _LITERALS.items():
            if isinstance(value, kind):
                return repr(getattr(value, attribute) if attribute else None)
        raise TypeError(f"value {index} is a {type(value).__name__}")

    def written(self, index: int) -> str:
        """The name of a value that an instruction writes."""
        if index < 0:
            return "None"
        value = self.plan.values[index].val
        is_buffer = isinstance(value, Tensor) and self._buffer(value) is not None
        if not is_buffer and index not in self._given and index not in self.user_inputs:
            self._given[index] = self._new("t")
        name = self(index)
        if isinstance(value, Tensor) and value.allocation_info is not None:
            self._last_written[self._place(value)] = self._given.get(index, name)
        return name

    def _new(self, kind: str) -> str:
        self._counts[kind] += 1
        return f"{kind}{self._counts[kind] - 1}"

    def _tensor(self, index: int, value: Tensor) -> str:
        if index in self.user_inputs:
            return self._placed(self.user_inputs[index], value)
        buffer = self._buffer(value)
        if buffer is not None:
            return buffer
        if index not in self._given:
            self._given[index] = self._read_first(value)
        return self._placed(self._given[index], value)

    def _read_first(self, value: Tensor) -> str:
        """The name of what no instruction writes: a constant, or a view in its base's place."""
        if value.allocation_info is None:
            return self._new("c" if value.data_buffer_idx > 0 else "t")
        return self._last_written.get(self._place(value)) or self._new("t")

    def _place(self, value: Tensor) -> tuple[int, int]:
        assert value.allocation_info is not None
        return value.allocation_info.memory_id, _offset(value)

    def _placed(self, name: str, value: Tensor) -> str:
        place = value.allocation_info
        if not self.with_places or place is None:
            return name
        return f"{name}@{place.memory_id}:{_offset(value)}"

    def _buffer(self, value: Tensor) -> str | None:
        place = value.allocation_info
        if place is None:
            return None
        for buffer in self.buffers:
            distance = _offset(value) - buffer.offset
            if buffer.arena == place.memory_id and 0 <= distance < max(buffer.bytes, 1):
                return self._placed(buffer.fqn + (f"+{distance}" if distance else ""), value)
        return None


def _offset(value: Tensor) -> int:
    place = value.allocation_info
    assert place is not None
    return int(place.memory_offset_low + (place.memory_offset_high << 32))


def _buffer_places(program: ExportedProgram) -> list[_BufferPlace]:
    """Where the buffers lie that the method changes, or shares with one that does."""
    constant = {InputKind.PARAMETER, InputKind.CONSTANT_TENSOR}
    places = []
    signature = program.graph_signature
    nodes = program.graph.find_nodes(op="placeholder")
    for spec, node in zip(signature.input_specs, nodes, strict=True):
        tensor = node.meta.get("spec")
        is_mutated_input = spec.kind is InputKind.USER_INPUT and spec.arg.name in {
            s.target for s in signature.output_specs if s.kind is OutputKind.USER_INPUT_MUTATION
        }
        if spec.kind in constant or not isinstance(tensor, TensorSpec):
            continue
        if (spec.kind is not InputKind.USER_INPUT or is_mutated_input) and (
            tensor.mem_id is not None and tensor.mem_offset is not None
        ):
            fqn = spec.arg.name if is_mutated_input else str(spec.target)
            size = int(tensor.allocated_memory)
            places.append(_BufferPlace(fqn, tensor.mem_id, tensor.mem_offset, size))
    return places


def _user_inputs(program: ExportedProgram, plan: ExecutionPlan) -> dict[int, str]:
    specs = program.graph_signature.input_specs
    names = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]
    return dict(zip(plan.inputs, names, strict=True))


def _delegate_calls(module: fx.GraphModule) -> Iterator[fx.Node]:
    """The calls of backends, in the order in which they are emitted."""
    for node in module.graph.nodes:
        if node.target is executorch_call_delegate:
            yield node
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            for branch in node.all_input_nodes:
                body = (
                    getattr(module, str(branch.target), None) if branch.op == "get_attr" else None
                )
                if isinstance(body, fx.GraphModule):
                    yield from _delegate_calls(body)


def _kernel_call(plan: ExecutionPlan, call: KernelCall, name: _Names) -> str:
    operator = plan.operators[call.op_index]
    full = f"{operator.name}.{operator.overload}" if operator.overload else operator.name
    outs = _outs(full)
    if outs is None:
        # The runtime's own operators on numbers have a schema, but not in PyTorch.
        *arguments, result = call.args
        written = name.written(result)
        return f"{full}({', '.join(map(name, arguments))}) -> {written}"
    # What follows the schema's arguments is what the kernel returns.
    shown = [
        f"{argument}={name.written(index)}" if argument in outs else name(index)
        for argument, index in zip(_argument_names(full), call.args, strict=False)
    ]
    returned = call.args[len(shown) :]
    result = "" if outs or full.endswith("_") else " -> " + ", ".join(map(name.written, returned))
    return f"{full}({', '.join(shown)}){result}"


def _schema(full: str) -> Any:
    packet, _, overload = full.partition(".")
    try:
        return torch._C._get_schema(packet, overload)
    except RuntimeError:
        return None


def _argument_names(full: str) -> list[str]:
    return [argument.name for argument in _schema(full).arguments]


def _outs(full: str) -> list[str] | None:
    schema = _schema(full)
    return None if schema is None else [a.name for a in schema.arguments if a.is_out]


def _delegate_call(plan: ExecutionPlan, call: DelegateCall, node: fx.Node, name: _Names) -> str:
    inputs = len(node.args) - 1
    arguments = [name(index) for index in call.args[:inputs]]
    outs = [f"out={name.written(index)}" for index in call.args[inputs:]]
    return f"{plan.delegates[call.delegate_index].id}({', '.join([*arguments, *outs])})"


def _plan(manager: ExecutorchProgramManager, method: str) -> ExecutionPlan:
    plans = {plan.name: plan for plan in manager.executorch_program.execution_plan}
    if method not in plans:
        raise ValueError(f"the program has no method {method!r}, but {sorted(plans)}")
    return plans[method]


def _lines(
    plan: ExecutionPlan, instructions: Sequence[Any], delegates: Iterator[fx.Node], name: _Names
) -> Iterator[str]:
    for instruction in instructions:
        match instruction:
            case KernelCall():
                yield _kernel_call(plan, instruction, name)
            case DelegateCall():
                yield _delegate_call(plan, instruction, next(delegates), name)
            case MoveCall():
                yield f"{name.written(instruction.move_to)} = {name(instruction.move_from)}"
            case JumpFalseCall():
                condition = name(instruction.cond_value_index)
                prefix = "" if condition == "False" else f"unless {condition} "
                yield f"{prefix}go to {instruction.destination_instruction}"
            case FreeCall():
                yield f"free {name(instruction.value_index)}"
            case _:
                raise TypeError(f"no instruction: {instruction}")


def print_instructions(
    program: ExecutorchProgramManager, method: str = "forward", *, with_places: bool = False
) -> str:
    """The instructions of a method, one a line, and what it returns.

    Args:
        with_places: Say behind each planned tensor where it lies, as `@arena:offset`.
    """
    plan = _plan(program, method)
    exported = program.exported_program(method)
    name = _Names(plan, _user_inputs(exported, plan), _buffer_places(exported), with_places)
    instructions = [i.instr_args for chain in plan.chains for i in chain.instructions]
    delegates = _delegate_calls(exported.graph_module)
    lines = _lines(plan, instructions, delegates, name)
    numbered = [f"{number}: {line}" for number, line in enumerate(lines)]
    return "\n".join([*numbered, f"return {', '.join(map(name, plan.outputs))}"])
