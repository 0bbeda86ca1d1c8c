"""Draw the memory plan of a program, stock and patched side by side.

    python -m tools plan my_model.py:make --out plan.html --png plan.png

`make()` takes nothing. It runs once with each ExecuTorch and returns one of

    module, inputs                     a module, and a tuple of example inputs of forward
    module, {"prefill": ..., ...}      the same for several methods, which share their state
    manager                            what to_executorch() returned, lowered as it likes

In Python, `report(manager, html="plan.html")` draws a program that is already lowered.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager

    from tools.plan.data import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", metavar="FILE.py:FUNCTION", help="what to lower and draw")
    parser.add_argument("--out", type=Path, default=Path("plan.html"), help="default: %(default)s")
    parser.add_argument("--png", type=Path, help="a picture as well, for a pull request")
    stock = parser.add_mutually_exclusive_group()
    stock.add_argument(
        "--stock",
        type=Path,
        metavar="DIR",
        help="where the untouched release is unpacked (default: in the cache, fetched if need be)",
    )
    stock.add_argument("--no-stock", action="store_true", help="draw the patched plan alone")
    parser.add_argument(
        "--patched",
        type=Path,
        metavar="DIR",
        help="where the patched tree is (default: the executorch that is installed)",
    )


def run(args: argparse.Namespace) -> int:
    """Draw what the arguments say, and print arena bytes over peak live bytes.

    Raises:
        UserError: The model, an ExecuTorch or a place to write to isn't there, or the
            model can't be lowered.
    """
    from tools.plan.command import run as run_command

    return run_command(args)


def report(
    *programs: ExecutorchProgramManager | Plan,
    html: Path | str | None = None,
    png: Path | str | None = None,
) -> list[Plan]:
    """Draw the memory plans of one or more programs side by side.

    Args:
        programs: Lowered programs, or plans: a program that another ExecuTorch lowered comes
            as `Plan.from_json(...)` of what `extract(manager).to_json()` gave there.
        html: The page to write.
        png: The picture to write.

    Returns:
        The plans, in the same order.
    """
    from tools.plan import page, picture
    from tools.plan.data import Plan

    plans = [program if isinstance(program, Plan) else _extract(program) for program in programs]
    if html is not None:
        page.write(plans, Path(html))
    if png is not None:
        picture.write(plans, Path(png))
    return plans


def _extract(manager: ExecutorchProgramManager) -> Plan:
    from tools.plan.extract import extract

    return extract(manager)
