"""A made-up upstream of one module, and a series for it, to try the tools on."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tools.patching import series
from tools.patching.series import Series

MODULE = "exir/memory_planning.py"

UPSTREAM = '''\
# Somebody's header.

import os
from typing import Dict, List


# Upstream's own remark.
def first(path: str) -> List[str]:
    return os.listdir(path)


class Planner:
    """Plans."""

    limit = 3

    def plan(self, sizes: Dict[str, int]) -> int:
        total = sum(sizes.values())
        check(total, self.limit)
        return total


def check(total: int, limit: int) -> None:
    print("größer" if total > limit else "ok")


if __name__ == "__main__":
    first(".")
'''

OVERLAY = """\
# Our header.

import math
from collections import deque

from executorch.exir.memory_planning import check


def aligned(size: int) -> int:
    return math.ceil(size / 16) * 16


def first(path: str) -> "deque[str]":
    return deque(sorted(path))


class Planner:
    # Bytes.
    padding = 64

    def plan_all(self) -> None:
        check(aligned(self.padding), 3)


LAST = 1
"""

PATCH = """\
subject: Align sizes
body: |
  Why.
files:
  exir/memory_planning.py:
    define: [aligned, Planner.padding, Planner.plan_all, LAST]
    replace: [first]
    drop_imports: [List]
    rewrite:
      - why: the check sees aligned sizes
        count: 1
        rule: {pattern: "check($TOTAL, self.limit)"}
        fix: |
          check(
              aligned($TOTAL), self.limit
          )
"""

PATCHED = '''\
# Somebody's header.

import math
import os
from collections import deque
from typing import Dict


def aligned(size: int) -> int:
    return math.ceil(size / 16) * 16


# Upstream's own remark.
def first(path: str) -> "deque[str]":
    return deque(sorted(path))


class Planner:
    """Plans."""

    limit = 3

    def plan(self, sizes: Dict[str, int]) -> int:
        total = sum(sizes.values())
        check(aligned(total), self.limit)
        return total

    # Bytes.
    padding = 64

    def plan_all(self) -> None:
        check(aligned(self.padding), 3)


def check(total: int, limit: int) -> None:
    print("größer" if total > limit else "ok")


LAST = 1


if __name__ == "__main__":
    first(".")
'''


def make_tree(directory: Path, text: str = UPSTREAM) -> Path:
    """A directory that holds an `executorch` package of one module."""
    file = directory / "executorch" / MODULE
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    return directory


def make_series(directory: Path, overlay: str = OVERLAY, **patches: str) -> Series:
    """A series of the patch files given by name (`p0001_try="..."`), or of PATCH alone."""
    (directory / "exir").mkdir(parents=True)
    (directory / MODULE).write_text(overlay, encoding="utf-8")
    (directory / "patches").mkdir()
    for name, text in (patches or {"p0001_try": PATCH}).items():
        file_name = name[1:].replace("_", "-") + ".yml"
        (directory / "patches" / file_name).write_text(textwrap.dedent(text), encoding="utf-8")
    return series.load(directory)
