# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""`python -m tests.fuzz N`: check N random programs on all cores.

For each finding a standalone script is written, and the run goes on with other programs. Exit
codes: 0 no finding, 1 findings, 2 bad input.
"""

import argparse
import hashlib
import os
import sys
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests.fuzz.check import Verdict
from tests.fuzz.pool import Checker
from tests.fuzz.program import Program, script
from tests.fuzz.run import Batch, Report, run

BLOCK = 50  # programs for one seed


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
        "--out", type=Path, default=Path("build/fuzz"), help="directory for reproducers"
    )
    return parser


class _Progress:
    """Counts what the threads report, and prints a line now and then."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.verdicts: Counter[Verdict] = Counter()
        self.findings = 0
        self.started = self.printed = time.monotonic()

    @property
    def ran(self) -> int:
        return self.verdicts.total()

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started
        counts = ", ".join(f"{n} {verdict.value}" for verdict, n in self.verdicts.most_common())
        return f"{self.ran} of {self.wanted} in {seconds:.0f} s: {counts}"

    def update(self) -> None:
        now = time.monotonic()
        if now - self.printed > 10:
            self.printed = now
            print(self, flush=True)


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
    checkers: Queue[Checker] = Queue()
    for _ in range(arguments.jobs):
        checkers.put(Checker())

    def block(first_seed: int, count: int) -> Report:
        checker = checkers.get()
        counted: Counter[Verdict] = Counter()

        def count_one(report: Report) -> None:
            progress.verdicts.update(report.verdicts - counted)
            counted.update(report.verdicts - counted)
            progress.update()

        try:
            return run(checker.check, Batch(count, first_seed), count_one)
        finally:
            checkers.put(checker)

    def collect(future: Future[Report]) -> None:
        found = future.result().finding
        if found is not None:
            progress.findings += 1
            program, outcome = found
            path = _write(arguments.out, program, str(outcome))
            print(f"finding: {outcome}\n{program.source()}\n  written to {path}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as threads:
        # A block ends early at a finding, and other seeds make up for what it leaves.
        while (left := arguments.count - progress.ran) > 0:
            sizes = [BLOCK] * (left // BLOCK) + ([left % BLOCK] if left % BLOCK else [])
            for future in [threads.submit(block, next(seeds), size) for size in sizes]:
                collect(future)
    while not checkers.empty():
        checkers.get().__exit__(None, None, None)
    print(progress)
    print(f"{progress.findings} finding(s)")
    return 1 if progress.findings else 0


if __name__ == "__main__":
    sys.exit(main())
