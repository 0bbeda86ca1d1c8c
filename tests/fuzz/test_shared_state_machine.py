# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Random programs that share buffers, called in random order, against the eager modules.

`python -m tests.fuzz.shared N` runs as many programs as one has time for.
"""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.harness import quick_decompositions
from tests.support.shared_machine import OPTIONS, SharedBuffers

FEW, MANY = 40, 200


@pytest.fixture(scope="module", autouse=True)
def _quickly() -> Iterator[None]:
    with quick_decompositions():
        yield


class _Many(SharedBuffers):
    """The same machine, for more programs."""


SharedBuffers.TestCase.settings = settings(OPTIONS, max_examples=FEW, derandomize=True)
_Many.TestCase.settings = settings(OPTIONS, max_examples=MANY, derandomize=True)
TestSharedBuffers = SharedBuffers.TestCase
TestManySharedBuffers = pytest.mark.slow(_Many.TestCase)
