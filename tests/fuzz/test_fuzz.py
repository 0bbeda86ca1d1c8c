# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""A short run of the fuzzer, and proof that it can fail."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fuzz.check import Outcome, Verdict
from tests.fuzz.pool import Checker
from tests.fuzz.program import Options, Program, TensorType, script
from tests.fuzz.run import Batch, Report, run
from tools.paths import ROOT
from tools.shipping import upstream
from tools.versions import DEFAULT

PROGRAMS = 50
"""For each seed."""
REFUSED_AT_MOST = 0.15

DELAY_LINE = Program(
    buffers=(TensorType("b0", (4,), "float32"), TensorType("b1", (4,), "float32")),
    inputs=(TensorType("x0", (4,), "float32"), TensorType("k", (2,), "int64")),
    lines=("v0 = self.b0 + 1", "self.b0.copy_(self.b1)", "self.b1.copy_(x0)"),
    returns=("v0",),
)


def _run(seed: int) -> Report:
    with Checker() as checker:
        return run(checker.check, Batch(PROGRAMS, seed))


@pytest.mark.parametrize("seeds", [(1,), pytest.param((2, 3, 4, 5, 6), marks=pytest.mark.slow)])
def test_random_programs(seeds: tuple[int, ...]) -> None:
    """The same programs each time; the smallest one that fails is printed as a script."""
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as threads:
        reports = list(threads.map(_run, seeds))
    for report in reports:
        if report.finding is not None:
            program, outcome = report.finding
            pytest.fail(script(program, str(outcome), "finding.py"))
    ran = sum(report.ran for report in reports)
    refused = sum(report.verdicts[Verdict.REFUSED] for report in reports)
    assert ran == PROGRAMS * len(seeds)
    assert refused <= REFUSED_AT_MOST * ran, f"{refused} of {ran} programs say nothing"


_ON_STOCK = """
import sys
from tests.fuzz.check import Outcome, Verdict
from tests.fuzz.generate import programs
from tests.fuzz.pool import Checker
from tests.fuzz.run import Batch, run

if __name__ == "__main__":
    with Checker() as checker:
        strategy = programs(["updated", "copied_across"]).filter(
            lambda program: not program.options.xnnpack
        )

        def check(program):
            outcome = checker.check(program)
            # What the untouched release can't lower at all is another fault of its own.
            return outcome if outcome.verdict is Verdict.WRONG else Outcome(Verdict.RIGHT)

        report = run(check, Batch(60, 5, strategy, shrink=False))
    print(report.ran, report.finding)
    sys.exit(report.finding is None)
"""


def _with_stock(arguments: list[str], directory: Path) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(upstream.unpacked(DEFAULT)), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_fault_of_the_untouched_release_is_found(tmp_path: Path) -> None:
    """1.5.1 drops copies between buffers: 60 programs with such copies are enough to see it."""
    driver = tmp_path / "driver.py"
    driver.write_text(_ON_STOCK, encoding="utf-8")
    found = _with_stock([str(driver)], tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert ".copy_(self." in found.stdout


def test_a_finding_is_shrunk() -> None:
    """A check that dislikes copies between buffers, in place of the real one."""

    def check(program: Program) -> Outcome:
        wrong = any(".copy_(self." in line for line in program.lines)
        return Outcome(Verdict.WRONG if wrong else Verdict.RIGHT)

    report = run(check, Batch(200, 1))
    assert report.finding is not None
    program, _ = report.finding
    assert len(program.lines) <= 2
    assert len(program.returns) == 1
    assert program.options == Options()


def test_a_script_shows_the_finding(tmp_path: Path) -> None:
    text = script(DELAY_LINE, "wrong result", "finding.py")
    (tmp_path / "finding.py").write_text(text, encoding="utf-8")
    stock = _with_stock(["finding.py"], tmp_path)
    assert stock.returncode == 0, stock.stderr
    assert "wrong result: call 3: output 0" in stock.stdout
    with Checker() as checker:
        assert checker.check(DELAY_LINE).verdict is Verdict.RIGHT


def test_a_program_that_dies_costs_one_program() -> None:
    fatal = Program(
        DELAY_LINE.buffers,
        DELAY_LINE.inputs,
        ("import os", "os._exit(3)"),
        ("x0",),
    )
    with Checker() as checker:
        died = checker.check(fatal)
        assert died.verdict is Verdict.DIED
        assert "exit code 3" in str(died)
        assert checker.check(DELAY_LINE).verdict is Verdict.RIGHT


def test_a_program_survives_as_text() -> None:
    program = Program(
        DELAY_LINE.buffers,
        DELAY_LINE.inputs,
        DELAY_LINE.lines,
        ("v0", "self.b1.clone()"),
        Options(run_reinplace_pass=True, xnnpack=True),
    )
    assert Program.from_json(program.to_json()) == program
