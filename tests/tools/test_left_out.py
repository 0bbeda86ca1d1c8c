"""`make test` leaves out the slow tests, and says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.paths import ROOT

FILE = "tests/tools/test_upstream_suites.py"
SLOW = f"{FILE}::test_no_core_test_that_passes_on_stock_fails_on_patched"
QUICK = f"{FILE}::test_outcomes_are_read_by_test"


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("processes", ["0", "2"])
def test_what_is_left_out_is_told(processes: str) -> None:
    told = run("-n", processes, "-k", "read_by_test", FILE)
    assert "left out; `make test-all` runs them" in told
    assert f"\n{SLOW}\n" in told
    assert "1 passed" in told


def test_all_means_all() -> None:
    told = run("--all", "--collect-only", FILE)
    assert SLOW in told
    assert QUICK in told
    assert "left out" not in told


def test_what_is_named_is_run_slow_or_not() -> None:
    assert SLOW in run("--collect-only", SLOW)
