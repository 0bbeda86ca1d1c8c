# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""The results of real models as a page."""

from __future__ import annotations

import platform
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.real.store import Result, fault

EXPORT_TARGET = 1.10
"""What `to_executorch` may take of stock's time."""
SHORT = 0.05
"""Seconds; the ratio of shorter times is noise."""


@dataclass(frozen=True)
class Summary:
    """The numbers that the page begins with."""

    models: int
    families: int
    configurations: int
    compared: int
    """Configurations that both sides lower."""
    wrong: Mapping[str, int]
    """Configurations that a side runs wrong."""
    arena_mean: float
    arena_best: float
    arena_worst: float
    call_mean: float
    export_mean: float
    export_worst: float
    copied_less: int
    """Configurations that copy less state than on stock."""

    @classmethod
    def of(cls, results: Sequence[Result]) -> Summary:
        both = [result for result in results if result.both()]
        arenas = [arena_ratio(result) for result in both]
        calls = [ratio for ratio in map(call_ratio, both) if ratio]
        exports = [ratio for ratio in map(export_ratio, both) if ratio]
        return cls(
            models=len({result.row for result in results}),
            families=len({result.family for result in results}),
            configurations=len(results),
            compared=len(both),
            wrong={side: sum(is_wrong(r, side) for r in results) for side in ("stock", "patched")},
            arena_mean=mean(arenas),
            arena_best=min(arenas, default=1.0),
            arena_worst=max(arenas, default=1.0),
            call_mean=mean(calls),
            export_mean=mean(exports),
            export_worst=max(exports, default=1.0),
            copied_less=sum(r.patched["copied"] < r.stock["copied"] for r in both),
        )


def mean(ratios: Sequence[float]) -> float:
    """The geometric mean, as ratios want it."""
    return statistics.geometric_mean(ratios) if ratios else 1.0


def arena_ratio(result: Result) -> float:
    return result.patched["arena"] / result.stock["arena"]


def call_ratio(result: Result) -> float | None:
    return result.seconds[1] / result.seconds[0] if result.seconds else None


def export_ratio(result: Result) -> float | None:
    if not result.stock["seconds"] or not result.patched["seconds"]:
        return None
    return result.patched["seconds"] / result.stock["seconds"]


def is_wrong(result: Result, side: str) -> bool:
    """Whether a side makes a program of it that runs, and not as eager does."""
    return bool(result.side(side)["wrong"])


def verdict(result: Result, side: str) -> str:
    """One word for a side's outcome."""
    outcome = result.side(side)
    if outcome["failed"]:
        return {"survive": "dies", "run": "stops", "load": "not loaded"}.get(
            outcome["failed"], "not lowered"
        )
    return f"**wrong** ({outcome['wrong']}/{outcome['calls']})" if outcome["wrong"] else "right"


HEADS = (
    "state bytes",
    "arena stock",
    "arena patched",
    "ratio",
    "stock is",
    "patched is",
    "copied stock",
    "copied patched",
    "call stock",
    "call patched",
    "ratio",
    "export ratio",
)


def line(result: Result, first: str) -> list[str]:
    """A row of the table; `first` names what stands in its first column."""
    both = result.both()
    seconds = [f"{s * 1e6:,.0f} µs" for s in result.seconds] or ["", ""]
    call, export = call_ratio(result), export_ratio(result)
    return [
        result.row if first == "model" else result.configuration,
        f"{max(result.stock['state'], result.patched['state']):,}",
        *(f"{o['arena']:,}" if o["arena"] else "" for o in (result.stock, result.patched)),
        f"{arena_ratio(result):.3f}" if both else "",
        verdict(result, "stock"),
        verdict(result, "patched"),
        *(f"{o['copied']:,}" if o["arena"] else "" for o in (result.stock, result.patched)),
        *seconds,
        f"{call:.2f}" if call else "",
        f"{export:.2f}" if export else "",
    ]


def table(results: Iterable[Result], first: str = "model") -> str:
    """A table of one configuration, or of one model if `first` is "configuration"."""
    heads = (first, *HEADS)
    rule = ["---" if head in (first, "stock is", "patched is") else "---:" for head in heads]
    lines = [heads, rule, *(line(result, first) for result in results)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def headline(results: Sequence[Result]) -> str:
    """What was compared, and the numbers in sentences."""
    s = Summary.of(results)
    counted = f"{s.models} models of {s.families} families in {s.configurations} configurations"
    return f"""{counted}; {s.compared} are lowered by both sides.

{numbers(results)}"""


def numbers(results: Sequence[Result]) -> str:
    """The numbers in sentences."""
    s = Summary.of(results)
    return f"""- **Right or wrong.** Stock runs {s.wrong["stock"]} configurations wrong, patched \
{s.wrong["patched"]}.
- **Memory.** Arena patched over stock: mean {s.arena_mean:.2f}, best {s.arena_best:.2f}, \
worst {s.arena_worst:.2f}.
- **Time of a call.** Patched over stock: mean {s.call_mean:.2f}. {s.copied_less} configurations \
copy less state.
- **Time of `to_executorch`.** Patched over stock: mean {s.export_mean:.2f}, worst \
{s.export_worst:.2f} (target {EXPORT_TARGET:.2f})."""


def wrong_section(results: Sequence[Result]) -> str:
    """Which configurations a side runs wrong."""
    texts = []
    for side in ("stock", "patched"):
        found: dict[str, list[str]] = defaultdict(list)
        for result in results:
            if is_wrong(result, side):
                found[result.row].append(f"{result.configuration} ({fault(result.side(side))})")
        lines = [f"- {row}: {'; '.join(where)}" for row, where in found.items()]
        text = "\n".join(lines) or "None."
        texts.append(f"## Where {side} is wrong\n\n{text}")
    return "\n\n".join(texts)


def not_lowered_section(results: Sequence[Result]) -> str:
    """What isn't lowered or doesn't run, on which side, and why."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for result in results:
        outcomes = {side: result.side(side) for side in ("stock", "patched")}
        failed = {side: outcome for side, outcome in outcomes.items() if outcome["failed"]}
        if not failed:
            continue
        sides = "both sides" if len(failed) == 2 else f"{next(iter(failed))} alone"
        first = next(iter(failed.values()))
        why = f"fails to {first['failed']} on {sides}: {first['reason']}"
        found[result.row, why].append(result.configuration)
    lines = [f"- {row} ({'; '.join(where)}) {why}" for (row, why), where in found.items()]
    return "## What doesn't run\n\n" + ("\n".join(lines) or "All run.")


def export_section(results: Sequence[Result]) -> str:
    """Which models take longer to export than they may."""
    slow = [
        f"- {r.row}, {r.configuration}: {ratio:.2f} ({r.stock['seconds']:.2f} s on stock)"
        for r in results
        if (ratio := export_ratio(r)) and ratio > EXPORT_TARGET and r.stock["seconds"] > SHORT
    ]
    head = f"## Time of to_executorch\n\nTarget: at most {EXPORT_TARGET:.2f} of stock's. "
    return head + ("Not met:\n\n" + "\n".join(slow) if slow else "All meet it.")


def unseen(results: Sequence[Result]) -> list[str]:
    """Models whose results would be the same without their state."""
    return list(dict.fromkeys(r.row for r in results if r.patched["unseen"] or r.stock["unseen"]))


EXPLANATION = """- *state bytes*: the buffers that the methods write.
- *arena*: bytes of the memory that the plans of all methods need at once.
- *right*: each call of a session returns what eager returns. At least 12 calls, to 1e-4 of the
  largest value; *wrong* says how many calls differ. All buffers start at zero, as they do in the
  runtime, save those that `InitializedMutableBufferPass` names.
- *copied*: bytes of state that a call copies: what is copied into a buffer, and what is moved out
  of a buffer on its way back, such as the value of an out-of-place `index_put`.
- *call*: time of one call, the mean over a session of each call's median; the two programs are
  called in turn in one process.
- *export ratio*: CPU time of `to_executorch`, patched over stock, the shortest of three."""


def page(results: Sequence[Result], versions: Mapping[str, str], picture: str) -> str:
    """The whole page."""
    by_configuration: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_configuration[result.configuration].append(result)
    tables = [f"## {name}\n\n{table(found)}" for name, found in by_configuration.items()]
    stock, patched = versions.get("stock", "?"), versions.get("patched", "?")
    sections = [
        "# Real models, side by side",
        "Written by `make models`; not edited by hand.",
        f"Stock is executorch {stock}, patched is executorch {patched}; torch "
        f"{versions.get('torch', '?')}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}, one thread. Models are small, with random weights (Silero VAD's "
        "are real), and come from transformers, optimum-executorch, moshi, torchtune and "
        "ExecuTorch's own examples; `benchmarks/real` has them.",
        headline(results),
        f"![Arena and time of a call, patched over stock]({picture})",
        wrong_section(results),
        EXPLANATION,
        *tables,
        not_lowered_section(results),
        export_section(results),
    ]
    return "\n\n".join(sections) + "\n"
