# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Run a number of random programs, and shrink the first one that is a finding."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest import mock

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.strategies import SearchStrategy

from tests.fuzz.check import Outcome, Verdict
from tests.fuzz.generate import programs
from tests.fuzz.kinds import kinds_of
from tests.fuzz.program import Program


@dataclass
class Report:
    """How many programs were generated and how they went; the smallest finding, if any."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    kinds: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    refusals: Counter[tuple[Verdict, str]] = field(default_factory=Counter)
    """The first lines of what was said where a program was refused."""
    finding: tuple[Program, Outcome] | None = None

    @property
    def ran(self) -> int:
        return self.verdicts.total()

    def count(self, program: Program, outcome: Outcome) -> None:
        self.verdicts[outcome.verdict] += 1
        self.kinds.update((kind, outcome.verdict) for kind in kinds_of(program))
        if outcome.verdict in (Verdict.REFUSED, Verdict.ALIKE):
            first = outcome.detail.split("\n", 1)[0][:100]
            self.refusals[outcome.verdict, first] += 1

    def add(self, other: "Report") -> None:
        """Count what `other` has counted."""
        self.verdicts.update(other.verdicts)
        self.kinds.update(other.kinds)
        self.refusals.update(other.refusals)


@dataclass(frozen=True)
class Batch:
    """Which programs to generate: the same batch gives the same ones."""

    count: int
    seed: int
    strategy: SearchStrategy[Program] = field(default_factory=programs)
    shrink: bool = True


class _Finding(Exception):
    pass


def run(
    check: Callable[[Program], Outcome],
    batch: Batch,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Generate and check the programs of `batch`, or fewer if one is a finding.

    Programs tried while shrinking are not counted.
    """
    report = Report()

    @seed(batch.seed)
    @settings(
        max_examples=batch.count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if batch.shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(batch.strategy)
    def one(program: Program) -> None:
        outcome = check(program)
        shrinking = report.finding is not None
        if not shrinking:
            report.count(program, outcome)
            progress(report)
        if outcome.is_finding and (
            report.finding is None or outcome.verdict is report.finding[1].verdict
        ):
            report.finding = (program, outcome)
            raise _Finding

    # Hypothesis also makes programs out of parts of those before, which are much alike.
    fresh = mock.patch.object(ConjectureRunner, "generate_mutations_from", lambda self, data: None)
    try:
        with fresh:
            one()
    except Exception as error:
        # Hypothesis reports a finding that comes and goes by an exception of its own.
        if report.finding is None:
            raise error
    return report
