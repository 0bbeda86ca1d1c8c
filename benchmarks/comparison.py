# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""When is a result the same as the reference's?"""

from __future__ import annotations

from torch import Tensor

TOLERANCE = 1e-4
"""How far a value may be from the reference's and still be called equal."""


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest absolute difference; infinite for a value that isn't a number, or for tensors
    that differ in shape or dtype."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    return float((actual - expected).abs().nan_to_num(nan=float("inf")).max())
