# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Best fit on random graphs, its plans read by the plan checker, which asks no planner."""

from __future__ import annotations

import random

import torch
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, apply_algo, best_fit
from executorch.exir.tensor import TensorSpec

from tests.support.plan_checker import Overlap, check_plan, report

SIZES = (0, 1, 16, 40, 64, 100, 256)


def computed(*values: object) -> None:
    """An operator that reads its arguments and writes a tensor of its own."""


def random_graph(rng: random.Random, most: int, arenas: int) -> torch.fx.GraphModule:
    """Up to `most` tensors, each computed from one to three before it, near ones mostly."""
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{n}") for n in range(rng.randint(1, 3))]
    for _ in range(rng.randint(1, most)):
        picked = [nodes[-1 - int(len(nodes) * rng.random() ** 3)] for _ in range(rng.randint(1, 3))]
        nodes.append(graph.call_function(computed, tuple(picked)))
    for node in nodes:
        spec = TensorSpec(torch.uint8, torch.Size([rng.choice(SIZES)]))
        spec.mem_id = rng.choice([None, *range(1, arenas + 1)]) if arenas > 1 else None
        node.meta["spec"] = spec
    returned = [nodes[-1], rng.choice(nodes)]
    graph.output(tuple(returned)).meta["spec"] = tuple(node.meta["spec"] for node in returned)
    return torch.fx.GraphModule({}, graph)


def plan(rng: random.Random, graph_module: torch.fx.GraphModule) -> int:
    """Plan by best fit alone; returns the alignment."""
    alignment = rng.choice([1, 4, 16, 64])
    apply_algo(MemoryPlanningAlgorithmSuite([best_fit]), graph_module, alignment)
    return alignment


def test_random_graphs(count: int = 1_000) -> None:
    rng = random.Random(13)
    for n in range(count):
        graph_module = random_graph(rng, most=50, arenas=rng.choice([1, 1, 3]))
        alignment = plan(rng, graph_module)
        findings = check_plan(graph_module, alignment=alignment)
        assert not findings, f"{n}: {report(findings)}"


def test_one_byte_too_low_is_found() -> None:
    """The topmost tensor stands on one that is alive with it, most often."""
    rng = random.Random(17)
    found = 0
    for _ in range(50):
        graph_module = random_graph(rng, most=20, arenas=1)
        plan(rng, graph_module)
        specs = [node.meta["spec"] for node in graph_module.graph.nodes if node.op != "output"]
        top = max((s for s in specs if s.nbytes()), key=lambda s: s.mem_offset, default=None)
        if top is None or not top.mem_offset:
            continue
        top.mem_offset -= 1
        found += any(isinstance(f, Overlap) for f in check_plan(graph_module, alignment=1))
    assert found > 25, found
