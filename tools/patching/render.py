"""Render the series on an upstream tree: text in, text out, nothing written.

There is one such function, so the wheel, an applied tree and the exported commits hold
the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from tools.errors import Conflict, Conflicts, UserError
from tools.patching import source as python
from tools.patching.buildfiles import apply_to_build_file
from tools.patching.formatting import Formatter, formatted, untidy
from tools.patching.series import FilePatch, Patch, Series, is_python
from tools.patching.splice import Misfit, Misfits, apply_file_patch, qualified_names, rewrite

Read = Callable[[str], "str | None"]
"""Gives the text of upstream's file at a path like `exir/memory_planning.py`, or None."""


@dataclass(frozen=True)
class Step:
    """What one patch makes of the files it touches, formatted."""

    patch: Patch
    before: dict[str, str | None]  # None where the patch makes the file
    after: dict[str, str]


def check_claims(series: Series) -> None:
    """Every definition of the overlay belongs to exactly one patch.

    Raises UserError that names each definition that belongs to none or to two.
    """
    claims: dict[tuple[str, str], list[str]] = {}
    for patch in series.patches:
        for file in patch.files:
            for name in (*file.define, *file.replace):
                claims.setdefault((file.path, name), []).append(patch.name)
    faults = [
        f"{path}: {name} belongs to {' and '.join(owners)}"
        for (path, name), owners in claims.items()
        if len(owners) > 1
    ]
    for file_path in sorted((series.root / "exir").rglob("*.py")):
        path = file_path.relative_to(series.root).as_posix()
        owned = {name for claimed_path, name in claims if claimed_path == path}
        faults += [f"{path}: {name} belongs to no patch" for name in _unowned(series, path, owned)]
    if faults:
        raise UserError("each definition belongs to exactly one patch:\n" + "\n".join(faults))


def _unowned(series: Series, path: str, owned: set[str]) -> Iterator[str]:
    overlay = series.overlay(path)
    assert overlay is not None
    for definition in python.definitions(overlay):
        if definition.name in owned:
            continue
        members = [f"{definition.name}.{member.name}" for member in definition.members]
        if not any(member in owned for member in members):
            yield definition.name
        else:
            yield from (member for member in members if member not in owned)


def steps(series: Series, read: Read) -> list[Step]:
    """Apply each patch to the result of the one before.

    Raises Conflicts with all of them, so that a person sees the whole of the work.
    """
    upstream = {path: read(path) for path in series.paths}
    # A build file is changed where there is one: a wheel has none.
    absent = {path for path, text in upstream.items() if text is None and not is_python(path)}
    texts, formatters = dict(upstream), _formatters(upstream)
    finished = dict(upstream)
    conflicts: list[Conflict] = []
    result: list[Step] = []
    for patch in series.patches:
        files = [file for file in patch.files if file.path not in absent]
        before = {file.path: finished[file.path] for file in files}
        for file in files:
            try:
                text = texts[file.path] = _patched(series, file, texts[file.path])
            except Misfits as misfits:
                conflicts += [
                    Conflict(patch.name, file.path, each.rule, each.wanted, each.found)
                    for each in misfits.all
                ]
            else:
                finished[file.path] = formatters[file.path](text)
        result.append(Step(patch, before, {path: finished[path] or "" for path in before}))
    conflicts += _untidy(upstream, texts)
    if conflicts:
        raise Conflicts(conflicts)
    return result


def render(series: Series, read: Read) -> dict[str, str]:
    """The final text of every file that the series touches."""
    final: dict[str, str] = {}
    for step in steps(series, read):
        final.update(step.after)
    return dict(sorted(final.items()))


def _formatters(texts: Mapping[str, str | None]) -> dict[str, Callable[[str], str]]:
    """How to format each file: where upstream has it, what is upstream's stays as it is."""

    def formatter(path: str, text: str | None) -> Callable[[str], str]:
        if not is_python(path):
            return str
        return partial(formatted, path) if text is None else Formatter(path, text).formatted

    return {path: formatter(path, text) for path, text in texts.items()}


def _untidy(upstream: Mapping[str, str | None], texts: Mapping[str, str | None]) -> list[Conflict]:
    """Files in which formatting changes more of upstream's text than the series does."""
    wanted = "upstream's formatter to leave alone what the series changes"
    return [
        Conflict("the series", path, "format", wanted, "upstream's text isn't formatted there")
        for path, text in upstream.items()
        if text is not None and is_python(path) and untidy(path, text, texts[path] or "")
    ]


def _patched(series: Series, file: FilePatch, upstream: str | None) -> str:
    if upstream is not None and not is_python(file.path):
        return apply_to_build_file(upstream, file)
    overlay = series.overlay(file.path)
    if upstream is None:
        return _new_file(overlay, file)
    return apply_file_patch(upstream, overlay, file)


def _new_file(overlay: str | None, file: FilePatch) -> str:
    """A file that upstream doesn't have comes whole, header included."""
    if overlay is None or file.replace or file.rewrite:
        raise Misfits((Misfit("change", "upstream's file of this path", "none"),))
    missing = [each.name for each in python.definitions(overlay) if each.name not in file.define]
    if missing:
        wanted = "all of a new file's definitions in one patch"
        raise Misfits((Misfit("define", wanted, f"not listed: {', '.join(missing)}"),))
    return overlay


def carries(series: Series, read: Read) -> bool:
    """Whether a tree has every definition of the series as the series leaves it.

    A definition that a later patch rewrites is compared as rewritten.
    """
    compared = False
    for path in series.paths:
        overlay = series.overlay(path)
        if overlay is None:
            continue
        text = read(path)
        if text is None:
            return False
        claimed = _claimed(series, path)
        expected = formatted(path, _with_later_rewrites(series, path, overlay))
        for name in claimed:
            ours, theirs = python.find(expected, name), python.find(text, name)
            if ours is None or theirs is None or _code(expected, ours) != _code(text, theirs):
                return False
            compared = True
    return compared


def _claimed(series: Series, path: str) -> list[str]:
    overlay = series.overlay(path) or ""
    claimed = {
        name
        for patch in series.patches
        for file in patch.files
        if file.path == path
        for name in (*file.define, *file.replace)
    }
    return [name for name in qualified_names(overlay) if name in claimed]


def _with_later_rewrites(series: Series, path: str, overlay: str) -> str:
    for patch in series.patches:
        for file in patch.files:
            for rule in file.rewrite if file.path == path else ():
                try:
                    overlay = rewrite(overlay, rule)
                except Misfit:
                    continue  # it is about upstream's own text
    return overlay


def _code(text: str, definition: python.Definition) -> str:
    return re.sub(r"\n{2,}", "\n\n", text[definition.start : definition.end]).strip("\n")
