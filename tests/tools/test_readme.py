"""Every command of the README is run: here, by CI, or in another test that is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_tree import PATCH, make_series
from tools.errors import UserError
from tools.patching import series
from tools.patching.readme import patch_table, releases, updated
from tools.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")

# Run as they stand, but for where they write and which Python they take.
RUN_HERE = (
    ".venv/bin/python -m tools export --onto 1.5.1 --out patches-out",
    ".venv/bin/python -m tools patches",
    ".venv/bin/python -m tools plan examples/streaming.py:make --out plan.html --png plan.png",
    ".venv/bin/python -m tools wheel --platform macosx_14_0_arm64 --python 3.12",
    "make dev",
)
# The place, and what stands there that runs it.
RUN_ELSEWHERE = {
    "make test": (".ci/run", "make test"),
    "make lint": (".ci/run", "make lint"),
    ".venv/bin/python -m pytest exir/tests": ("Makefile", "-m pytest .*exir/tests"),
    "pip wheel . --no-deps -w dist": ("tests/tools/test_wheel.py", '"pip", "wheel", "\\."'),
    "EXECUTORCH_VERSION=1.4.1 pip wheel . --no-deps -w dist": (
        "tests/tools/test_wheel.py",
        '"EXECUTORCH_VERSION": "1.4.1"',
    ),
    ".venv/bin/python -m tools wheel --all": ("tests/tools/test_distribute.py", r"build_all\("),
    "make demo": ("tests/tools/test_demo.py", '"-m", "demo"'),
    "make bench": ("tests/tools/test_benchmarks.py", '"-m", "benchmarks"'),
    "make fuzz N=20000": ("tests/fuzz/test_fuzz.py", r"run\(checker.check, Batch"),
    "make upstream-tests": ("tests/tools/test_upstream_suites.py", r"upstream_suites\.\w+\("),
    "make matrix": (".github/workflows/nightly.yml", "make matrix"),
    "make models": ("tests/tools/test_real_models.py", "benchmarks.real"),
    ".venv/bin/python -m tools models examples/streaming.py:make": (
        "tests/tools/test_real_models.py",
        '"-m", "tools", "models"',
    ),
}


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def test_each_command_is_run_somewhere() -> None:
    assert set(commands()) == {*RUN_HERE, *RUN_ELSEWHERE}
    for command, (place, what) in RUN_ELSEWHERE.items():
        text = (ROOT / place).read_text(encoding="utf-8")
        assert re.search(what, text), f"{command}: {place} has no {what}"


def test_each_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("command", [each for each in RUN_HERE if " -m tools" in each])
def test_a_command_of_the_tools_does_as_it_says(command: str, tmp_path: Path) -> None:
    _, _, arguments = command.partition(" -m ")
    words = [
        str(tmp_path / word) if word in ("patches-out", "plan.html", "plan.png") else word
        for word in arguments.split()
    ]
    words += ["--out", str(tmp_path)] if " wheel " in command else []
    environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = [word for word in words if word.startswith(str(tmp_path))]
    assert all(Path(word).exists() for word in written)


def test_the_quick_start_of_developing_changes_nothing_when_current() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools", "check"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_it_says_of_the_patches_is_the_series() -> None:
    assert updated(README, series.load()) == README, "run `python -m tools readme`"


def test_the_table_tells_what_is_merged_and_since_when(tmp_path: Path) -> None:
    second = "subject: B\nbody: b\nfiles: {exir/b.py: {define: [b]}}\n"
    loaded = make_series(
        tmp_path,
        p0001_old=PATCH.replace("body", "since: 1.3.1\ngain: sizes are aligned\nbody", 1),
        p0002_merged=second + "until: 1.6.0\nstate: merged\n"
        "upstream: https://github.com/pytorch/executorch/pull/12\n",
    )
    assert patch_table(loaded).splitlines()[2:] == [
        "| 0001 | sizes are aligned | |",
        "| 0002 | B | [#12](https://github.com/pytorch/executorch/pull/12), merged, in 1.6.0 |",
    ]
    assert releases(loaded).splitlines()[1:] == [
        "On 1.3.1, just 0001 apply and import; nothing else is checked there."
    ]
    with pytest.raises(UserError, match="no single part"):
        updated("# Nothing\n", loaded)
