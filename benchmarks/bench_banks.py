# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""How many bytes spill from a fast memory bank: greedy's plan beside best fit's.

python -m benchmarks.bench_banks [MODEL...]

The fast bank has a part of the most bytes that are ever alive at once, and a slow bank behind it is
large enough for all. What spills is the bytes of the tensors that aren't in the fast bank.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.banked_best_fit import BankedBestFit, spilled_bytes
from executorch.exir.banked_memory_planning import Bank, BankedGreedy, TargetMemoryMap
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, best_fit
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.tensor import TensorSpec

from benchmarks.lowering import export_model, to_edge
from benchmarks.models import MODELS, Model
from benchmarks.results import markdown_table

PARTS = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class BankRow:
    model: str
    part: float
    fast: int
    """Bytes of the fast bank."""
    greedy: int
    """Bytes that spill."""
    ours: int


class _Recorder:
    """An algorithm that tries the banks before it plans as usual."""

    def __init__(self) -> None:
        self.suite = MemoryPlanningAlgorithmSuite()
        self.spilled: list[tuple[float, int, int, int]] = []

    def __call__(
        self, alignment: int, specs: Iterable[TensorSpec], graph_module: Any, *rest: Any
    ) -> list[int]:
        specs = list(specs)
        # The outermost graph is planned last.
        self.spilled = [
            (part, *spills(part, alignment, specs, graph_module, *rest)) for part in PARTS
        ]
        return self.suite(alignment, specs, graph_module, *rest)  # type: ignore[no-any-return]


def spills(
    part: float,
    alignment: int,
    specs: Sequence[TensorSpec],
    graph_module: torch.fx.GraphModule,
    *rest: Any,
) -> tuple[int, int, int]:
    """The bytes of a fast bank of `part` of the peak, and what greedy and best fit spill."""
    sizes = best_fit(alignment, specs, graph_module, *rest).bufsizes
    fast = int(sum(sizes) * part) // alignment * alignment
    target = TargetMemoryMap([Bank("fast", fast, 1), Bank("slow", 1 << 40, 2)])
    results = (
        planner(alignment, specs, graph_module, *rest)
        for planner in (BankedGreedy(target), BankedBestFit(target))
    )
    greedy, ours = (spilled_bytes(target, result)[0] for result in results)
    return fast, greedy, ours


def measure(name: str, model: Model) -> list[BankRow]:
    recorder = _Recorder()
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(memory_planning_algo=recorder),
        run_reinplace_pass=model.lowering.reinplace,
    )
    to_edge({"forward": export_model(model)}, model.lowering).to_executorch(config)
    return [BankRow(name, *row) for row in recorder.spilled]


def table(rows: Sequence[BankRow]) -> str:
    """The rows in Markdown, and how much less spills in all."""
    lines = [
        [
            row.model,
            f"{row.part:.0%}",
            f"{row.fast:,}",
            f"{row.greedy:,}",
            f"{row.ours:,}",
            "0%" if row.greedy == row.ours else f"{row.ours / row.greedy - 1:+.1%}",
        ]
        for row in rows
    ]
    heads = ["model", "of the peak", "fast bank", "greedy spills", "best fit spills", "change"]
    ratios = [row.ours / row.greedy for row in rows if row.greedy]
    mean = sum(ratios) / len(ratios) if ratios else 1.0
    fewer = sum(row.ours < row.greedy for row in rows)
    told = (
        f"Best fit spills less in {fewer} of {len(rows)}; on average {mean:.3f} of greedy's bytes."
    )
    return f"{markdown_table(heads, lines)}\n\n{told}"


def main(arguments: Sequence[str]) -> int:
    rows: list[BankRow] = []
    for name in arguments or MODELS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += measure(name, MODELS[name]())
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
