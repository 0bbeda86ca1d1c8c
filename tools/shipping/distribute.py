"""Custom wheels for every machine that the release has a wheel for, and an index of them."""

from __future__ import annotations

import hashlib
import html
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from tools.errors import UserError
from tools.patching.series import Series
from tools.shipping import upstream
from tools.shipping.upstream import Target
from tools.shipping.wheel import build

# pip's names: Linux x86-64 and arm64, macOS arm64, Windows x86-64.
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_28_aarch64",
    "macosx_14_0_arm64",
    "win_amd64",
)
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def build_all(series: Series, version: str, out: Path) -> list[Path]:
    """Build the wheels into `out`, with SHA256SUMS and `out/simple`, a PEP 503 index.

    Raises UserError when not even one wheel can be had.
    """
    wheels = [build(series, version, out, target) for target in _available(version)]
    if not wheels:
        raise UserError(
            f"no wheel of ExecuTorch {version} could be had for any platform; is the network there?"
        )
    (out / "SHA256SUMS").write_text(_sums(wheels), encoding="utf-8")
    index = out / "simple" / "executorch" / "index.html"
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_text(_index(wheels), encoding="utf-8")
    (out / "simple" / "index.html").write_text(
        '<!DOCTYPE html>\n<a href="executorch/">executorch</a>\n', encoding="utf-8"
    )
    return wheels


def _available(version: str) -> Iterator[Target]:
    for platform in PLATFORMS:
        for python in PYTHONS:
            target = Target(platform, python)
            print(f"{platform}, Python {python} ...", end=" ", file=sys.stderr, flush=True)
            try:
                upstream.wheel(version, target)
            except UserError as error:
                # pip tells "there is none" and "can't reach it" apart only in words.
                if "No matching distribution" not in str(error):
                    raise
                print("the release has none", file=sys.stderr)
                continue
            print("has one", file=sys.stderr)
            yield target


def _sums(wheels: list[Path]) -> str:
    return "".join(f"{_sha256(wheel)}  {wheel.name}\n" for wheel in sorted(wheels))


def _index(wheels: list[Path]) -> str:
    links = "".join(
        f'<a href="../../{quote(wheel.name)}#sha256={_sha256(wheel)}">'
        f"{html.escape(wheel.name)}</a><br>\n"
        for wheel in sorted(wheels)
    )
    return f"<!DOCTYPE html>\n<title>executorch</title>\n{links}"


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
