"""What can go wrong because of what the caller gave, as against a fault of the tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class UserError(Exception):
    """Bad input; the message says what is wrong and what to do (exit code 2)."""


@dataclass(frozen=True)
class Conflict:
    """One place where a patch and an upstream tree don't fit together."""

    patch: str
    file: str
    rule: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.patch}: {self.file}: {self.rule}\n"
            f"    wanted: {self.wanted}\n"
            f"    found:  {self.found}"
        )


class Conflicts(UserError):
    """All conflicts of a series with a tree; nothing was written."""

    def __init__(self, conflicts: Sequence[Conflict]) -> None:
        self.conflicts = tuple(conflicts)
        listing = "\n".join(str(conflict) for conflict in conflicts)
        super().__init__(
            f"the series doesn't fit this tree, nothing was written "
            f"({len(conflicts)} conflict{'s' if len(conflicts) != 1 else ''}):\n{listing}\n"
            "Mend the rule or the overlay definition named first; see patches/README.md."
        )
