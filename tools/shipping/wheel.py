"""Build the custom wheel: the release's own wheel with the series in it.

What the series doesn't touch is copied as it is, compressed bytes and all; what it touches
is stored uncompressed. So the result depends on no zlib and no clock.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wheel.wheelfile import WheelFile  # type: ignore[import-untyped]

from tools import versions
from tools.errors import UserError
from tools.patching import source as python
from tools.patching.newlines import decoded, encoded_like
from tools.patching.render import check_claims, render
from tools.patching.series import Patch, Series
from tools.shipping import upstream
from tools.shipping.upstream import Target

SERIES_RECORD = "mutbuf-series.json"
# Bytes of a local file header before the name (APPNOTE.TXT 4.3.7).
_LOCAL_HEADER = 30
# The oldest date that a zip file can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(series: Series, version: str, out: Path, target: Target = upstream.THIS_MACHINE) -> Path:
    """Write the custom wheel of a release into `out` and return its path.

    Raises UserError for conflicts and for a directory that can't be written.
    """
    check_claims(series)
    series = series.for_release(version)
    release = upstream.wheel(version, target)
    with zipfile.ZipFile(release) as archive:
        changes = _changes(series, version, archive)
        name = release.name.replace(f"-{version}-", f"-{versions.custom(version)}-", 1)
        try:
            return _write(archive, changes, version, out / name)
        except OSError as error:
            raise UserError(
                f"can't write {out / name}: {error.strerror}; make room or choose another --out"
            ) from None


def dist_info(version: str) -> str:
    return f"executorch-{version}.dist-info"


def rendered_package(series: Series, version: str, archive: zipfile.ZipFile) -> dict[str, bytes]:
    """The files of the package that differ from the release, by path in the wheel."""
    names = set(archive.namelist())

    def original(path: str) -> bytes | None:
        return archive.read(path) if path in names else None

    def read(path: str) -> str | None:
        content = original(f"executorch/{path}")
        return None if content is None else decoded(content)

    rendered = render(series.for_release(version), read)
    texts = {f"executorch/{path}": text for path, text in rendered.items()}
    files = {path: encoded_like(text, original(path)) for path, text in texts.items()}
    return {**files, "executorch/version.py": _version(archive, version)}


def _version(archive: zipfile.ZipFile, version: str) -> bytes:
    old = archive.read("executorch/version.py")
    line = f'__version__ = "{versions.custom(version)}"'.encode()
    new, count = re.subn(rb'^__version__ = "[^"]*"', line, old, flags=re.MULTILINE)
    if count != 1:
        raise UserError('executorch/version.py has no single line `__version__ = "..."`')
    return new


def _changes(series: Series, version: str, archive: zipfile.ZipFile) -> dict[str, bytes]:
    changes = rendered_package(series, version, archive)
    old, new = dist_info(version), dist_info(versions.custom(version))
    for entry in archive.namelist():
        if entry.startswith(f"{old}/") and not entry.endswith(("/", "/RECORD")):
            changes[new + entry.removeprefix(old)] = archive.read(entry)
    changes[f"{new}/METADATA"] = _metadata(changes[f"{new}/METADATA"], version)
    changes[f"{new}/{SERIES_RECORD}"] = series_record(series, version).encode()
    return changes


def _metadata(text: bytes, version: str) -> bytes:
    line = re.compile(rb"^Version: %s(?=\r?$)" % re.escape(version).encode(), re.MULTILINE)
    new, count = line.subn(f"Version: {versions.custom(version)}".encode(), text)
    if count != 1:
        raise UserError(f"the release's METADATA has no single line `Version: {version}`")
    return new


def series_record(series: Series, version: str) -> str:
    """What is in the wheel: each patch with its sha256, and that of each definition."""
    record = {
        "upstream": version,
        "revision": versions.REVISION,
        "patches": [_patch_record(series, patch) for patch in series.for_release(version).patches],
    }
    return json.dumps(record, indent=2) + "\n"


def _patch_record(series: Series, patch: Patch) -> dict[str, object]:
    return {
        "subject": patch.subject,
        "file": patch.source.name,
        "sha256": _sha256(patch.source.read_bytes()),
        "definitions": {
            f"{file.path}: {name}": _sha256(_definition(series, file.path, name).encode())
            for file in patch.files
            for name in (*file.define, *file.replace)
        },
    }


def _definition(series: Series, path: str, name: str) -> str:
    overlay = series.overlay(path) or ""
    found = python.find(overlay, name)
    assert found is not None  # rendering has spliced it
    return python.text_of(overlay, found)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(archive: zipfile.ZipFile, changes: dict[str, bytes], version: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The wheel library reads the version from the name, so the partial file has it, too.
    folder = path.parent / f".partial-{os.getpid()}"
    folder.mkdir()
    try:
        with _fixed_clock(), _CopyingWheelFile(folder / path.name, "w", zipfile.ZIP_STORED) as new:
            _copy_untouched(archive, new, changes, version)
            for entry in sorted(changes):
                new.writestr(_entry(entry), changes[entry])
        os.replace(folder / path.name, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return path


def _copy_untouched(
    archive: zipfile.ZipFile, new: _CopyingWheelFile, changes: dict[str, bytes], version: str
) -> None:
    old = dist_info(version)
    record = csv.reader(io.TextIOWrapper(archive.open(f"{old}/RECORD"), encoding="utf-8"))
    recorded = {name: (digest, size) for name, digest, size in record}
    for info in archive.infolist():
        if info.filename in changes or info.filename.startswith(f"{old}/") or info.is_dir():
            continue
        digest, size = recorded[info.filename]
        new.copy(archive, info, digest, int(size))


def _entry(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=_EPOCH)
    info.compress_type = zipfile.ZIP_STORED
    info.external_attr = 0o100644 << 16
    info.create_system = 3
    return info


@contextmanager
def _fixed_clock() -> Iterator[None]:
    """The wheel library dates RECORD by SOURCE_DATE_EPOCH, the reproducible builds' name."""
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = "315532800"  # 1980-01-01
    try:
        yield
    finally:
        if before is None:
            del os.environ["SOURCE_DATE_EPOCH"]
        else:
            os.environ["SOURCE_DATE_EPOCH"] = before


class _CopyingWheelFile(WheelFile):  # type: ignore[misc]
    """A wheel file that can take an entry of another zip file without compressing it anew."""

    def copy(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, digest: str, size: int) -> None:
        """Copy an entry; `digest` and `size` (bytes) are those of the archive's RECORD."""
        source = archive.fp
        assert source is not None and self.fp is not None
        source.seek(info.header_offset)
        header = source.read(_LOCAL_HEADER)
        name_length, extra_length = (
            int.from_bytes(header[at : at + 2], "little") for at in (26, 28)
        )
        source.seek(info.header_offset + len(header) + name_length + extra_length)
        content = source.read(info.compress_size)

        copied = zipfile.ZipInfo(info.filename, info.date_time)
        copied.compress_type = info.compress_type
        copied.external_attr = info.external_attr
        copied.create_system = info.create_system
        copied.CRC, copied.file_size, copied.compress_size = info.CRC, info.file_size, len(content)
        start = self.fp.seek(self.start_dir)  # type: ignore[has-type]
        copied.header_offset = start
        self.fp.write(copied.FileHeader(zip64=False))
        self.fp.write(content)
        self.start_dir = self.fp.tell()
        self.filelist.append(copied)
        self.NameToInfo[copied.filename] = copied
        self._didModify = True

        algorithm, _, value = digest.partition("=")
        self._file_hashes[copied.filename] = (algorithm, value)
        self._file_sizes[copied.filename] = size
