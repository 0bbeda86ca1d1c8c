"""What the README says of the patches, made from the patch files."""

from __future__ import annotations

import re
from pathlib import Path

from tools.errors import UserError
from tools.patching.series import Patch, Series
from tools.versions import SUPPORTED

_BEGIN = "<!-- {name}: made by `python -m tools readme` -->\n"
_END = "<!-- end of {name} -->\n"


def updated(readme: str, series: Series) -> str:
    """The text of the README with its generated parts as the patch files have them.

    Raises UserError where a part has no place in it.
    """
    for name, text in (("patches", patch_table(series)), ("releases", releases(series))):
        begin, end = _BEGIN.format(name=name), _END.format(name=name)
        place = re.compile(f"({re.escape(begin)}).*?({re.escape(end)})", re.DOTALL)
        if len(place.findall(readme)) != 1:
            raise UserError(f"the README has no single part {begin.strip()} ... {end.strip()}")
        found = place.search(readme)
        assert found is not None
        readme = readme[: found.end(1)] + text + readme[found.start(2) :]
    return readme


def update(readme: Path, series: Series) -> bool:
    """Write the generated parts; tell whether anything has changed."""
    before = readme.read_text(encoding="utf-8")
    after = updated(before, series)
    if after != before:
        readme.write_text(after, encoding="utf-8")
    return after != before


def patch_table(series: Series) -> str:
    rows = [
        f"| {patch.number} | {patch.gain or patch.subject} | {_links(patch)} |".replace(
            "|  |", "| |"
        )
        for patch in series.patches
    ]
    return "\n".join(["| patch | what a user gains | upstream |", "|---|---|---|", *rows, ""])


def _links(patch: Patch) -> str:
    urls = [url for url in (patch.upstream, patch.fixes, *patch.related) if url is not None]
    links = [f"[{_label(url)}]({url})" for url in urls]
    if patch.until is not None:
        links.append(f"merged, in {patch.until}")
    return ", ".join(links)


def _label(url: str) -> str:
    found = re.search(r"/(?:pull|issues)/(\d+)$", url)
    return f"#{found[1]}" if found else url


def releases(series: Series) -> str:
    """Which patches the supported releases take, and what holds for the older ones."""
    lines = [f"Releases {_listed(SUPPORTED)} are supported.\n"]
    for version in reversed(series.older_releases):
        fitting = [patch.number for patch in series.for_release(version).patches]
        others = [patch.number for patch in series.patches if patch.number not in fitting]
        which = (
            f"all patches but {_listed(others)}"
            if len(others) < len(fitting)
            else f"just {_listed(fitting)}"
        )
        lines.append(f"On {version}, {which} apply and import; nothing else is checked there.\n")
    return "".join(lines)


def _listed(words: list[str] | tuple[str, ...]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
