"""An upstream tree on disk: a git checkout of ExecuTorch, or a directory with the package."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.errors import UserError
from tools.patching.newlines import decoded, encoded_like
from tools.patching.render import Read, carries, check_claims, render
from tools.patching.series import Series
from tools.shipping import upstream


def exir_parent(tree: Path) -> Path:
    """The directory that holds `exir/`. Raises UserError for what isn't ExecuTorch."""
    for candidate in (tree / "executorch", tree):
        if (candidate / "exir" / "memory_planning.py").is_file():
            return candidate
    what = "no such directory" if not tree.is_dir() else "no exir/ in it"
    raise UserError(
        f"{tree} is not ExecuTorch ({what}): give a git checkout of it or a directory that "
        "holds the `executorch` package"
    )


def reader(parent: Path) -> Read:
    def read(path: str) -> str | None:
        file = parent / path
        return decoded(file.read_bytes()) if file.is_file() else None

    return read


def patched_tree(version: str, directory: Path, series: Series) -> Path:
    """Make `directory/executorch` out of a release: the series in `exir/`, links else.

    The result is for processes that import it by PYTHONPATH.
    """
    release = upstream.unpacked(version) / "executorch"
    rendered = render(series, reader(release))
    patched = directory / "executorch"
    patched.mkdir()
    for entry in release.iterdir():
        if entry.name != "exir":
            (patched / entry.name).symlink_to(entry)
    shutil.copytree(
        release / "exir", patched / "exir", ignore=shutil.ignore_patterns("__pycache__")
    )
    for path, text in rendered.items():
        (patched / path).parent.mkdir(parents=True, exist_ok=True)
        (patched / path).write_text(text, encoding="utf-8")
    return directory


def apply(series: Series, tree: Path) -> list[str]:
    """Apply the series to a tree in place; return the files changed (none if it was there).

    Raises UserError, and leaves the tree as it was, for conflicts and for a tree that can't
    be written.
    """
    parent = exir_parent(tree)
    check_claims(series)
    read = reader(parent)
    series = series.for_main()
    if carries(series, read):
        return []
    rendered = render(series, read)
    changed = {path: text for path, text in rendered.items() if read(path) != text}
    contents = {}
    for path, text in changed.items():
        file = parent / path
        contents[file] = encoded_like(text, file.read_bytes() if file.is_file() else None)
    replace_files(contents)
    return sorted(changed)


def replace_files(contents: Mapping[Path, bytes | None]) -> None:
    """Write all of the files or none: first beside, then rename, and back on a failure.

    A file whose content is None is removed.
    """
    new = {path: content for path, content in contents.items() if content is not None}
    beside = {path: path.with_name(f".{path.name}.mutbuf-new") for path in new}
    kept = {path: path.with_name(f".{path.name}.mutbuf-old") for path in contents}
    moved: list[Path] = []
    try:
        for path, content in new.items():
            _write_beside(path, beside[path], content)
        with _signals_held():
            for path in contents:
                if path.exists():
                    os.replace(path, kept[path])
                moved.append(path)
                if path in beside:
                    os.replace(beside[path], path)
    except BaseException as error:
        for path in moved:
            if kept[path].exists():
                os.replace(kept[path], path)
            else:
                path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UserError(
                f"can't write {error.filename or 'the tree'}: {error.strerror}; nothing was "
                "changed. Make room or make the target writable, then run it again."
            ) from None
        raise
    finally:
        for leftover in (*beside.values(), *kept.values()):
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)


def _write_beside(path: Path, beside: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(13, "it is read-only", str(path))
    beside.write_bytes(content)
    if path.exists():
        beside.chmod(stat.S_IMODE(path.stat().st_mode))


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Let an interrupt wait until all files are renamed."""
    held = {signal.SIGINT, signal.SIGTERM}
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
