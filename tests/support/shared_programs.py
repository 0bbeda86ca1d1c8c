# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Random programs of several methods that share buffers.

A `World` is a handful of buffers and a supply of methods on them: random lists of steps, each
exported once, as a module of its own that has only the buffers it touches. A `Program` picks
methods of one world, and how to plan and emit them; one more method, `peek`, reads all buffers.
Picking costs much less than exporting, and what methods do to each other is in the picking.

The modules of a world hold the very same tensors, so eager calls share their state. Values stay
small whatever the steps, so that comparing floats means something after 20 calls.
"""

import copy
import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy, naive
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.tensor import TensorSpec
from functorch.experimental.control_flow import map as torch_map
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._higher_order_ops import scan as torch_scan
from torch.export import ExportedProgram, export

PEEK = "peek"
DTYPES = {"float": torch.float32, "double": torch.float64}
ALGORITHMS = {"greedy": (greedy,), "naive": (naive,), "both": (greedy, naive)}


@dataclass(frozen=True)
class Step:
    """One step of a method: `op` on earlier values and on a buffer, all counted modulo."""

    op: str
    first: int = 0
    second: int = 0
    buffer: int = 0


@dataclass(frozen=True)
class Method:
    steps: tuple[Step, ...]
    outputs: int = 1
    delegated: bool = False
    """Whether XNNPACK may take what it can. It takes what a method only reads for a constant,
    long before anything is planned; so it gets no method that reads without writing."""

    @property
    def reads(self) -> set[int]:
        return {s.buffer for s in self.steps if s.op in READS}

    @property
    def writes(self) -> set[int]:
        return {s.buffer for s in self.steps if s.op in WRITES}


@dataclass(frozen=True)
class Lowering:
    alignment: int = 16
    algorithm: str = "greedy"
    alloc_graph_input: bool = True
    alloc_graph_output: bool = True
    remove_view_copy: bool = True
    run_reinplace_pass: bool = False
    emit_mutable_buffer_names: bool = False
    arenas: tuple[int, ...] = (1,)
    """The arena of each buffer, counted modulo."""
    pass_for_each_method: bool = False


@dataclass(frozen=True)
class World:
    shape: tuple[int, int]
    """Of the values; a buffer has this shape, or it flat, or is odd."""
    buffers: tuple[str, ...]

    def shape_of(self, buffer: int) -> tuple[int, ...]:
        rows, columns = self.shape
        kind, _ = self.buffers[buffer].split("_")
        return {"same": self.shape, "flat": (rows * columns,), "odd": (rows + 2, 3)}[kind]

    def dtype_of(self, buffer: int) -> torch.dtype:
        return DTYPES[self.buffers[buffer].split("_")[1]]

    def fqn(self, buffer: int) -> str:
        # Not in the order in which the modules register them.
        return f"{'zyxw'[buffer]}_state"


WORLDS = (
    World((1, 3), ("same_float",)),
    World((3, 5), ("flat_double", "same_float")),
    World((2, 2), ("odd_double", "flat_float", "odd_float")),
    World((4, 6), ("same_float", "odd_float", "flat_double", "flat_float")),
)


@dataclass(frozen=True)
class Program:
    world: World
    picks: tuple[int, ...]
    """Numbers of methods."""
    lowering: Lowering = Lowering()

    @property
    def names(self) -> list[str]:
        return [f"m{index}" for index in range(len(self.picks))]

    @property
    def methods(self) -> list[Method]:
        return [method_of(self.world, pick) for pick in self.picks]

    @property
    def written(self) -> list[int]:
        """The buffers to share: a buffer that no method writes is a constant."""
        return sorted(set().union(*(method.writes for method in self.methods)))

    def __str__(self) -> str:
        methods = "".join(
            f"\n  {name}: {method}" for name, method in zip(self.names, self.methods, strict=True)
        )
        return f"{self.world}{methods}\n  {self.lowering}"


# --- what the steps mean --------------------------------------------------------------------


def cond(predicate: Tensor, yes: Callable[..., Any], no: Callable[..., Any], *args: Tensor) -> Any:
    """torch.cond when exporting; the reference chooses for itself."""
    if torch.compiler.is_exporting():
        return torch.cond(predicate, yes, no, list(args))
    return yes(*args) if bool(predicate) else no(*args)


def map_rows(function: Callable[..., Tensor], rows: Tensor, other: Tensor) -> Tensor:
    if torch.compiler.is_exporting():
        return torch_map(function, rows, other)  # type: ignore[no-any-return]
    return torch.stack([function(row, other) for row in rows])


def scan_rows(
    function: Callable[..., tuple[Tensor, Tensor]], start: Tensor, rows: Tensor
) -> Tensor:
    if torch.compiler.is_exporting():
        carry, out = torch_scan(function, start, rows)
        return out + carry  # type: ignore[no-any-return]
    outputs, carry = [], start
    for row in rows:
        carry, out = function(carry, row)
        outputs.append(out)
    return torch.stack(outputs) + carry


def _left(a: Tensor, b: Tensor) -> Tensor:
    return (a.sin() - b.cos()) * 0.5


def _right(a: Tensor, b: Tensor) -> Tensor:
    return (b * 0.25 + 0.5).tanh() + a * 0.5


def _left_deep(a: Tensor, b: Tensor) -> Tensor:
    inner = cond(a.sum() > b.sum(), _left, _right, b * 1.5, a * 0.5)
    return (inner + a).tanh()


def _row(row: Tensor, other: Tensor) -> Tensor:
    return (row.sin() + other[0]).tanh()


def _carry(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    return (carry * 0.5 + row).tanh(), (carry - row) * 0.25


@dataclass
class Run:
    """A method while it runs."""

    world: World
    buffers: dict[int, Tensor]
    values: list[Tensor]
    predicate: Tensor

    def __call__(self, step: Step) -> None:
        a = self.values[step.first % len(self.values)]
        b = self.values[step.second % len(self.values)]
        if step.op in VALUES:
            self.values.append(VALUES[step.op](self, a, b))
        elif step.op in READS and step.op not in WRITES:
            self.values.append(READS[step.op](self, self.buffers[step.buffer]))
        else:
            WRITES[step.op](self, self.buffers[step.buffer], a)

    def as_value(self, buffer: Tensor) -> Tensor:
        if buffer.numel() == self.values[0].numel():
            return buffer.to(torch.float32).reshape(self.world.shape)
        return buffer.to(torch.float32).mean() + torch.zeros(self.world.shape)

    def as_buffer(self, value: Tensor, buffer: Tensor) -> Tensor:
        if buffer.numel() == value.numel():
            return value.reshape(buffer.shape).to(buffer.dtype)
        return (value.mean() * torch.ones(buffer.shape)).to(buffer.dtype)


VALUES: dict[str, Callable[[Run, Tensor, Tensor], Tensor]] = {
    "sin": lambda run, a, b: a.sin() + 0.25,
    "blend": lambda run, a, b: a * 0.5 - b * 0.5,
    "add": lambda run, a, b: (a + b) * 0.5,
    "sigmoid": lambda run, a, b: (a - b).sigmoid(),
    "views": lambda run, a, b: (a.tanh().view(-1) + b.reshape(-1)).view(a.shape) * 0.5,
    "view_chain": lambda run, a, b: (a * 0.75).view(-1).view(a.shape[::-1]).view(a.shape),
    "wide": lambda run, a, b: torch.cat([a, b.cos(), a - b]).sin()[: a.shape[0]],
    # Operands of control flow may not alias each other; hence the products.
    "cond": lambda run, a, b: cond(run.predicate.sum() > 0, _left, _right, a, b * 0.9),
    "deep_cond": lambda run, a, b: cond(run.predicate.sum() > 0, _left_deep, _right, a, b * 0.9),
    # ExecuTorch can't view the result of a map.
    "map": lambda run, a, b: map_rows(_row, a, b * 0.9) * 0.9,
    "scan": lambda run, a, b: scan_rows(_carry, b[0] * 0.5, a),
}

READS: dict[str, Callable[[Run, Tensor], Tensor]] = {
    "read": lambda run, buffer: run.as_value(buffer) * 0.5,
    "read_view": lambda run, buffer: run.as_value(buffer.view(-1)).cos(),
}

WRITES: dict[str, Callable[[Run, Tensor, Tensor], Any]] = {
    "set": lambda run, buffer, a: buffer.copy_(run.as_buffer(a, buffer)),
    "decay": lambda run, buffer, a: buffer.mul_(0.5).add_(run.as_buffer(a, buffer)),
    "put": lambda run, buffer, a: buffer.index_put_(
        (torch.tensor([0]),), run.as_buffer(a, buffer)[:1]
    ),
    "put_slice": lambda run, buffer, a: buffer[1:].copy_(run.as_buffer(a, buffer)[1:]),
}

READS["decay"] = READS["put"] = READS["put_slice"] = READS["read"]


class MethodModule(nn.Module):
    """One method as a module of its own, with its share of the buffers."""

    def __init__(self, world: World, method: Method, state: Sequence[Tensor]) -> None:
        super().__init__()
        self.world, self.method = world, method
        self.held = sorted(method.reads | method.writes)
        for index in self.held:
            self.register_buffer(world.fqn(index), state[index])

    def forward(self, x: Tensor, predicate: Tensor) -> list[Tensor]:
        buffers = {index: self.get_buffer(self.world.fqn(index)) for index in self.held}
        run = Run(self.world, buffers, [x], predicate)
        for step in self.method.steps:
            run(step)
        # Fresh tensors, so that no output is an input or a buffer.
        return [value + 1 for value in run.values[-self.method.outputs :]]


class Peek(nn.Module):
    """Reads every buffer."""

    def __init__(self, world: World, state: Sequence[Tensor]) -> None:
        super().__init__()
        self.fqns = [world.fqn(index) for index in range(len(state))]
        for fqn, buffer in zip(self.fqns, state, strict=True):
            self.register_buffer(fqn, buffer)

    def forward(self) -> list[Tensor]:
        return [self.get_buffer(fqn).clone() for fqn in self.fqns]


# --- lowering -------------------------------------------------------------------------------


class PooledPlanning(MemoryPlanningPass):
    """Puts some buffers into arenas of their own before planning, as custom pools do."""

    def __init__(self, arenas: dict[str, int], **planning: Any) -> None:
        super().__init__(**planning)
        self.arenas = arenas

    def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
        for node in graph_module.graph.nodes:
            fqn = graph_signature.inputs_to_buffers.get(node.target)
            spec = node.meta.get("spec")
            arena = self.arenas.get(fqn, 1) if node.op == "placeholder" else 1
            if arena != 1 and isinstance(spec, TensorSpec):
                spec.mem_id = arena
        return super().run(graph_module, graph_signature)


CHECKS = EdgeCompileConfig(_check_ir_validity=False)


@functools.cache
def state_of(world: World) -> tuple[Tensor, ...]:
    return tuple(
        torch.zeros(world.shape_of(index), dtype=world.dtype_of(index))
        for index in range(len(world.buffers))
    )


@functools.cache
def exported(world: World, pick: int | None) -> tuple[nn.Module, ExportedProgram]:
    """A method's module and its edge program, delegates and all; `peek` is no pick."""
    state = state_of(world)
    for buffer in state:
        buffer.zero_()
    method = None if pick is None else method_of(world, pick)
    module = Peek(world, state) if method is None else MethodModule(world, method, state)
    inputs = () if method is None else (torch.zeros(world.shape), torch.zeros(2))
    with torch.no_grad():
        # Copied, since the modules' state goes on changing.
        program = copy.deepcopy(export(module, inputs))
    if method is not None and method.delegated:
        manager = to_edge_transform_and_lower(
            program, partitioner=[XnnpackPartitioner()], compile_config=CHECKS
        )
    else:
        manager = to_edge(program, compile_config=CHECKS)
    return module, manager.exported_program()


@dataclass(frozen=True)
class Lowered:
    manager: ExecutorchProgramManager
    modules: dict[str, nn.Module]
    """By method, for eager calls; they share their state."""


def planning_pass(program: Program) -> MemoryPlanningPass:
    how = program.lowering
    arenas = {
        program.world.fqn(index): how.arenas[index % len(how.arenas)] for index in program.written
    }
    return PooledPlanning(
        arenas,
        memory_planning_algo=MemoryPlanningAlgorithmSuite(list(ALGORITHMS[how.algorithm])),
        alloc_graph_input=how.alloc_graph_input,
        alloc_graph_output=how.alloc_graph_output,
        share_mutable_buffers=True,
        alignment=how.alignment,
        shared_buffer_fqns=list(arenas),
    )


def lower(program: Program) -> Lowered:
    """Lower and emit; all state is zero."""
    picks = {**dict(zip(program.names, program.picks, strict=True)), PEEK: None}
    parts = {name: exported(program.world, pick) for name, pick in picks.items()}
    for buffer in state_of(program.world):
        buffer.zero_()
    manager = EdgeProgramManager(
        {name: copy.deepcopy(part) for name, (_, part) in parts.items()}, None, CHECKS
    )
    how = program.lowering
    planning = {name: planning_pass(program) for name in parts}
    config = ExecutorchBackendConfig(
        memory_planning_pass=planning if how.pass_for_each_method else planning[PEEK],
        remove_view_copy=how.remove_view_copy,
        run_reinplace_pass=how.run_reinplace_pass,
        emit_mutable_buffer_names=how.emit_mutable_buffer_names,
    )
    modules = {name: module for name, (module, _) in parts.items()}
    return Lowered(manager.to_executorch(config), modules)


# --- drawing them ---------------------------------------------------------------------------


def method_of(world: World, pick: int) -> Method:
    """Method `pick` of the world's supply."""
    draw = random.Random(f"{WORLDS.index(world)}/{pick}")
    steps = []
    for _ in range(draw.randint(1, 6)):
        kind = draw.choice([VALUES, VALUES, READS, WRITES])
        op = draw.choice(sorted(kind))
        buffer = draw.randrange(len(world.buffers))
        steps.append(Step(op, draw.randrange(8), draw.randrange(8), buffer))
    method = Method(tuple(steps), draw.randint(1, 3))
    delegated = draw.random() < 0.3 and method.reads <= method.writes
    return Method(method.steps, method.outputs, delegated)


def lowerings() -> st.SearchStrategy[Lowering]:
    flag = st.booleans()
    return st.builds(
        Lowering,
        alignment=st.sampled_from([16, 16, 32, 64]),
        algorithm=st.sampled_from(["greedy", "greedy", "naive", "both"]),
        alloc_graph_input=flag,
        alloc_graph_output=flag,
        remove_view_copy=st.sampled_from([True, True, False]),
        run_reinplace_pass=flag,
        emit_mutable_buffer_names=flag,
        arenas=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
        pass_for_each_method=flag,
    )


def programs(supply: int) -> st.SearchStrategy[Program]:
    """Programs of two to five methods, `peek` included, out of so many for each world."""
    return st.builds(
        Program,
        st.sampled_from(WORLDS),
        st.lists(st.integers(0, supply - 1), min_size=1, max_size=4).map(tuple),
        lowerings(),
    ).filter(lambda program: bool(program.written))
