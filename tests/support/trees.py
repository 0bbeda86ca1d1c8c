"""Patched trees of any release, for processes that import it by PYTHONPATH."""

from __future__ import annotations

from pathlib import Path

from tools.patching import series, tree
from tools.patching.series import Series


def patched_tree(version: str, directory: Path, chosen: Series | None = None) -> Path:
    """Make `directory/executorch` out of a release, with all patches for it or those chosen."""
    return tree.patched_tree(version, directory, chosen or series.load().for_release(version))
