"""The series: patch files as data, checked against a schema when they are read."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tools.errors import UserError
from tools.paths import ROOT
from tools.versions import SUPPORTED


@dataclass(frozen=True)
class Rewrite:
    """An ast-grep rule with the text to put in place of each match."""

    why: str
    count: int
    rule: dict[str, Any]
    fix: str


@dataclass(frozen=True)
class NewTarget:
    """A target for a build file, of the kind of the one before it."""

    name: str
    after: str
    srcs: tuple[str, ...]
    deps: tuple[str, ...]


@dataclass(frozen=True)
class FilePatch:
    """What one patch does to one file of `exir/`."""

    path: str
    define: tuple[str, ...]  # new to upstream
    replace: tuple[str, ...]  # in place of upstream's
    rewrite: tuple[Rewrite, ...]
    drop_imports: tuple[str, ...]
    # In a build file:
    targets: tuple[NewTarget, ...] = ()
    deps: tuple[tuple[str, str], ...] = ()  # a target's name and the label that it lacks


def is_python(path: str) -> bool:
    """Whether a file of the series is a module and not a build file."""
    return path.endswith(".py")


@dataclass(frozen=True)
class Patch:
    """One patch file: one commit for upstream."""

    source: Path
    subject: str
    body: str
    test_plan: str | None
    upstream: str | None
    fixes: str | None
    related: tuple[str, ...]
    gain: str | None  # for the README's table
    since: str  # the first release that it applies to
    until: str | None  # the first release that has it
    state: str  # unsent, sent or merged
    requires: tuple[str, ...]
    files: tuple[FilePatch, ...]

    def is_for(self, version: str) -> bool:
        """Whether a release has what the patch changes, and not the patch itself."""
        if ordered(version) < ordered(self.since):
            return False
        return self.until is None or ordered(version) < ordered(self.until)

    @property
    def name(self) -> str:
        return self.source.stem

    @property
    def number(self) -> str:
        return self.name[:4]


@dataclass(frozen=True)
class Series:
    """The patches in order, and the directory that holds the overlay `exir/`."""

    root: Path
    patches: tuple[Patch, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that the series touches, sorted."""
        return tuple(sorted({file.path for patch in self.patches for file in patch.files}))

    def overlay(self, path: str) -> str | None:
        """The text of the overlay file, or None where the series only rewrites."""
        file = self.root / path
        return file.read_text(encoding="utf-8") if file.is_file() else None

    @property
    def older_releases(self) -> tuple[str, ...]:
        """Releases before the supported ones that some of the patches apply to."""
        oldest = ordered(SUPPORTED[0])
        since = {patch.since for patch in self.patches}
        return tuple(sorted((each for each in since if ordered(each) < oldest), key=ordered))

    def for_release(self, version: str) -> Series:
        """The patches that a release can take."""
        return Series(self.root, tuple(each for each in self.patches if each.is_for(version)))

    def for_main(self) -> Series:
        """The patches that upstream hasn't merged."""
        return Series(self.root, tuple(each for each in self.patches if each.state != "merged"))

    def only(self, numbers: tuple[str, ...]) -> Series:
        """The patches with these numbers, in series order."""
        known = {patch.number for patch in self.patches}
        unknown = [number for number in numbers if number not in known]
        if unknown:
            raise UserError(
                f"no patch {', '.join(unknown)} in the series; it has {', '.join(sorted(known))}"
            )
        chosen = tuple(patch for patch in self.patches if patch.number in numbers)
        for patch in chosen:
            missing = [
                number
                for number in self.required(patch)
                if number not in numbers and number in known
            ]
            if missing:
                raise UserError(f"{patch.name} requires {', '.join(missing)}: choose that, too")
        return Series(self.root, chosen)

    def required(self, patch: Patch) -> tuple[str, ...]:
        """The numbers of the patches that `patch` can't go without, however far."""
        numbers = {patch.number}
        for earlier in reversed(self.patches):
            if earlier.number in numbers:
                numbers.update(earlier.requires)
        return tuple(sorted(numbers - {patch.number}))

    def alone(self, patch: Patch) -> Series:
        """The patch, after those that it requires."""
        return self.only((*self.required(patch), patch.number))


def ordered(version: str) -> tuple[int, ...]:
    """A release's version, such that a later one is greater."""
    return tuple(int(part) for part in version.split("."))


_TEXT = {"type": "string", "minLength": 1}
_RELEASE = {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"}
_NAMES = {"type": "array", "items": _TEXT, "uniqueItems": True}
_REWRITE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["why", "count", "rule", "fix"],
    "properties": {
        "why": _TEXT,
        "count": {"type": "integer", "minimum": 1},
        "rule": {"type": "object", "minProperties": 1},
        "fix": {"type": "string"},
    },
}
_FILE = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "properties": {
        "define": _NAMES,
        "replace": _NAMES,
        "rewrite": {"type": "array", "items": _REWRITE},
        "drop_imports": _NAMES,
    },
}
# Upstream's build files. A released wheel has none.
_BUILD_FILE = r"^exir/([\w/]+/)?(BUCK|TARGETS|targets\.bzl)$"
_BUILD = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "properties": {
        "targets": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["after", "srcs"],
                "properties": {"after": _TEXT, "srcs": _NAMES, "deps": _NAMES},
            },
        },
        "deps": {"type": "object", "additionalProperties": _NAMES},
        "rewrite": {"type": "array", "items": _REWRITE},
    },
}
_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["subject", "body", "files"],
    "properties": {
        "subject": {"type": "string", "minLength": 1, "maxLength": 72, "pattern": r"^[^\n]+$"},
        "body": _TEXT,
        "test_plan": _TEXT,
        "upstream": _TEXT,
        "fixes": _TEXT,
        "gain": _TEXT,
        "related": _NAMES,
        "since": _RELEASE,
        "until": _RELEASE,
        "state": {"enum": ["unsent", "sent", "merged"]},
        "requires": {
            "type": "array",
            "items": {"type": "string", "pattern": r"^\d{4}$"},
            "uniqueItems": True,
        },
        "files": {
            "type": "object",
            "minProperties": 1,
            "patternProperties": {r"^exir/[\w/]+\.py$": _FILE, _BUILD_FILE: _BUILD},
            "additionalProperties": False,
        },
    },
}
_FILE_NAME = re.compile(r"^\d{4}-[a-z0-9-]+\.yml$")


class _Loader(yaml.SafeLoader):
    """SafeLoader that keeps patch numbers as text and refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _number(loader: _Loader, node: yaml.ScalarNode) -> int | str:
    # YAML reads 0010 as eight; here four digits are the name of a patch.
    text = str(loader.construct_scalar(node))
    return text if len(text) == 4 and text.isdigit() else loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _number)


def load(root: Path = ROOT) -> Series:
    """Read `root/patches`.

    Raises UserError that names the file and the key at fault.
    """
    directory = root / "patches"
    files = sorted(directory.glob("*.yml")) + sorted(directory.glob("*.yaml"))
    if not files:
        raise UserError(f"no patch files in {directory}")
    patches = tuple(_load_patch(file) for file in files)
    _check_numbers(patches)
    return Series(root, patches)


def _load_patch(file: Path) -> Patch:
    if not _FILE_NAME.match(file.name):
        raise UserError(f"{file.name}: a patch file is called NNNN-some-words.yml")
    try:
        data = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file.name}: not YAML: {' '.join(str(error).split())}") from None
    validator = jsonschema.Draft202012Validator(_SCHEMA)
    fault = jsonschema.exceptions.best_match(validator.iter_errors(data))
    if fault is not None:
        where = "".join(f"[{part!r}]" for part in fault.absolute_path) or "the whole file"
        raise UserError(f"{file.name}: {where}: {fault.message}")
    return Patch(
        source=file,
        subject=data["subject"],
        body=data["body"],
        test_plan=data.get("test_plan"),
        upstream=data.get("upstream"),
        fixes=data.get("fixes"),
        related=tuple(data.get("related", ())),
        gain=data.get("gain"),
        since=data.get("since", SUPPORTED[0]),
        until=data.get("until"),
        state=data.get("state", "unsent"),
        requires=tuple(data.get("requires", ())),
        files=tuple(_file_patch(path, entry) for path, entry in data["files"].items()),
    )


def _file_patch(path: str, entry: dict[str, Any]) -> FilePatch:
    return FilePatch(
        path=path,
        define=tuple(entry.get("define", ())),
        replace=tuple(entry.get("replace", ())),
        rewrite=tuple(Rewrite(**each) for each in entry.get("rewrite", ())),
        drop_imports=tuple(entry.get("drop_imports", ())),
        targets=tuple(
            NewTarget(name, each["after"], tuple(each["srcs"]), tuple(each.get("deps", ())))
            for name, each in entry.get("targets", {}).items()
        ),
        deps=tuple(
            (target, label) for target, labels in entry.get("deps", {}).items() for label in labels
        ),
    )


def _check_numbers(patches: tuple[Patch, ...]) -> None:
    seen: dict[str, Patch] = {}
    for patch in patches:
        if patch.number in seen:
            raise UserError(
                f"{patch.source.name}: number {patch.number} is taken by "
                f"{seen[patch.number].source.name}"
            )
        for number in patch.requires:
            if number not in seen:
                raise UserError(
                    f"{patch.source.name}: ['requires']: {number} is not an earlier patch"
                )
            if ordered(patch.since) < ordered(seen[number].since):
                raise UserError(
                    f"{patch.source.name}: ['since']: {patch.since} is before {number}, which it "
                    f"requires and which is for {seen[number].since} on"
                )
        if (patch.state == "merged") != (patch.until is not None):
            raise UserError(
                f"{patch.source.name}: ['until'] names the release that has a patch whose "
                "['state'] is merged, and only that"
            )
        seen[patch.number] = patch
