"""`tools check-alone`: which tests a patch brings, and what is said of how they go."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.support.small_tree import make_series, make_tree
from tools.errors import UserError
from tools.patching import alone, series
from tools.patching.series import Series
from tools.shipping import upstream

TESTS = "exir/tests/test_small.py"
OVERLAY = """\
# Our header.


def helper():
    return 1


class TestSmall:
    def test_a(self):
        assert helper() == 1

    def test_b(self):
        assert {sum}


class TestOther:
    def test_c(self):
        pass
"""
PATCH = f"""\
subject: A
body: a
files:
  {TESTS}:
    define: [helper, TestSmall.test_a, TestSmall.test_b, TestOther]
"""


def fork(directory: Path, sum: str = "True") -> Series:
    made = make_series(directory, p0001_a=PATCH, p0002_b=PATCH_B)
    (directory / "exir" / "tests").mkdir()
    (directory / TESTS).write_text(OVERLAY.replace("{sum}", sum), encoding="utf-8")
    (directory / "exir" / "memory_planning.py").unlink()
    return made


PATCH_B = textwrap.dedent("""\
    subject: B
    body: b
    files:
      exir/memory_planning.py:
        rewrite:
          - why: three is too much
            count: 1
            rule: {pattern: "limit = 3"}
            fix: limit = 2
""")


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tree = make_tree(tmp_path / "release")
    (tree / "executorch" / "exir" / "tests").mkdir()
    (tree / "executorch" / TESTS).write_text(
        "class TestSmall:\n    def test_theirs(self):\n        assert False\n", encoding="utf-8"
    )
    monkeypatch.setattr(upstream, "unpacked", lambda version: tree)
    return tree


def test_the_tests_of_a_patch(tmp_path: Path) -> None:
    loaded = fork(tmp_path)
    (file,) = loaded.patches[0].files
    assert alone.tests_of(loaded, file) == [
        f"executorch/{TESTS}::TestSmall::test_a",
        f"executorch/{TESTS}::TestSmall::test_b",
        f"executorch/{TESTS}::TestOther",
    ]
    assert alone.tests_of(loaded, loaded.patches[1].files[0]) == []


def test_what_passes_and_what_brings_no_test(release: Path, tmp_path: Path) -> None:
    """Upstream's own test of the class, which fails, isn't run."""
    first, second = alone.check(fork(tmp_path / "fork"), "1.5.1")
    assert first.passed
    assert first.row()[:5] == ("0001-a", "passed", "", "3", "0")
    assert not second.passed
    assert "brings no test" in second.log


def test_what_fails_is_told(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (result,) = alone.check(fork(tmp_path / "fork", "1 == 2"), "1.5.1", ("0001",))
    assert result.row()[:5] == ("0001-a", "FAILED", "", "2", "1")
    assert "assert 1 == 2" in capsys.readouterr().err


def test_an_unknown_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no patch 0009 for 1\.5\.1"):
        list(alone.check(fork(tmp_path), "1.5.1", ("0009",)))


def test_each_patch_of_the_series_brings_a_test() -> None:
    loaded = series.load()
    # These only serve 0043, whose tests are theirs as well.
    for patch in loaded.patches:
        if patch.name.startswith(("0041", "0042", "0044")):
            continue
        assert [test for file in patch.files for test in alone.tests_of(loaded, file)], patch.name
