"""What the repository holds was written for it: no run of upstream's lines stands here."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import versions
from tools.paths import ROOT
from tools.shipping import upstream

RUN = 5
_THIN = re.compile(r"^[\W_]*$")


def significant_lines(text: str) -> list[tuple[int, str]]:
    """(line number, line) without diff markers, imports, comments and lone punctuation."""
    kept: list[tuple[int, str]] = []
    inside_import = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"^[+-](?![+-])", " ", raw).strip()
        if inside_import:
            inside_import = ")" not in line
            continue
        if re.match(r"(from\s+\S+\s+)?import\s", line):
            inside_import = "(" in line and ")" not in line
            continue
        if line.startswith("#") or _THIN.match(line):
            continue
        kept.append((number, " ".join(line.split())))
    return kept


def runs(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Every run of RUN significant lines, with the number of its first."""
    lines = significant_lines(text)
    for start in range(len(lines) - RUN + 1):
        window = lines[start : start + RUN]
        yield window[0][0], tuple(line for _, line in window)


def upstream_runs(directory: Path) -> dict[tuple[str, ...], str]:
    found: dict[tuple[str, ...], str] = {}
    for file in sorted(directory.rglob("*")):
        if file.suffix in (".py", ".pyi", ".fbs", ".md", ".txt", ".yaml", ".yml", ".toml"):
            name = file.relative_to(directory).as_posix()
            for number, run in runs(file.read_text(encoding="utf-8")):
                found.setdefault(run, f"exir/{name}:{number}")
    return found


def repository_files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [file for file in files if file.is_file()]


def borrowed(text: str, known: dict[tuple[str, ...], str]) -> list[str]:
    """What of `text` is upstream's: the line here, the place there and the line itself."""
    return [
        f"line {number} is {known[run]}: {run[0]}" for number, run in runs(text) if run in known
    ]


@pytest.mark.parametrize("version", [versions.DEFAULT, "1.4.1"])
def test_no_file_repeats_upstream(version: str) -> None:
    known = upstream_runs(upstream.unpacked(version) / "executorch" / "exir")
    assert len(known) > 10_000
    faults = []
    for file in repository_files():
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        faults += [f"{file.relative_to(ROOT)}: {fault}" for fault in borrowed(text, known)]
    assert not faults, "\n".join(faults)


def test_a_borrowed_run_is_found_behind_diff_markers_and_comments() -> None:
    directory = upstream.unpacked(versions.DEFAULT) / "executorch" / "exir"
    known = upstream_runs(directory)
    original = (directory / "passes" / "reinplace.py").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(original) if line.startswith("def "))
    copied = "\n".join("+" + line + "\n# mine" for line in original[start : start + 12])
    assert borrowed(copied, known)
    assert not borrowed("\n".join(original[start : start + 3]), known)
