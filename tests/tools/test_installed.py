"""What `tools refresh` and `tools check` see of the package that is installed."""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from tests.support.small_tree import MODULE, PATCH, PATCHED, UPSTREAM, make_series
from tools import versions
from tools.errors import UserError
from tools.patching.tree import replace_files
from tools.shipping import installed, upstream
from tools.shipping.installed import Installed
from tools.shipping.wheel import dist_info

PLAIN = "exir/plain.py"
REWRITE_PLAIN = f"""\
subject: Count to two
body: b
files:
  {PLAIN}:
    rewrite:
      - why: one is not enough
        count: 1
        rule: {{pattern: "1"}}
        fix: "2"
"""
NEW = "exir/new/module.py"
ADD_NEW = f"""\
subject: Add a module
body: b
files:
  {NEW}:
    define: [fresh]
"""
NEW_TEXT = "# Our header.\n\n\ndef fresh() -> int:\n    return 1\n"
CUSTOM = versions.custom(versions.DEFAULT)


def row(path: str, content: bytes) -> list[str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return [path, f"sha256={digest}", str(len(content))]


def write_record(file: Path, contents: dict[str, bytes]) -> None:
    with file.open("w", encoding="utf-8", newline="") as text:
        csv.writer(text, lineterminator="\n").writerows(
            row(path, content) for path, content in contents.items()
        )


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """A small custom wheel as pip would install it, with nothing of the series in it yet."""
    release = {
        "executorch/version.py": f'__version__ = "{versions.DEFAULT}"\n'.encode(),
        f"executorch/{MODULE}": UPSTREAM.encode(),
        f"executorch/{PLAIN}": b"ONE = 1\n",
    }
    record = tmp_path / "RECORD"
    write_record(record, release)
    with zipfile.ZipFile(tmp_path / "release.whl", "w") as archive:
        for path, content in release.items():
            archive.writestr(path, content)
        archive.write(record, f"{dist_info(versions.DEFAULT)}/RECORD")
    monkeypatch.setattr(upstream, "wheel", lambda version: tmp_path / "release.whl")

    site = tmp_path / "site"
    for path, content in release.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    (site / dist_info(CUSTOM)).mkdir()
    write_record(site / dist_info(CUSTOM) / "RECORD", release)
    found = Installed(site / "executorch", CUSTOM)
    monkeypatch.setattr(installed, "find", lambda: found)
    return found


def fork(directory: Path, *, new: bool = True, plain: bool = True) -> Path:
    """A checkout whose series has the patches that are asked for, beside that of small_tree."""
    patches = {"p0001_align": PATCH}
    patches |= {"p0002_new": ADD_NEW} if new else {}
    patches |= {"p0003_plain": REWRITE_PLAIN} if plain else {}
    made = make_series(directory, **patches)
    if new:
        (directory / NEW).parent.mkdir(parents=True)
        (directory / NEW).write_text(NEW_TEXT, encoding="utf-8")
    return made.root


def site_files(package: Installed) -> dict[str, bytes]:
    site = package.package.parent
    return {
        path.relative_to(site).as_posix(): path.read_bytes()
        for path in site.rglob("*")
        if path.is_file()
    }


def assert_record_holds(package: Installed) -> None:
    """Each file is recorded as it is, and nothing else is."""
    files = site_files(package)
    record = f"{dist_info(CUSTOM)}/RECORD"
    rows = list(csv.reader(files.pop(record).decode().splitlines()))
    assert sorted(rows) == sorted(row(path, content) for path, content in files.items())


def test_refresh_writes_what_the_checkout_renders(package: Installed, tmp_path: Path) -> None:
    checkout = fork(tmp_path / "fork")
    assert {f"executorch/{path}" for path in (MODULE, NEW, PLAIN)} < set(
        installed.refresh(root=checkout)
    )
    assert installed.differences(checkout) == []
    assert installed.refresh(root=checkout) == []
    files = site_files(package)
    assert files[f"executorch/{MODULE}"] == PATCHED.encode()
    assert files[f"executorch/{NEW}"] == NEW_TEXT.encode()
    assert files[f"executorch/{PLAIN}"] == b"ONE = 2\n"
    assert_record_holds(package)


def test_what_is_no_longer_rendered_goes(package: Installed, tmp_path: Path) -> None:
    """A file of our own is removed, its bytecode too; upstream's becomes upstream's again."""
    installed.refresh(root=fork(tmp_path / "fork"))
    compiled = package.package / "exir" / "new" / "__pycache__" / "module.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"bytecode")

    later = fork(tmp_path / "later", new=False, plain=False)
    gone = [f"executorch/{NEW}", f"executorch/{PLAIN}"]
    assert sorted(installed.differences(later)) == gone
    assert set(gone) < set(installed.refresh(root=later))
    assert installed.differences(later) == []
    files = site_files(package)
    assert f"executorch/{NEW}" not in files
    assert not compiled.exists()
    assert files[f"executorch/{PLAIN}"] == b"ONE = 1\n"
    assert_record_holds(package)


def test_what_pip_and_others_put_there_stays(package: Installed, tmp_path: Path) -> None:
    """Bytecode that pip recorded, files that nobody recorded, and scripts of the wheel."""
    record = package.dist_info / "RECORD"
    with record.open("a", encoding="utf-8") as text:
        text.write("executorch/exir/__pycache__/plain.cpython-311.pyc,,\n../../../bin/flatc,,\n")
    (package.package / "exir" / "own.py").write_text("OWN = 1\n", encoding="utf-8")
    checkout = fork(tmp_path / "fork")
    installed.refresh(root=checkout)
    assert installed.differences(checkout) == []
    kept = record.read_text(encoding="utf-8")
    assert "executorch/exir/__pycache__/plain.cpython-311.pyc,,\n" in kept
    assert "../../../bin/flatc,,\n" in kept
    assert (package.package / "exir" / "own.py").is_file()


def test_a_failure_brings_back_what_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, written = tmp_path / "gone", tmp_path / "written"
    gone.write_bytes(b"before")
    rename = os.replace

    def fail(source: Path, target: Path) -> None:
        if target == written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        rename(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match="nothing was changed"):
        replace_files({gone: None, written: b"after"})
    assert [path.name for path in tmp_path.iterdir()] == ["gone"]
    assert gone.read_bytes() == b"before"
