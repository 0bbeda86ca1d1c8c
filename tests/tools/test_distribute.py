"""Wheels for other machines: their tags, contents and metadata, and the index of them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import versions
from tools.errors import UserError
from tools.patching import series
from tools.shipping import distribute, upstream
from tools.shipping.upstream import Target
from tools.shipping.wheel import build

# One of each kind of line end and tag; `python -m tools wheel --all` builds the rest alike.
TARGETS = (Target("macosx_14_0_arm64", "3.12"), Target("win_amd64", "3.13"))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("dist")
    return [build(series.load(), versions.DEFAULT, out, target) for target in TARGETS]


def test_name_and_tags_are_the_release_s_with_our_version(wheels: list[Path]) -> None:
    version = versions.custom(versions.DEFAULT)
    assert [wheel.name for wheel in wheels] == [
        f"executorch-{version}-cp312-cp312-macosx_14_0_arm64.whl",
        f"executorch-{version}-cp313-cp313-win_amd64.whl",
    ]
    for wheel in wheels:
        tag = wheel.stem.split("-", 2)[2]
        with zipfile.ZipFile(wheel) as archive:
            described = archive.read(f"executorch-{version}.dist-info/WHEEL").decode()
        assert f"Tag: {tag}" in described


def test_line_ends_are_the_release_s(wheels: list[Path]) -> None:
    for wheel, target in zip(wheels, TARGETS, strict=True):
        release = upstream.wheel(versions.DEFAULT, target)
        with zipfile.ZipFile(wheel) as built, zipfile.ZipFile(release) as original:
            name = "executorch/exir/passes/memory_planning_pass.py"
            ours, theirs = built.read(name), original.read(name)
        windows = b"\r\n" in theirs
        assert ours.count(b"\r\n") == (ours.count(b"\n") if windows else 0)
        assert windows == (target.platform == "win_amd64")


def test_check_wheel_contents_finds_nothing_that_the_release_lacks(wheels: list[Path]) -> None:
    for wheel, target in zip(wheels, TARGETS, strict=True):
        ours = complaints(wheel)
        theirs = complaints(upstream.wheel(versions.DEFAULT, target))
        assert ours == theirs


def complaints(wheel: Path) -> set[str]:
    command = [sys.executable, "-m", "check_wheel_contents", "--no-config", str(wheel)]
    printed = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    return {line.removeprefix(str(wheel)) for line in printed.splitlines()}


def test_pip_installs_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Target()
    monkeypatch.setattr(distribute, "_available", lambda version: iter([here]))
    (wheel,) = distribute.build_all(series.load(), versions.DEFAULT, tmp_path / "dist")
    name, digest = wheel.name, (tmp_path / "dist" / "SHA256SUMS").read_text().split()[0]
    assert f"#sha256={digest}" in (tmp_path / "dist/simple/executorch/index.html").read_text()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for variable in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    index = (tmp_path / "dist" / "simple").as_uri()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--index-url", index]
    command += ["--dest", str(tmp_path / "taken"), "executorch"]
    subprocess.run(command, check=True, capture_output=True)
    assert [path.name for path in (tmp_path / "taken").iterdir()] == [name]


def test_without_a_network_all_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(version: str, target: Target) -> Path:
        raise UserError("can't get the wheel: No matching distribution found")

    monkeypatch.setattr(upstream, "wheel", none)
    with pytest.raises(UserError, match="no wheel of ExecuTorch"):
        distribute.build_all(series.load(), versions.DEFAULT, tmp_path)
