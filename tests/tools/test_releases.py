"""The series on every supported release: it applies, each result imports, and the new tests
pass on the oldest line, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.trees import patched_tree
from tools import versions
from tools.errors import Conflicts
from tools.patching import series
from tools.paths import ROOT

MODULES = (
    "executorch.exir.memory_planning",
    "executorch.exir.passes.memory_planning_pass",
    "executorch.exir.passes.insert_write_back_for_buffers_pass",
)


def import_from(tree: Path) -> None:
    script = "import importlib, sys; sys.path.insert(0, sys.argv[1])\n" + "\n".join(
        f"assert importlib.import_module({module!r}).__file__.startswith(sys.argv[1])"
        for module in MODULES
    )
    subprocess.run([sys.executable, "-c", script, str(tree)], check=True)


@pytest.mark.parametrize("version", versions.SUPPORTED)
def test_the_series_applies_and_the_result_imports(version: str, tmp_path: Path) -> None:
    import_from(patched_tree(version, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("version", series.load().older_releases)
def test_what_fits_an_older_release_applies_and_imports(version: str, tmp_path: Path) -> None:
    loaded = series.load()
    import_from(patched_tree(version, tmp_path, loaded.for_release(version)))
    for patch in (patch for patch in loaded.patches if not patch.is_for(version)):
        # What is said not to fit doesn't apply, or doesn't import.
        (tmp_path / patch.number).mkdir()
        with pytest.raises((Conflicts, subprocess.CalledProcessError)):
            import_from(patched_tree(version, tmp_path / patch.number, loaded.alone(patch)))


@pytest.mark.slow
def test_the_new_tests_pass_on_1_4_1(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(patched_tree("1.4.1", tmp_path))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "exir/tests"],
        cwd=ROOT, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
