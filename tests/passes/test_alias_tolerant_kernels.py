# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""The table of kernels that may write over an argument, row by row in the real runtime.

A program here is written instruction by instruction: each call twice, once with memory of its
own and once with `out` as the very tensor that is an argument. Both must be the same to the bit.
"""

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchProgramManager, memory
from executorch.exir.operator.convert import to_out_variant
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.alias_tolerant_kernels import (
    ALIAS_TOLERANT_KERNELS,
    may_write_over,
    takes_in_place,
)
from executorch.exir.tensor import TensorSpec
from executorch.extension.pybindings.portable_lib import _get_operator_names
from executorch.runtime import Runtime
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.export import ExportedProgram, export
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTS = (torch.int64, torch.int32, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTS, torch.bool)
CALLS = 3


def operator(name: str) -> OpOverload:
    """The operator that `OpOverload.name()` calls so."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    assert isinstance(found, OpOverload)
    return found


# --- programs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A functional call, and the name of the argument to write over."""

    op: OpOverload
    arguments: dict[str, Any]
    written: str

    def eager(self) -> Tensor:
        result: Tensor = self.op(**self.arguments)
        return result


@functools.cache
def _any_program() -> ExportedProgram:
    return export(torch.nn.Identity(), (torch.zeros(1),))


class _Program:
    """The graph of a program in which every allocation is spelled out."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.inputs: list[Tensor] = []
        self._seen: dict[int, fx.Node] = {}

    def input(self, value: Tensor) -> fx.Node:
        node = self.graph.placeholder(f"x{len(self.inputs)}")
        node.meta.update(val=value.to("meta"), spec=TensorSpec.from_tensor(value))
        self.inputs.append(value)
        return node

    def shared_input(self, value: Tensor) -> fx.Node:
        if id(value) not in self._seen:
            self._seen[id(value)] = self.input(value)
        return self._seen[id(value)]

    def call(self, op: OpOverload, arguments: dict[str, Any], out: TensorSpec) -> fx.Node:
        out_op, (out_name,) = to_out_variant(op)
        allocation = self.graph.call_function(memory.alloc, ((tuple(out.shape), out.dtype),))
        allocation.meta["spec"] = out
        node = self.graph.call_function(out_op, (), {**arguments, out_name: allocation})
        node.meta["spec"] = out
        node.meta["val"] = torch.empty(out.shape, dtype=out.dtype, device="meta")
        return node

    def call_in_place(self, op: OpOverload, arguments: Sequence[Any]) -> fx.Node:
        node = self.graph.call_function(op, tuple(arguments))
        node.meta.update(arguments[0].meta)
        return node

    def emit(self, results: Sequence[fx.Node]) -> ExecutorchProgramManager:
        output = self.graph.output(tuple(results))
        for key in ("val", "spec"):
            output.meta[key] = tuple(result.meta[key] for result in results)
        module = fx.GraphModule(torch.nn.Module(), self.graph)
        placeholders = self.graph.find_nodes(op="placeholder")
        signature = ExportGraphSignature(
            [InputSpec(InputKind.USER_INPUT, TensorArgument(p.name), None) for p in placeholders],
            [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(r.name), None) for r in results],
        )
        MemoryPlanningPass().run(module, signature)
        _, in_spec = pytree.tree_flatten((tuple(self.inputs), {}))
        _, out_spec = pytree.tree_flatten(tuple(results))
        call = ModuleCallSignature([], [], in_spec, out_spec)
        # torch.export would refuse the graph: its operators are out variants, as an emitted one's.
        exported = copy.copy(_any_program())
        exported._graph_module = module
        exported._graph_signature = signature
        exported._module_call_graph = [ModuleCallEntry("", call)]
        return ExecutorchProgramManager({"forward": exported})


def emit(calls: Sequence[Call]) -> tuple[ExecutorchProgramManager, list[Tensor]]:
    """A program that returns each call's result, first with memory of its own, then over the
    written argument; and its inputs."""
    program = _Program()

    def nodes(call: Call, over: fx.Node | None) -> dict[str, Any]:
        written = call.arguments[call.written]

        def node(value: Any) -> Any:
            if isinstance(value, list):
                return [node(v) for v in value]
            if not isinstance(value, Tensor):
                return value
            return over if over is not None and value is written else program.shared_input(value)

        return {name: node(value) for name, value in call.arguments.items()}

    # Placeholders come first.
    plain = [nodes(call, None) for call in calls]
    over = [program.input(call.arguments[call.written]) for call in calls]
    results = []
    for call, arguments, target in zip(calls, plain, over, strict=True):
        own = TensorSpec.from_tensor(call.arguments[call.written])
        results.append(program.call(call.op, arguments, own))
        results.append(program.call(call.op, nodes(call, target), target.meta["spec"]))
    return program.emit(results), program.inputs


def run(manager: ExecutorchProgramManager, inputs: Sequence[Tensor]) -> list[list[Tensor]]:
    """The results of several calls, which are given the same inputs."""
    method = Runtime.get().load_program(manager.buffer).load_method("forward")
    assert method is not None
    return [[r.clone() for r in method.execute(list(inputs))] for _ in range(CALLS)]


def bits(value: Tensor) -> Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)


def differing(calls: Sequence[Call], *, is_kernel_right: bool = True) -> list[Call]:
    """The calls whose result is another when it is written over the argument."""
    results = run(*emit(calls))
    found = []
    for index, call in enumerate(calls):
        pairs = [(result[2 * index], result[2 * index + 1]) for result in results]
        if not all(torch.equal(bits(plain), bits(over)) for plain, over in pairs):
            found.append(call)
        if is_kernel_right:
            tolerance = 3e-2 if call.arguments[call.written].dtype in FLOATS[1:3] else 1e-3
            torch.testing.assert_close(
                pairs[0][0], call.eager(), rtol=tolerance, atol=tolerance, equal_nan=True
            )
    return found


# --- arguments ------------------------------------------------------------------------------


class Draw:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        if dtype is torch.bool:
            return torch.randint(0, 2, tuple(shape), generator=self.generator) > 0
        if dtype.is_floating_point:
            # Away from zero, which is divided by, and within (0, 1) for logit and acos.
            return (torch.rand(tuple(shape), generator=self.generator) * 0.9 + 0.05).to(dtype)
        return torch.randint(1, 5, tuple(shape), generator=self.generator).to(dtype)


SHAPES: dict[tuple[int, ...], list[tuple[int, ...]]] = {
    (): [()],
    (1,): [()],
    (3,): [(1,)],
    (17,): [()],
    (1000,): [()],
    (70_000,): [(1,)],
    (20, 50): [(), (50,), (20, 1), (1, 50)],
    (2, 3, 4, 5): [(1, 3, 1, 1), (3, 4, 5), (2, 1, 4, 5), (2, 3, 4, 1)],
}
SCALARS: dict[str, Any] = {
    "other": 3,
    "value": 2,
    "fill_value": 1,
    "min": 2,
    "max": 3,
    "rounding_mode": "floor",
    "dim": 0,
}


def generic(op: OpOverload, written: str, dtype: torch.dtype, draw: Draw) -> Iterator[Call]:
    """Calls with tensors of equal sizes, with each other one broadcast, and with one tensor for
    all that may be written over."""
    schema = op._schema.arguments
    tensors = [a.name for a in schema if "Tensor" in str(a.type)]
    scalars = {
        a.name: SCALARS[a.name]
        for a in schema
        if a.name in SCALARS and a.name not in tensors and not a.has_default_value()
    }
    if op is torch.ops.aten.clamp.default:
        scalars = {"min": 0.25, "max": 0.75} if dtype.is_floating_point else {"min": 2, "max": 3}

    def dtype_of(name: str) -> torch.dtype:
        return torch.bool if name in ("condition", "mask") else dtype

    for shape, broadcast in SHAPES.items():
        full = {name: draw(dtype_of(name), shape) for name in tensors}
        yield Call(op, {**full, **scalars}, written)
        others = [name for name in tensors if name != written]
        for name in others:
            for smaller in broadcast:
                yield Call(op, {**full, name: draw(dtype_of(name), smaller), **scalars}, written)
        same = may_write_over(op) & {n for n in tensors if dtype_of(n) == dtype}
        if len(same) > 1:
            yield Call(op, {**full, **dict.fromkeys(same, full[written]), **scalars}, written)


def of_index_put(op: OpOverload, written: str, dtype: torch.dtype, draw: Draw) -> Iterator[Call]:
    several = torch.tensor([2, -1, 0])
    mask = torch.arange(20) % 3 == 0
    everything: list[tuple[list[Tensor | None], tuple[int, ...]]] = [
        ([several], (3, 50)),
        ([several], (50,)),
        ([several.int()], ()),
        ([None, several], (20, 3)),
        ([several, torch.tensor([1, 1, 7])], (3,)),
        ([mask], (7, 50)),
        ([torch.tensor(4)], (50,)),
    ]
    for indices, sizes in everything:
        for accumulate in (False, True):
            arguments = {
                "self": draw(dtype, (20, 50)),
                "indices": indices,
                "values": draw(dtype, sizes),
                "accumulate": accumulate,
            }
            if accumulate and dtype is torch.bool:
                continue
            yield Call(op, arguments, written)
    for size in (3, 17, 70_000):
        arguments = {
            "self": draw(dtype, (size,)),
            "indices": [several],
            "values": draw(dtype, (3,)),
        }
        yield Call(op, arguments, written)


def of_scatter(op: OpOverload, written: str, dtype: torch.dtype, draw: Draw) -> Iterator[Call]:
    for shape, dim in {(20, 50): 1, (17,): 0, (2, 3, 4): -2}.items():
        index = torch.arange(2).reshape(
            [-1 if i == dim % len(shape) else 1 for i in range(len(shape))]
        )
        index = index.expand(
            [2 if i == dim % len(shape) else 1 for i in range(len(shape))]
        ).contiguous()
        arguments: dict[str, Any] = {"self": draw(dtype, shape), "dim": dim, "index": index}
        if op is torch.ops.aten.scatter.value:
            yield Call(op, {**arguments, "value": 1}, written)
        else:
            yield Call(op, {**arguments, "src": draw(dtype, index.shape)}, written)


def of_part(op: OpOverload, written: str, dtype: torch.dtype, draw: Draw) -> Iterator[Call]:
    """select_scatter and slice_scatter."""
    for shape in ((20, 50), (1000, 70), (3, 4, 5)):
        for dim in (0, -1):
            whole = draw(dtype, shape)
            if op is torch.ops.aten.select_scatter.default:
                part = draw(dtype, whole.select(dim, -2).shape)
                place: dict[str, Any] = {"dim": dim, "index": -2}
            else:
                part = draw(dtype, whole.transpose(0, dim)[1::2].transpose(0, dim).shape)
                place = {"dim": dim, "start": 1, "end": None, "step": 2}
            yield Call(op, {"self": whole, "src": part, **place}, written)


def of_masked_scatter(
    op: OpOverload, written: str, dtype: torch.dtype, draw: Draw
) -> Iterator[Call]:
    for shape in ((20, 50), (70_000,), (3,)):
        for mask_shape in (shape, (1,) * len(shape)):
            arguments = {
                "self": draw(dtype, shape),
                "mask": draw(torch.bool, mask_shape),
                "source": draw(dtype, shape),
            }
            yield Call(op, arguments, written)


def of_cumsum(op: OpOverload, written: str, dtype: torch.dtype, draw: Draw) -> Iterator[Call]:
    for shape in ((3,), (1000,), (20, 50), (3, 4, 5)):
        for dim in range(-1, len(shape)):
            arguments = {"self": draw(dtype, shape), "dim": dim, "dtype": dtype}
            yield Call(op, arguments, written)


def of_fill(op: OpOverload, written: str, dtype: torch.dtype, draw: Draw) -> Iterator[Call]:
    for shape in SHAPES:
        yield Call(op, {"self": draw(dtype, shape), "value": draw(dtype, ())}, written)


ARGUMENTS = {
    "aten::index_put": of_index_put,
    "aten::scatter.src": of_scatter,
    "aten::scatter.value": of_scatter,
    "aten::scatter_add": of_scatter,
    "aten::select_scatter": of_part,
    "aten::slice_scatter": of_part,
    "aten::masked_scatter": of_masked_scatter,
    "aten::cumsum": of_cumsum,
    "aten::fill.Tensor": of_fill,
}


def calls_of(name: str, written: str, dtype: torch.dtype) -> list[Call]:
    """Calls whose results are of the written argument's dtype; there may be none."""
    op = operator(name)
    draw = Draw()
    found = []
    for call in ARGUMENTS.get(name, generic)(op, written, dtype, draw):
        target = call.arguments[written]
        try:
            result = call.eager()
        except (RuntimeError, NotImplementedError):
            # PyTorch has none of this dtype, or copies nothing into a smaller tensor.
            continue
        if (result.dtype, result.shape) == (target.dtype, target.shape):
            found.append(call)
    return found


# --- tests ----------------------------------------------------------------------------------

ROWS = [(row.operator, name) for row in ALIAS_TOLERANT_KERNELS.values() for name in row.arguments]

# The kernel refuses the dtype.
NOT_IMPLEMENTED = {
    ("aten::logit", torch.float16),
    ("aten::logit", torch.bfloat16),
}
# The kernel's result isn't PyTorch's, whatever it writes over.
OTHER_RESULTS = {
    # The optimized kernel swaps the sides where its first argument is the one that is broadcast.
    ("aten::le.Tensor", torch.bool),
    # It rounds each sum.
    ("aten::cumsum", torch.bfloat16),
}


@pytest.mark.parametrize(("name", "written"), ROWS)
def test_result_over_argument(name: str, written: str) -> None:
    tried = 0
    for dtype in DTYPES:
        calls = calls_of(name, written, dtype)
        tried += len(calls)
        if not calls:
            continue
        if (name, dtype) in NOT_IMPLEMENTED:
            with pytest.raises(RuntimeError):
                differing(calls)
            continue
        found = differing(calls, is_kernel_right=(name, dtype) not in OTHER_RESULTS)
        assert not found, [f"{dtype}: {call.arguments}" for call in found]
    assert tried > 0


def image(dtype: torch.dtype) -> Tensor:
    return Draw()(dtype, (2, 3, 4, 5)).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "name",
    [
        "aten::add.Tensor",
        "aten::mul.Tensor",
        "aten::maximum",
        "aten::sub.Scalar",
        "aten::exp",
        "aten::where.self",
        "dim_order_ops::_clone_dim_order",
        "dim_order_ops::_to_dim_order_copy",
    ],
)
def test_channels_last(name: str) -> None:
    arguments: dict[str, Any] = {"self": image(torch.float32)}
    if name == "aten::where.self":
        arguments["condition"] = image(torch.bool)
    if operator(name)._schema.arguments[1:]:
        arguments["other"] = 3 if name.endswith("Scalar") else image(torch.float32) + 1
    if name.startswith("dim_order_ops"):
        arguments = {"self": arguments["self"], "dim_order": [0, 2, 3, 1]}
    assert not differing([Call(operator(name), arguments, "self")])


@pytest.mark.parametrize("name", ["aten::add.Tensor", "aten::maximum", "aten::where.self"])
def test_broadcast_over_channels_last_is_wrong(name: str) -> None:
    """So `why_not_over` refuses it. (The kernel's own result is another than PyTorch's, too.)"""
    small = image(torch.float32)[:1] + 1
    arguments = {"self": image(torch.float32), "other": small}
    if name == "aten::where.self":
        arguments["condition"] = image(torch.bool)
    call = Call(operator(name), arguments, "self")
    assert differing([call], is_kernel_right=False) == [call]


SQUARE = Draw()(torch.float32, (50, 50))
ORDER = torch.arange(50).flip(0)
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("aten::flip", {"self": SQUARE, "dims": [0]}, "self"),
    ("aten::roll", {"self": SQUARE, "shifts": [1], "dims": [1]}, "self"),
    ("aten::transpose_copy.int", {"self": SQUARE, "dim0": 0, "dim1": 1}, "self"),
    ("aten::permute_copy", {"self": SQUARE, "dims": [1, 0]}, "self"),
    ("aten::index_select", {"self": SQUARE, "dim": 0, "index": ORDER}, "self"),
    ("aten::gather", {"self": SQUARE, "dim": 1, "index": ORDER.expand(50, 50).clone()}, "self"),
    ("aten::mm", {"self": SQUARE, "mat2": SQUARE + 1}, "self"),
    ("aten::mm", {"self": SQUARE + 1, "mat2": SQUARE}, "mat2"),
    (
        "aten::index_put",
        {"self": SQUARE + 1, "indices": [ORDER], "values": SQUARE, "accumulate": False},
        "values",
    ),
    (
        "aten::scatter.src",
        {"self": SQUARE + 1, "dim": 0, "index": ORDER.expand(50, 50).clone(), "src": SQUARE},
        "src",
    ),
    (
        "aten::masked_scatter",
        {"self": SQUARE + 1, "mask": SQUARE > 0.5, "source": SQUARE},
        "source",
    ),
]


@pytest.mark.parametrize(("name", "arguments", "written"), WRONG, ids=lambda v: str(v)[:40])
def test_result_over_what_no_row_names(name: str, arguments: dict[str, Any], written: str) -> None:
    op = operator(name)
    assert written not in may_write_over(op)
    call = Call(op, arguments, written)
    assert differing([call]) == [call]


def test_rows_are_kernels_of_the_runtime() -> None:
    registered = set(_get_operator_names())
    for row in ALIAS_TOLERANT_KERNELS.values():
        op = operator(row.operator)
        assert str(op.name()) == row.operator  # type: ignore[no-untyped-call]
        assert set(row.arguments) <= {argument.name for argument in op._schema.arguments}
        if row.arguments:
            assert to_out_variant(op)[0].name() in registered, row.operator


FEW = torch.tensor([2, 0])
INTO = Draw()(torch.float32, (4, 6, 5))


@dataclass(frozen=True)
class Put:
    """Arguments of an index_put into `INTO`."""

    indices: list[Tensor | None]
    values: Tensor
    accumulate: bool = False

    def is_predicted(self) -> bool:
        """Whether `takes_in_place` says so, knowing that indices that aren't negative are none."""
        graph = fx.Graph()

        def node(value: Tensor | None) -> fx.Node | None:
            if value is None:
                return None
            found = graph.placeholder("x")
            found.meta["val"] = value
            if not value.dtype.is_floating_point and value.dtype is not torch.bool:
                least = 0 if bool((value >= 0).all()) else -4
                found = graph.call_function(torch.ops.aten.clamp.default, (found, least))
            found.meta["val"] = value
            return found

        arguments = (node(INTO), [node(i) for i in self.indices], node(self.values))
        op = torch.ops.aten.index_put.default
        return takes_in_place(graph.call_function(op, (*arguments, self.accumulate))) is None

    def runs(self) -> bool:
        """Whether the runtime does it in place, and if so, as it should be."""
        program = _Program()
        into, values = program.input(INTO), program.input(self.values)
        indices = [None if i is None else program.input(i) for i in self.indices]
        arguments = (into, indices, values, self.accumulate)
        put = program.call_in_place(torch.ops.aten.index_put_.default, arguments)
        manager = program.emit([put])
        try:
            results = run(manager, program.inputs)
        except RuntimeError:
            return False
        op = torch.ops.aten.index_put.default
        expected = op(INTO, self.indices, self.values, self.accumulate)
        assert all(torch.equal(result, expected) for [result] in results)
        return True


def drawn(*sizes: int) -> Tensor:
    return Draw()(torch.float32, sizes) + 1


@pytest.mark.parametrize(
    ("put", "is_taken"),
    [
        (Put([FEW], drawn(2, 6, 5)), True),
        (Put([FEW.int()], drawn(2, 6, 5)), True),
        (Put([None, FEW], drawn(4, 2, 5)), True),
        (Put([None, None, FEW], drawn(4, 6, 2)), True),
        (Put([FEW, None, None], drawn(2, 6, 5)), True),
        (Put([FEW], drawn(2, 6, 5), accumulate=True), False),
        (Put([FEW - 1], drawn(2, 6, 5)), False),
        (Put([FEW], drawn(1, 6, 5)), False),
        (Put([FEW], drawn(2, 1, 5)), False),
        (Put([FEW], drawn(6, 5)), False),
        (Put([FEW[0]], drawn(1, 6, 5)), False),
        (Put([FEW.reshape(1, 2)], drawn(1, 2, 6, 5)), False),
        (Put([FEW, FEW], drawn(2, 5)), False),
        (Put([torch.arange(4) > 1], drawn(2, 6, 5)), False),
    ],
)
def test_index_put_in_place(put: Put, is_taken: bool) -> None:
    assert put.is_predicted() == is_taken
    assert put.runs() == is_taken


def test_in_place_kernels_of_the_runtime() -> None:
    """`takes_in_place` knows all that there are."""
    found = {name for name in _get_operator_names() if name.partition(".")[0].endswith("_")}
    assert found == {"aten::copy_", "aten::index_put_"}
