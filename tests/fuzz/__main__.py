# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""`python -m tests.fuzz N`: check N random programs on all cores.

A program that isn't right is run on the untouched release, too, in a process of its own. For each
finding a standalone script is written, and the run goes on with other programs. At the end there
is a table of how many programs of each kind were run. Exit codes: 0 no finding, 1 findings, 2 bad
input.
"""

import argparse
import hashlib
import os
import sys
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import Queue

from tests.fuzz.check import Verdict
from tests.fuzz.generate import DRAWN_THEMES, THEMES, programs
from tests.fuzz.pool import BothCheckers
from tests.fuzz.program import Program, script
from tests.fuzz.run import Batch, Report, run

BLOCK = 100  # programs for one seed; the first is always the same


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("count", type=_positive, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="other programs for another seed")
    parser.add_argument(
        "--jobs", type=_positive, default=os.cpu_count(), help="processes (default: all cores)"
    )
    parser.add_argument(
        "--themes", nargs="+", choices=sorted(THEMES), help="draw only programs of these themes"
    )
    parser.add_argument(
        "--no-shrink", action="store_true", help="leave the programs that are findings as long"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/fuzz"), help="directory for reproducers"
    )
    return parser


class _Progress:
    """Counts what the threads report, and prints a line now and then."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.total = Report()
        self.under_way = 0
        """Programs of blocks that have not ended."""
        self.findings = 0
        self.started = self.printed = time.monotonic()

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started
        counts = ", ".join(
            f"{n} {verdict.value}" for verdict, n in self.total.verdicts.most_common()
        )
        speed = self.total.ran / seconds
        return f"{self.total.ran} of {self.wanted} in {seconds:.0f} s ({speed:.1f}/s): {counts}"

    def add(self, report: Report) -> None:
        self.total.add(report)
        self.under_way -= report.ran

    def tick(self) -> None:
        """One more program was run."""
        self.under_way += 1
        now = time.monotonic()
        if now - self.printed > 10:
            self.printed = now
            print(f"{self}, {self.under_way} more under way", flush=True)


def table(report: Report) -> str:
    """How many programs there were of each kind, how many of them were right, and what refuses
    most of the others."""
    counts = Counter[str]()
    for (kind, _), count in report.kinds.items():
        counts[kind] += count
    lines = [f"{'programs':>8}  {'right':>6}  {'refused':>7}  {'findings':>8}  kind"]
    for kind, count in counts.most_common():
        right = report.kinds[kind, Verdict.RIGHT]
        refused = report.kinds[kind, Verdict.REFUSED] + report.kinds[kind, Verdict.ALIKE]
        lines.append(f"{count:8}  {right:6}  {refused:7}  {count - right - refused:8}  {kind}")
    lines.append("most of what was refused:")
    for (verdict, said), count in report.refusals.most_common(12):
        lines.append(f"{count:8}  {verdict.value}: {said}")
    return "\n".join(lines)


def _write(out: Path, program: Program, finding: str) -> Path:
    name = hashlib.sha256(program.to_json().encode()).hexdigest()[:8]
    path = out / f"finding_{name}.py"
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(script(program, finding, str(path)), encoding="utf-8")
    return path


def main() -> int:
    arguments = _parser().parse_args()
    progress = _Progress(arguments.count)
    seeds = iter(range(arguments.seed * 1_000_000, (arguments.seed + 1) * 1_000_000))
    strategy = programs(themes=tuple(arguments.themes or DRAWN_THEMES))
    checkers: Queue[BothCheckers] = Queue()
    for _ in range(arguments.jobs):
        checkers.put(BothCheckers())

    def block(first_seed: int, count: int) -> Report:
        checker = checkers.get()
        try:
            batch = Batch(count, first_seed, strategy, shrink=not arguments.no_shrink)
            return run(checker.check, batch, lambda report: progress.tick())
        finally:
            checkers.put(checker)

    def collect(future: Future[Report]) -> None:
        report = future.result()
        progress.add(report)
        if report.finding is not None:
            progress.findings += 1
            program, outcome = report.finding
            path = _write(arguments.out, program, str(outcome))
            print(f"finding: {outcome}\n{program.source()}\n  written to {path}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as threads:
        # A block ends early at a finding, and other seeds make up for what it leaves.
        while (left := arguments.count - progress.total.ran) > 0:
            sizes = [BLOCK] * (left // BLOCK) + ([left % BLOCK] if left % BLOCK else [])
            submitted = [threads.submit(block, next(seeds), size) for size in sizes]
            for future in as_completed(submitted):
                collect(future)
    while not checkers.empty():
        checkers.get().__exit__(None, None, None)
    print(table(progress.total))
    print(progress)
    print(f"{progress.findings} finding(s)")
    return 1 if progress.findings else 0


if __name__ == "__main__":
    sys.exit(main())
