"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from tools.plan.data import Tensor

_UNITS = ("B", "KiB", "MiB", "GiB")


def bytes_text(count: float) -> str:
    """A size in a binary unit, three figures: 2.25 MiB."""
    if count < 1024:
        return f"{count:g} B"
    power = 1
    while power < 3 and count >= 1024 ** (power + 1):
        power += 1
    size = count / 1024**power
    return f"{size:.3g} {_UNITS[power]}" if size < 1000 else f"{size:.0f} {_UNITS[power]}"


def ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def shape_text(shape: Sequence[int]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"


def live_text(tensor: Tensor) -> str:
    inside = " of its branch" if tensor.graph else ""
    return f"nodes {tensor.first:,} to {tensor.last:,}{inside}"


def steps(last: int, most: int, base: int) -> list[int]:
    """Round numbers from 0 to `last`, at most `most` of them beyond 0.

    Args:
        base: 10 for multiples of 1, 2 and 5 times a power of ten; 2 for powers of two.
    """
    step = 1
    while last // step > most:
        if base == 2:
            step *= 2
        else:
            step = step // 2 * 5 if str(step).startswith("2") else step * 2
    return list(range(0, last + 1, step))
