"""The series as `git format-patch` files, for a release or for a checkout of ExecuTorch.

Git itself makes them, in a scratch repository that holds just the files of the series.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tools.errors import UserError
from tools.patching.newlines import decoded
from tools.patching.render import Read, steps
from tools.patching.series import Patch, Series, load
from tools.patching.tree import exir_parent, reader
from tools.paths import ROOT
from tools.shipping import upstream
from tools.versions import SUPPORTED


@dataclass(frozen=True)
class Base:
    """What the commits go onto."""

    read: Read
    prefix: str  # where exir/ is in the repository: "" or a directory with a slash
    config: Path  # where git is asked who the author is
    dirty: bool = False
    release: str | None = None  # None for a checkout

    def fitting(self, series: Series) -> Series:
        """The patches that go onto it."""
        return series.for_main() if self.release is None else series.for_release(self.release)


@dataclass(frozen=True)
class Change:
    """How many lines a patch adds and removes, over all of its files."""

    patch: Patch
    added: int
    removed: int


def base_of(onto: str) -> Base:
    """A release by its version, or a git checkout by its path.

    Raises UserError for what is neither.
    """
    if onto in (*SUPPORTED, *load().older_releases):
        package = upstream.unpacked(onto) / "executorch"
        return Base(reader(package), "", ROOT, release=onto)
    checkout = Path(onto)
    if not checkout.is_dir():
        known = ", ".join(SUPPORTED)
        raise UserError(f"--onto {onto} is neither a release ({known}) nor a directory")
    parent = exir_parent(checkout)
    top = _git(checkout, "rev-parse", "--show-toplevel", missing="not a git checkout").strip()
    prefix = parent.resolve().relative_to(Path(top).resolve()).as_posix() + "/"
    prefix = "" if prefix == "./" else prefix
    dirty = bool(_git(checkout, "status", "--porcelain", "--untracked-files=no").strip())
    return Base(_committed(checkout, prefix), prefix, checkout, dirty)


def _committed(checkout: Path, prefix: str) -> Read:
    def read(path: str) -> str | None:
        shown = subprocess.run(
            ["git", "-C", str(checkout), "show", f"HEAD:{prefix}{path}"],
            check=False,
            capture_output=True,
        )
        return decoded(shown.stdout) if shown.returncode == 0 else None

    return read


@dataclass(frozen=True)
class Options:
    """How the files are made."""

    start_number: int = 1
    has_cover: bool = False
    reroll: int | None = None

    def for_git(self) -> list[str]:
        options = [f"--start-number={self.start_number}", "--no-numbered"]
        if self.has_cover:
            options += ["--cover-letter", "--cover-from-description=subject"]
        if self.reroll is not None:
            options.append(f"--reroll-count={self.reroll}")
        return options


def export(series: Series, base: Base, out: Path, options: Options | None = None) -> list[Path]:
    """Write one `git format-patch` file a patch into `out`; return their paths.

    Raises UserError for conflicts, for an author that git doesn't know, and for a directory
    that can't be written.
    """
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch)
        commit(series, base, repository)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"can't write {out}: {error.strerror}") from None
        _git(repository, "config", "branch.main.description", cover(base.fitting(series)))
        made = (options or Options()).for_git()
        made += [
            "--no-signature",
            "--zero-commit",
            "--full-index",
            f"--output-directory={out.resolve()}",
        ]
        printed = _git(repository, "format-patch", *made, "base..main", environment=_dates())
    return [Path(line) for line in printed.splitlines()]


_COVER_WIDTH = 88


def cover(series: Series) -> str:
    """The cover letter: what the series is for, and each patch with what a user gains."""
    places = {patch.number: place for place, patch in enumerate(series.patches, start=1)}
    patches = "\n\n".join(
        _entry(place, patch, [str(places[each]) for each in patch.requires if each in places])
        for place, patch in enumerate(series.patches, start=1)
    )
    return (
        "Mutable buffers: no lost update, less memory, shared on any arena\n\n"
        "Programs that keep state in mutable buffers (key/value caches, streaming speech and\n"
        "audio, sensors) lose updates in some shapes, hold each state twice, and share it between\n"
        "methods on one arena only. The patches are independent unless one needs another:\n\n"
        f"{patches}\n\n"
        "Each patch has its tests with it, and they pass with just the patches that it needs.\n"
    )


def _entry(place: int, patch: Patch, needs: list[str]) -> str:
    told = [f"{patch.gain[0].upper()}{patch.gain[1:]}."] if patch.gain else []
    told += [f"Needs {' and '.join(needs)}."] if needs else []
    text = " ".join([f"{place}. {patch.subject}.", *told])
    return textwrap.fill(text, _COVER_WIDTH, subsequent_indent="   ")


def changes(series: Series, base: Base) -> list[Change]:
    """What `git diff --numstat` counts for each patch."""
    series = base.fitting(series)
    with tempfile.TemporaryDirectory() as scratch:
        commits = commit(series, base, Path(scratch))
        result = []
        for patch, name in zip(series.patches, commits, strict=True):
            counted = _git(Path(scratch), "show", "--numstat", "--format=", name)
            rows = [line.split("\t") for line in counted.splitlines() if line]
            added, removed = (sum(int(row[column]) for row in rows) for column in (0, 1))
            result.append(Change(patch, added, removed))
        return result


def commit(series: Series, base: Base, repository: Path) -> list[str]:
    """Commit upstream's files as `base`, then each patch; return the commits' names."""
    author = _author(base.config)
    series = base.fitting(series)
    rendered = steps(series, base.read)
    _git(repository, "init", "--quiet", "--initial-branch=main")
    for key, value in {**author, "commit.gpgsign": "false", "core.autocrlf": "false"}.items():
        _git(repository, "config", key, value)
    for path in series.paths:
        text = base.read(path)
        if text is not None:
            _write(repository / (base.prefix + path), text)
    _commit(repository, "base")
    _git(repository, "tag", "base")
    names = []
    for step in rendered:
        for path, text in step.after.items():
            _write(repository / (base.prefix + path), text)
        _commit(repository, message(step.patch))
        names.append(_git(repository, "rev-parse", "HEAD").strip())
    return names


def message(patch: Patch) -> str:
    """The commit's message: what the patch file says, in upstream's order."""
    parts = [patch.subject, patch.body.strip()]
    if patch.upstream is not None:
        parts.append(f"Continues {patch.upstream}")
    if patch.fixes is not None:
        parts.append(f"Fixes {_short(patch.fixes)}")
    if patch.test_plan is not None:
        parts.append(f"Test plan:\n{patch.test_plan.strip()}")
    return "\n\n".join(parts) + "\n"


def _short(url: str) -> str:
    """An issue of upstream's by number, as GitHub closes it; anything else as it is."""
    found = re.fullmatch(r"https://github\.com/pytorch/executorch/issues/(\d+)", url)
    return f"#{found[1]}" if found else url


def _author(where: Path) -> dict[str, str]:
    author = {}
    for key in ("user.name", "user.email"):
        asked = subprocess.run(
            ["git", "-C", str(where), "config", key], check=False, capture_output=True, text=True
        )
        author[key] = asked.stdout.strip()
    if not all(author.values()):
        raise UserError(
            "git doesn't know who you are: run `git config --global user.name ...` and "
            "`git config --global user.email ...`"
        )
    return author


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8", newline="\n")


def _commit(repository: Path, text: str) -> None:
    # The date of the series, not of the run: the same input gives the same files.
    _git(repository, "add", "--all")
    _git(repository, "commit", "--quiet", "--allow-empty", "-m", text, environment=_dates())


def _dates() -> dict[str, str]:
    date = _date()
    return {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}


def _date() -> str:
    asked = subprocess.run(
        ["git", "-C", str(ROOT), "log", "-1", "--format=%cI"],
        check=False,
        capture_output=True,
        text=True,
    )
    return asked.stdout.strip() or "1980-01-01T00:00:00Z"


def _git(
    where: Path,
    *arguments: str,
    missing: str | None = None,
    environment: dict[str, str] | None = None,
) -> str:
    result = subprocess.run(
        ["git", "-C", str(where), *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    if result.returncode != 0:
        reason = missing or (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"{where}: git {arguments[0]}: {reason}")
    return result.stdout
