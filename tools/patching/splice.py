"""Put definitions of an overlay module into upstream's module of the same path.

Each function takes the text of upstream's module and gives the new text. It raises
Misfit where the two don't go together; the caller collects these.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from ast_grep_py import Config, SgNode

from tools.patching import source as python
from tools.patching.series import FilePatch, Rewrite
from tools.patching.source import Definition


@dataclass(frozen=True)
class Misfit(Exception):
    """What a rule wanted and what upstream's text has instead."""

    rule: str
    wanted: str
    found: str


def splice(upstream: str, overlay: str, name: str, *, replace: bool) -> str:
    """Put the overlay's definition `name` (or `Class.member`) in its place."""
    wanted = python.find(overlay, name)
    if wanted is None:
        raise Misfit(f"define {name}", "the definition in the overlay file", "none of that name")
    present = python.find(upstream, name)
    if replace and present is None:
        raise Misfit(f"replace {name}", "upstream's definition of that name", "it is gone")
    if not replace and present is not None:
        raise Misfit(
            f"define {name}", "a name new to upstream", "upstream has it: list it under `replace`"
        )
    if present is not None:
        return _put_in_place(upstream, overlay, wanted, present)
    return _insert(upstream, overlay, name, wanted)


def _put_in_place(upstream: str, overlay: str, wanted: Definition, present: Definition) -> str:
    # Upstream's own comment on top stays unless the overlay brings one.
    brings_comment = wanted.comment < wanted.start
    start = present.comment if brings_comment else present.start
    return upstream[:start] + python.text_of(overlay, wanted) + upstream[present.end :]


def _insert(upstream: str, overlay: str, name: str, wanted: Definition) -> str:
    class_name, _, _ = name.rpartition(".")
    siblings, present, end = _scope(upstream, overlay, class_name)
    following = siblings[siblings.index(wanted) + 1 :]
    anchors = {each.name: each for each in present}
    at = next((anchors[each.name].comment for each in following if each.name in anchors), end)
    text = python.text_of(overlay, wanted)
    if at == end:
        separator = "\n" if class_name else "\n\n"
        return upstream[:at].rstrip("\n") + "\n" + separator + text + separator + upstream[at:]
    blank = python.blank_lines_at(overlay, wanted.end) or "\n"
    return upstream[:at] + text + blank + upstream[at:]


def _scope(
    upstream: str, overlay: str, class_name: str
) -> tuple[tuple[Definition, ...], tuple[Definition, ...], int]:
    """The overlay's and upstream's definitions in a class or a module, and where
    upstream's end."""
    if not class_name:
        return (
            python.definitions(overlay),
            python.definitions(upstream),
            _end_of_definitions(upstream),
        )
    ours, theirs = python.find(overlay, class_name), python.find(upstream, class_name)
    assert ours is not None
    if theirs is None or not theirs.is_class:
        raise Misfit(f"define in class {class_name}", f"upstream's class {class_name}", "none")
    return ours.members, theirs.members, theirs.end


def _end_of_definitions(upstream: str) -> int:
    for node in python.parse(upstream).children():
        if node.kind() == "if_statement" and "__name__" in node.text().partition("\n")[0]:
            return node.range().start.index
    return len(upstream)


def add_imports(upstream: str, overlay: str, path: str, texts: list[str]) -> str:
    """Add those of the overlay's imports that `texts` need and upstream lacks.

    Sorting and merging is left to usort.
    """
    needed: frozenset[str] = frozenset().union(*map(python.identifiers, texts))
    own_module = "executorch." + path.removesuffix(".py").replace("/", ".")
    present = set(python.imports(upstream))
    lines: list[str] = []
    for each in python.imports(overlay):
        if each.binds not in needed or each.module == "__future__" or each in present:
            continue
        if each.module == own_module:
            _require(upstream, each.name, own_module)
        else:
            lines.append(each.statement() + "\n")
    at = python.end_of_first_imports(upstream)
    return upstream[:at] + "".join(lines) + upstream[at:]


def _require(upstream: str, name: str, module: str) -> None:
    bound = {each.binds for each in python.imports(upstream)}
    if python.find(upstream, name) is None and name not in bound:
        raise Misfit(f"import {name} from {module}", "upstream's module to have it", "none")


def drop_import(upstream: str, name: str) -> str:
    """Take `name` out of the import statement that binds it."""
    for statement in python.import_statements(upstream):
        text = statement.text()
        kept = [each for each in python.imports(text) if each.binds != name]
        if len(kept) == len(python.imports(text)):
            continue
        if "#" in text:
            raise Misfit(f"drop import {name}", "an import statement without comments", text)
        start, end = statement.range().start.index, statement.range().end.index
        rest = "\n".join(each.statement() for each in kept)
        return upstream[:start] + rest + upstream[end if rest else end + 1 :]
    raise Misfit(f"drop import {name}", "an import that binds it", "none")


def rewrite(upstream: str, rule: Rewrite) -> str:
    """Replace each match of an ast-grep rule, of which there must be `rule.count`."""
    label = f"rewrite ({rule.why})"
    try:
        matches = python.parse(upstream).find_all(cast(Config, {"rule": rule.rule}))
    except Exception as error:  # ast-grep-py raises bare Exception and RuntimeError
        reason = str(error).partition("\n\nStack backtrace")[0]
        raise Misfit(label, "a rule that ast-grep can read", " ".join(reason.split())) from None
    if len(matches) != rule.count:
        lines = ", ".join(str(match.range().start.line + 1) for match in matches)
        found = f"{len(matches)}" + (f", in lines {lines}" if lines else _nearest(upstream, rule))
        raise Misfit(label, f"{rule.count} match{'es' if rule.count != 1 else ''}", found)
    for match in sorted(matches, key=lambda each: each.range().start.index, reverse=True):
        start, end = match.range().start.index, match.range().end.index
        upstream = upstream[:start] + _expand(rule.fix, match, upstream) + upstream[end:]
    return upstream


_VARIABLE = re.compile(r"\$\$\$([A-Z_][A-Z0-9_]*)|\$([A-Z_][A-Z0-9_]*)")


def _expand(fix: str, match: SgNode, upstream: str) -> str:
    """The fix with what its variables matched, indented as deep as the match's line."""

    def value(variable: re.Match[str]) -> str:
        several, one = variable.groups()
        if one is not None:
            node = match.get_match(one)
            return "" if node is None else node.text()
        nodes = match.get_multiple_matches(several)
        if not nodes:
            return ""
        return upstream[nodes[0].range().start.index : nodes[-1].range().end.index]

    line_start = upstream.rfind("\n", 0, match.range().start.index) + 1
    line = upstream[line_start:]
    indent = line[: len(line) - len(line.lstrip(" "))]
    first, *rest = fix.rstrip("\n").split("\n")
    indented = "\n".join([first, *(indent + each if each.strip() else each for each in rest)])
    return _VARIABLE.sub(value, indented)


def _nearest(upstream: str, rule: Rewrite) -> str:
    """Upstream's line most like the rule's pattern, to mend the rule by."""
    pattern = next(_strings_under(rule.rule, "pattern"), None)
    if pattern is None:
        return ""
    first = pattern.strip().partition("\n")[0]
    lines = upstream.splitlines()
    scores = [difflib.SequenceMatcher(None, first, line.strip()).ratio() for line in lines]
    best = max(range(len(lines)), key=scores.__getitem__, default=None)
    if best is None or scores[best] < 0.5:
        return ""
    return f"; most like it is line {best + 1}: {lines[best].strip()}"


def _strings_under(rule: object, key: str) -> Iterator[str]:
    if isinstance(rule, dict):
        for name, value in rule.items():
            if name == key and isinstance(value, str):
                yield value
            else:
                yield from _strings_under(value, key)
    elif isinstance(rule, list):
        for value in rule:
            yield from _strings_under(value, key)


def apply_file_patch(upstream: str, overlay: str | None, file: FilePatch) -> str:
    """All that one patch does to one file. Raises Misfits with every misfit in it."""
    misfits: list[Misfit] = []
    # Rules are about upstream's text, so they run before ours is in it.
    for rule in file.rewrite:
        try:
            upstream = rewrite(upstream, rule)
        except Misfit as misfit:
            misfits.append(misfit)
    names = _in_overlay_order(overlay, file)
    for name in names:
        try:
            if overlay is None:
                raise Misfit(f"define {name}", "an overlay file of this path", "none")
            upstream = splice(upstream, overlay, name, replace=name in file.replace)
        except Misfit as misfit:
            misfits.append(misfit)
    for name in file.drop_imports:
        try:
            upstream = drop_import(upstream, name)
        except Misfit as misfit:
            misfits.append(misfit)
    if overlay is not None and not misfits:
        found = [python.find(overlay, name) for name in names]
        texts = [python.text_of(overlay, each) for each in found if each is not None]
        try:
            upstream = add_imports(
                upstream, overlay, file.path, texts + [rule.fix for rule in file.rewrite]
            )
        except Misfit as misfit:
            misfits.append(misfit)
    if misfits:
        raise Misfits(tuple(misfits))
    return upstream


@dataclass(frozen=True)
class Misfits(Exception):
    all: tuple[Misfit, ...]


def qualified_names(overlay: str) -> list[str]:
    """All that can be claimed by a patch, classes before their members."""
    names: list[str] = []
    for each in python.definitions(overlay):
        names.append(each.name)
        names += [f"{each.name}.{member.name}" for member in each.members]
    return names


def _in_overlay_order(overlay: str | None, file: FilePatch) -> list[str]:
    claimed = [*file.define, *file.replace]
    if overlay is None:
        return claimed
    order = {name: position for position, name in enumerate(qualified_names(overlay))}
    return sorted(claimed, key=lambda name: order.get(name, len(order)))
