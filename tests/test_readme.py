"""Every command of the README is run: here, by CI, or in another test that is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
RUN_ELSEWHERE = {
    "make test": ".ci/run",
    "make lint": ".ci/run",
    ".venv/bin/python -m pytest exir/tests": "Makefile",  # make test
    "pip wheel . --no-deps -w dist": "tests/test_wheel.py",
    "EXECUTORCH_VERSION=1.4.1 pip wheel . --no-deps -w dist": "tests/test_wheel.py",
    ".venv/bin/python -m tools wheel --all": "tests/test_distribute.py",
    "make demo": "tests/test_demo.py",
    "make bench": "tests/test_benchmarks.py",
    "make fuzz N=20000": "tests/test_fuzz.py",
    "make upstream-tests": "tests/test_upstream_suites.py",
    "make matrix": "tools/matrix.py",
    "make models": "tests/test_real_models.py",
    ".venv/bin/python -m tools models examples/streaming.py:make": "tests/test_real_models.py",
}


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def test_each_command_is_run_somewhere() -> None:
    assert set(commands()) == {*RUN_HERE, *RUN_ELSEWHERE}
    for place in RUN_ELSEWHERE.values():
        assert (ROOT / place).is_file(), place


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


def test_the_table_of_patches_is_the_series() -> None:
    listed = re.findall(r"^\| (\d{4}) \|", README, flags=re.MULTILINE)
    assert listed == [file.name[:4] for file in sorted((ROOT / "patches").glob("*.yml"))]
