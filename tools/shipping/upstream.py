"""Get a release of ExecuTorch: its wheel, by pip, and the same wheel unpacked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.errors import UserError
from tools.patching import series
from tools.paths import CACHE
from tools.versions import SUPPORTED


@dataclass(frozen=True)
class Target:
    """Which of a release's wheels: pip's own names, None for this machine's."""

    platform: str | None = None
    python: str | None = None

    def pip_options(self) -> list[str]:
        if self.platform is None and self.python is None:
            return []
        options = ["--only-binary=:all:"]
        if self.platform is not None:
            options += ["--platform", self.platform]
        if self.python is not None:
            options += ["--python-version", self.python, "--implementation", "cp"]
        return options

    def folder(self) -> str:
        here = f"cp{sys.version_info.major}{sys.version_info.minor}"
        return "-".join((self.platform or sys.platform, self.python or here))


def check_version(version: str) -> None:
    if version not in (*SUPPORTED, *series.load().older_releases):
        raise UserError(
            f"ExecuTorch {version} is not supported; choose one of {', '.join(SUPPORTED)}"
        )


THIS_MACHINE = Target()


def wheel(version: str, target: Target = THIS_MACHINE) -> Path:
    """The release's wheel, downloaded once into the cache.

    Raises UserError for a version that isn't supported, and when pip can't get it.
    """
    check_version(version)
    folder = CACHE / "wheels" / target.folder()
    kept = sorted(folder.glob(f"executorch-{version}-*.whl"))
    if kept:
        return kept[0]
    with _partial(folder) as partial:
        _download(version, target, partial)
        (downloaded,) = partial.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(downloaded, folder / downloaded.name))


def stock(version: str) -> Path:
    """Where `unpacked` puts a release."""
    return CACHE / "stock" / version


def unpacked(version: str) -> Path:
    """A directory with the untouched release: what users call stock."""
    directory = stock(version)
    if directory.is_dir():
        return directory
    source = wheel(version)
    with _partial(directory) as partial:
        try:
            with zipfile.ZipFile(source) as archive:
                archive.extractall(partial / "tree")
        except zipfile.BadZipFile:
            source.unlink()
            raise UserError(f"{source.name} was damaged and is removed; run this again") from None
        try:
            (partial / "tree").rename(directory)
        except OSError:
            # Another process may have been quicker; a release is the same for both.
            if not directory.is_dir():
                raise
    return directory


@contextmanager
def _partial(place: Path) -> Iterator[Path]:
    """A temporary directory on the same disk as the final place, so that a rename does."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".partial-") as directory:
            yield Path(directory)
    except OSError as error:
        raise UserError(
            f"can't write {error.filename or place}: {error.strerror}; make room, or make "
            f"{place.parent} writable"
        ) from None


def _download(version: str, target: Target, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", f"executorch=={version}", "--no-deps"]
    command += ["--dest", str(folder), "--no-cache-dir", *target.pip_options()]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if result.returncode == 0:
        return
    errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
    reason = errors[-1].removeprefix("ERROR: ") if errors else "pip failed without a word"
    raise UserError(
        f"can't get the wheel of ExecuTorch {version} for {target.folder()}: {reason}. Is the "
        "network there, and does the release have a wheel for this Python and platform?"
    )
