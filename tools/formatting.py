"""Format a file as upstream formats its own: ufmt, with black and usort."""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import version
from pathlib import Path

from tools.paths import CACHE

_TARGETS = ("PY38", "PY39", "PY310", "PY311", "PY312", "PY313")


def formatted(path: str, source: str) -> str:
    """`source` as ufmt leaves it; `path` only tells what kind of file it is.

    The result is kept, since sorting imports parses the whole file and takes a second for
    the largest of upstream's tests.
    """
    kept = _CACHE / _key(path, source)
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    result = _format(path, source)
    _keep(kept, result)
    return result


_CACHE = CACHE / "formatted"


def _key(path: str, source: str) -> str:
    tools = " ".join(f"{name}={version(name)}" for name in ("ufmt", "black", "usort"))
    return hashlib.sha256(f"{tools}\n{path}\n{source}".encode()).hexdigest()


def _keep(file: Path, text: str) -> None:
    beside = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except OSError:
        # Only time is lost: a read-only checkout still renders.
        beside.unlink(missing_ok=True)


def _format(path: str, source: str) -> str:
    import black.mode
    import ufmt
    import usort

    targets = {black.mode.TargetVersion[name] for name in _TARGETS}
    return ufmt.ufmt_bytes(
        Path(path),
        source.encode(),
        black_config=black.mode.Mode(target_versions=targets),
        usort_config=usort.Config(first_party_detection=False),
    ).decode()
