# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Lower a module, run it in the ExecuTorch runtime, and say what it should have returned.

    programs = export_methods(module, {"forward": (x,)})
    calls = [Call("forward", (x,)), ...]
    expected = run_functionally(programs, calls)
    actual = run_in_runtime(lower(programs), calls)
    assert_same(actual, expected)

There are two references. `run_eagerly` calls the eager module. `run_functionally` interprets the
exported graph, which has no side effects, and carries the buffers from call to call by hand, as
the graph's signature says. Both start every mutable buffer at zero, because the runtime does.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.passes import MemoryPlanningPass
from executorch.runtime import Runtime
from torch import Tensor, nn
from torch._export import utils
from torch.export import ExportedProgram, decomp_utils, export, exported_program
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
)

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """One call of one method."""

    method: str
    inputs: Inputs


@dataclass(frozen=True)
class Result:
    """What a call left behind: what it returned, and its inputs as they are afterwards.

    ExecuTorch returns what becomes of each mutated input, ahead of the method's own outputs.
    """

    outputs: list[Any]
    inputs: list[Any]


# --- lowering -------------------------------------------------------------------------------


@contextmanager
def _method_as_forward(module: nn.Module, method: str) -> Iterator[nn.Module]:
    """Let torch.export, which only knows `forward`, see `method` in its place."""
    if method == "forward":
        yield module
        return
    module.forward = getattr(module, method)  # type: ignore[method-assign]
    try:
        yield module
    finally:
        del module.__dict__["forward"]


def export_methods(
    module: nn.Module,
    methods: Mapping[str, Inputs],
    *,
    dynamic_shapes: Mapping[str, Any] | None = None,
) -> dict[str, ExportedProgram]:
    """Export `methods` (name to example inputs) of one module."""
    programs = {}
    for method, inputs in methods.items():
        shapes = (dynamic_shapes or {}).get(method)
        # Dynamo guesses dynamic shapes from the exports before, also for branches of a cond.
        torch._dynamo.reset()
        with _method_as_forward(module, method), torch.no_grad():
            programs[method] = export(module, inputs, dynamic_shapes=shapes)
    return programs


def to_edge_programs(
    programs: Mapping[str, ExportedProgram] | ExportedProgram,
    *,
    partitioner: Any = None,
    edge: Mapping[str, Any] | None = None,
) -> EdgeProgramManager:
    """The first half of `lower`: no pass has touched a buffer yet."""
    if isinstance(programs, ExportedProgram):
        programs = {"forward": programs}
    # Lowering may change the programs that it is given, and the reference needs them as they are.
    programs = {method: copy.deepcopy(program) for method, program in programs.items()}
    config = EdgeCompileConfig(**(edge or {}))
    if partitioner is None:
        return to_edge(programs, compile_config=config)
    return to_edge_transform_and_lower(programs, partitioner=[partitioner], compile_config=config)


_known_operators = functools.cache(utils._collect_all_valid_cia_ops)


@contextmanager
def quick_decompositions() -> Iterator[None]:
    """torch.export looks through all operators for each program that it decomposes; once is
    enough, and takes more time than all the rest.

    No composite operator is kept then, also where a partitioner asks for that.
    """
    with ExitStack() as stack:
        for module in (utils, decomp_utils, exported_program):
            stack.enter_context(
                mock.patch.object(
                    module, "_collect_all_valid_cia_ops", lambda: set(_known_operators())
                )
            )
        stack.enter_context(
            mock.patch.object(
                exported_program,
                "_override_composite_implicit_decomp",
                lambda *_, **__: ExitStack(),
            )
        )
        yield


def finish(
    manager: EdgeProgramManager, *, planning: Mapping[str, Any] | None = None, **config: Any
) -> ExecutorchProgramManager:
    """The second half of `lower`."""
    if planning is not None:
        config["memory_planning_pass"] = MemoryPlanningPass(**planning)
    return manager.to_executorch(ExecutorchBackendConfig(**config))


def lower(
    programs: Mapping[str, ExportedProgram] | ExportedProgram,
    *,
    partitioner: Any = None,
    planning: Mapping[str, Any] | None = None,
    edge: Mapping[str, Any] | None = None,
    **config: Any,
) -> ExecutorchProgramManager:
    """Lower to an ExecuTorch program.

    Args:
        partitioner: Given to `to_edge_transform_and_lower`; without one, plain `to_edge` runs.
        planning: Arguments of a `MemoryPlanningPass`.
        edge: Arguments of `EdgeCompileConfig`.
        config: Arguments of `ExecutorchBackendConfig`.
    """
    manager = to_edge_programs(programs, partitioner=partitioner, edge=edge)
    return finish(manager, planning=planning, **config)


# --- running --------------------------------------------------------------------------------


def _fresh(inputs: Sequence[Any]) -> list[Any]:
    return [x.clone() if isinstance(x, Tensor) else copy.deepcopy(x) for x in inputs]


def run_in_runtime(
    program: ExecutorchProgramManager | bytes, calls: Sequence[Call]
) -> list[Result]:
    """Load the program once and make the calls in order."""
    data = program if isinstance(program, bytes) else program.buffer
    loaded = Runtime.get().load_program(data)
    results = []
    for call in calls:
        method = loaded.load_method(call.method)
        if method is None:
            raise ValueError(f"the program has no method {call.method!r}")
        inputs = _fresh(call.inputs)
        outputs = [x.clone() if isinstance(x, Tensor) else x for x in method.execute(inputs)]
        results.append(Result(outputs, inputs))
    return results


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def run_eagerly(
    module: nn.Module,
    calls: Sequence[Call],
    programs: Mapping[str, ExportedProgram] | None = None,
) -> list[Result]:
    """Call the eager module itself, on a copy whose buffers are as they are now.

    `programs` tell which inputs are mutated; without them, none is.
    """
    module = copy.deepcopy(module)
    mutated = {
        method: _Functional.of(program).mutated_inputs()
        for method, program in (programs or {}).items()
    }
    results = []
    for call in calls:
        inputs = _fresh(call.inputs)
        with torch.no_grad():
            outputs = getattr(module, call.method)(*inputs)
        changed = [inputs[position] for position in mutated.get(call.method, [])]
        results.append(Result(_fresh([*changed, *_as_list(outputs)]), inputs))
    return results


@dataclass(frozen=True)
class _Functional:
    """An exported program without side effects: every change of state is an output."""

    program: ExportedProgram

    @classmethod
    def of(cls, program: ExportedProgram) -> "_Functional":
        # Decomposing nothing still turns in-place operators into functional ones.
        return cls(program.run_decompositions({}))

    def mutated_buffers(self) -> set[str]:
        specs = self.program.graph_signature.output_specs
        return {str(s.target) for s in specs if s.kind is OutputKind.BUFFER_MUTATION}

    def mutated_inputs(self) -> list[int]:
        """Positions of the mutated user inputs, in the order of the program's outputs."""
        signature = self.program.graph_signature
        specs = [s for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
        names = [None if isinstance(s.arg, ConstantArgument) else s.arg.name for s in specs]
        return [
            names.index(str(s.target))
            for s in signature.output_specs
            if s.kind is OutputKind.USER_INPUT_MUTATION
        ]

    def initial(self, fqn: str) -> Tensor:
        state = {**self.program.state_dict, **self.program.constants}
        return state[fqn].detach()

    def __call__(self, state: dict[str, Tensor], inputs: Sequence[Any]) -> Result:
        """Run one call. All mutations take effect at once, in `state` and in the result."""
        signature = self.program.graph_signature
        user_inputs = iter(inputs)
        arguments = []
        for spec in signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                arguments.append(next(user_inputs))
            else:
                fqn = str(spec.target)
                arguments.append(state[fqn] if fqn in state else self.initial(fqn))
        with torch.no_grad():
            graph = torch.fx.Interpreter(self.program.graph_module)
            values = graph.run(*_fresh(arguments))

        after, outputs, changed = _fresh(inputs), [], {}
        mutated = iter(self.mutated_inputs())
        for spec, value in zip(signature.output_specs, _fresh(values), strict=True):
            # What is written to keeps its dtype, whatever an edge program makes of the value.
            if spec.kind is OutputKind.BUFFER_MUTATION:
                fqn = str(spec.target)
                changed[fqn] = value.to(self.initial(fqn).dtype)
                continue
            if spec.kind is OutputKind.USER_INPUT_MUTATION:
                position = next(mutated)
                after[position] = value.to(after[position].dtype)
                outputs.append(after[position])
                continue
            outputs.append(value)
        state.update(changed)
        return Result(outputs, after)


def run_functionally(
    programs: Mapping[str, ExportedProgram],
    calls: Sequence[Call],
    *,
    functional_already: bool = False,
) -> list[Result]:
    """What the exported programs mean, methods sharing the buffers of equal name.

    `functional_already` says so of their graphs, as is true of those in edge dialect.
    """
    make = _Functional if functional_already else _Functional.of
    functional = {method: make(program) for method, program in programs.items()}
    state: dict[str, Tensor] = {}
    for program in functional.values():
        for fqn in program.mutated_buffers():
            state[fqn] = torch.zeros_like(program.initial(fqn))
    return [functional[call.method](state, call.inputs) for call in calls]


def random_calls(
    methods: Mapping[str, Inputs], sequence: Sequence[str], *, seed: int = 0
) -> list[Call]:
    """Calls with fresh inputs: floating-point tensors are drawn anew, all else stays."""
    generator = torch.Generator().manual_seed(seed)

    def draw(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return torch.randn(value.shape, generator=generator, dtype=value.dtype)
        return value

    return [Call(name, tuple(draw(x) for x in methods[name])) for name in sequence]


# --- comparing ------------------------------------------------------------------------------


def assert_same(
    actual: Sequence[Result],
    expected: Sequence[Result],
    *,
    inputs_too: bool = False,
    tolerance: float = 1e-4,
) -> None:
    """Compare call by call; dtype and shape must be equal, values within `tolerance`.

    `inputs_too` compares what became of the caller's inputs. That holds only for a program
    lowered with `alloc_graph_input=False`: otherwise the runtime works on its own copies.
    """

    def compare(got: Sequence[Any], wanted: Sequence[Any], what: str) -> None:
        assert len(got) == len(wanted), f"{len(got)} {what}s, expected {len(wanted)}"
        for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
            label = f"{what} {index}"
            if isinstance(b, Tensor):
                torch.testing.assert_close(
                    a,
                    b,
                    rtol=tolerance,
                    atol=tolerance,
                    equal_nan=True,
                    check_stride=False,
                    msg=lambda text, label=label: f"{label}: {text}",
                )
            else:
                assert a == b, f"{label}: {a!r}, expected {b!r}"

    assert len(actual) == len(expected)
    for number, (got, wanted) in enumerate(zip(actual, expected, strict=True), start=1):
        try:
            compare(got.outputs, wanted.outputs, "output")
            if inputs_too:
                compare(got.inputs, wanted.inputs, "input")
        except AssertionError as error:
            raise AssertionError(f"call {number}: {error}") from None


def check(
    module: nn.Module,
    methods: Mapping[str, Inputs],
    sequence: Sequence[str],
    *,
    seed: int = 0,
    before_lowering: Callable[[Mapping[str, ExportedProgram]], None] | None = None,
    **options: Any,
) -> ExecutorchProgramManager:
    """Export, lower, run `sequence` in the runtime, and compare with both references.

    `options` go to `lower`. Returns the lowered program for further checks.
    """
    calls = random_calls(methods, sequence, seed=seed)
    programs = export_methods(module, methods)
    if before_lowering is not None:
        before_lowering(programs)
    program = lower(programs, **options)
    actual = run_in_runtime(program, calls)
    assert_same(actual, run_functionally(programs, calls))
    assert_same(actual, run_eagerly(module, calls, programs))
    return program
