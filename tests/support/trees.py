"""Patched trees of any release, for processes that import it by PYTHONPATH."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.patching import render, series
from tools.patching.series import Series
from tools.patching.tree import reader
from tools.shipping import upstream


def patched_tree(version: str, directory: Path, chosen: Series | None = None) -> Path:
    """Make `directory/executorch` out of a release: the series in `exir/`, links else."""
    release = upstream.unpacked(version) / "executorch"
    rendered = render.render(chosen or series.load(), reader(release))
    patched = directory / "executorch"
    patched.mkdir()
    for entry in release.iterdir():
        if entry.name != "exir":
            (patched / entry.name).symlink_to(entry)
    shutil.copytree(
        release / "exir", patched / "exir", ignore=shutil.ignore_patterns("__pycache__")
    )
    for path, text in rendered.items():
        (patched / path).write_text(text, encoding="utf-8")
    return directory
