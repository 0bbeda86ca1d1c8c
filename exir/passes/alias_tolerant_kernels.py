# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""
Which kernels may write their `out` into the memory of one of their arguments.

Nothing in an operator's schema says so. This table was made by reading the portable and
the optimized kernels, which Python's runtime and mobile builds register, and is proved
by running each row there. The kernels of other backends under the same names were read
where their sources are public. An operator that isn't here promises nothing.

A row holds if the argument has the result's address, sizes, dtype and dim order, and no
other argument is in that memory unless it is the same tensor and the row names it, too:
a broadcast argument, or another view of the memory, is not read element for element.
Memory that isn't contiguous has to be free of broadcasts altogether, since the shared
loop over broadcast indices counts `out` in contiguous order. `why_not_over` asks for
all of it but the aliases, `takes_in_place` for what the in-place kernels ask.
"""

from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Set, Tuple

import torch
from executorch.exir.operator.convert import unwrap_op_overload
from torch.fx import Node


@dataclass(frozen=True)
class AliasTolerance:
    """What the kernel of one operator's out variant promises."""

    # The functional operator, as its `name()` has it.
    operator: str
    # The arguments whose memory `out` may be. None: it may be no argument's.
    arguments: Tuple[str, ...]
    reason: str


_POINTWISE = (
    "element i of the result is computed from element i of the argument alone, and "
    "written after it; vectorized and parallel loops cover each element once"
)
_CHOSEN = _POINTWISE + "; nothing is written before all arguments' element i is read"
_UNREAD = "the kernel reads the argument's sizes, not its elements"
_COPIED = "the argument is copied as it lies, onto itself, which changes nothing"
_COPIED_FIRST = (
    "the argument is copied as it lies, onto itself, and written in part afterwards; the "
    "indices and the source are read after that copy, so `out` must not be theirs"
)
_RUNNING = "element i is read before it is written, then only results are read"
_MOVED = "element i of the result is another element of the argument"
_SUMMED = "each result sums many elements, and `out` is initialized or written before"
_VECTOR_LIBRARY = (
    "pointwise in the portable and optimized kernels, but Cadence's hands the whole vector "
    "to a library whose functions work in phases and want memory of their own"
)
_LANES = (
    "whole lanes are read before they are written in the portable kernel, but other "
    "kernels by this name declare that their arguments don't overlap, or use `out` as "
    "a scratchpad"
)

_UNARY: Tuple[str, ...] = (
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitwise_not",
    "ceil",
    "clamp",
    "cos",
    "cosh",
    "elu",
    "erf",
    "exp",
    "expm1",
    "floor",
    "gelu",
    "hardtanh",
    "leaky_relu",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "logit",
    "neg",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "trunc",
)
_WITH_SCALAR: Tuple[str, ...] = (
    "add.Scalar",
    "bitwise_and.Scalar",
    "bitwise_left_shift.Tensor_Scalar",
    "bitwise_or.Scalar",
    "bitwise_right_shift.Tensor_Scalar",
    "bitwise_xor.Scalar",
    "div.Scalar",
    "div.Scalar_mode",
    "eq.Scalar",
    "fmod.Scalar",
    "ge.Scalar",
    "gt.Scalar",
    "le.Scalar",
    "lt.Scalar",
    "mul.Scalar",
    "ne.Scalar",
    "remainder.Scalar",
    "rsub.Scalar",
    "sub.Scalar",
)
_BINARY: Tuple[str, ...] = (
    "add.Tensor",
    "bitwise_and.Tensor",
    "bitwise_left_shift.Tensor",
    "bitwise_or.Tensor",
    "bitwise_right_shift.Tensor",
    "bitwise_xor.Tensor",
    "div.Tensor",
    "div.Tensor_mode",
    "eq.Tensor",
    "floor_divide",
    "fmod.Tensor",
    "ge.Tensor",
    "gt.Tensor",
    "le.Tensor",
    "logical_and",
    "logical_or",
    "logical_xor",
    "lt.Tensor",
    "maximum",
    "minimum",
    "mul.Tensor",
    "ne.Tensor",
    "remainder.Tensor",
    "sub.Tensor",
)


def _rows() -> Iterator[AliasTolerance]:
    for name in (*_UNARY, *_WITH_SCALAR):
        yield AliasTolerance(f"aten::{name}", ("self",), _POINTWISE)
    for name in _BINARY:
        yield AliasTolerance(f"aten::{name}", ("self", "other"), _POINTWISE)
    yield from _OTHERS


_OTHERS: Tuple[AliasTolerance, ...] = (
    AliasTolerance("aten::where.self", ("condition", "self", "other"), _CHOSEN),
    AliasTolerance("aten::clamp.Tensor", ("self", "min", "max"), _CHOSEN),
    AliasTolerance("aten::masked_fill.Scalar", ("self", "mask"), _CHOSEN),
    AliasTolerance(
        "aten::masked_scatter",
        ("self",),
        _POINTWISE + "; the source is read at other places",
    ),
    AliasTolerance("aten::full_like", ("self",), _UNREAD),
    AliasTolerance("aten::fill.Scalar", ("self",), _UNREAD),
    AliasTolerance(
        "aten::fill.Tensor",
        ("self",),
        _UNREAD + "; the value is read once, before",
    ),
    AliasTolerance("aten::copy", ("self", "src"), _COPIED + "; self isn't read"),
    AliasTolerance("aten::clone", ("self",), _COPIED),
    AliasTolerance("aten::_to_copy", ("self",), _POINTWISE),
    AliasTolerance("dim_order_ops::_clone_dim_order", ("self",), _COPIED),
    AliasTolerance(
        "dim_order_ops::_to_dim_order_copy",
        ("self",),
        _POINTWISE + "; both are indexed by their strides, which are the same",
    ),
    AliasTolerance("aten::index_put", ("self",), _COPIED_FIRST),
    AliasTolerance("aten::scatter.src", ("self",), _COPIED_FIRST),
    AliasTolerance("aten::scatter.value", ("self",), _COPIED_FIRST),
    AliasTolerance("aten::scatter_add", ("self",), _COPIED_FIRST),
    AliasTolerance("aten::select_scatter", ("self",), _COPIED_FIRST),
    AliasTolerance("aten::slice_scatter", ("self",), _COPIED_FIRST),
    AliasTolerance("aten::cumsum", ("self",), _RUNNING),
    AliasTolerance("aten::atan2", (), _VECTOR_LIBRARY),
    AliasTolerance("aten::pow.Scalar", (), _VECTOR_LIBRARY),
    AliasTolerance("aten::pow.Tensor_Scalar", (), _VECTOR_LIBRARY),
    AliasTolerance("aten::pow.Tensor_Tensor", (), _VECTOR_LIBRARY),
    AliasTolerance("aten::sigmoid", (), _VECTOR_LIBRARY),
    AliasTolerance("aten::tanh", (), _VECTOR_LIBRARY),
    AliasTolerance("aten::_softmax", (), _LANES),
    AliasTolerance("aten::_log_softmax", (), _LANES),
    AliasTolerance("aten::native_layer_norm", (), _LANES),
    AliasTolerance(
        "aten::cat", (), "a part of `out` is written before others are read"
    ),
    AliasTolerance("aten::flip", (), _MOVED),
    AliasTolerance("aten::roll", (), _MOVED),
    AliasTolerance("aten::gather", (), _MOVED),
    AliasTolerance("aten::index_select", (), _MOVED),
    AliasTolerance("aten::permute_copy", (), _MOVED),
    AliasTolerance("aten::transpose_copy.int", (), _MOVED),
    AliasTolerance("aten::mm", (), _SUMMED),
    AliasTolerance("aten::bmm", (), _SUMMED),
    AliasTolerance("aten::addmm", (), _SUMMED),
    AliasTolerance("aten::linear", (), _SUMMED),
    AliasTolerance("aten::convolution", (), _SUMMED),
)

ALIAS_TOLERANT_KERNELS: Dict[str, AliasTolerance] = {
    row.operator: row for row in _rows()
}


def may_write_over(op: torch._ops.OpOverload) -> FrozenSet[str]:
    """The arguments of the functional `op` whose memory its result may take."""
    row = ALIAS_TOLERANT_KERNELS.get(op.name())
    return frozenset(row.arguments) if row is not None else frozenset()


def _operator(call: Node) -> Optional[torch._ops.OpOverload]:
    """The operator that is called, or None if it is no operator, or of a backend."""
    if call.op != "call_function":
        return None
    try:
        return unwrap_op_overload(call.target)
    except TypeError:
        return None


def _bound_arguments(op: torch._ops.OpOverload, call: Node) -> Dict[str, Any]:
    names = [argument.name for argument in op._schema.arguments]
    return {**dict(zip(names, call.args)), **call.kwargs}


def _tensors(value: Any) -> List[Node]:
    """The nodes in an argument, which may be a list, whose values are tensors."""
    nodes: List[Node] = []
    torch.fx.node.map_arg(value, nodes.append)
    return [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]


def _has_default_dim_order(value: torch.Tensor) -> bool:
    return tuple(value.dim_order()) == tuple(range(value.dim()))


def _has_fixed_sizes(value: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in value.shape)


def _is_same_memory_format(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (
        _has_fixed_sizes(first)
        and _has_fixed_sizes(second)
        and first.shape == second.shape
        and first.dtype == second.dtype
        and first.dim_order() == second.dim_order()
    )


def why_not_over(call: Node, written: Node) -> Optional[str]:
    """
    Why the kernel of `call`, a functional operator, must not write its result into the
    memory of `written`, one of its arguments; None if it may.

    Other arguments in that memory, such as views of it, are the caller's to find.
    """
    op = _operator(call)
    if op is None:
        return f"{call.target} has no kernel that the table knows"
    arguments = {
        name: _tensors(value) for name, value in _bound_arguments(op, call).items()
    }
    named = {name for name, nodes in arguments.items() if written in nodes}
    refused = sorted(named - may_write_over(op))
    if refused:
        row = ALIAS_TOLERANT_KERNELS.get(op.name())
        reason = row.reason if row is not None else "it isn't in the table"
        return f"{op.name()} must not write over {', '.join(refused)}: {reason}"
    result = call.meta["val"]
    if not isinstance(result, torch.Tensor):
        return f"{op.name()} returns more than one tensor"
    if not _is_same_memory_format(result, written.meta["val"]):
        return "the result's sizes, dtype or dim order are not those of the argument"
    if _has_default_dim_order(result):
        return None
    # The broadcast loop's count of `out` knows no strides.
    for nodes in arguments.values():
        if any(node.meta["val"].shape != result.shape for node in nodes):
            return "an argument may be broadcast, and the result isn't contiguous"
    return None


def takes_in_place(call: Node, trusts_indices: bool = False) -> Optional[str]:
    """
    Why the runtime can't do the functional `call` by an in-place kernel on its first
    argument; None if it can. `trusts_indices` takes it that no index is negative.

    It has two such kernels, `index_put_` and `copy_`, and either takes less than its
    out variant. No other argument may be in the memory that is written; that is the
    caller's to find.
    """
    op = _operator(call)
    if op is torch.ops.aten.index_put.default:
        return _why_not_index_put_(_bound_arguments(op, call), trusts_indices)
    if op is torch.ops.aten.copy.default:
        return _why_not_copy_(_bound_arguments(op, call))
    return f"the runtime has no in-place kernel for {call.target}"


def _why_not_copy_(arguments: Dict[str, Any]) -> Optional[str]:
    written, source = arguments["self"].meta["val"], arguments["src"].meta["val"]
    if arguments.get("non_blocking", False):
        return "copy_ takes no non_blocking"
    is_contiguous = _has_default_dim_order(written) and _has_default_dim_order(source)
    if not is_contiguous and written.dim_order() != source.dim_order():
        return "copy_ takes no source of another dim order"
    return None


def _why_not_index_put_(
    arguments: Dict[str, Any], trusts_indices: bool
) -> Optional[str]:
    written, values = arguments["self"].meta["val"], arguments["values"].meta["val"]
    if arguments.get("accumulate", False):
        return "index_put_ doesn't accumulate"
    if not (_has_default_dim_order(written) and _has_default_dim_order(values)):
        return "index_put_ takes contiguous tensors only"
    if written.dtype != values.dtype:
        return f"index_put_ puts no {values.dtype} into {written.dtype}"
    indexed = [dim for dim, i in enumerate(arguments["indices"]) if i is not None]
    if len(indexed) != 1:
        return f"index_put_ takes one index tensor, not {len(indexed)}"
    dim = indexed[0]
    index = arguments["indices"][dim]
    reason = _why_not_index(index)
    if reason is None and not trusts_indices and _interval(index)[0] < 0:
        reason = "index_put_ refuses negative indices, and these may be negative"
    return reason or _why_not_values(values, written, dim, index)


def _why_not_index(index: Node) -> Optional[str]:
    value = index.meta["val"]
    if value.dtype not in (torch.int32, torch.int64):
        return f"index_put_ takes int32 or int64 indices, not {value.dtype}"
    if value.dim() != 1:
        return f"index_put_ takes a flat index tensor, not one of rank {value.dim()}"
    return None


def _why_not_values(
    values: torch.Tensor, written: torch.Tensor, dim: int, index: Node
) -> Optional[str]:
    if values.dim() != written.dim():
        return "index_put_ takes values of the rank of what they are put into"
    expected = list(written.shape)
    expected[dim] = index.meta["val"].shape[0]
    # Sizes that are expressions are the same if they are written the same.
    if [str(size) for size in values.shape] != [str(size) for size in expected]:
        return f"index_put_ takes values of sizes {expected}, not broadcast ones"
    return None


# Each element of their results is one of their first argument's.
_SELECTING: FrozenSet[str] = frozenset(
    {
        "aten::_to_copy",
        "aten::alias_copy",
        "aten::clone",
        "aten::expand_copy",
        "aten::index.Tensor",
        "aten::index_select",
        "aten::permute_copy",
        "aten::select_copy.int",
        "aten::slice_copy.Tensor",
        "aten::squeeze_copy.dim",
        "aten::squeeze_copy.dims",
        "aten::unsqueeze_copy",
        "aten::view_copy",
        "dim_order_ops::_clone_dim_order",
        "dim_order_ops::_to_dim_order_copy",
    }
)
_INT64 = (-(2**63), 2**63 - 1)


def _interval(node: Node) -> Tuple[int, int]:
    """The least and the greatest integer that the graph shows `node` may hold."""
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return _symbol_interval(value)
    if not isinstance(value, torch.Tensor) or value.dtype not in _INTEGERS:
        return _INT64
    info = torch.iinfo(value.dtype)
    op = _operator(node)
    found = _computed_interval(op, node) if op is not None else _INT64
    # What doesn't fit wraps around.
    fits = info.min <= found[0] and found[1] <= info.max
    return found if fits else (info.min, info.max)


_INTEGERS: FrozenSet[torch.dtype] = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)


def _symbol_interval(value: torch.SymInt) -> Tuple[int, int]:
    bounds = value.node.shape_env.bound_sympy(value.node.expr)
    least = int(bounds.lower) if bounds.lower > _INT64[0] else _INT64[0]
    greatest = int(bounds.upper) if bounds.upper < _INT64[1] else _INT64[1]
    return least, greatest


def _argument_interval(argument: Any) -> Tuple[int, int]:
    if isinstance(argument, Node):
        return _interval(argument)
    if isinstance(argument, torch.SymInt):
        return _symbol_interval(argument)
    return (argument, argument) if isinstance(argument, int) else _INT64


def _computed_interval(op: torch._ops.OpOverload, node: Node) -> Tuple[int, int]:
    """As `_interval`, of an operator's result, should it not wrap around."""
    name, arguments = op.name(), _bound_arguments(op, node)
    if name in _SELECTING:
        return _argument_interval(node.args[0])
    if name in ("aten::arange", "aten::arange.start_step"):
        least = _argument_interval(arguments.get("start", 0))[0]
        is_rising = _argument_interval(arguments.get("step", 1))[0] > 0
        return (least, _argument_interval(arguments["end"])[1]) if is_rising else _INT64
    if name in ("aten::full", "aten::full_like"):
        return _argument_interval(arguments["fill_value"])
    if name == "aten::scalar_tensor":
        return _argument_interval(arguments["s"])
    if name == "aten::add.Tensor" and arguments.get("alpha", 1) == 1:
        first = _argument_interval(arguments["self"])
        second = _argument_interval(arguments["other"])
        return first[0] + second[0], first[1] + second[1]
    if name == "aten::remainder.Scalar" and isinstance(arguments["other"], int):
        # The sign is the divisor's.
        divisor = arguments["other"]
        return (0, divisor - 1) if divisor > 0 else _INT64
    if name == "aten::relu":
        return 0, _INT64[1]
    if name == "aten::clamp":
        return _clamped_interval(arguments)
    return _INT64


def _clamped_interval(arguments: Dict[str, Any]) -> Tuple[int, int]:
    low, high = _argument_interval(arguments["self"])
    least, greatest = arguments.get("min"), arguments.get("max")
    if not all(b is None or isinstance(b, int) for b in (least, greatest)):
        return _INT64
    if least is not None:
        low, high = max(low, least), max(high, least)
    # Where the two cross, the maximum wins.
    if greatest is not None:
        low, high = min(low, greatest), min(high, greatest)
    return low, high


# Operators that XNNPACK runs one by one, whatever it makes of their neighbors: it fuses
# clamps and pads into what they follow or precede, and drops what a constant makes idle.
_XNNPACK_BINARY: FrozenSet[str] = frozenset(
    {
        "aten::add.Tensor",
        "aten::div.Tensor",
        "aten::maximum",
        "aten::minimum",
        "aten::mul.Tensor",
        "aten::sub.Tensor",
    }
)
# Operators whose result XNNPACK may take out of their argument's memory.
_XNNPACK_MOVING: FrozenSet[str] = frozenset(
    {
        "aten::clone",
        "aten::constant_pad_nd",
        "aten::expand_copy",
        "aten::permute_copy",
        "aten::select_copy.int",
        "aten::slice_copy.Tensor",
        "aten::squeeze_copy.dim",
        "aten::squeeze_copy.dims",
        "aten::unsqueeze_copy",
        "aten::view_copy",
        "dim_order_ops::_clone_dim_order",
        "dim_order_ops::_to_dim_order_copy",
    }
)


def why_delegate_not_over(call: Node, result: int, written: Node) -> Optional[str]:
    """
    Why result number `result` of `call`, a call of a backend, must not be written into
    the memory of `written`; None if it may.

    The runtime hands a backend the addresses of its arguments anew at each call, and
    promises nothing else. So a backend may write where a later call reads. Where the
    same call reads, it may if what is known of the backend says so: XNNPACK runs its
    operators one after another in the order of the graph, and writes a result when it
    runs the operator that makes it.
    """
    positions = [i for i, node in enumerate(call.args[1:]) if node is written]
    if not positions:
        return None
    # pyre-ignore[16]: the lowered module is an attribute of the graph's module
    lowered = getattr(call.graph.owning_module, call.args[0].target)
    if lowered.backend_id != "XnnpackBackend":
        return f"{lowered.backend_id} may read the argument after it wrote the result"
    program = lowered.original_module
    placeholders = {p.name: p for p in program.graph.find_nodes(op="placeholder")}
    inputs = [placeholders[name] for name in program.graph_signature.user_inputs]
    made = program.graph.output_node().args[0][result]
    for position in positions:
        reason = _why_not_over_in_xnnpack(made, inputs[position], set(inputs))
        if reason is not None:
            return reason
    return None


def _why_not_over_in_xnnpack(
    made: Node, read: Node, inputs: Set[Node]
) -> Optional[str]:
    """Why XNNPACK must not write `made` where the input `read` is, in its own graph."""
    if not _is_same_memory_format(made.meta["val"], read.meta["val"]):
        return "the result's sizes, dtype or dim order are not those of the argument"
    if not made.meta["val"].dtype.is_floating_point:
        return "XNNPACK may widen results that are no floating-point numbers"
    if not _is_run_by_itself(made, inputs):
        return f"XNNPACK may merge {made.name} with what it is made from"
    earlier = _ancestors(made)
    for reader, is_direct in _readers(read):
        if reader is made:
            if not is_direct or _operator(made).name() not in _XNNPACK_BINARY:
                return f"{made.name} reads more of the argument than it has written"
        elif reader not in earlier:
            return f"{reader.name} may read the argument after {made.name} is written"
    return None


def _is_run_by_itself(node: Node, inputs: Set[Node]) -> bool:
    op = _operator(node)
    if op is None:
        return False
    sources = node.all_input_nodes
    if op.name() in _XNNPACK_BINARY:
        # A constant may make it idle, and then what precedes it writes the result.
        is_variable = all(s in inputs or s.all_input_nodes for s in sources)
        return is_variable and len(sources) == 2
    if op.name() == "aten::cat":
        return len(sources) > 1
    if op.name() == "aten::slice_copy.Tensor":
        return node.meta["val"].shape != sources[0].meta["val"].shape
    return False


def _ancestors(node: Node) -> Set[Node]:
    found: Set[Node] = set()
    stack = list(node.all_input_nodes)
    while stack:
        source = stack.pop()
        if source not in found:
            found.add(source)
            stack.extend(source.all_input_nodes)
    return found


def _readers(read: Node) -> Iterator[Tuple[Node, bool]]:
    """What reads `read`, and whether it reads the very tensor or may read a view."""
    stack = [(user, True) for user in read.users]
    seen: Set[Node] = set()
    while stack:
        reader, is_direct = stack.pop()
        yield reader, is_direct
        op = _operator(reader)
        if op is not None and op.name() in _XNNPACK_MOVING and reader not in seen:
            seen.add(reader)
            stack.extend((user, False) for user in reader.users)
