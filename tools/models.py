"""`python -m tools models FILE.py:FUNCTION`: a model of one's own through both sides."""

from __future__ import annotations

from pathlib import Path

from tools.errors import UserError

DESCRIPTION = """\
Lower a model with stock and with patched ExecuTorch, run both beside eager, and compare.

FUNCTION takes nothing and returns

    module, inputs                     a module, and a tuple of example inputs of forward
    module, {"prefill": ..., ...}      the same for several methods, which share their state
    module, methods, calls             and the calls of a session: (method, inputs), in order

Without calls, twelve are made of the example inputs, floats drawn anew. The row that is printed is
one of benchmarks/MODELS.md, for each configuration. The exit code is 1 if patched is wrong.
"""


def run(model: str, stock: Path | None, patched: Path | None, packages: Path | None) -> int:
    """Print the model's rows; 1 if a configuration is wrong on the patched side.

    Raises:
        UserError: There is no such model, or a side can't be run.
    """
    name, colon, function = model.rpartition(":")
    if not colon or not name or not function:
        raise UserError(f"{model!r}: expected FILE.py:FUNCTION, as in my_model.py:make")
    if not Path(name).is_file():
        raise UserError(f"{name}: no such file")
    # The benchmarks aren't part of the tools; a checkout has both.
    from benchmarks.real.own_command import run_own

    path = Path(name).resolve()
    code: int = run_own(f"{path}:{function}", stock, patched, packages)
    return code
