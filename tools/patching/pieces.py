"""Cut a module into pieces that can be formatted by themselves.

A piece is a statement of the module, a run of import statements, the head of a class or a
statement in a class, each with the comments above it. Between two pieces are blank lines
and nothing else, so that the pieces and the blank lines are the whole text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ast_grep_py import SgNode

from tools.patching import source as python


@dataclass(frozen=True)
class Piece:
    """Whole lines of a module without blank lines around them."""

    text: str
    blank: str
    """The blank lines above it."""
    head: int | None = None
    """In a class, the position among the pieces of the one that is the class's head."""
    is_head: bool = False


def cut(source: str) -> list[Piece]:
    """The pieces of a module, from its first line to its last."""
    lines = source.splitlines(keepends=True)
    pieces: list[Piece] = []
    # The position of each class's head by the line of its statement.
    heads: dict[int, int] = {}
    at = 0
    for span in _spans(python.parse(source).children(), None):
        if span.is_head:
            heads[span.start] = len(pieces)
        head = None if span.within is None else heads[span.within]
        pieces.append(_piece(lines[at : span.end], head, span.is_head))
        at = span.end
    rest = _piece(lines[at:], None)
    return [*pieces, rest] if rest.text else pieces


def joined(pieces: Iterable[Piece]) -> str:
    return "".join(piece.blank + piece.text for piece in pieces)


def _piece(lines: list[str], head: int | None, is_head: bool = False) -> Piece:
    text = next((n for n, line in enumerate(lines) if line.strip()), len(lines))
    return Piece("".join(lines[text:]), "".join(lines[:text]), head, is_head)


@dataclass
class _Span:
    """The lines of a piece's statement, without the comments above it."""

    start: int
    end: int  # not included
    within: int | None  # the first line of the class that it is in
    is_import: bool = False
    is_head: bool = False


def _spans(nodes: Iterable[SgNode], within: int | None) -> Iterator[_Span]:
    last: _Span | None = None
    for node in nodes:
        if node.kind() == "comment":
            continue
        span = _Span(_line(node), _end(node), within, node.kind() in python.IMPORT_KINDS)
        if last is not None and (span.start < last.end or (span.is_import and last.is_import)):
            # One more statement in a line, or one more import.
            last.end = max(last.end, span.end)
            continue
        if last is not None:
            yield last
        last = span
        members = _members(node) if within is None else []
        if members:
            yield _Span(span.start, _end_of_head(node), within, is_head=True)
            yield from _spans(members, span.start)
            last = None
    if last is not None:
        yield last


def _members(node: SgNode) -> list[SgNode]:
    """The statements of a class, if they stand below its head."""
    body = python.class_body(node)
    statements = [each for each in body if each.kind() != "comment"]
    if not statements or _line(statements[0]) < _end_of_head(node):
        return []
    return statements


def _end_of_head(node: SgNode) -> int:
    """The line below that in which the colon of a class stands."""
    if node.kind() == "decorated_definition":
        inner = node.field("definition")
        assert inner is not None
        node = inner
    colon = next(each for each in node.children() if each.kind() == ":")
    return _line(colon) + 1


def _line(node: SgNode) -> int:
    return node.range().start.line


def _end(node: SgNode) -> int:
    return node.range().end.line + 1
