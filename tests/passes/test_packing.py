# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Best fit on random tensors, against every packing there is and against a check of its own."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from executorch.exir import offset_packing
from executorch.exir.memory_planning import MemoryAlgoResult, best_fit, greedy
from executorch.exir.tensor import TensorSpec

from benchmarks.bench_packing import (
    EACH,
    MEAN,
    instances,
    long_graph,
    measure,
    section,
    times,
)
from tools.liveness import Interval, peak_live_bytes

HAS_OFFSETS = hasattr(TensorSpec(torch.uint8, torch.Size([1])), "storage_base_offset")
"""Whether a tensor may lie anywhere in another's storage: ExecuTorch 1.5."""


@dataclass
class Problem:
    """Tensors to place, behind what branches need of each arena."""

    specs: list[TensorSpec]
    alignment: int = 16
    branches: list[int] = field(default_factory=list)
    padding: int = 0

    def solve(self, effort: int = 1) -> MemoryAlgoResult:
        return best_fit(
            self.alignment, self.specs, self.graph_module(), None, self.padding, effort=effort
        )

    def graph_module(self) -> torch.fx.GraphModule:
        graph_module = torch.fx.GraphModule({}, torch.fx.Graph())
        graph_module.input_mem_buffer_sizes = self.branches
        return graph_module

    def reserved(self, arena: int) -> int:
        return self.branches[arena] if arena < len(self.branches) else 0


def alive(size: int, first: int, last: int, arena: int | None = None) -> TensorSpec:
    spec = TensorSpec(torch.uint8, torch.Size([size]))
    spec.lifetime = [first, last]
    spec.mem_id = arena
    return spec


def base_of(spec: TensorSpec) -> TensorSpec | None:
    return spec.storage_base if HAS_OFFSETS else spec.inplace_base  # type: ignore[no-any-return]


def offset_in_base(spec: TensorSpec) -> int:
    return spec.storage_base_offset if HAS_OFFSETS else 0


def bases(spec: TensorSpec) -> Iterator[TensorSpec]:
    """The specs in whose storage `spec` lies, itself first."""
    at: TensorSpec | None = spec
    while at is not None:
        yield at
        at = base_of(at)


def random_inner(rng: random.Random, outer: TensorSpec, alignment: int, nodes: int) -> TensorSpec:
    """A tensor somewhere in the storage of `outer`, which may outlive it."""
    room = outer.shape[0] // alignment
    start = rng.randint(0, room) if HAS_OFFSETS else 0
    first = rng.randint(outer.lifetime[0], nodes - 1)
    size = rng.randint(0, (room - start) * alignment)
    inner = alive(size, first, rng.randint(first, nodes - 1), outer.mem_id)
    if HAS_OFFSETS:
        inner.storage_base, inner.storage_base_offset = outer, start * alignment
    else:
        inner.inplace_base = outer
    return inner


def note_lives_of_inner(specs: Iterable[TensorSpec]) -> None:
    """Let a tensor live as long as all that lies in it, as greedy takes for granted."""
    for spec in specs:
        for base in bases(spec):
            base.lifetime[0] = min(base.lifetime[0], spec.lifetime[0])
            base.lifetime[1] = max(base.lifetime[1], spec.lifetime[1])


def random_problem(rng: random.Random, most: int, nodes: int, arenas: int = 1) -> Problem:
    """Up to `most` tensors in a graph of `nodes`, some of them in others' storage."""
    alignment = rng.choice([1, 4, 16, 64])
    specs: list[TensorSpec] = []
    for _ in range(rng.randint(1, most)):
        if specs and rng.random() < 0.2:
            specs.append(random_inner(rng, rng.choice(specs), alignment, nodes))
            continue
        first = rng.randrange(nodes)
        last = min(nodes - 1, first + rng.choice([0, 1, 1, 2, nodes]))
        arena = rng.choice([None, *range(1, arenas + 1)]) if arenas > 1 else None
        specs.append(alive(rng.choice([0, 1, 16, 40, 64, 100, 256]), first, last, arena))
    if arenas > 1:
        note_lives_of_inner(specs)
    rng.shuffle(specs)
    branches = [alignment * rng.randint(0, 3) for _ in range(rng.randint(0, arenas + 1))]
    return Problem(specs, alignment, branches, rng.choice([0, 64]))


def misplaced(problem: Problem, result: MemoryAlgoResult, spec: TensorSpec) -> Iterator[str]:
    """What is wrong with one tensor's place, whatever lies around it."""
    alloc = result.spec_dict[spec]
    end = alloc.mem_offset + spec.allocated_memory
    used = result.bufsizes[alloc.mem_id] - problem.padding
    if alloc.mem_offset % problem.alignment:
        yield f"offset {alloc.mem_offset} is not aligned to {problem.alignment}"
    if not problem.reserved(alloc.mem_id) <= alloc.mem_offset <= end <= used:
        yield f"{alloc.mem_offset}..{end} is not in its part of the arena"
    base = base_of(spec)
    if base is None:
        if spec.mem_id not in (None, alloc.mem_id):
            yield f"{alloc} is not in arena {spec.mem_id}"
        return
    around = result.spec_dict[base]
    at = around.mem_offset + offset_in_base(spec)
    if (around.mem_id, at) != (alloc.mem_id, alloc.mem_offset):
        yield f"{alloc} is not where it should be in {around}"


def faults(problem: Problem, result: MemoryAlgoResult) -> list[str]:
    """What is wrong with a packing, from the tensors' sizes and lives alone."""
    found = [fault for spec in problem.specs for fault in misplaced(problem, result, spec)]
    placed = [
        (alloc.mem_id, alloc.mem_offset, alloc.mem_offset + size, alloc.mem_obj_id, spec)
        for spec in problem.specs
        if (alloc := result.spec_dict[spec]) and (size := spec.allocated_memory)
    ]
    placed.sort(key=lambda entry: entry[:3])
    for n, (arena, _, end, obj, spec) in enumerate(placed):
        for other_arena, start, _, other_obj, other in placed[n + 1 :]:
            if other_arena != arena or start >= end:
                break
            if obj != other_obj:
                found.append(f"objects {obj} and {other_obj} share bytes")
            if together(spec, other) and not related(spec, other):
                found.append(f"{spec.lifetime} and {other.lifetime} share bytes from {start}")
    return found


def together(one: TensorSpec, other: TensorSpec) -> bool:
    return one.lifetime[0] <= other.lifetime[1] and other.lifetime[0] <= one.lifetime[1]  # type: ignore[no-any-return]


def related(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether they lie in one storage, where to share bytes is what is wanted."""
    return list(bases(one))[-1] is list(bases(other))[-1]


def storages(specs: Iterable[TensorSpec]) -> list[Interval]:
    """The storages, with the lives of all that lies in them."""
    lives: dict[TensorSpec, list[TensorSpec]] = defaultdict(list)
    for spec in specs:
        lives[list(bases(spec))[-1]].append(spec)
    return [
        Interval(
            first=min(spec.lifetime[0] for spec in inside),
            last=max(spec.lifetime[1] for spec in inside),
            bytes=root.allocated_memory,
        )
        for root, inside in lives.items()
    ]


def optimum(intervals: Sequence[Interval]) -> int:
    """The fewest bytes into which the storages can be packed, by trying all orders.

    Each storage of an order goes to the lowest offset that is free for its whole life. That
    covers the best packing: in the order of its offsets, none gets a higher one than there.
    """
    floor = peak_live_bytes(intervals).bytes
    best = sum(interval.bytes for interval in intervals)

    def lowest(interval: Interval, placed: list[tuple[int, Interval]]) -> int:
        at = 0
        for offset, other in sorted(placed, key=lambda entry: entry[0]):
            apart = other.last < interval.first or interval.last < other.first
            if not apart and at < offset + other.bytes and offset < at + interval.bytes:
                at = offset + other.bytes
        return at

    def extend(placed: list[tuple[int, Interval]], left: list[Interval], top: int) -> None:
        nonlocal best
        if top >= best or best == floor:
            return
        if not left:
            best = top
            return
        for n, interval in enumerate(left):
            offset = lowest(interval, placed)
            extend(
                [*placed, (offset, interval)],
                left[:n] + left[n + 1 :],
                max(top, offset + interval.bytes),
            )

    extend([], [interval for interval in intervals if interval.bytes], 0)
    return best


def test_optimum_by_hand() -> None:
    """Of one order only, at the peak; and of all that overlap, one above the other."""
    # Two of 3 bytes, one after the other, and two of 1 byte that each overlap one of them and
    # one another: 4 bytes are alive, and the small ones do go below and above.
    chain = [Interval(0, 1, 3), Interval(1, 2, 1), Interval(2, 3, 1), Interval(3, 4, 3)]
    assert optimum(chain) == 4
    assert optimum([Interval(0, 2, 2), Interval(1, 3, 3), Interval(4, 4, 4)]) == 5
    assert optimum([]) == 0


def test_faults_are_found() -> None:
    """The check isn't blind: an overlap, an arena too small, another arena, a lost base."""
    outer, other = alive(32, 0, 1), alive(32, 1, 2, 1)
    inner = alive(16, 1, 1)
    inner.inplace_base = outer
    problem = Problem([outer, other, inner], branches=[0, 16])
    for spec in problem.specs:
        spec.realign(16)
    result = problem.solve()
    assert faults(problem, result) == []
    good = result.spec_dict[other].mem_offset
    result.spec_dict[other].mem_offset = result.spec_dict[outer].mem_offset
    assert any("share bytes" in fault for fault in faults(problem, result))
    result.spec_dict[other].mem_offset = good + 16
    assert any("not in its part" in fault for fault in faults(problem, result))
    result.spec_dict[other].mem_offset = 0
    assert any("not in its part" in fault for fault in faults(problem, result))
    result.spec_dict[other].mem_offset = good
    result.spec_dict[inner].mem_offset += 1
    found = faults(problem, result)
    assert any("where it should be" in fault for fault in found)
    assert any("not aligned" in fault for fault in found)


def test_small_ones_against_every_packing() -> None:
    """Never below the optimum, and nearly always at it."""
    rng = random.Random(7)
    met = tried = 0
    for _ in range(400):
        problem = random_problem(rng, most=8, nodes=5)
        problem.padding = 0
        result = problem.solve()
        assert faults(problem, result) == []
        least = problem.reserved(1) + optimum(storages(problem.specs))
        assert result.bufsizes[1] >= least
        tried += 1
        met += result.bufsizes[1] == least
    assert met >= 0.99 * tried


@pytest.mark.slow
def test_ten_thousand() -> None:
    """Nothing overlaps, and the same comes out twice."""
    rng = random.Random(11)
    for n in range(10_000):
        problem = random_problem(rng, most=30, nodes=20, arenas=rng.choice([1, 1, 3]))
        result = problem.solve()
        assert faults(problem, result) == [], n
        if n % 20 == 0:
            again = problem.solve()
            assert again == result, n


@pytest.mark.parametrize("seed", range(200))
def test_several_arenas_none_grows(seed: int) -> None:
    """Not even where the arenas together get smaller."""
    problem = random_problem(random.Random(seed), most=30, nodes=12, arenas=3)
    # Greedy sorts by the sizes that it finds, before it aligns them.
    for spec in problem.specs:
        spec.realign(problem.alignment)
    rival = greedy(problem.alignment, problem.specs, problem.graph_module(), None, problem.padding)
    for effort in (0, 1):
        result = problem.solve(effort)
        assert faults(problem, result) == []
        if len({alloc.mem_id for alloc in result.spec_dict.values()}) > 1:
            assert len(result.bufsizes) == len(rival.bufsizes)
            assert all(map(int.__le__, result.bufsizes, rival.bufsizes))


def spent_by_search(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The comparisons of two tensors that each step of the search asked for."""
    spent: list[int] = []
    spend = offset_packing._Budget.spend

    def note(budget: offset_packing._Budget, comparisons: int) -> None:
        spent.append(comparisons)
        spend(budget, comparisons)

    with monkeypatch.context() as patched:
        patched.setattr(offset_packing._Budget, "spend", note)
        problem.solve()
    return spent


def test_no_search_at_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of layers, each over two before: the first pass is at the floor."""
    specs = [alive(1024 * (1 + n % 7), n, n + 2) for n in range(400)]
    result = Problem(specs).solve()
    assert result.bufsizes[1] == peak_live_bytes(storages(specs)).bytes
    assert faults(Problem(specs), result) == []
    assert spent_by_search(Problem(specs), monkeypatch) == []


def test_search_of_twenty_thousand_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tensors there are; `bench_packing --long` tells how long that takes."""
    spent = spent_by_search(Problem(long_graph(20_000).specs()), monkeypatch)
    assert sum(spent[:-1]) <= offset_packing._MAX_COMPARISONS


def test_benchmark(tmp_path: Path) -> None:
    """The instants of a file are half open, and all three packings are measured."""
    rows = "id,lower,upper,size\n0,0,1,64\n1,1,2,48\n2,1,2,32\n"
    (tmp_path / "tiny.csv").write_text(rows, encoding="utf-8")
    (row,) = measure(instances(tmp_path))
    assert (row.name, row.buffers, row.peak) == ("tiny", 3, 80)
    assert (row.greedy, row.first_pass, row.arena) == (96, 80, 80)
    assert "No packing instances" in section(directory=tmp_path / "absent")


@pytest.mark.skipif(not instances(), reason="PACKING names no directory of instances")
def test_targets_on_instances() -> None:
    ratios = [row.over(row.arena) for row in measure(instances())]
    assert max(ratios) <= EACH
    assert sum(ratios) / len(ratios) <= MEAN


def test_benchmark_of_a_long_graph() -> None:
    """Sizes that are no multiples of 16 among them, each packing beside the peak."""
    title, *lines = times(long_graph(300)).splitlines()
    assert title.startswith("300 tensors")
    assert [line.partition(":")[0] for line in lines] == [
        "greedy",
        "best fit, first pass",
        "best fit",
    ]
    assert all(float(line.split()[-3].rstrip(";")) >= 1 for line in lines)
