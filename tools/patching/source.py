"""What a Python module defines and imports, and where in its text that stands.

Offsets count characters. A definition covers whole lines, with its decorators.
"""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from functools import lru_cache

from ast_grep_py import SgNode, SgRoot


@dataclass(frozen=True)
class Definition:
    """A function, class or assignment of a module, or a member of a class."""

    name: str
    comment: int  # where the comment on top of it starts; `start` if it has none
    start: int
    end: int  # just behind the newline of its last line
    members: tuple[Definition, ...] = ()
    is_class: bool = False


@dataclass(frozen=True)
class Import:
    """One name that an import statement binds."""

    module: str | None  # None for `import name`
    name: str
    alias: str | None

    @property
    def binds(self) -> str:
        if self.alias is not None:
            return self.alias
        return self.name if self.module is not None else self.name.partition(".")[0]

    def statement(self) -> str:
        renamed = f" as {self.alias}" if self.alias is not None else ""
        origin = f"from {self.module} " if self.module is not None else ""
        return f"{origin}import {self.name}{renamed}"


@lru_cache(maxsize=64)
def parse(source: str) -> SgNode:
    return SgRoot(source, "python").root()


@lru_cache(maxsize=64)
def definitions(source: str) -> tuple[Definition, ...]:
    """The definitions of a module in the order of the text."""
    return _definitions_among(parse(source).children(), source)


def find(source: str, qualified_name: str) -> Definition | None:
    """The definition called `name` or `Class.member`, if the module has it."""
    among = definitions(source)
    found: Definition | None = None
    for part in qualified_name.split("."):
        found = next((each for each in among if each.name == part), None)
        if found is None:
            return None
        among = found.members
    return found


def text_of(source: str, definition: Definition) -> str:
    """The definition with the comment on top of it."""
    return source[definition.comment : definition.end]


def _definitions_among(nodes: list[SgNode], source: str) -> tuple[Definition, ...]:
    found: list[Definition] = []
    for position, node in enumerate(nodes):
        name = _defined_name(node)
        if name is None:
            continue
        definition = _definition(node, name, _leading_comment(nodes, position), source)
        if found and found[-1].name == name:
            # A property and its setter, or overloads: one thing for a reader and for us.
            definition = Definition(name, found[-1].comment, found[-1].start, definition.end)
            found.pop()
        found.append(definition)
    return tuple(found)


def _definition(node: SgNode, name: str, comment: SgNode, source: str) -> Definition:
    body = class_body(node)
    return Definition(
        name=name,
        comment=_line_start(source, comment.range().start.index),
        start=_line_start(source, node.range().start.index),
        end=next_line(source, node.range().end.index),
        members=_definitions_among(body, source),
        is_class=bool(body),
    )


def _defined_name(node: SgNode) -> str | None:
    if node.kind() == "decorated_definition":
        inner = node.field("definition")
        return None if inner is None else _defined_name(inner)
    if node.kind() in ("function_definition", "class_definition"):
        named = node.field("name")
        return None if named is None else named.text()
    if node.kind() == "expression_statement":
        first = node.child(0)
        if first is not None and first.kind() == "assignment":
            target = first.field("left")
            if target is not None and target.kind() == "identifier":
                return target.text()
    return None


def class_body(node: SgNode) -> list[SgNode]:
    """The statements and comments of a class; nothing for what isn't a class."""
    if node.kind() == "decorated_definition":
        inner = node.field("definition")
        return [] if inner is None else class_body(inner)
    body = node.field("body") if node.kind() == "class_definition" else None
    if body is None:
        return []
    # The grammar puts comments ahead of the first statement outside of the body.
    return [each for each in node.children() if each.kind() == "comment"] + body.children()


def _leading_comment(nodes: list[SgNode], position: int) -> SgNode:
    first = nodes[position]
    for previous in reversed(nodes[:position]):
        attached = previous.range().end.line == first.range().start.line - 1
        own_line = previous.range().start.column == first.range().start.column
        if previous.kind() != "comment" or not attached or not own_line:
            break
        first = previous
    return first


def _line_start(source: str, index: int) -> int:
    return source.rfind("\n", 0, index) + 1


def next_line(source: str, index: int) -> int:
    newline = source.find("\n", index)
    return len(source) if newline < 0 else newline + 1


def blank_lines_at(source: str, index: int) -> str:
    """The blank lines that start at `index`, which is at the start of a line."""
    rest = source[index:]
    return rest[: len(rest) - len(rest.lstrip("\n"))]


@lru_cache(maxsize=64)
def imports(source: str) -> tuple[Import, ...]:
    """The names that the module's own level imports."""
    found: list[Import] = []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Import):
            found += [Import(None, each.name, each.asname) for each in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            module = "." * statement.level + (statement.module or "")
            found += [Import(module, each.name, each.asname) for each in statement.names]
    return tuple(found)


IMPORT_KINDS = ("import_statement", "import_from_statement", "future_import_statement")


def import_statements(source: str) -> list[SgNode]:
    """The import statements of the module's own level."""
    return [node for node in parse(source).children() if node.kind() in IMPORT_KINDS]


def end_of_first_imports(source: str) -> int:
    """Where the module's first block of imports ends, or else its header and docstring."""
    end, inside = 0, False
    for node in parse(source).children():
        if node.kind() in IMPORT_KINDS:
            inside = True
            end = next_line(source, node.range().end.index)
        elif node.kind() == "comment" or _is_docstring(node):
            if not inside:
                end = next_line(source, node.range().end.index)
        else:
            break
    return end


def _is_docstring(node: SgNode) -> bool:
    first = node.child(0) if node.kind() == "expression_statement" else None
    return first is not None and first.kind() == "string"


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def identifiers(text: str) -> frozenset[str]:
    """Every identifier that the code in `text` may refer to.

    Text that doesn't parse by itself (a rule's fix) is read word by word, which can only
    find more.
    """
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return frozenset(_IDENTIFIER.findall(text))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        # An annotation in quotes; prose has blanks and doesn't count.
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            names.update(_IDENTIFIER.findall(node.value))
    return frozenset(names)
