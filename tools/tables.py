"""Rows of text as a table: the one way in which the tools print them."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: int | None = None) -> str:
    """Lay out rows below a head, in plain columns.

    Args:
        right: The first of the columns whose cells, numbers for one, stand on the right.
    """
    start = len(head) if right is None else right
    alignment = ["left" if column < start else "right" for column in range(len(head))]
    # Text stays as it is: 1.0 is not 1.
    return tabulate(rows, head, tablefmt="simple", colalign=alignment, disable_numparse=True)
