# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""One side of the page: lower models with the ExecuTorch that this process imports, and run
them beside eager."""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.runtime import Runtime
from torch import Tensor, nn
from torch._export import utils
from torch.export import ExportedProgram, decomp_utils, exported_program
from torch.export.graph_signature import OutputKind

from benchmarks.channel import Channel
from benchmarks.real.run import directory_name
from benchmarks.real.subject import CONFIGURATIONS, Configuration, Row, Subject, tensors
from benchmarks.state_bytes import state_bytes_copied
from tools.lowering import export_method, one_line, planning_pass

REPEATED = 3
"""Times that a short `to_executorch` is timed."""
LONG = 2.0
"""Seconds; what takes longer is timed once."""


@dataclass
class Outcome:
    """What one ExecuTorch makes of one model in one configuration."""

    row: str
    configuration: str
    failed: str = ""
    """At which step it fails, if it does: build, export, lower, load or run."""
    reason: str = ""
    """Why, in one line."""
    strict: bool = False
    """Whether it exports with `strict=True` only."""
    state: int = 0
    """Bytes of the buffers that the methods write."""
    arenas: Mapping[str, int] = field(default_factory=dict)
    """Bytes of all arenas, for each method."""
    arena: int = 0
    """Bytes of all arenas that the program needs at once."""
    copied: int = 0
    """Bytes of state that a session's calls copy, on average."""
    seconds: float = 0.0
    """CPU seconds of `to_executorch`, the shortest."""
    calls: int = 0
    wrong: int = 0
    """Calls whose result differs from eager's."""
    worst: float = 0.0
    """The largest difference of any call, relative to the largest value."""
    unseen: bool = False
    """No call's result depends on the state, so that a lost update can't show."""

    @property
    def right(self) -> bool:
        return not self.failed and not self.wrong


class Step(Exception):
    """A step failed; carries what the outcome says of it."""

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(name)
        self.name = name
        self.reason = one_line(error)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    try:
        yield
    except Step:
        raise
    except Exception as error:
        raise Step(name, error) from error


# --- lowering -------------------------------------------------------------------------------


def to_edge(programs: Mapping[str, ExportedProgram], xnnpack: bool) -> EdgeProgramManager:
    """Bring exported methods to the edge dialect."""
    own = {name: copy.deepcopy(program) for name, program in programs.items()}
    with quick_decompositions():
        return to_edge_transform_and_lower(
            own,
            partitioner=[XnnpackPartitioner()] if xnnpack else [],
            # Some operators that ExecuTorch runs aren't in the set that this check knows.
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )


@contextlib.contextmanager
def quick_decompositions() -> Iterator[None]:
    """torch.export looks through all operators for each program that it decomposes; once is
    enough, and takes more time than all the rest."""
    slow = utils._collect_all_valid_cia_ops
    known = functools.cache(lambda: frozenset(slow()))
    with contextlib.ExitStack() as stack:
        for module in (utils, decomp_utils, exported_program):
            name = "_collect_all_valid_cia_ops"
            stack.enter_context(mock.patch.object(module, name, lambda: set(known())))
        name = "_override_composite_implicit_decomp"
        nothing = mock.patch.object(exported_program, name, lambda *_, **__: contextlib.ExitStack())
        stack.enter_context(nothing)
        yield


def backend_config(
    edge: EdgeProgramManager, subject: Subject, configuration: Configuration
) -> ExecutorchBackendConfig:
    """How `to_executorch` is called."""
    signatures = [edge.exported_program(name).graph_signature for name in sorted(edge.methods)]
    passes = [InitializedMutableBufferPass(list(subject.initialized))]
    return ExecutorchBackendConfig(
        passes=passes if subject.initialized else [],
        run_reinplace_pass=configuration.reinplace,
        memory_planning_pass=planning_pass(signatures),
    )


def timed_to_executorch(
    edge: EdgeProgramManager, subject: Subject, configuration: Configuration
) -> tuple[ExecutorchProgramManager, float]:
    """Run `to_executorch`, on a copy each time; returns the program and the CPU seconds."""
    best = float("inf")
    for _ in range(REPEATED):
        fresh = copy.deepcopy(edge)
        config = backend_config(fresh, subject, configuration)
        started = time.process_time()
        program = fresh.to_executorch(config)
        best = min(best, time.process_time() - started)
        if best > LONG:
            break
    return program, best


# --- running --------------------------------------------------------------------------------


def written_buffers(edge: EdgeProgramManager) -> dict[str, int]:
    """The buffers that any method writes, with their bytes."""
    found = {}
    for method in edge.methods:
        program = edge.exported_program(method)
        values = {**program.state_dict, **program.constants}
        for spec in program.graph_signature.output_specs:
            if spec.kind is OutputKind.BUFFER_MUTATION:
                found[str(spec.target)] = values[str(spec.target)].nbytes
    return found


def with_state_zeroed(module: nn.Module, names: Sequence[str], kept: Sequence[str]) -> nn.Module:
    """A copy of a module whose state is as it is in a fresh program."""
    fresh = copy.deepcopy(module)
    zero_state(fresh, names, kept)
    return fresh


def zero_state(module: nn.Module, names: Sequence[str], kept: Sequence[str]) -> None:
    """Put the state at its start: zeros, except for what matches `kept`."""
    for name in names:
        if not any(pattern in name.replace(".", "_").lower() for pattern in kept):
            with torch.no_grad():
                module.get_buffer(name).zero_()


def fresh_inputs(values: Any) -> Any:
    """Copies of inputs, since a method may write to them."""
    if isinstance(values, Tensor):
        return values.clone()
    if isinstance(values, (tuple, list)):
        return type(values)(fresh_inputs(value) for value in values)
    return values


def eager_results(subject: Subject, names: Sequence[str]) -> list[list[Tensor]]:
    """What the eager module returns in each call."""
    module = with_state_zeroed(subject.module, names, subject.initialized)
    results = []
    for call in subject.calls:
        with torch.no_grad():
            returned = getattr(module, call.method)(*fresh_inputs(call.inputs))
        results.append([tensor.clone() for tensor in tensors(returned)])
    return results


def forgetful_results(subject: Subject, names: Sequence[str]) -> list[list[Tensor]]:
    """The same if each call began with the state of the first."""
    results = []
    for call in subject.calls:
        module = with_state_zeroed(subject.module, names, subject.initialized)
        with torch.no_grad():
            returned = getattr(module, call.method)(*fresh_inputs(call.inputs))
        results.append([tensor.clone() for tensor in tensors(returned)])
    return results


def runtime_results(data: bytes, subject: Subject) -> list[list[Tensor]]:
    """What the program returns in each call; all methods are loaded before the first."""
    with step("load"):
        program = Runtime.get().load_program(data)
        methods = {}
        for name in subject.examples():
            methods[name] = program.load_method(name)
            if methods[name] is None:
                raise RuntimeError(f"the program has no method {name!r}")
    results = []
    with step("run"):
        for call in subject.calls:
            flat = torch.utils._pytree.tree_leaves(fresh_inputs(call.inputs))
            returned = methods[call.method].execute(flat)
            results.append([tensor.clone() for tensor in tensors(returned)])
    return results


def relative_difference(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest difference of any result, relative to its largest value if that is over 1."""
    if len(got) != len(wanted):
        return float("inf")
    return max((_distance(a, b) for a, b in zip(got, wanted, strict=True)), default=0.0)


def _distance(got: Tensor, wanted: Tensor) -> float:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    got, wanted = got.double(), wanted.double()
    # What isn't a number, or is infinite, where it is so in eager, is right.
    differ = (got != wanted) & ~(got.isnan() & wanted.isnan())
    if not differ.any():
        return 0.0
    largest = float(wanted.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().max())
    distance = float((got - wanted)[differ].abs().max())
    return float("inf") if math.isnan(distance) else distance / max(1.0, largest)


# --- one model ------------------------------------------------------------------------------


def program_arenas(program: ExecutorchProgramManager) -> dict[str, list[int]]:
    """Bytes of each arena of each method."""
    plans = program.executorch_program.execution_plan
    # Index 0 is reserved and always empty.
    return {plan.name: list(plan.non_const_buffer_sizes[1:]) for plan in plans}


def at_once(arenas: Mapping[str, Sequence[int]]) -> int:
    """Bytes of a program's arenas, which its methods share: the largest of each number."""
    longest = max(len(sizes) for sizes in arenas.values())
    return sum(
        max((sizes[number] for sizes in arenas.values() if number < len(sizes)), default=0)
        for number in range(longest)
    )


def measure(
    outcome: Outcome,
    subject: Subject,
    edges: Callable[[bool], EdgeProgramManager],
    out: Path | None,
) -> None:
    """Lower and run one model in one configuration, and fill in the outcome.

    Args:
        edges: The model in edge dialect, delegated to XNNPACK or not.
        out: Directory in which the program is kept.

    Raises:
        Step: A step failed; what is known until then stands in the outcome.
    """
    chosen = CONFIGURATIONS[outcome.configuration]
    with step("lower"):
        edge = edges(chosen.xnnpack)
        buffers = written_buffers(edge)
        outcome.state = sum(buffers.values())
        program, outcome.seconds = timed_to_executorch(edge, subject, chosen)
        data = program.buffer
        arenas = program_arenas(program)
        outcome.arenas = {method: sum(sizes) for method, sizes in arenas.items()}
        outcome.arena = at_once(arenas)
        copied = {method: state_bytes_copied(program, method) for method in subject.examples()}
    outcome.copied = sum(copied[call.method] for call in subject.calls) // len(subject.calls)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{outcome.configuration}.pte").write_bytes(data)
    with step("eager"):
        expected = eager_results(subject, list(buffers))
        if outcome.configuration == "default":
            forgotten = forgetful_results(subject, list(buffers))
            pairs = zip(forgotten, expected, strict=True)
            distances = [relative_difference(*pair) for pair in pairs]
            outcome.unseen = max(distances) <= 10 * subject.tolerance
    actual = runtime_results(data, subject)
    distances = [relative_difference(a, b) for a, b in zip(actual, expected, strict=True)]
    outcome.calls = len(distances)
    outcome.wrong = sum(d > subject.tolerance for d in distances)
    outcome.worst = max(distances)


def measure_row(
    row: Row, configurations: Sequence[str], out: Path | None, channel: Channel
) -> Iterator[Outcome]:
    """One model in several configurations."""
    strict = False
    channel.send("begin", row=row.name, configuration=configurations[0])
    try:
        with step("build"):
            subject = row.build()
            if len(subject.calls) < 1:
                raise ValueError("a session needs calls")
        with step("export"):
            exported = {
                method: export_method(
                    subject.module,
                    method,
                    inputs,
                    strict=subject.strict,
                    dynamic_shapes=subject.dynamic_shapes.get(method),
                )
                for method, inputs in subject.examples().items()
            }
            strict = any(one.strict for one in exported.values())
    except Step as failed:
        for configuration in configurations:
            yield Outcome(row.name, configuration, failed.name, failed.reason)
        return
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        torch.save([(call.method, call.inputs) for call in subject.calls], out / "calls.pt")
    programs = {method: one.program for method, one in exported.items()}
    edges = functools.cache(lambda xnnpack: to_edge(programs, xnnpack))
    for configuration in configurations:
        channel.progress(f"{row.name}, {configuration}")
        channel.send("begin", row=row.name, configuration=configuration)
        outcome = Outcome(row.name, configuration, strict=strict)
        try:
            measure(outcome, subject, edges, out)
        except Step as failed:
            outcome.failed, outcome.reason = failed.name, failed.reason
        yield outcome


def main(arguments: Sequence[str]) -> None:
    """Measure the rows that are named, and report an event for each outcome."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real.worker", description=__doc__)
    parser.add_argument("--model", help="FILE.py:FUNCTION of a model that is no row of the page")
    parser.add_argument("--keep", type=Path, help="directory for the programs")
    parser.add_argument("--list", action="store_true", help="list the rows, run nothing")
    parser.add_argument(
        "--skip", nargs=2, action="append", default=[], metavar=("ROW", "CONFIGURATION")
    )
    parser.add_argument("rows", nargs="*")
    options = parser.parse_args(arguments)
    skipped = {tuple(pair) for pair in options.skip}
    channel = Channel()
    with contextlib.redirect_stdout(sys.stderr):
        channel.introduce()
        if options.list:
            list_rows(channel)
            return
        for row in rows_of(options):
            wanted = [name for name in row.configurations if (row.name, name) not in skipped]
            if not wanted:
                continue
            out = options.keep / directory_name(row.name) if options.keep is not None else None
            for outcome in measure_row(row, wanted, out, channel):
                channel.send("outcome", **asdict(outcome))


def list_rows(channel: Channel) -> None:
    """Report each row of the page."""
    from benchmarks.real.rows import ROWS

    for row in ROWS.values():
        described = {
            "name": row.name,
            "family": row.family,
            "configurations": row.configurations,
            "file": row.build.__module__.replace(".", "/") + ".py",
        }
        channel.send("row", row=described)


def rows_of(options: argparse.Namespace) -> list[Row]:
    """The rows that the command line names."""
    # What a model imports may need ExecuTorch, so not at the top.
    if options.model:
        from benchmarks.real.own import own_row

        return [own_row(options.model)]
    from benchmarks.real.rows import ROWS

    return [ROWS[name] for name in options.rows]


if __name__ == "__main__":
    main(sys.argv[1:])
