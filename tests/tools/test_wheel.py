"""The custom wheel: what is in it, what it says it is, and that it is the same anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from wheel.wheelfile import WheelFile

from tools import versions
from tools.errors import UserError
from tools.patching import series
from tools.patching.tree import apply
from tools.paths import ROOT
from tools.shipping import backend, upstream, wheel

NAME = f"executorch-{versions.custom(versions.DEFAULT)}"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="session")
def custom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build(series.load(), versions.DEFAULT, tmp_path_factory.mktemp("wheel"))


def test_everything_that_the_series_does_not_touch_is_the_release_s_own(custom: Path) -> None:
    release = zipfile.ZipFile(upstream.wheel(versions.DEFAULT))
    with release, zipfile.ZipFile(custom) as built:
        touched = {f"executorch/{path}" for path in series.load().paths}
        touched.add("executorch/version.py")
        ours = {name for name in built.namelist() if ".dist-info/" not in name}
        theirs = {name for name in release.namelist() if ".dist-info/" not in name}
        assert ours - theirs <= touched
        assert not {name for name in theirs - ours if not name.endswith("/")}
        for name in ours - touched:
            assert built.read(name) == release.read(name), name


def test_record_holds_for_every_file(custom: Path) -> None:
    with WheelFile(custom) as built:
        for name in built.namelist():
            built.read(name)  # raises where RECORD says otherwise or nothing


def test_metadata_differs_in_the_version_alone(custom: Path) -> None:
    with (
        zipfile.ZipFile(custom) as built,
        zipfile.ZipFile(upstream.wheel(versions.DEFAULT)) as release,
    ):
        ours = built.read(f"{NAME}.dist-info/METADATA").decode()
        theirs = release.read(f"executorch-{versions.DEFAULT}.dist-info/METADATA").decode()
        message = BytesParser().parsebytes(ours.encode())
        version = built.read("executorch/version.py").decode()
    assert ours.replace(f"Version: {versions.custom(versions.DEFAULT)}", "Version: 1.5.1") == theirs
    assert message["Version"] in Requirement("executorch==1.5.1").specifier
    assert f'__version__ = "{versions.custom(versions.DEFAULT)}"' in version


def test_the_series_is_recorded_in_the_wheel(custom: Path) -> None:
    loaded = series.load()
    with zipfile.ZipFile(custom) as built:
        record = json.loads(built.read(f"{NAME}.dist-info/{wheel.SERIES_RECORD}"))
    assert [each["subject"] for each in record["patches"]] == [p.subject for p in loaded.patches]
    for each, patch in zip(record["patches"], loaded.patches, strict=True):
        assert each["sha256"] == sha256(patch.source)
        assert len(each["definitions"]) == sum(len(f.define + f.replace) for f in patch.files)


def test_the_wheel_holds_what_apply_writes(custom: Path, tmp_path: Path) -> None:
    release = upstream.unpacked(versions.DEFAULT)
    shutil.copytree(release / "executorch" / "exir", tmp_path / "executorch" / "exir")
    changed = apply(series.load(), tmp_path)
    with zipfile.ZipFile(custom) as built:
        for path in changed:
            applied = (tmp_path / "executorch" / path).read_bytes()
            assert applied == built.read(f"executorch/{path}"), path
    assert changed


def copy_of_the_checkout(directory: Path) -> Path:
    """What a clone would hold, with the downloads at hand."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, directory / name)
    shutil.copytree(ROOT / ".cache" / "wheels", directory / ".cache" / "wheels")
    return directory


def test_two_directories_give_the_same_wheel(custom: Path, tmp_path: Path) -> None:
    elsewhere = copy_of_the_checkout(tmp_path / "elsewhere")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-m", "tools", "wheel", "--out", "here"]
    subprocess.run(command, cwd=elsewhere, check=True, env=environment, capture_output=True)
    assert sha256(elsewhere / "here" / custom.name) == sha256(custom)


def test_pip_wheel_gives_the_same_wheel(custom: Path, tmp_path: Path) -> None:
    checkout = copy_of_the_checkout(tmp_path / "checkout")
    # Without isolation: what the build needs is installed here, and downloads nothing.
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", "dist"], cwd=checkout, check=True, capture_output=True)
    assert sha256(checkout / "dist" / custom.name) == sha256(custom)


def test_setup_py_gives_the_same_wheel(custom: Path, tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert sha256(tmp_path / custom.name) == sha256(custom)


def test_there_is_no_source_distribution() -> None:
    with pytest.raises(SystemExit, match="build a wheel in a checkout"):
        backend.build_sdist("")


def test_pip_wheel_takes_another_release_by_name(tmp_path: Path) -> None:
    upstream.wheel("1.4.1")
    checkout = copy_of_the_checkout(tmp_path / "checkout")
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "EXECUTORCH_VERSION": "1.4.1"}
    subprocess.run(command, cwd=checkout, check=True, capture_output=True, env=environment)
    (built,) = checkout.glob("*.whl")
    assert built.name.startswith(f"executorch-1.4.1+mutbuf.{versions.REVISION}-")


def test_no_network_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(UserError, match=r"can't get the wheel of ExecuTorch 1\.5\.1") as caught:
        upstream.wheel(versions.DEFAULT)
    assert "Is the network there" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.whl"))


def test_a_full_disk_leaves_no_half_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="No space left on device; make room"):
        wheel.build(series.load(), versions.DEFAULT, tmp_path)
    assert not list(tmp_path.iterdir())
