"""Draw the memory plan of a program, stock and patched side by side.

    python -m tools plan my_model.py:make --out plan.html --png plan.png

`make()` takes nothing. It runs once with each ExecuTorch and returns one of

    module, inputs                     a module, and a tuple of example inputs of forward
    module, {"prefill": ..., ...}      the same for several methods, which share their state
    manager                            what to_executorch() returned, lowered as it likes

In Python, `report(manager, html="plan.html")` draws a program that is already lowered.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager

    from tools.plan.data import Plan


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
