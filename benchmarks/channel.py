# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""How a process that runs one side of a comparison reports to the one that started it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
from executorch import version

T = TypeVar("T")


class Channel:
    """Standard output, as one JSON object a line."""

    def __init__(self) -> None:
        # Libraries print as well; the caller sends what goes to sys.stdout elsewhere.
        self._out = sys.stdout
        self._told = time.monotonic()

    def send(self, kind: str, **values: object) -> None:
        """Report one event."""
        self._out.write(json.dumps({"event": kind, **values}) + "\n")
        self._out.flush()
        self._told = time.monotonic()

    def introduce(self) -> None:
        """Say which ExecuTorch this process imports, and from where."""
        self.send(
            "side",
            executorch=version.__version__,
            torch=torch.__version__,
            path=str(Path(version.__file__).parent),
        )

    def progress(self, text: str) -> None:
        """Report what begins now."""
        self.send("progress", text=text)

    def steps(self, what: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and report every two seconds."""
        items = list(items)
        for number, item in enumerate(items):
            if time.monotonic() - self._told > 2:
                self.progress(f"{what}: step {number} of {len(items)}")
            yield item
