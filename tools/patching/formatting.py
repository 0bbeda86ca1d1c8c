"""Format as upstream formats its own: ufmt, with black and usort.

Black takes seconds for a module of thousands of lines. So of a module that is changed, just
the pieces that are new are formatted, among their neighbours, on which the blank lines
between them depend.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from tools.patching.pieces import Piece, cut, joined
from tools.paths import CACHE

_TARGETS = ("PY38", "PY39", "PY310", "PY311", "PY312", "PY313")


class Formatter:
    """Formats a module again and again, as one patch after the other changes it."""

    def __init__(self, path: str, upstream: str) -> None:
        """Take `upstream`, the module as it was, for formatted."""
        self._path = path
        # A piece, and the blank lines between two, and how they come out.
        self._texts: dict[str, str] = {}
        self._blanks: dict[tuple[str, str, str], str] = {}
        pieces = [_START, *cut(upstream)]
        self._learn(pieces, pieces, range(len(pieces)))

    def formatted(self, source: str) -> str:
        """`source` as ufmt leaves it, but for what was there before: that stays as it was."""
        pieces = [_START, *cut(source)]
        chosen = self._with_neighbours(pieces)
        if chosen:
            before = [pieces[at] for at in chosen]
            after = [_START, *cut(formatted(self._path, joined(before)))]
            if len(after) != len(before) or "# fmt:" in source:
                # Not piece by piece: such a comment holds for all that follows, for one.
                return formatted(self._path, source)
            self._learn(before, after, chosen)
        return joined(
            Piece(self._texts[piece.text], self._blanks[_gap(above, piece)])
            for above, piece in pairwise(pieces)
        )

    def _with_neighbours(self, pieces: Sequence[Piece]) -> list[int]:
        """The positions of what isn't known yet and of what makes a module of it."""
        chosen: set[int] = set()
        for at, (above, piece) in enumerate(pairwise(pieces), start=1):
            if piece.text not in self._texts or _gap(above, piece) not in self._blanks:
                chosen |= {at - 1, at}
        if not chosen:
            return []
        # What comes first stays first, since a string there would be a docstring. And a
        # member needs its class, of which the first member is kept for the same reason.
        for at in chosen | {1}:
            head = pieces[at].head
            chosen |= {at} if head is None else {at, head + 1, head + 2}
            if pieces[at].is_head:
                chosen.add(at + 1)
        return sorted(chosen | {0})

    def _learn(
        self, before: Sequence[Piece], after: Sequence[Piece], positions: Sequence[int]
    ) -> None:
        """Note how new pieces came out, and the blank lines between those next to each other."""
        for n, (old, new) in enumerate(zip(before, after, strict=True)):
            self._texts.setdefault(old.text, new.text)
            if n > 0 and positions[n - 1] + 1 == positions[n]:
                self._blanks.setdefault(_gap(before[n - 1], old), new.blank)


_START = Piece("", "")


def _gap(above: Piece, below: Piece) -> tuple[str, str, str]:
    return above.text, below.blank, below.text


def untidy(path: str, upstream: str, changed: str) -> bool:
    """Whether formatting would change what `changed` doesn't have of `upstream` any longer."""
    return Formatter(path, changed).formatted(upstream) != upstream


def formatted(path: str, source: str) -> str:
    """`source` as ufmt leaves it; `path` only tells what kind of file it is.

    The result is kept, so that the next run takes no time.
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
