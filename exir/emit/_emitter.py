# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

from typing import List

from executorch.exir.schema import FrameList


def _fill_up_stacktraces(stacktraces: List[FrameList], instructions: int) -> None:
    """
    Give an empty stack trace to each instruction that has none, as those of
    delegates, views and control flow.
    """
    missing = instructions - len(stacktraces)
    stacktraces.extend(FrameList(items=[]) for _ in range(missing))
