"""Applying a series to a tree: what comes out, what is refused, what a failure leaves."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_tree import (
    MODULE,
    OVERLAY,
    PATCH,
    PATCHED,
    UPSTREAM,
    make_series,
    make_tree,
)
from tools.errors import Conflicts, UserError
from tools.patching import tree
from tools.patching.render import check_claims
from tools.paths import ROOT


def text_in(directory: Path) -> str:
    return (directory / "executorch" / MODULE).read_text(encoding="utf-8")


def files_in(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if path.is_file()}


def conflicts_with(patch: str, tmp_path: Path, upstream: str = UPSTREAM) -> list[str]:
    upstream_tree = make_tree(tmp_path / "tree", upstream)
    with pytest.raises(Conflicts) as caught:
        tree.apply(make_series(tmp_path / "fork", p0001_try=patch), upstream_tree)
    assert text_in(upstream_tree) == upstream
    return [f"{c.rule}: wanted {c.wanted}, found {c.found}" for c in caught.value.conflicts]


def test_definitions_rules_and_imports_go_where_they_belong(tmp_path: Path) -> None:
    upstream_tree = make_tree(tmp_path / "tree")
    assert tree.apply(make_series(tmp_path / "fork"), upstream_tree) == [MODULE]
    assert text_in(upstream_tree) == PATCHED
    assert files_in(upstream_tree) == {"memory_planning.py"}


def test_a_tree_that_carries_the_series_is_left_alone(tmp_path: Path) -> None:
    upstream_tree = make_tree(tmp_path / "tree")
    fork = make_series(tmp_path / "fork")
    tree.apply(fork, upstream_tree)
    assert tree.apply(fork, upstream_tree) == []
    assert text_in(upstream_tree) == PATCHED


def test_a_git_checkout_has_exir_at_its_top(tmp_path: Path) -> None:
    package = make_tree(tmp_path / "tree") / "executorch"
    assert tree.apply(make_series(tmp_path / "fork"), package) == [MODULE]


def test_windows_line_ends_stay(tmp_path: Path) -> None:
    upstream_tree = make_tree(tmp_path / "tree")
    file = upstream_tree / "executorch" / MODULE
    file.write_bytes(UPSTREAM.replace("\n", "\r\n").encode())
    fork = make_series(tmp_path / "fork")
    assert tree.apply(fork, upstream_tree) == [MODULE]
    assert file.read_bytes() == PATCHED.replace("\n", "\r\n").encode()
    assert tree.apply(fork, upstream_tree) == []


def test_all_conflicts_are_reported_together(tmp_path: Path) -> None:
    moved = UPSTREAM.replace("def first", "def front").replace("self.limit", "self.bound")
    found = conflicts_with(PATCH, tmp_path, moved)
    assert found == [
        "rewrite (the check sees aligned sizes): wanted 1 match, found 0; most like it is "
        "line 19: check(total, self.bound)",
        "replace first: wanted upstream's definition of that name, found it is gone",
    ]


def test_a_rule_that_matches_twice_is_a_conflict(tmp_path: Path) -> None:
    twice = UPSTREAM.replace(
        "        return total", "        check(1, self.limit)\n        return 1"
    )
    (found,) = conflicts_with(PATCH, tmp_path, twice)
    assert found.endswith("wanted 1 match, found 2, in lines 19, 20")


def test_a_rule_that_ast_grep_cannot_read_is_a_conflict(tmp_path: Path) -> None:
    (found,) = conflicts_with(PATCH.replace("pattern:", "patern:"), tmp_path)
    assert "unknown field `patern`" in found
    assert "backtrace" not in found.lower()


def test_a_class_that_is_gone_is_a_conflict(tmp_path: Path) -> None:
    found = conflicts_with(PATCH, tmp_path, UPSTREAM.replace("class Planner", "class Plan"))
    assert found == ["define in class Planner: wanted upstream's class Planner, found none"] * 2


def test_a_name_that_upstream_has_gained_is_a_conflict(tmp_path: Path) -> None:
    (found,) = conflicts_with(
        PATCH, tmp_path, UPSTREAM.replace("    limit = 3\n", "    limit = 3\n    padding = 1\n")
    )
    assert found.startswith("define Planner.padding: wanted a name new to upstream")


def test_a_name_that_the_overlaid_module_lacks_is_a_conflict(tmp_path: Path) -> None:
    (found,) = conflicts_with(PATCH, tmp_path, UPSTREAM.replace("def check", "def test"))
    assert found.startswith("import check from executorch.exir.memory_planning")


def test_every_definition_belongs_to_exactly_one_patch(tmp_path: Path) -> None:
    none = make_series(tmp_path / "none", OVERLAY + "\n\ndef loose() -> None: ...\n")
    with pytest.raises(UserError, match=r"memory_planning.py: loose belongs to no patch"):
        check_claims(none)
    second = "subject: B\nbody: b\nfiles:\n  exir/memory_planning.py:\n    define: [aligned]\n"
    two = make_series(tmp_path / "two", p0001_try=PATCH, p0002_again=second)
    with pytest.raises(UserError, match=r"aligned belongs to 0001-try and 0002-again"):
        check_claims(two)


def test_each_patch_applies_on_the_result_of_the_one_before(tmp_path: Path) -> None:
    second = """\
        subject: Pad
        body: b
        requires: [0001]
        files:
          exir/memory_planning.py:
            rewrite:
              - why: what the first patch brought
                count: 1
                rule: {pattern: "check(aligned(self.padding), 3)"}
                fix: check(aligned(self.padding), 4)
        """
    upstream_tree = make_tree(tmp_path / "tree")
    fork = make_series(tmp_path / "fork", p0001_try=PATCH, p0002_pad=second)
    tree.apply(fork, upstream_tree)
    assert text_in(upstream_tree) == PATCHED.replace("padding), 3)", "padding), 4)")
    assert tree.apply(fork, upstream_tree) == []


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_tree_that_is_not_executorch_is_refused(tmp_path: Path, what: str) -> None:
    directory = tmp_path / what
    if what == "empty":
        directory.mkdir()
    with pytest.raises(UserError, match="is not ExecuTorch"):
        tree.apply(make_series(tmp_path / "fork"), directory)


def test_a_full_disk_leaves_the_tree_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream_tree = make_tree(tmp_path / "tree")

    def full(self: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"No space left on device; nothing was changed"):
        tree.apply(make_series(tmp_path / "fork"), upstream_tree)
    assert text_in(upstream_tree) == UPSTREAM
    assert files_in(upstream_tree) == {"memory_planning.py"}


def test_a_read_only_target_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream_tree = make_tree(tmp_path / "tree")
    # The superuser may write everywhere, so the answer is made here.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match=r"it is read-only; nothing was changed"):
        tree.apply(make_series(tmp_path / "fork"), upstream_tree)
    assert text_in(upstream_tree) == UPSTREAM


def test_an_interrupt_between_two_renames_leaves_all_files_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {tmp_path / name: name.encode() for name in ("a", "b", "new")}
    for path in list(files)[:2]:
        path.write_bytes(b"before")
    rename = os.replace

    def interrupted(source: Path, target: Path) -> None:
        if target == tmp_path / "b":
            monkeypatch.setattr(os, "replace", rename)
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tree.replace_files(files)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a": b"before",
        "b": b"before",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply", "/nowhere"], "error: /nowhere is not ExecuTorch (no such directory)"),
        (["wheel", "--upstream", "0.9"], "error: ExecuTorch 0.9 is not supported; choose one of"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tools", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(message)
