"""The exported commits: `git am` takes them, upstream's linters pass them, and each touches
nothing but what its patch file names."""

from __future__ import annotations

import difflib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_tree import MODULE, PATCH, PATCHED, UPSTREAM, make_series, make_tree
from tools import versions
from tools.errors import UserError
from tools.patching import export, render, series, source
from tools.patching.series import FilePatch, is_python
from tools.patching.tree import reader
from tools.paths import ROOT
from tools.shipping import upstream


def git(where: Path, *arguments: str) -> str:
    command = ["git", "-C", str(where), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def repository(directory: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text, encoding="utf-8")
    git(directory, "init", "--quiet")
    git(directory, "config", "user.name", "Ada Lovelace")
    git(directory, "config", "user.email", "ada@example.org")
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "-m", "base")
    return directory


def release_repository(version: str, directory: Path) -> Path:
    """A repository with the release's `exir/`, as a checkout of ExecuTorch has it."""
    exir = upstream.unpacked(version) / "executorch" / "exir"
    shutil.copytree(exir, directory / "exir", ignore=shutil.ignore_patterns("__pycache__"))
    return repository(directory, {})


RELEASES = [
    version if version == versions.DEFAULT else pytest.param(version, marks=pytest.mark.slow)
    for version in versions.SUPPORTED
]


@pytest.mark.parametrize("version", RELEASES)
def test_git_am_takes_the_series_and_gives_what_the_wheel_has(version: str, tmp_path: Path) -> None:
    loaded = series.load()
    checkout = release_repository(version, tmp_path / "checkout")
    files = export.export(loaded, export.base_of(version), tmp_path / "out")
    git(checkout, "am", *map(str, files))
    expected = render.render(loaded, reader(upstream.unpacked(version) / "executorch"))
    changed = set(git(checkout, "diff", "--name-only", f"HEAD~{len(files)}").split())
    assert changed == set(expected)
    for path, text in expected.items():
        assert (checkout / path).read_text(encoding="utf-8") == text, path


@pytest.mark.parametrize("version", RELEASES)
def test_each_patch_goes_in_alone_but_for_what_it_requires(version: str, tmp_path: Path) -> None:
    loaded = series.load()
    checkout = release_repository(version, tmp_path / "checkout")
    for patch in loaded.patches:
        files = export.export(loaded.alone(patch), export.base_of(version), tmp_path / patch.number)
        git(checkout, "am", *map(str, files))
        git(checkout, "reset", "--quiet", "--hard", f"HEAD~{len(files)}")


@pytest.mark.slow
def test_each_patch_names_nothing_that_only_another_defines(tmp_path: Path) -> None:
    """What it requires is declared, by its tests, too."""
    loaded = series.load()
    release = reader(upstream.unpacked(versions.DEFAULT) / "executorch")
    for patch in loaded.patches:
        rendered = render.render(loaded.alone(patch), release)
        for file in filter(lambda file: is_python(file.path), patch.files):
            path = tmp_path / patch.name / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rendered[file.path], encoding="utf-8")
    command = [sys.executable, "-m", "flake8", "--isolated", "--select=F821", "."]
    linted = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.slow
def test_every_step_passes_upstream_s_linters(tmp_path: Path) -> None:
    loaded = series.load()
    checkout = release_repository(versions.DEFAULT, tmp_path / "checkout")
    shutil.copy(ROOT / ".flake8", checkout)
    base = export.base_of(versions.DEFAULT)
    for step in render.steps(loaded, base.read):
        for path, text in step.after.items():
            (checkout / path).write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "flake8", *step.after]
        linted = subprocess.run(command, cwd=checkout, check=False, capture_output=True, text=True)
        assert linted.returncode == 0, f"{step.patch.name}:\n{linted.stdout}{linted.stderr}"


def named_lines(overlaid: str, file: FilePatch) -> set[str]:
    """The lines of upstream's that a patch file says it changes."""
    spans: list[str] = []
    for name in file.replace:
        found = source.find(overlaid, name)
        assert found is not None
        spans.append(source.text_of(overlaid, found))
    for rule in file.rewrite:
        matches = source.parse(overlaid).find_all({"rule": rule.rule})
        for match in matches:
            start = overlaid.rfind("\n", 0, match.range().start.index) + 1
            end = source.next_line(overlaid, match.range().end.index)
            spans.append(overlaid[start:end])
    spans += [statement.text() for statement in source.import_statements(overlaid)]
    return {line for span in spans for line in span.splitlines()}


def test_a_patch_removes_only_lines_that_it_names() -> None:
    loaded = series.load()
    for step in render.steps(loaded, export.base_of(versions.DEFAULT).read):
        for file in step.patch.files:
            # A release has no build files.
            before = step.before.get(file.path)
            if before is None:
                continue
            after = step.after[file.path]
            named = named_lines(before, file)
            diff = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
            removed = [line[1:] for line in list(diff)[2:] if line.startswith("-")]
            stray = [line for line in removed if line.strip() and line not in named]
            assert not stray, f"{step.patch.name}: {file.path} removes {stray}"


def test_a_checkout_is_taken_at_head_and_its_author_signs(tmp_path: Path) -> None:
    checkout = repository(tmp_path / "checkout", {MODULE: UPSTREAM})
    (checkout / MODULE).write_text("broken", encoding="utf-8")
    base = export.base_of(str(checkout))
    assert base.dirty
    fork = make_series(
        tmp_path / "fork",
        p0001_try=PATCH.replace(
            "body: |",
            "upstream: https://github.com/pytorch/executorch/pull/1\n"
            "fixes: https://github.com/pytorch/executorch/issues/7345\n"
            "test_plan: make test\nbody: |",
        ),
    )
    (file,) = export.export(fork, base, tmp_path / "out", export.Options(7))
    assert file.name == "0007-Align-sizes.patch"
    git(checkout, "checkout", "--quiet", ".")
    git(checkout, "am", str(file))
    assert (checkout / MODULE).read_text(encoding="utf-8") == PATCHED
    assert git(checkout, "log", "-1", "--format=%an <%ae>%n%B").strip() == (
        "Ada Lovelace <ada@example.org>\n"
        "Align sizes\n\nWhy.\n\n"
        "Continues https://github.com/pytorch/executorch/pull/1\n\n"
        "Fixes #7345\n\n"
        "Test plan:\nmake test"
    )


def test_two_exports_are_the_same_bytes(tmp_path: Path) -> None:
    loaded, base = series.load(), export.base_of(versions.DEFAULT)
    first, second = (export.export(loaded, base, tmp_path / name) for name in "ab")
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_a_cover_letter_tells_what_each_patch_is_for(tmp_path: Path) -> None:
    checkout = repository(tmp_path / "checkout", {MODULE: UPSTREAM})
    second = (
        "subject: Pad\nrequires: [0003]\nbody: b\n"
        "files:\n  exir/memory_planning.py:\n    rewrite:\n"
        '      - {why: w, count: 1, rule: {pattern: "print($X)"}, fix: "print($X, 1)"}\n'
    )
    fork = make_series(
        tmp_path / "fork",
        p0003_try=PATCH.replace("body: |", "gain: sizes are aligned\nbody: |"),
        p0007_pad=second,
    )
    options = export.Options(has_cover=True, reroll=2)
    base = export.base_of(str(checkout))
    files = export.export(fork, base, tmp_path / "out", options)
    assert [file.name for file in files] == [
        "v2-0000-cover-letter.patch",
        "v2-0001-Align-sizes.patch",
        "v2-0002-Pad.patch",
    ]
    letter = files[0].read_text(encoding="utf-8")
    assert "[PATCH v2] Mutable buffers" in letter
    assert "1. Align sizes. Sizes are aligned.\n\n2. Pad. Needs 1.\n" in letter
    assert "***" not in letter
    again = export.export(fork, base, tmp_path / "again", options)
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]
    git(checkout, "am", *map(str, files[1:]))


def test_bad_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--onto 9\.9 is neither a release"):
        export.base_of("9.9")
    with pytest.raises(UserError, match="not a git checkout"):
        export.base_of(str(make_tree(tmp_path / "tree")))
