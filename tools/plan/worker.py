"""Lower a person's model with whichever ExecuTorch is importable; write its plan as JSON.

Runs in a process of its own, once for each ExecuTorch that is compared.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tools.errors import UserError

MAKE_RETURNS = (
    "must return (module, inputs), (module, {method: inputs}) or an ExecutorchProgramManager"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("function")
    parser.add_argument("--cwd", required=True, help="where the model's own paths begin")
    parser.add_argument("--label", required=True)
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    args = parser.parse_args()
    os.chdir(args.cwd)
    try:
        args.json.write_text(plan_of(args.model, args.function, args.label))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def plan_of(model: Path, function: str, label: str) -> str:
    """Call `function` of the file `model`, lower what it returns, and read the plan.

    Raises:
        UserError: The file has no such function, or it or the lowering failed.
    """
    try:
        from tools.plan.extract import extract
    except ModuleNotFoundError as error:
        raise UserError(f"no usable ExecuTorch: {error}") from error

    sys.path[0] = str(_import_root(model))
    with _told_in_one_line(f"{model} can't be imported", model):
        module = _import(model)
    make = getattr(module, function, None)
    if not callable(make):
        raise UserError(f"{model} has no function {function!r}")
    with _told_in_one_line(f"{model}:{function} failed", model):
        made = make()
    with _told_in_one_line(f"{model}:{function} can't be lowered", model):
        return extract(_lowered(made, f"{model}:{function}"), label).to_json()


@contextmanager
def _told_in_one_line(what: str, model: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(model)]
        at = f" (line {lines[-1]})" if lines else ""
        reason = next(iter(str(error).strip().splitlines()), "")
        raise UserError(f"{what}{at}: {type(error).__name__}: {reason}") from error


def _import_root(model: Path) -> Path:
    """Where the model's imports begin: beside it, or above the package that it is in."""
    directory = model.parent
    while (directory / "__init__.py").is_file():
        directory = directory.parent
    return directory


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"plan_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _lowered(made: Any, made_by: str) -> Any:
    from executorch.exir import ExecutorchBackendConfig, ExecutorchProgramManager, to_edge
    from torch import nn

    if isinstance(made, ExecutorchProgramManager):
        return made
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise UserError(f"{made_by} {MAKE_RETURNS}, not {_described(made)}")
    module, inputs = made
    methods = inputs if isinstance(inputs, Mapping) else {"forward": inputs}
    for name, example in methods.items():
        if not isinstance(example, (tuple, list)):
            raise UserError(f"{made_by}: the inputs of {name!r} must be a tuple")
        if not callable(getattr(module, name, None)):
            raise UserError(f"{made_by}: {type(module).__name__} has no method {name!r}")
    programs = {name: _exported(module, name, tuple(args)) for name, args in methods.items()}
    edge = to_edge(programs)
    # Only now do the signatures say which buffers are written.
    signatures = [edge.exported_program(name).graph_signature for name in methods]
    planning = _planning_pass(signatures)
    return edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))


def _described(made: Any) -> str:
    if isinstance(made, tuple):
        return "a tuple of " + (", ".join(type(item).__name__ for item in made) or "nothing")
    return type(made).__name__


def _exported(module: Any, method: str, inputs: tuple[Any, ...]) -> Any:
    """Export one method. torch.export sees `forward` only, so that is what it becomes."""
    import torch

    own = vars(module).get("forward")
    module.forward = getattr(module, method)
    try:
        with torch.no_grad():
            return torch.export.export(module, inputs)
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def _planning_pass(signatures: Sequence[Any]) -> Any:
    """Let several methods share the state that one of them writes."""
    from executorch.exir.passes import MemoryPlanningPass

    written = {fqn for signature in signatures for fqn in signature.buffers_to_mutate.values()}
    held = [fqn for signature in signatures for fqn in signature.inputs_to_buffers.values()]
    shared = sorted(fqn for fqn in written if held.count(fqn) > 1)
    if not shared:
        return MemoryPlanningPass()
    make_pass: Callable[..., Any] = MemoryPlanningPass
    if "shared_buffer_fqns" in inspect.signature(MemoryPlanningPass).parameters:
        return make_pass(share_mutable_buffers=True, shared_buffer_fqns=shared)
    return make_pass(share_mutable_buffers=True)


if __name__ == "__main__":
    sys.exit(main())
