"""The `executorch` that Python finds here: is it what this checkout renders?"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools import series as series_files
from tools import upstream, versions
from tools.errors import UserError
from tools.paths import DIST, ROOT
from tools.render import check_claims
from tools.series import Series
from tools.tree import replace_files
from tools.wheel import SERIES_RECORD, build, dist_info, rendered_package, series_record


@dataclass(frozen=True)
class Installed:
    """The package directory, and the version that the package says it is."""

    package: Path
    version: str

    @property
    def release(self) -> str:
        """The release that it is made of."""
        return self.version.partition("+")[0]

    @property
    def dist_info(self) -> Path:
        return self.package.parent / dist_info(self.version)

    def read(self, path: str) -> bytes | None:
        """The content of a file, by its path in the wheel."""
        file = self.package.parent / path
        return file.read_bytes() if file.is_file() else None


def find() -> Installed | None:
    """What `import executorch` would take, without importing it."""
    spec = importlib.util.find_spec("executorch")
    for location in spec.submodule_search_locations or () if spec is not None else ():
        package = Path(location)
        if (package / "version.py").is_file() and (package / "exir").is_dir():
            names: dict[str, str] = {}
            exec((package / "version.py").read_text(encoding="utf-8"), names)
            return Installed(package, names["__version__"])
    return None


def differences(root: Path = ROOT) -> list[str]:
    """The files in which the package found here isn't what the checkout renders for it.

    Raises UserError when there is none, or one of a release that isn't supported.
    """
    installed = find()
    if installed is None:
        raise UserError("executorch is not installed here; run `make setup`")
    wanted = _rendered(series_files.load(root), installed.release)
    return [
        path
        for path, content in wanted.items()
        if path != "executorch/version.py" and installed.read(path) != content
    ]


def install(version: str = versions.DEFAULT, root: Path = ROOT) -> bool:
    """Build and install the custom wheel with pip unless it is here; say whether it was."""
    installed = find()
    if installed is not None and _is_custom(installed, version) and not _changed(installed, root):
        return False
    wheel = build(series_files.load(root), version, DIST)
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--constraint", str(root / "requirements.txt"), str(wheel)]
    if installed is not None:
        command += ["--force-reinstall", "--no-deps"]
    if subprocess.run(command, check=False).returncode != 0:
        raise UserError("pip could not install the wheel; what it says stands above")
    return True


def refresh(version: str = versions.DEFAULT, root: Path = ROOT) -> list[str]:
    """Put what the checkout renders into the installed package; return the files changed.

    RECORD follows, so that pip can still uninstall it whole.
    """
    installed = find()
    if installed is None or not _is_custom(installed, version):
        found = "nothing" if installed is None else installed.version
        raise UserError(
            f"executorch {versions.custom(version)} is to be installed here, found {found}; "
            "run `make setup`"
        )
    changed = _changed(installed, root)
    if changed:
        record = installed.dist_info / "RECORD"
        new_record = _record_with(record.read_text(encoding="utf-8"), changed)
        files = {installed.package.parent / path: content for path, content in changed.items()}
        replace_files({**files, record: new_record.encode()})
    return sorted(changed)


def _is_custom(installed: Installed, version: str) -> bool:
    return installed.version == versions.custom(version) and installed.dist_info.is_dir()


def _changed(installed: Installed, root: Path) -> dict[str, bytes]:
    """What the custom wheel of this checkout has otherwise than the installed one."""
    series = series_files.load(root)
    wanted = _rendered(series, installed.release)
    record = f"{dist_info(installed.version)}/{SERIES_RECORD}"
    wanted[record] = series_record(series, installed.release).encode()
    return {path: content for path, content in wanted.items() if installed.read(path) != content}


def _rendered(series: Series, version: str) -> dict[str, bytes]:
    check_claims(series)
    with zipfile.ZipFile(upstream.wheel(version)) as archive:
        return rendered_package(series, version, archive)


def _record_with(record: str, changed: dict[str, bytes]) -> str:
    rows = {row[0]: row for row in csv.reader(io.StringIO(record))}
    for path, content in changed.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows[path] = [path, f"sha256={digest}", str(len(content))]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows.values())
    return text.getvalue()
