"""Upstream's build files: each new file needs a target there, each new import a dependency.

They are Starlark, whose calls and lists are Python's, so that `ast` reads them. What they hold
else stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from tools.patching import source as python
from tools.patching.series import FilePatch, NewTarget, is_python
from tools.patching.splice import Misfit, Misfits, rewrite

NAMES = ("BUCK", "TARGETS", "targets.bzl")
_TORCH = "//caffe2:torch"


def apply_to_build_file(text: str, file: FilePatch) -> str:
    """All that one patch does to one build file. Raises Misfits with every misfit in it."""
    misfits: list[Misfit] = []
    changes: list[Callable[[str], str]] = [
        *(lambda text, rule=rule: rewrite(text, rule) for rule in file.rewrite),
        *(lambda text, new=new: with_target(text, new) for new in file.targets),
        *(lambda text, dep=dep: with_dependency(text, *dep) for dep in file.deps),
    ]
    for change in changes:
        try:
            text = change(text)
        except Misfit as misfit:
            misfits.append(misfit)
    if misfits:
        raise Misfits(tuple(misfits))
    return text


def with_dependency(text: str, target: str, label: str) -> str:
    """Put a label into the `deps` of a target, where upstream's order wants it."""
    rule = f"deps of {target}"
    deps = _keywords(_call(text, target, rule)).get("deps")
    lists = [node for node in ast.walk(deps) if isinstance(node, ast.List)] if deps else []
    present = _strings(lists[0]) if lists else []
    if not present or lists[0].lineno - 1 == present[0][1]:
        raise Misfit(rule, "a list of dependencies, one a line", "none")
    if any(label == each for each, _ in present):
        return text  # of another patch, or upstream's by now
    lines = text.splitlines(keepends=True)
    at = next((line for each, line in present if _rank(each) > _rank(label)), present[-1][1] + 1)
    like = lines[present[0][1]]
    indent = like[: len(like) - len(like.lstrip())]
    return "".join([*lines[:at], f'{indent}"{label}",\n', *lines[at:]])


def with_target(text: str, new: NewTarget) -> str:
    """Put a target behind another one, of the same kind."""
    rule = f"target {new.name}"
    if any(name == new.name for name, _ in _calls(text)):
        raise Misfit(rule, "a name new to upstream", "upstream has it: drop it from the patch")
    call = _call(text, new.after, rule)
    kind = _keywords(call).get("_kind")
    opening = f"{ast.unparse(call.func)}("
    opening += f"_kind = {ast.unparse(kind)}," if kind is not None else ""
    body = [f'name = "{new.name}",', "srcs = [", *(f'    "{each}",' for each in new.srcs), "],"]
    if new.deps:
        body += ["deps = [", *(f'    "{each}",' for each in sorted(new.deps, key=_rank)), "],"]
    indent = " " * call.col_offset
    written = ["", opening, *(f"    {line}" for line in body), ")"]
    lines = text.splitlines(keepends=True)
    assert call.end_lineno is not None
    lines.insert(call.end_lineno, "".join(f"{indent}{line}".rstrip() + "\n" for line in written))
    return "".join(lines)


def _rank(label: str) -> tuple[bool, bool, str]:
    """Upstream's order: other repositories, the same package, the rest by package."""
    return label.startswith((":", "//")), not label.startswith(":"), label.replace(":", "\0")


def _calls(text: str) -> Iterator[tuple[str, ast.Call]]:
    """The calls that declare a target, with its name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and "srcs" in _keywords(node):
            name = _keywords(node).get("name")
            if isinstance(name, ast.Constant):
                yield str(name.value), node


def _call(text: str, target: str, rule: str) -> ast.Call:
    found = [call for name, call in _calls(text) if name == target]
    if len(found) != 1:
        raise Misfit(rule, f"one target called {target}", f"{len(found)}")
    return found[0]


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {each.arg: each.value for each in call.keywords if each.arg is not None}


def _strings(value: ast.expr | None) -> list[tuple[str, int]]:
    """All strings in a list, or in the lists of a sum, with their lines, counted from 0."""
    nodes = ast.walk(value) if value is not None else ()
    found = [
        (node.value, node.lineno - 1)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return sorted(found, key=lambda each: each[1])


@dataclass(frozen=True)
class Target:
    """What a build file declares."""

    label: str  # as others name it: //executorch/exir:memory_planning
    sources: frozenset[str]  # by path in the repository
    dependencies: frozenset[str]  # labels


def targets(text: str, folder: str) -> Iterator[Target]:
    """The targets that a build file in `folder` declares."""
    for name, call in _calls(text):
        given = _keywords(call)
        yield Target(
            f"//executorch/{folder}:{name}",
            frozenset(f"{folder}/{each}" for each, _ in _strings(given["srcs"])),
            frozenset(
                f"//executorch/{folder}{each}" if each.startswith(":") else each
                for each, _ in _strings(given.get("deps"))
            ),
        )


def faults(before: Callable[[str], str | None], after: Mapping[str, str]) -> list[str]:
    """What the build files lack for the files of a rendered series, a line each.

    Imports that the file had before are upstream's affair, and so are packages but torch and
    executorch.exir.

    Args:
        before: Reads the tree without the series.
        after: The files that the series leaves otherwise, by path.
    """
    repository = _Repository(before, after)
    found: list[str] = []
    for path in sorted(filter(is_python, after)):
        old = before(path)
        owners = repository.owners(path)
        if not owners and old is None:
            found.append(f"{path}: no target of {PurePosixPath(path).parent} has it in its srcs")
        new = set(python.imports(after[path])) - set(python.imports(old or ""))
        found += [
            f"{path}: {target.label} lacks the dependency on {module}"
            for target in owners
            for module in sorted({repository.module_of(each) for each in new})
            if not repository.may_import(target, module)
        ]
    return found


@dataclass(frozen=True)
class _Repository:
    """A tree with the rendered series in it."""

    before: Callable[[str], str | None]
    after: Mapping[str, str]

    def read(self, path: str) -> str | None:
        return self.after[path] if path in self.after else self.before(path)

    def owners(self, path: str) -> list[Target]:
        """The targets that have a file among their sources."""
        folder = PurePosixPath(path).parent
        return [
            target
            for name in NAMES
            if (text := self.read(f"{folder}/{name}")) is not None
            for target in targets(text, str(folder))
            if path in target.sources
        ]

    def module_of(self, imported: python.Import) -> str:
        """The module that an import is from, or that is imported itself."""
        inner = ".".join(filter(None, (imported.module, imported.name)))
        return inner if self._path(inner) is not None else imported.module or imported.name

    def _path(self, module: str) -> str | None:
        place = module.removeprefix("executorch.").replace(".", "/")
        candidates = (f"{place}.py", f"{place}/__init__.py")
        return next((each for each in candidates if self.read(each) is not None), None)

    def may_import(self, target: Target, module: str) -> bool:
        if module.partition(".")[0] == "torch":
            return _TORCH in target.dependencies
        if not module.startswith("executorch.exir"):
            return True
        path = self._path(module)
        if path is None or path in target.sources:
            return True  # not a module of its own
        owners = {each.label for each in self.owners(path)}
        # A file that upstream has in no target can't be depended on.
        return not owners or bool(owners & target.dependencies)
