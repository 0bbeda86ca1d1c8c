"""The `executorch` that is installed beside these tools: is it what the checkout renders?"""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tools import series as series_files
from tools import upstream, versions
from tools.errors import UserError
from tools.paths import ROOT
from tools.render import check_claims
from tools.series import Series
from tools.tree import replace_files
from tools.wheel import SERIES_RECORD, record_line_hash, rendered_package, series_record

MEND = "run `make dev` (or `make setup` if nothing is installed)"


@dataclass(frozen=True)
class Installed:
    """Where the installed package is and which version it says it is."""

    site_packages: Path
    dist_info: Path
    version: str


def find() -> Installed | None:
    try:
        found = distribution("executorch")
    except PackageNotFoundError:
        return None
    site_packages = Path(str(found.locate_file("")))
    return Installed(
        site_packages, site_packages / f"executorch-{found.version}.dist-info", found.version
    )


def expected(series: Series, version: str) -> dict[str, bytes]:
    """The files that an installed custom wheel of this checkout has, beyond the release's."""
    check_claims(series)
    with zipfile.ZipFile(upstream.wheel(version)) as archive:
        files = rendered_package(series, version, archive)
    record = f"executorch-{versions.custom(version)}.dist-info/{SERIES_RECORD}"
    return {
        **{path: text.encode() for path, text in files.items()},
        record: series_record(series, version).encode(),
    }


def differences(version: str = versions.DEFAULT, root: Path = ROOT) -> list[str]:
    """The files in which the installed package isn't what the checkout renders.

    Raises UserError when the custom wheel isn't installed at all.
    """
    installed = _custom(version)
    wanted = expected(series_files.load(root), version)
    return [path for path, content in wanted.items() if _read(installed, path) != content]


def refresh(version: str = versions.DEFAULT, root: Path = ROOT) -> list[str]:
    """Put what the checkout renders into the installed package; return the files changed.

    RECORD follows, so that pip can still uninstall it whole.
    """
    installed = _custom(version)
    wanted = expected(series_files.load(root), version)
    changed = {
        path: content for path, content in wanted.items() if _read(installed, path) != content
    }
    if changed:
        record = installed.dist_info / "RECORD"
        new_record = _record_with(record.read_text(encoding="utf-8"), changed)
        files = {installed.site_packages / path: content for path, content in changed.items()}
        replace_files({**files, record: new_record.encode()})
    return sorted(changed)


def is_current(version: str = versions.DEFAULT) -> bool:
    """Whether the installed package is the custom wheel of this checkout, every byte."""
    installed = find()
    if installed is None or installed.version != versions.custom(version):
        return False
    return not differences(version)


def _custom(version: str) -> Installed:
    installed = find()
    wanted = versions.custom(version)
    if installed is None:
        raise UserError(f"executorch is not installed here; {MEND}")
    if installed.version != wanted:
        raise UserError(f"executorch {installed.version} is installed, not {wanted}; {MEND}")
    return installed


def _read(installed: Installed, path: str) -> bytes | None:
    file = installed.site_packages / path
    return file.read_bytes() if file.is_file() else None


def _record_with(record: str, changed: dict[str, bytes]) -> str:
    rows = {row[0]: row for row in csv.reader(io.StringIO(record))}
    for path, content in changed.items():
        rows[path] = [path, record_line_hash(content), str(len(content))]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows.values())
    return text.getvalue()


def digest(files: dict[str, bytes]) -> str:
    """One value for all of the files, to compare trees by."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(path.encode() + b"\0" + hashlib.sha256(files[path]).digest())
    return total.hexdigest()
