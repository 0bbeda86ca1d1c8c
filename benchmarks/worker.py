# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""One side of the benchmark: lower every model with the ExecuTorch that this process imports."""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from executorch.exir import ExecutorchProgramManager
from executorch.runtime import Runtime
from torch.export.graph_signature import OutputKind

from benchmarks.channel import Channel
from benchmarks.comparison import TOLERANCE, difference
from benchmarks.lowering import lower
from benchmarks.models import MODELS, Model, use_custom_cache
from benchmarks.state_bytes import state_bytes_copied
from tools.plan.extract import extract

CALLS = 5
"""Calls of each program that are compared with eager."""
LONG = 5.0
"""Seconds; what takes less is lowered three times, and the shortest time counts."""


@dataclass(frozen=True)
class Measurement:
    """What one ExecuTorch makes of one model."""

    model: str
    mutable: int
    """Bytes of the buffers that the program changes."""
    arena: int
    """Bytes of all arenas of the plan."""
    peak: int
    """Peak live bytes, summed over the arenas."""
    seconds: float
    """CPU seconds from `torch.export` to the end of `to_executorch`."""
    calls: int
    equal: int
    """Calls whose result is within the tolerance of eager's."""
    worst: float
    """The largest difference of any call."""
    copied: int
    """Bytes of state that a call copies."""
    refused: str = ""
    """Why the runtime ran no call at all, if so."""
    program: str = ""
    """The file that the program was written to, if one was asked for."""


def mutable_bytes(program: ExecutorchProgramManager) -> int:
    """Bytes of the buffers that `forward` changes, as its signature has them."""
    exported = program.exported_program("forward")
    values = {**exported.state_dict, **exported.constants}
    changed = {
        str(spec.target)
        for spec in exported.graph_signature.output_specs
        if spec.kind is OutputKind.BUFFER_MUTATION
    }
    return sum(values[name].nbytes for name in changed)


def timed_lowering(model: Model) -> tuple[ExecutorchProgramManager, float]:
    """Lower the model; returns the program and the CPU seconds that it took."""
    # CPU time, since the two sides run beside each other.
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        program = lower(model)
        best = min(best, time.process_time() - started)
        if best > LONG:
            break
    return program, best


def differences(model: Model, program: ExecutorchProgramManager) -> list[float]:
    """Call the program and the eager module `CALLS` times; returns the difference each time."""
    eager = copy.deepcopy(model.module)
    loaded = Runtime.get().load_program(program.buffer)
    method = loaded.load_method("forward")
    if method is None:
        raise RuntimeError("the program has no method 'forward'")
    found = []
    for number in range(CALLS):
        with torch.no_grad():
            expected = eager(*model.call(number))
        found.append(difference(method.execute(list(model.call(number)))[0], expected))
    return found


def keep(program: ExecutorchProgramManager, directory: Path | None) -> str:
    """Write the program to a new file in the directory; returns its path."""
    if directory is None:
        return ""
    with tempfile.NamedTemporaryFile(dir=directory, suffix=".pte", delete=False) as file:
        program.write_to_file(file)
    return file.name


def measure(name: str, *, custom_cache: bool = False, directory: Path | None = None) -> Measurement:
    """Build, lower, and run one of `MODELS`."""
    model = MODELS[name]()
    if custom_cache:
        use_custom_cache(model)
    program, seconds = timed_lowering(model)
    [plan] = extract(program).methods
    found, refused = [], ""
    try:
        found = differences(model, program)
    except RuntimeError as error:
        refused = str(error)
    return Measurement(
        model=name,
        mutable=mutable_bytes(program),
        arena=sum(plan.arenas.values()),
        peak=sum(plan.peak(arena).bytes for arena in plan.arenas),
        seconds=seconds,
        calls=len(found),
        equal=sum(d <= TOLERANCE for d in found),
        worst=max(found, default=0.0),
        copied=state_bytes_copied(program),
        refused=refused,
        program=keep(program, directory),
    )


def main(arguments: Sequence[str]) -> None:
    """Measure the models asked for and report on standard output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker", description=__doc__)
    parser.add_argument("--model", action="append", choices=MODELS, dest="models")
    parser.add_argument(
        "--custom-cache", action="store_true", help="llama::update_cache, in llamas"
    )
    parser.add_argument("--programs", type=Path, metavar="DIR", help="where to write the programs")
    options = parser.parse_args(arguments)
    channel = Channel()
    with contextlib.redirect_stdout(sys.stderr):
        channel.introduce()
        # The first export of a process pays for imports and caches; no model should.
        lower(MODELS["GRU stack"]())
        for name in options.models or MODELS:
            channel.progress(name)
            found = measure(name, custom_cache=options.custom_cache, directory=options.programs)
            channel.send("measurement", **asdict(found))


if __name__ == "__main__":
    main(sys.argv[1:])
