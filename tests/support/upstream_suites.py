"""Run the test files that ship in ExecuTorch's wheel on stock and on patched, side by side.

    python -m tests.support.upstream_suites [--core] [--stock DIR] [--patched DIR]

No test that passes on stock may fail on patched. What fails on stock (a missing extra, say) is
listed by the run itself. Exit codes: 0 if nothing is lost, 1 if something is, 2 for bad input.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from tools import paths, versions
from tools.shipping import installed, upstream

CACHE = paths.CACHE / "upstream-suites"
SUITES = (
    "exir/tests",
    "exir/emit/test",
    "exir/program/test",
    "exir/backend/test",
    "backends/transforms/test/test_create_mutable_buffer.py",
    "runtime/test",
    "extension/pybindings/test",
)
CORE = (
    "exir/tests/test_passes.py",
    "exir/tests/test_memory_planning.py",
    "exir/tests/test_reinplace_pass.py",
    "exir/tests/test_joint_graph.py",
    "exir/emit/test/test_emit.py",
)
_SECONDS = 1800
_RUNS_AGAIN = 2
# "PASSED path::test", "FAILED path::test - why", "SUBFAILED(i=1) path::test - why"
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|SUBFAILED\S*(?: .*?\))?) (\S+\.py(?:::\S+)?)")


@dataclass(frozen=True)
class Outcome:
    """Which tests of a file passed, and which didn't."""

    passed: frozenset[str]
    failed: frozenset[str]

    @classmethod
    def read(cls, report: str) -> Outcome:
        """Read pytest's `-rA` summary. A test of which one subtest fails has failed."""
        passed, failed = set(), set()
        for line in report.splitlines():
            found = _OUTCOME.match(line)
            if found is not None:
                (passed if found[1] == "PASSED" else failed).add(found[2])
        return cls(frozenset(passed - failed), frozenset(failed))

    def __str__(self) -> str:
        return f"{len(self.passed)} passed, {len(self.failed)} failed"

    def again(self, other: Outcome) -> Outcome:
        """Of two runs, what failed in both and what passed in one of them."""
        failed = self.failed & other.failed
        return Outcome((self.passed | other.passed) - failed, failed)

    def lost_since(self, before: Outcome) -> list[str]:
        """What passed before, or is new, and doesn't pass."""
        return [
            *sorted(before.passed - self.passed),
            *sorted(self.failed - before.failed - before.passed),
        ]


def test_files(tree: Path, suites: Iterable[str]) -> list[str]:
    """Paths of the test files below `tree/executorch`, in the order of the suites."""
    package = tree / "executorch"
    found: list[str] = []
    for suite in suites:
        place = package / suite
        files = [place] if place.is_file() else sorted(place.rglob("test_*.py"))
        found += [file.relative_to(package).as_posix() for file in files]
    return found


def run_file(tree: Path, file: str) -> Outcome:
    """Run one test file with the ExecuTorch in `tree`; a crash is a failure of the file."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["COLUMNS"] = "1000"  # pytest cuts its summary to the width of the terminal
    try:
        done = subprocess.run(
            # The tree may lie within this checkout, whose conftest is not for it.
            [*command, "-c", os.devnull, "--rootdir", str(tree), "--confcutdir", str(tree),
             f"executorch/{file}"],
            cwd=tree, env=environment, check=False, capture_output=True, text=True,
            timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome(frozenset(), frozenset({file}))
    outcome = Outcome.read(done.stdout)
    if done.returncode not in (0, 1, 5):
        return Outcome(outcome.passed, outcome.failed | {file})
    return outcome


def run_stock(tree: Path, file: str) -> Outcome:
    """The same for the untouched release, whose outcome is kept: it can't change."""
    kept = CACHE / _environment_key(tree) / f"{file.replace('/', '.')}.json"
    if kept.is_file():
        data = json.loads(kept.read_text(encoding="utf-8"))
        return Outcome(frozenset(data["passed"]), frozenset(data["failed"]))
    outcome = run_file(tree, file)
    kept.parent.mkdir(parents=True, exist_ok=True)
    data = {"passed": sorted(outcome.passed), "failed": sorted(outcome.failed)}
    kept.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return outcome


def _environment_key(tree: Path) -> str:
    """Names the release and all that is installed beside it."""
    packages = sorted(f"{d.metadata['Name']}={d.version}" for d in distributions())
    release = (tree / "executorch" / "version.py").read_text(encoding="utf-8")
    text = "\n".join([sys.version, release, *(p for p in packages if "executorch" not in p)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_both(stock: Path, patched: Path, file: str) -> tuple[Outcome, Outcome]:
    """The outcomes on stock and on patched.

    Some of upstream's tests draw random numbers and fail now and then, on stock as well. So what
    seems to be lost is run again: what a patch breaks fails each time.
    """
    before, after = run_stock(stock, file), run_file(patched, file)
    for _ in range(_RUNS_AGAIN):
        lost = after.lost_since(before)
        if not lost:
            break
        print(f"again, for {', '.join(lost)}", flush=True)
        after = after.again(run_file(patched, file))
    return before, after


def compare(stock: Path, patched: Path, suites: Iterable[str]) -> int:
    """Print the table, what fails on stock and what is lost; return the exit code."""
    files = test_files(stock, suites)
    lost: list[str] = []
    failing: list[str] = []
    print(f"{'file':60} {'stock':>24} {'patched':>24}", flush=True)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        pairs = pool.map(lambda file: run_both(stock, patched, file), files)
        for file, (before, after) in zip(files, pairs, strict=True):
            print(f"{file:60} {before!s:>24} {after!s:>24}", flush=True)
            lost += after.lost_since(before)
            failing += sorted(before.failed)
    print(f"\n{len(failing)} fail on stock:", *failing, sep="\n  ")
    print(f"\n{len(lost)} pass on stock, or are new, and fail on patched:", *lost, sep="\n  ")
    return 1 if lost else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.upstream_suites", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--core", action="store_true", help="just the files closest to the passes")
    parser.add_argument("--stock", type=Path, help="tree of the untouched release")
    parser.add_argument("--patched", type=Path, help="patched tree (default: what is installed)")
    options = parser.parse_args(arguments)
    stock = options.stock or upstream.stock(versions.DEFAULT)
    patched = options.patched or installed_tree()
    for tree in (stock, patched):
        if not (tree / "executorch" / "exir").is_dir():
            print(f"error: {tree} holds no executorch/exir; run `make setup`", file=sys.stderr)
            return 2
    return compare(stock.resolve(), patched.resolve(), CORE if options.core else SUITES)


def installed_tree() -> Path:
    found = installed.find()
    if found is None:
        print("error: executorch is not installed here; run `make setup`", file=sys.stderr)
        raise SystemExit(2)
    return found.package.parent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
