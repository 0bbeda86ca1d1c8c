"""Upstream's own tests: the core of them, and how their outcomes are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import upstream_suites
from tests.support.upstream_suites import Outcome
from tools import versions
from tools.shipping import upstream

REPORT = """\
PASSED executorch/exir/tests/test_a.py::TestA::test_one
PASSED executorch/exir/tests/test_a.py::TestA::test_two
SUBFAILED(lower='x', i=1) executorch/exir/tests/test_a.py::TestA::test_two - AssertionError
FAILED executorch/exir/tests/test_a.py::TestA::test_three - ValueError: PASSED nothing
ERROR executorch/exir/tests/test_b.py - ModuleNotFoundError
some.py::PASSED test
"""


@pytest.mark.slow
def test_no_core_test_that_passes_on_stock_fails_on_patched(
    capfd: pytest.CaptureFixture[str],
) -> None:
    stock = upstream.unpacked(versions.DEFAULT)
    patched = upstream_suites.installed_tree()
    code = upstream_suites.compare(stock, patched, upstream_suites.CORE)
    assert code == 0, capfd.readouterr().out


def test_outcomes_are_read_by_test() -> None:
    outcome = Outcome.read(REPORT)
    path = "executorch/exir/tests/test_a.py::TestA"
    assert outcome.passed == {f"{path}::test_one"}
    assert outcome.failed == {
        f"{path}::test_two",
        f"{path}::test_three",
        "executorch/exir/tests/test_b.py",
    }


def small_tree(directory: Path, body: str) -> Path:
    file = directory / "executorch" / "exir" / "tests" / "test_small.py"
    file.parent.mkdir(parents=True)
    file.write_text(body, encoding="utf-8")
    (directory / "executorch" / "version.py").write_text("__version__ = '0'", encoding="utf-8")
    return directory


def test_a_test_that_is_lost_or_crashes_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(upstream_suites, "CACHE", tmp_path / "cache")
    good = "def test_a(): pass\ndef test_b(): pass\ndef test_c(): assert 0\n"
    stock = small_tree(tmp_path / "stock", good)
    lost = small_tree(tmp_path / "lost", good.replace("b(): pass", "b(): assert 0"))
    crash = small_tree(tmp_path / "crash", "import os\ndef test_a(): os._exit(3)\n")
    assert upstream_suites.compare(stock, stock, ("exir/tests",)) == 0
    assert "1 fail on stock" in capsys.readouterr().out
    assert upstream_suites.compare(stock, lost, ("exir/tests",)) == 1
    assert "test_small.py::test_b" in capsys.readouterr().out
    assert upstream_suites.compare(stock, crash, ("exir/tests",)) == 1


def test_a_test_that_fails_now_and_then_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(upstream_suites, "CACHE", tmp_path / "cache")
    stock = small_tree(tmp_path / "stock", "def test_a(): pass\n")
    # Each run is a process of its own, and leaves a file that the next one finds.
    flaky = "import pathlib\n\n\ndef test_a():\n    ran = pathlib.Path('ran').exists()\n"
    flaky += "    pathlib.Path('ran').touch()\n    assert ran\n"
    patched = small_tree(tmp_path / "patched", flaky)
    assert upstream_suites.compare(stock, patched, ("exir/tests",)) == 0
    assert "again, for executorch/exir/tests/test_small.py::test_a" in capsys.readouterr().out
