# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""What a side of the demo says about a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.comparison import TOLERANCE


@dataclass(frozen=True)
class Outcome:
    """How one model did, step by step, against the model that it was made from."""

    model: str
    arena: int
    """Bytes of all arenas of the plan."""
    steps: int
    equal: int
    """Steps whose values are all within `TOLERANCE` of the reference's."""
    worst: float
    """The largest difference of any step; infinite where a value isn't a number."""
    note: str = ""


def outcome(model: str, arena: int, differences: Sequence[float], note: str = "") -> Outcome:
    """Sum up the differences of all steps."""
    return Outcome(
        model=model,
        arena=arena,
        steps=len(differences),
        equal=sum(d <= TOLERANCE for d in differences),
        worst=max(differences, default=0.0),
        note=note,
    )
