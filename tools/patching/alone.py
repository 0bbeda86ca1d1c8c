"""Each patch with just what it requires: do its own tests pass there?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.errors import UserError
from tools.patching import source as python
from tools.patching.render import check_claims
from tools.patching.series import FilePatch, Patch, Series, is_python
from tools.patching.tree import patched_tree

HEAD = ("patch", "result", "requires", "passed", "failed", "seconds")


@dataclass(frozen=True)
class Result:
    """How the tests of one patch went."""

    patch: Patch
    tests: int
    passes: int
    failures: int
    seconds: float
    log: str

    @property
    def passed(self) -> bool:
        """Whether all tests that the patch brings, of which there is one at least, pass."""
        return self.tests > 0 and self.failures == 0 and self.passes > 0

    def row(self) -> tuple[str, ...]:
        return (
            self.patch.name,
            "passed" if self.passed else "FAILED",
            " ".join(self.patch.requires),
            str(self.passes),
            str(self.failures),
            f"{self.seconds:.0f}",
        )


def check(series: Series, version: str, numbers: tuple[str, ...] = ()) -> Iterator[Result]:
    """Run the tests of each patch that a release takes, or of those with these numbers.

    A patch that fails is told on stderr with what pytest says.
    """
    check_claims(series)
    series = series.for_release(version)
    known = {patch.number for patch in series.patches}
    if unknown := [number for number in numbers if number not in known]:
        raise UserError(f"no patch {', '.join(unknown)} for {version}")
    for patch in series.patches:
        if numbers and patch.number not in numbers:
            continue
        with tempfile.TemporaryDirectory() as directory:
            tree = patched_tree(version, Path(directory), series.alone(patch))
            result = _run(patch, series, tree)
        if not result.passed:
            print(f"{patch.name}:\n{result.log}", file=sys.stderr)
        yield result


def _run(patch: Patch, series: Series, tree: Path) -> Result:
    tests = [test for file in patch.files for test in tests_of(series, file)]
    started = time.monotonic()
    log = _pytest(tree, tests) if tests else "it brings no test"
    passes, failures = (_count(log, word) for word in ("passed", "(?:failed|errors?)"))
    return Result(patch, len(tests), passes, failures, time.monotonic() - started, log)


def tests_of(series: Series, file: FilePatch) -> list[str]:
    """What pytest calls the tests that a patch brings in a file; all of a file that it changes
    by rules alone."""
    name = Path(file.path).name
    if not is_python(file.path) or not name.startswith("test_"):
        return []
    path = f"executorch/{file.path}"
    if not (file.define or file.replace):
        return [path]
    overlay = series.overlay(file.path) or ""
    named: list[str] = []
    for each in (*file.define, *file.replace):
        definition = python.find(overlay, each)
        first, _, member = each.partition(".")
        is_test = member.startswith("test") if member else first.startswith(("Test", "test"))
        if definition is not None and is_test:
            named.append("::".join([path, first, member] if member else [path, first]))
    return named


def _pytest(tree: Path, tests: list[str]) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        # The settings of a checkout around the tree are not for it.
        [*command, "-c", os.devnull, "--rootdir", str(tree), "--confcutdir", str(tree), *tests],
        cwd=tree, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    crashed = "" if done.returncode in (0, 1) else f"\n1 error: pytest ended with {done.returncode}"
    return done.stdout[-5000:] + done.stderr[-2000:] + crashed


def _count(log: str, word: str) -> int:
    """The number that the last line with counts gives for a word."""
    found = re.findall(rf"(\d+) {word}\b", log)
    return int(found[-1]) if found else 0
