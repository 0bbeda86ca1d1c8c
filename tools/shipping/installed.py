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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools import versions
from tools.errors import UserError
from tools.patching import series as series_files
from tools.patching.render import check_claims
from tools.patching.series import Series
from tools.patching.tree import replace_files
from tools.paths import DIST, ROOT
from tools.shipping import upstream
from tools.shipping.wheel import SERIES_RECORD, build, dist_info, rendered_package, series_record

_VERSION_FILE = "executorch/version.py"


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

    def record(self) -> _Record:
        """What RECORD says is installed; nothing where a tree was put together without pip."""
        file = self.dist_info / "RECORD"
        return _record(file.read_text(encoding="utf-8")) if file.is_file() else {}


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

    Among them is what an earlier rendering left behind: a file that neither the release nor
    the series has any longer, or one that the series no longer touches.

    Raises UserError when there is none, or one of a release that isn't supported.
    """
    installed = find()
    if installed is None:
        raise UserError("executorch is not installed here; run `make setup`")
    wanted = _wanted(series_files.load(root), installed)
    return [
        path
        for path, content in wanted.items()
        if path != _VERSION_FILE and installed.read(path) != content
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
        files = {**changed, **_compiled_of_removed(installed, changed)}
        record = _record_with(installed.record(), files)
        place = installed.package.parent
        replace_files(
            {
                **{place / path: content for path, content in files.items()},
                installed.dist_info / "RECORD": _written(record).encode(),
            }
        )
    return sorted(changed)


def _is_custom(installed: Installed, version: str) -> bool:
    return installed.version == versions.custom(version) and installed.dist_info.is_dir()


def _changed(installed: Installed, root: Path) -> dict[str, bytes | None]:
    """What the custom wheel of this checkout has otherwise than the installed one, by path.

    None stands for no file.
    """
    series = series_files.load(root)
    wanted = _wanted(series, installed)
    record = f"{dist_info(installed.version)}/{SERIES_RECORD}"
    wanted[record] = series_record(series, installed.release).encode()
    return {path: content for path, content in wanted.items() if installed.read(path) != content}


def _wanted(series: Series, installed: Installed) -> dict[str, bytes | None]:
    """What the package should hold wherever it is not, or was not, the release's own."""
    check_claims(series)
    with zipfile.ZipFile(upstream.wheel(installed.release)) as archive:
        rendered = rendered_package(series, installed.release, archive)
        return {**_left_behind(installed, archive, rendered), **rendered}


def _left_behind(
    installed: Installed, archive: zipfile.ZipFile, rendered: Mapping[str, bytes]
) -> dict[str, bytes | None]:
    """What an earlier rendering put there and this one doesn't, as the release has it.

    RECORD tells: pip wrote it when it installed the wheel, and each refresh keeps it.
    """
    release = _record(archive.read(f"{dist_info(installed.release)}/RECORD").decode())
    return {
        path: archive.read(path) if path in release else None
        for path, row in installed.record().items()
        if path.startswith("executorch/")
        and "/__pycache__/" not in path
        and path not in rendered
        and row != release.get(path)
    }


def _compiled_of_removed(
    installed: Installed, changed: Mapping[str, bytes | None]
) -> dict[str, None]:
    """The bytecode of the modules that go, by path in the wheel."""
    place = installed.package.parent
    return {
        compiled.relative_to(place).as_posix(): None
        for path, content in changed.items()
        if content is None
        for compiled in (place / path).parent.glob(f"__pycache__/{Path(path).stem}.*.pyc")
    }


# The rows of RECORD by path: each is the path, a digest and a size.
_Record = dict[str, list[str]]


def _record(text: str) -> _Record:
    return {row[0]: row for row in csv.reader(io.StringIO(text)) if row}


def _record_with(rows: _Record, changed: Mapping[str, bytes | None]) -> _Record:
    rows = dict(rows)
    for path, content in changed.items():
        if content is None:
            rows.pop(path, None)
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows[path] = [path, f"sha256={digest}", str(len(content))]
    return rows


def _written(rows: _Record) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows.values())
    return text.getvalue()
