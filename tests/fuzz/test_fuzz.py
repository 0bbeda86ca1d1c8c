# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""A short run of the fuzzer, and proof that it can fail."""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportPass, PassResult
from torch.fx import Graph, Node

from tests.fuzz import passes
from tests.fuzz.__main__ import table
from tests.fuzz.check import Outcome, Verdict, check
from tests.fuzz.kinds import KINDS, kinds_of
from tests.fuzz.passes import PASSES
from tests.fuzz.pool import BothCheckers, Checker, StockChecker
from tests.fuzz.program import Options, Program, TensorType, script
from tests.fuzz.run import Batch, Report, run
from tests.support.harness import quick_decompositions
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
    with BothCheckers() as checker:
        return run(checker.check, Batch(PROGRAMS, seed))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(1,), (2, 3, 4, 5, 6)])
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
import re
import sys
from tests.fuzz.check import Outcome, Verdict
from tests.fuzz.generate import programs
from tests.fuzz.pool import Checker
from tests.fuzz.run import Batch, run

if __name__ == "__main__":
    with Checker() as checker:
        # A copy of another buffer, which the same program changes.
        across = re.compile(r"self\\.(b.)\\.copy_\\(self\\.(?!\\1)(b.)\\)")

        def shows(program):
            found = [found for found in map(across.fullmatch, program.lines) if found]
            return not program.options.xnnpack and any(
                line.startswith(f"self.{each[2]}.") for each in found for line in program.lines
            )

        strategy = programs(["updated", "copied_across"], ["plain"]).filter(shows)

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


@pytest.mark.slow
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

    report = run(check, Batch(200, 3))
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


# --- what is drawn --------------------------------------------------------------------------

OPTION_KINDS = (
    "run_reinplace_pass",
    "reinplace_extra_ops",
    "alloc_graph_input=False",
    "alloc_graph_output=False",
    "alloc_mutable_buffers=False",
    "XNNPACK",
    "do_quant_fusion_and_const_prop",
    "remove_view_copy=False",
    "_skip_dim_order",
    "emit_stacktrace",
    "own to_out_var and sym_shape_eval",
    "lowered twice, same config",
    "lowered twice, other config",
)


@functools.cache
def _drawn() -> tuple[Program, ...]:
    """The programs of some seeds, which nothing checks."""
    drawn: list[Program] = []

    def right(program: Program) -> Outcome:
        drawn.append(program)
        return Outcome(Verdict.RIGHT)

    for seed in range(20):
        run(right, Batch(50, seed))
    return tuple(drawn)


def _of_kind(kind: str) -> list[Program]:
    return [program for program in _drawn() if kind in kinds_of(program)]


@pytest.mark.parametrize("kind", [*KINDS, *OPTION_KINDS, *(f"pass {name}" for name in PASSES)])
def test_each_kind_is_drawn(kind: str) -> None:
    """One in a hundred at least, but what can only be lowered."""
    least = 5 if kind == "alloc_mutable_buffers=False" else len(_drawn()) // 100
    assert len(_of_kind(kind)) >= least


def test_a_seed_gives_its_programs_again() -> None:
    again: list[Program] = []

    def right(program: Program) -> Outcome:
        again.append(program)
        return Outcome(Verdict.RIGHT)

    run(right, Batch(50, 3))
    assert tuple(again) == _drawn()[150:200]
    assert len(set(again)) > 45


def test_the_table_counts_what_was_run() -> None:
    report = Report()
    plain = replace(DELAY_LINE, options=Options(emit_stacktrace=True))
    report.count(plain, Outcome(Verdict.RIGHT))
    report.count(plain, Outcome(Verdict.REFUSED, "ValueError: because\nof this"))
    report.count(plain, Outcome(Verdict.WORSE))
    (line,) = (line for line in table(report).splitlines() if line.endswith("emit_stacktrace"))
    assert line.split()[:4] == ["3", "1", "1", "1"]
    assert "refused before any patch: ValueError: because" in table(report)


# --- what is found --------------------------------------------------------------------------


def _outcome(verdict: Verdict) -> Outcome:
    return Outcome(verdict, "why")


@pytest.mark.parametrize(
    "patched, stock, verdict",
    [
        (Verdict.RIGHT, Verdict.FAILED, Verdict.RIGHT),
        (Verdict.REFUSED, Verdict.REFUSED, Verdict.REFUSED),
        (Verdict.FAILED, Verdict.RIGHT, Verdict.WORSE),
        (Verdict.WRONG, Verdict.RIGHT, Verdict.WORSE),
        (Verdict.DIED, Verdict.RIGHT, Verdict.WORSE),
        (Verdict.FAILED, Verdict.FAILED, Verdict.ALIKE),
        (Verdict.FAILED, Verdict.WRONG, Verdict.ALIKE),
        (Verdict.WRONG, Verdict.WRONG, Verdict.WRONG),
        (Verdict.WRONG, Verdict.FAILED, Verdict.WRONG),
        (Verdict.DIED, Verdict.FAILED, Verdict.DIED),
        (Verdict.DIED, Verdict.DIED, Verdict.ALIKE),
    ],
)
def test_what_stock_runs_right_has_to_run_right(
    patched: Verdict, stock: Verdict, verdict: Verdict
) -> None:
    outcome = _outcome(patched).beside(_outcome(stock))
    assert outcome.verdict is verdict
    assert outcome.is_finding is (verdict in (Verdict.WORSE, Verdict.WRONG, Verdict.DIED))


def test_stock_is_asked_in_a_process_of_its_own() -> None:
    plain = replace(DELAY_LINE, lines=("v0 = self.b0 + x0", "self.b0.copy_(v0)"))
    with StockChecker() as stock:
        assert stock.check(plain).verdict is Verdict.RIGHT
        assert stock.check(DELAY_LINE).verdict is Verdict.WRONG


Change = Callable[[Graph], bool]


class _Fault(ExportPass):
    """Changes one node of the program, or of its first body where there is one to change."""

    def __init__(self, in_program: Change | None, in_body: Change | None = None) -> None:
        super().__init__()
        self._in_program = in_program
        self._in_body = in_body

    @property
    def is_in_body(self) -> bool:
        return self._in_body is not None

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        changed = False
        for inner in passes.graphs(graph_module):
            change = self._in_program if inner is graph_module else self._in_body
            changed = changed or (change is not None and change(inner.graph))
            inner.recompile()
        return PassResult(graph_module, changed)


def _drops_write(*dtypes: torch.dtype, is_channels_last: bool = False) -> Change:
    """A write-back that copies a buffer on itself."""

    def change(graph: Graph) -> bool:
        for node in graph.nodes:
            if node.target not in passes.COPIES:
                continue
            state = node.args[0].meta["val"]
            is_so = state.dim_order() == (0, 2, 3, 1)
            if state.dtype in dtypes and (is_so or not is_channels_last):
                node.args = (node.args[0], node.args[0])
                return True
        return False

    return change


_EDGE = ops.edge.aten
_SWAPS = {
    _EDGE.add.Tensor: _EDGE.sub.Tensor,
    _EDGE.sub.Tensor: _EDGE.add.Tensor,
    _EDGE.mul.Tensor: _EDGE.add.Tensor,
    _EDGE.maximum.default: _EDGE.minimum.default,
    _EDGE.neg.default: _EDGE.abs.default,
}


def _computes_other(graph: Graph) -> bool:
    """The last operator becomes another one of the same arguments."""
    for node in reversed(graph.nodes):
        if node.target in _SWAPS:
            node.target = _SWAPS[node.target]
            return True
    return False


def _first_rows(graph: Graph) -> bool:
    """Reads or writes at the first row, wherever a position says."""
    at_positions = (_EDGE.slice_copy.Tensor, _EDGE.slice_scatter.default, _EDGE.select_copy.int)
    for node in graph.nodes:
        rows = [x for x in node.args if isinstance(x, Node) and _is_number(x)]
        if node.target in at_positions and rows:
            node.args = tuple(rows.index(x) if x in rows else x for x in node.args)
            return True
    return False


def _is_number(node: Node) -> bool:
    return isinstance(node.meta["val"], torch.SymInt)


_FLOATS = (torch.float32,)
FAULTS = {
    "half state": _Fault(_drops_write(torch.float16, torch.bfloat16)),
    "bool state": _Fault(_drops_write(torch.bool)),
    "8- or 16-bit state": _Fault(_drops_write(torch.uint8, torch.int8, torch.int16)),
    "quantized state": _Fault(_drops_write(torch.uint8, torch.int8)),
    "channels_last state": _Fault(_drops_write(*_FLOATS, is_channels_last=True)),
    "position in state": _Fault(_drops_write(torch.int64)),
    "custom operator that writes": _Fault(_drops_write(*_FLOATS, torch.int8)),
    "dynamic shape": _Fault(_drops_write(*_FLOATS, torch.int64)),
    "data-dependent position": _Fault(_first_rows),
    "index_put": _Fault(_drops_write(*_FLOATS, torch.float16, torch.int64, torch.int32)),
    "cond": _Fault(None, _computes_other),
    "map": _Fault(None, _computes_other),
    "scan": _Fault(None, _computes_other),
    "nested bodies": _Fault(None, _computes_other),
    "view in a body": _Fault(None, _computes_other),
    "closed-over state in a body": _Fault(None, _computes_other),
    "view of a body's result": _Fault(_computes_other, _computes_other),
}


def _shows_state(program: Program) -> bool:
    """Whether it returns the old contents of a buffer that it writes."""
    found = [name.removeprefix("old_") for name in program.returns if name.startswith("old_")]
    return any(line.startswith(f"self.{name}") for line in program.lines for name in found)


def _shows_result(program: Program) -> bool:
    """Whether it returns what a body has made."""
    made = {
        name
        for line in program.lines
        if re.search(r" = (cond|mapped|scan)\(", line)
        for name in line.partition(" = ")[0].split(", ")
    }
    return bool(made & set(program.returns))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_in_each_kind_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that does wrong, planted among the user's: some program of the kind shows it."""
    monkeypatch.setitem(PASSES, "fault", lambda: FAULTS[kind])
    usual = Options(passes=("fault",))
    # Those that are quick and likely to show it.
    shows = _shows_result if FAULTS[kind].is_in_body else _shows_state
    likely = {p.lines: p for p in _of_kind(kind) if shows(p)}
    with quick_decompositions():
        for lines in sorted(likely, key=len)[:20]:
            program = likely[lines]
            planted, sound = replace(program, options=usual), replace(program, options=Options())
            if check(planted).verdict is Verdict.WRONG and check(sound).verdict is Verdict.RIGHT:
                return
    pytest.fail("no program shows it")
