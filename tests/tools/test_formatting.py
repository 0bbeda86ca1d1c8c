"""Formatting what is new in a module gives what formatting all of it gives."""

from __future__ import annotations

import random
import textwrap
from pathlib import Path

import pytest

from tests.support.small_tree import PATCH, UPSTREAM, make_series, make_tree
from tools import versions
from tools.errors import Conflicts
from tools.patching import formatting, tree
from tools.patching.formatting import Formatter, formatted
from tools.patching.pieces import Piece, cut, joined
from tools.paths import ROOT
from tools.shipping import upstream

FILES = ("exir/passes/reinplace.py", "exir/tests/test_joint_graph.py", "exir/tensor.py")

# What the blank lines around a piece, or its meaning, can depend on.
AWKWARD = '''\
# A header.
"""A docstring."""

import os  # for a reason
from a import b

try:
    import c
except ImportError:
    c = None

LIMIT = 3
"""What it is."""


@decorated
# why
class First(
    Base,
):
    # Above the first member.
    size: int = 1
    """What it is."""

    @overload
    def f(self): ...
    @overload
    def f(self, x): ...
    def f(self, *xs):
        return xs

    # At the end of the class.


class Empty: ...


class Bare:
    pass


if LIMIT:

    def g():
        pass

# Alone.

x = 1; y = 2
z = [
    1,
]


def last(): return """
    def inside(): a string
"""
# The end.
'''


def release(path: str) -> str:
    return (upstream.unpacked(versions.DEFAULT) / "executorch" / path).read_text(encoding="utf-8")


def source(name: str) -> str:
    return formatted("awkward.py", AWKWARD) if name == "awkward" else release(name)


@pytest.mark.parametrize("name", ["awkward", *FILES])
def test_the_pieces_are_the_whole_text(name: str) -> None:
    text = source(name)
    pieces = cut(text)
    assert joined(pieces) == text
    assert all(piece.text.strip("\n") + "\n" == piece.text for piece in pieces)
    for piece in pieces:
        assert piece.head is None or pieces[piece.head].is_head


def test_each_statement_is_a_piece() -> None:
    firsts = [piece.text.splitlines()[-1].strip() for piece in cut(AWKWARD)]
    assert firsts == [
        '"""A docstring."""',
        "from a import b",
        "c = None",
        "LIMIT = 3",
        '"""What it is."""',
        "):",
        "size: int = 1",
        '"""What it is."""',
        "def f(self): ...",
        "def f(self, x): ...",
        "return xs",
        "class Empty: ...",
        "class Bare:",
        "pass",
        "pass",
        "x = 1; y = 2",
        "]",
        '"""',
        "# The end.",
    ]


NEW = [
    "def new( a,b ):\n    return a+b\n",
    "NEW={'a':1,\n  'b':2}\n",
    "# Of ours.\n@decorated\nclass New( Base ):\n    x=1\n    def f(self): pass\n",
    "import zlib, abc\nfrom a import z, d\n",
    "@overload\ndef f(self): ...\n",
    "if  a :\n    import q, b\n",
]


def changed(text: str, rng: random.Random) -> str:
    """`text` with a few pieces gone or new, and other blank lines between."""
    pieces = cut(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(pieces))
        if pieces[at].is_head:
            continue
        indent = "    " if pieces[at].head is not None else ""
        blank = "\n" * rng.choice([0, 0, 1, 2, 3])
        one = Piece(pieces[at].text, blank, pieces[at].head)
        new = Piece(textwrap.indent(rng.choice(NEW), indent), blank, pieces[at].head)
        pieces[at : at + 1] = rng.choice([[], [one], [one, new], [new, one], [new]])
        if not pieces:
            return text
    return joined(pieces)


@pytest.mark.parametrize("name", ["awkward", *FILES])
def test_new_pieces_come_out_as_if_all_were_formatted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formatting, "_keep", lambda file, text: None)
    rng = random.Random(name)
    # Black moves such a comment to wherever the line above it is.
    begin = formatted("some.py", source(name).replace("    # At the end of the class.\n", ""))
    compared = 0
    for _ in range(20 if name == "awkward" else 4):
        formatter = Formatter("some.py", begin)
        text = begin
        for _ in range(3):  # as patches do, each on the raw text of the one before
            text = changed(text, rng)
            try:
                whole = formatted("some.py", text)
            except Exception:
                break  # a class without a body, for one
            assert formatter.formatted(text) == whole
            compared += 1
    assert compared > 6


def test_little_is_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method that is new, its neighbours and the head of its class, not the others."""
    seen: list[str] = []

    def format_it(path: str, text: str) -> str:
        seen.append(text)
        return text

    monkeypatch.setattr(formatting, "formatted", format_it)
    text = "import a\n\n\n" + "\n\n".join(
        f"class C{n}:\n    a = 1\n\n" + "\n".join(f"    def f{m}(self): {n}\n" for m in range(5))
        for n in range(3)
    )
    new = text.replace("    def f3(self): 1\n", "    def new(self): 1\n")
    assert Formatter("some.py", text).formatted(new) == new
    (few,) = seen
    kept = [line.strip() for line in few.splitlines() if line]
    assert kept == [
        "import a",
        *("class C1:", "a = 1", "def f2(self): 1", "def new(self): 1", "def f4(self): 1"),
    ]


def test_formatting_that_is_switched_off_stays_off() -> None:
    begin = "a = 1\n# fmt: off\nb = [1,\n     2]\n# fmt: on\nc = 3\n"
    after = begin.replace("c = 3", "c = {3 : 4}").replace("2]", "3]")
    expected = after.replace("3 : 4", "3: 4")
    assert Formatter("some.py", begin).formatted(after) == expected


def test_what_upstream_has_not_formatted_stays_unless_it_is_changed(tmp_path: Path) -> None:
    stray = "\n\ndef stray(a,b):  return a\n"
    ours = make_series(tmp_path / "fork", p0001_try=PATCH)
    aside = make_tree(
        tmp_path / "aside", UPSTREAM.replace("\n\ndef check", stray + "\n\ndef check")
    )
    tree.apply(ours, aside)
    text = (aside / "executorch" / "exir" / "memory_planning.py").read_text(encoding="utf-8")
    assert stray in text
    touched = make_tree(tmp_path / "touched", UPSTREAM.replace("total = sum", "total  = sum"))
    with pytest.raises(Conflicts, match=r"format\n.*wanted: upstream's formatter to leave alone"):
        tree.apply(ours, touched)


def test_the_overlay_of_this_checkout_is_formatted() -> None:
    for file in sorted((ROOT / "exir").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        assert formatted(file.name, text) == text, file
