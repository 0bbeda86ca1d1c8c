"""The series on every supported release: it applies, and each result imports."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import render, series, upstream, versions
from tools.tree import reader

MODULES = (
    "executorch.exir.memory_planning",
    "executorch.exir.passes.memory_planning_pass",
    "executorch.exir.passes.insert_write_back_for_buffers_pass",
)


@pytest.mark.parametrize("version", versions.SUPPORTED)
def test_the_series_applies_and_the_result_imports(version: str, tmp_path: Path) -> None:
    release = upstream.unpacked(version) / "executorch"
    rendered = render.render(series.load(), reader(release))
    patched = tmp_path / "executorch"
    patched.mkdir()
    for entry in release.iterdir():
        (patched / entry.name).symlink_to(entry)
    (patched / "exir").unlink()
    _copy_with(release / "exir", patched / "exir", rendered)
    script = "import importlib, sys; sys.path.insert(0, sys.argv[1])\n" + "\n".join(
        f"assert importlib.import_module({module!r}).__file__.startswith(sys.argv[1])"
        for module in MODULES
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


def _copy_with(source: Path, target: Path, rendered: dict[str, str]) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in rendered.items():
        (target.parent / path).write_text(text, encoding="utf-8")
