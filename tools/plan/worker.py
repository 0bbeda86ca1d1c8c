"""Lower a person's model with whichever ExecuTorch is importable; write its plan as JSON.

Runs in a process of its own, once for each ExecuTorch that is compared.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
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
        with redirect_stdout(sys.stderr):
            plan = plan_of(args.model, args.function, args.label)
        args.json.write_text(plan)
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

    make = load_function(model, function)
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
        raise UserError(f"{what}{at}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    from tools.lowering import ExportFailed

    first_line = next(iter(str(error).strip().splitlines()), "")
    return (
        first_line if isinstance(error, ExportFailed) else f"{type(error).__name__}: {first_line}"
    )


def load_function(model: Path, function: str) -> Any:
    """The function of a person's file; what the file imports is found from beside it.

    Raises:
        UserError: The file can't be imported or has no such function.
    """
    sys.path.insert(0, str(_import_root(model)))
    with _told_in_one_line(f"{model} can't be imported", model):
        module = _import(model)
    make = getattr(module, function, None)
    if not callable(make):
        raise UserError(f"{model} has no function {function!r}")
    return make


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

    from tools.lowering import export_method, planning_pass

    if isinstance(made, ExecutorchProgramManager):
        return made
    module, methods = methods_of(made, made_by)
    exported = {name: export_method(module, name, args) for name, args in methods.items()}
    for name, one in exported.items():
        if note := one.note(name):
            # What the model itself prints goes elsewhere.
            print(note, file=sys.__stdout__)
    edge = to_edge({name: one.program for name, one in exported.items()})
    # Only now do the signatures say which buffers are written.
    signatures = [edge.exported_program(name).graph_signature for name in methods]
    planning = planning_pass(signatures)
    return edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))


def methods_of(made: Any, made_by: str) -> tuple[Any, dict[str, tuple[Any, ...]]]:
    """A module and the example inputs of its methods, out of what a `make` returned.

    Raises:
        UserError: It returned something else.
    """
    from torch import nn

    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise UserError(f"{made_by} {MAKE_RETURNS}, not {_described(made)}")
    module, inputs = made
    methods = inputs if isinstance(inputs, Mapping) else {"forward": inputs}
    for name, example in methods.items():
        if not isinstance(example, (tuple, list)):
            raise UserError(f"{made_by}: the inputs of {name!r} must be a tuple")
        if not callable(getattr(module, name, None)):
            raise UserError(f"{made_by}: {type(module).__name__} has no method {name!r}")
    return module, {name: tuple(example) for name, example in methods.items()}


def _described(made: Any) -> str:
    if isinstance(made, tuple):
        return "a tuple of " + (", ".join(type(item).__name__ for item in made) or "nothing")
    return type(made).__name__


if __name__ == "__main__":
    sys.exit(main())
