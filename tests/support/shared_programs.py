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
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.tensor import TensorSpec
from functorch.experimental.control_flow import map as torch_map
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._higher_order_ops import scan as torch_scan
from torch.export import ExportedProgram, export

try:
    from executorch.exir import banked_memory_planning as banked

    HAS_BANKS = True
except ImportError:  # before ExecuTorch 1.5.1
    HAS_BANKS = False

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
    shared_arena: str = "front"
    left_out: frozenset[int] = frozenset()
    """Buffers that aren't declared, so that each method has its own."""
    names: str = "fqn"
    """How buffers are named: by their own name, by another of the same tensor (`tied`), beside one
    that no method uses (`unused`), or by another in each method (`by_method`)."""
    initial: float | None = None
    """What `InitializedMutableBufferPass` lets all buffers start from."""
    fast_bank: int = 0
    """The bytes of a fast memory bank, before one that is large enough; 0 for no banks."""


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

    @property
    def shared(self) -> list[int]:
        return [index for index in self.written if index not in self.lowering.left_out]

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


def tied_name(fqn: str) -> str:
    return f"tied.{fqn}"


def name_in_method(fqn: str, method: str) -> str:
    return f"{method}_wrapper.{fqn}"


def declared(program: Program) -> Any:
    """What the user says is shared."""
    fqns = [program.world.fqn(index) for index in program.shared]
    match program.lowering.names:
        case "tied":
            return [tied_name(fqn) for fqn in fqns]
        case "unused":
            return [*fqns, "unused"]
        case "by_method":
            held = {
                name: module.held if isinstance(module, MethodModule) else range(99)
                for name, module in reference(program).items()
            }
            return {
                fqn: {m: name_in_method(fqn, m) for m in held if index in held[m]}
                for index, fqn in zip(program.shared, fqns, strict=True)
            }
    return fqns


def rename(exported_program: ExportedProgram, how: str, method: str) -> None:
    """Let the names that a program knows be those that `declared` gives."""
    state = exported_program.state_dict
    buffers = [fqn for fqn in state if fqn.endswith("_state")]
    if how == "tied":
        state.update({tied_name(fqn): state[fqn] for fqn in buffers})
    elif how == "unused":
        state["unused"] = torch.zeros(3)
    elif how == "by_method":
        signature = exported_program.graph_signature
        for spec in (*signature.input_specs, *signature.output_specs):
            if spec.target in buffers:
                spec.target = name_in_method(spec.target, method)
        for fqn in buffers:
            state[name_in_method(fqn, method)] = state.pop(fqn)


def algorithm_of(how: Lowering) -> MemoryPlanningAlgorithmSuite:
    if not how.fast_bank:
        return MemoryPlanningAlgorithmSuite(list(ALGORITHMS[how.algorithm]))
    target = banked.TargetMemoryMap(
        [banked.Bank("fast", how.fast_bank, 1), banked.Bank("slow", 1 << 20, 2)]
    )
    return MemoryPlanningAlgorithmSuite([banked.BankedGreedy(target)])


def planning_pass(program: Program) -> MemoryPlanningPass:
    how = program.lowering
    # Banks choose the arenas themselves.
    chosen = (1,) if how.fast_bank else how.arenas
    arenas = {program.world.fqn(i): chosen[i % len(chosen)] for i in program.written}
    return PooledPlanning(
        arenas,
        memory_planning_algo=algorithm_of(how),
        alloc_graph_input=how.alloc_graph_input,
        alloc_graph_output=how.alloc_graph_output,
        share_mutable_buffers=True,
        alignment=how.alignment,
        shared_buffer_fqns=declared(program),
        shared_arena=how.shared_arena,
    )


def reference(program: Program) -> dict[str, nn.Module]:
    """The methods as modules, for eager calls; they share what is shared, and that alone."""
    world, initial = program.world, program.lowering.initial or 0.0
    shared = [buffer.clone().fill_(initial) for buffer in state_of(world)]

    def state(writes: set[int]) -> list[Tensor]:
        # What a method doesn't write is a constant to it, which nothing initializes.
        return [
            buffer
            if index in program.shared
            else torch.full_like(buffer, initial if index in writes else 0.0)
            for index, buffer in enumerate(shared)
        ]

    modules: dict[str, nn.Module] = {
        name: MethodModule(world, method, state(method.writes))
        for name, method in zip(program.names, program.methods, strict=True)
    }
    return {**modules, PEEK: Peek(world, state(set()))}


def lower(program: Program) -> Lowered:
    """Lower and emit; all state starts at zero, or as the program says."""
    how = program.lowering
    picks = {**dict(zip(program.names, program.picks, strict=True)), PEEK: None}
    edge = {}
    for name, pick in picks.items():
        edge[name] = copy.deepcopy(exported(program.world, pick)[1])
        signature = edge[name].graph_signature
        written = set(signature.buffers_to_mutate.values())
        shared = {program.world.fqn(index) for index in program.shared}
        for fqn, value in edge[name].state_dict.items():
            if how.initial is not None and fqn in written | shared:
                value.fill_(how.initial)
        rename(edge[name], how.names, name)
    manager = EdgeProgramManager(edge, None, CHECKS)
    planning = {name: planning_pass(program) for name in picks}
    config = ExecutorchBackendConfig(
        passes=[] if how.initial is None else [InitializedMutableBufferPass(["_state"])],
        memory_planning_pass=planning if how.pass_for_each_method else planning[PEEK],
        remove_view_copy=how.remove_view_copy,
        run_reinplace_pass=how.run_reinplace_pass,
        emit_mutable_buffer_names=how.emit_mutable_buffer_names,
    )
    return Lowered(manager.to_executorch(config), reference(program))


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
        shared_arena=st.sampled_from(["front", "own"]),
        left_out=st.one_of(st.just(frozenset()), st.frozensets(st.integers(0, 3), max_size=2)),
        names=st.sampled_from(["fqn", "fqn", "tied", "unused", "by_method"]),
        initial=st.sampled_from([None, None, 0.25]),
        fast_bank=st.sampled_from([0, 0, 256, 1024]) if HAS_BANKS else st.just(0),
    )


def programs(supply: int) -> st.SearchStrategy[Program]:
    """Programs of two to five methods, `peek` included, out of so many for each world."""
    return st.builds(
        Program,
        st.sampled_from(WORLDS),
        st.lists(st.integers(0, supply - 1), min_size=1, max_size=4).map(tuple),
        lowerings(),
    ).filter(lambda program: bool(program.shared))
