# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""The plan checker finds nothing in right plans, and each way of breaking one."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from executorch.exir.tensor import TensorSpec
from torch import Tensor, nn
from torch.export.graph_signature import ExportGraphSignature
from torch.utils import _pytree as pytree

from tests.support import harness
from tests.support.cases import SHARED_BUFFER, WRITE_BACK
from tests.support.plan_checker import (
    Finding,
    Method,
    Misaligned,
    NeverWritten,
    OnSharedBuffer,
    OutsideArena,
    OutsideBase,
    Overlap,
    SharedApart,
    Unplaced,
    check_methods,
    check_plan,
    peak_live_bytes,
    report,
    unused_places,
)


class Plan:
    """A planned method, whose tensors are found by the names of their nodes."""

    def __init__(
        self, graph_module: torch.fx.GraphModule, signature: ExportGraphSignature | None
    ) -> None:
        self.graph_module = graph_module
        self.signature = signature

    @classmethod
    def of(cls, module: nn.Module, inputs: tuple[Any, ...], **options: Any) -> "Plan":
        program = harness.lower(harness.export_methods(module, {"forward": inputs}), **options)
        exported = program.exported_program()
        return cls(exported.graph_module, exported.graph_signature)

    def check(self) -> list[Finding]:
        return check_plan(self.graph_module, self.signature)

    def __getitem__(self, name: str) -> TensorSpec:
        """The spec of a node called `name`, or `graph/node` if the graph is a branch."""
        *branch, node_name = name.split("/")
        graph = self.graph_module.get_submodule(branch[0]) if branch else self.graph_module
        node = next(node for node in graph.graph.nodes if node.name == node_name)
        return pytree.tree_leaves(node.meta["spec"])[0]

    def put(self, name: str, onto: str) -> None:
        self[name].mem_offset = self[onto].mem_offset

    @property
    def sizes(self) -> list[int]:
        return self.graph_module.meta["non_const_buffer_sizes"]


def overlapping(findings: list[Finding]) -> set[frozenset[str]]:
    """The pairs of tensors found to overlap; of a tensor in a branch, the last name."""

    def last(name: str) -> str:
        return name.rsplit("/", 1)[-1]

    return {
        frozenset({last(f.first.name), last(f.second.name)})
        for f in findings
        if isinstance(f, Overlap)
    }


def kinds(findings: list[Finding]) -> set[type]:
    return {type(finding) for finding in findings}


# --- programs --------------------------------------------------------------------------------


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        z = y.cos()
        return y.exp() - z


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return x.sin().cos().exp()


class Viewed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        flat = y.view(16)
        z = x.cos().sum()
        return flat * z


class TwoConds(nn.Module):
    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        first = torch.cond(p.sum() > 0, _sine, _cosine, [x])
        second = torch.cond(p.sum() > 1, _cosine, _sine, [x])
        return first - second


class CondViewed(nn.Module):
    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        return torch.cond(p.sum() > 0, _sine, _cosine, [x]).view(16).exp()


def _sine(a: Tensor) -> Tensor:
    return a.sin().exp().neg()


def _cosine(a: Tensor) -> Tensor:
    return a.cos().neg().exp()


class Mapped(nn.Module):
    def forward(self, xs: Tensor, y: Tensor) -> Tensor:
        def body(x: Tensor, y: Tensor) -> Tensor:
            return (x - y).sin().cos()

        return torch._higher_order_ops.map(body, xs, y)


class Scanned(nn.Module):
    def forward(self, start: Tensor, xs: Tensor) -> tuple[Tensor, Tensor]:
        def body(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            after = (carry * x).sin()
            return after, after.cos()

        return torch._higher_order_ops.scan(body, start, xs)


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "chain": (Chain, (torch.randn(8),)),
    "counter": (Counter, (torch.randn(8),)),
    "viewed": (Viewed, (torch.randn(4, 4),)),
    "two conds": (TwoConds, (torch.randn(4, 4), torch.ones(2))),
    "viewed cond": (CondViewed, (torch.randn(4, 4), torch.ones(2))),
    "map": (Mapped, (torch.randn(3, 8), torch.randn(8))),
    "scan": (Scanned, (torch.randn(8), torch.randn(3, 8))),
}


def plan(name: str, **options: Any) -> Plan:
    module, inputs = PROGRAMS[name]
    return Plan.of(module(), inputs, **options)


# --- right plans -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_found_in_right_plans(name: str) -> None:
    module, inputs = PROGRAMS[name]
    program = harness.check(module(), {"forward": inputs}, ["forward"] * 3)
    exported = program.exported_program()
    findings = check_plan(exported.graph_module, exported.graph_signature)
    assert not findings, report(findings)


@pytest.mark.parametrize("name", [*WRITE_BACK, *SHARED_BUFFER])
def test_nothing_is_found_in_the_cases(name: str) -> None:
    case = (WRITE_BACK | SHARED_BUFFER)[name]
    program = harness.lower(harness.export_methods(case.module(), case.methods), **case.options)
    methods = {
        method: Method(exported.graph_module, exported.graph_signature)
        for method in program.methods
        for exported in [program.exported_program(method)]
    }
    for method, findings in check_methods(methods).items():
        assert not findings, f"{method}: {report(findings)}"


# --- broken plans ----------------------------------------------------------------------------


def test_two_tensors_in_one_place() -> None:
    broken = plan("chain")
    broken.put("aten_cos_default", onto="aten_sin_default")
    pairs = overlapping(broken.check())
    assert frozenset({"aten_cos_default", "aten_sin_default"}) in pairs


def test_a_place_may_be_used_again() -> None:
    """The input is dead once its sine is known."""
    sound = plan("chain")
    sound.put("aten_cos_default", onto="x")
    assert frozenset({"aten_cos_default", "x"}) not in overlapping(sound.check())


def test_bytes_in_common_without_equal_offsets() -> None:
    broken = plan("chain")
    broken["aten_cos_default"].mem_offset = broken["aten_sin_default"].mem_offset + 16
    pairs = overlapping(broken.check())
    assert frozenset({"aten_cos_default", "aten_sin_default"}) in pairs


def test_other_arenas_do_not_meet() -> None:
    sound = plan("chain")
    sound["aten_cos_default"].mem_id = 2
    sound.put("aten_cos_default", onto="aten_sin_default")
    sound.sizes.append(sound.sizes[1])
    assert not sound.check()


def test_misaligned() -> None:
    broken = plan("chain")
    broken.sizes[1] += 64
    broken["aten_cos_default"].mem_offset = broken.sizes[1] - 36
    assert kinds(broken.check()) == {Misaligned}


def test_outside_arena() -> None:
    broken = plan("chain")
    broken["aten_cos_default"].mem_offset = broken.sizes[1] - 16
    assert OutsideArena in kinds(broken.check())


def test_arena_that_is_not_recorded() -> None:
    broken = plan("chain")
    broken["aten_cos_default"].mem_id = 2
    assert kinds(broken.check()) == {OutsideArena}


def test_unplaced() -> None:
    broken = plan("chain")
    broken["aten_cos_default"].mem_offset = None
    assert broken.check() == [Unplaced("aten_cos_default", "aten_cos_default")]


def test_the_callers_memory_has_no_place() -> None:
    options = {"alloc_graph_input": False, "alloc_graph_output": False}
    assert not plan("chain", planning=options).check()


def test_buffer_is_alive_after_its_last_use() -> None:
    broken = plan("counter")
    broken.put("aten_exp_default", onto="b_total")
    assert frozenset({"aten_exp_default", "b_total"}) in overlapping(broken.check())


def test_buffer_is_alive_before_its_first_use() -> None:
    broken = plan("counter")
    broken.put("x", onto="b_total")
    assert frozenset({"x", "b_total"}) in overlapping(broken.check())


def test_view_keeps_its_base() -> None:
    broken = plan("viewed")
    broken.put("aten_cos_default", onto="aten_sin_default")
    pairs = overlapping(broken.check())
    assert frozenset({"aten_cos_default", "aten_sin_default"}) in pairs


def test_branch_keeps_what_the_parent_needs_later() -> None:
    broken = plan("two conds")
    broken.put("submodule_0/aten_exp_default", onto="x")
    assert frozenset({"aten_exp_default", "x"}) in overlapping(broken.check())


def test_branches_exclude_each_other() -> None:
    sound = plan("two conds")
    sound.put("submodule_0/aten_exp_default", onto="submodule_1/aten_neg_default")
    assert not sound.check()


def test_result_of_a_cond_survives_the_next() -> None:
    broken = plan("two conds")
    broken.put("submodule_2/aten_neg_default", onto="cond")
    pairs = overlapping(broken.check())
    assert any("aten_neg_default" in pair for pair in pairs), pairs


def _put_results_elsewhere(broken: Plan, first: str, second: str) -> tuple[Any, Any]:
    """Let the results of two conds lie on each other, behind all else."""
    result, other = broken[first], broken[second]
    broken.sizes[1] += 64
    result.mem_offset = other.mem_offset = broken.sizes[1] - 64
    return result, other


RESULTS_OF_TWO_CONDS = ("submodule_0/aten_neg_default", "submodule_2/aten_cos_default")


def test_result_that_is_elsewhere_is_copied_at_the_end_of_the_branch() -> None:
    sound = plan("two conds")
    _put_results_elsewhere(sound, *RESULTS_OF_TWO_CONDS)
    assert not sound.check()


def test_result_that_is_copied_is_kept_until_then() -> None:
    broken = plan("two conds")
    _put_results_elsewhere(broken, *RESULTS_OF_TWO_CONDS)
    broken.put("x", onto="submodule_0/aten_neg_default")
    assert frozenset({"aten_neg_default", "x"}) in overlapping(broken.check())


def test_result_that_goes_by_pointer_survives_the_cond() -> None:
    """In another order than the cond's result it can't be copied, so it stays where it is."""
    broken = plan("two conds")
    for result in _put_results_elsewhere(broken, *RESULTS_OF_TWO_CONDS):
        result.dim_order = (1, 0)
    assert frozenset({"aten_neg_default", "aten_cos_default"}) in overlapping(broken.check())


def test_view_of_a_result_that_is_copied() -> None:
    sound = plan("viewed cond")
    _put_results_elsewhere(sound, "submodule_0/aten_neg_default", "submodule_0/aten_neg_default")
    assert not sound.check()


def test_view_of_a_result_that_goes_by_pointer() -> None:
    """The place that it reads holds nothing."""
    broken = plan("viewed cond")
    name = "submodule_0/aten_neg_default"
    for result in _put_results_elsewhere(broken, name, name):
        result.dim_order = (1, 0)
    assert NeverWritten in kinds(broken.check())


def test_body_keeps_what_the_loop_collects() -> None:
    broken = plan("map")
    broken.put("submodule_0/aten_sin_default", onto="map_impl")
    assert frozenset({"aten_sin_default", "map_impl"}) in overlapping(broken.check())


def test_body_keeps_what_the_next_round_reads() -> None:
    """`y` is last read by the first operator of the body: in each round."""
    broken = plan("map")
    broken.put("submodule_0/aten_cos_default", onto="y")
    assert frozenset({"aten_cos_default", "y"}) in overlapping(broken.check())


def test_body_keeps_what_is_carried() -> None:
    broken = plan("scan")
    broken.put("submodule_0/aten_cos_default", onto="scan")
    assert frozenset({"aten_cos_default", "scan"}) in overlapping(broken.check())


# --- storage in another's storage --------------------------------------------------------------


@pytest.fixture
def nested() -> Iterator[Plan]:
    """The cosine lies in the second half of `y`'s storage, which is made larger for it."""
    sound = plan("chain")
    base, inner = sound["aten_sin_default"], sound["aten_cos_default"]
    if not hasattr(base, "storage_base"):
        pytest.skip("ExecuTorch 1.4 knows no storage at an offset")
    base.shape = [16]
    base.mem_offset = sound.sizes[1]
    sound.sizes[1] += 64
    inner.storage_base, inner.storage_base_offset = base, 32
    inner.mem_offset = base.mem_offset + 32
    yield sound


def test_storage_base_is_no_overlap(nested: Plan) -> None:
    assert not nested.check(), report(nested.check())


def test_storage_base_at_another_offset(nested: Plan) -> None:
    nested["aten_cos_default"].storage_base_offset = 16
    assert kinds(nested.check()) == {OutsideBase}


def test_siblings_in_a_base_overlap(nested: Plan) -> None:
    sibling = nested["aten_exp_default"]
    sibling.storage_base, sibling.storage_base_offset = nested["aten_sin_default"], 32
    nested.put("aten_exp_default", onto="aten_cos_default")
    pairs = overlapping(nested.check())
    assert pairs == {frozenset({"aten_cos_default", "aten_exp_default"})}


# --- several methods -------------------------------------------------------------------------


def methods_with_shared_counter() -> dict[str, Plan]:
    """`forward` has the counter at the front of arena 1, `other` leaves it alone."""
    forward, other = plan("counter"), plan("chain")
    size = max(*forward.sizes, *other.sizes) + 32
    for each in (forward, other):
        specs = {
            spec
            for node in each.graph_module.graph.nodes
            for spec in pytree.tree_leaves(node.meta.get("spec"))
            if isinstance(spec, TensorSpec) and spec.mem_offset is not None
        }
        for spec in specs:
            spec.mem_offset += 32
        each.sizes[1] = size
    forward["b_total"].mem_offset = 0
    return {"forward": forward, "other": other}


def shared_findings(plans: dict[str, Plan]) -> dict[str, list[Finding]]:
    methods = {name: Method(p.graph_module, p.signature) for name, p in plans.items()}
    return check_methods(methods, ["total"])


def test_shared_buffer_has_its_place_to_itself() -> None:
    findings = shared_findings(methods_with_shared_counter())
    assert not any(findings.values()), findings


def test_method_without_the_buffer_lies_on_it() -> None:
    plans = methods_with_shared_counter()
    plans["other"]["aten_cos_default"].mem_offset = 0
    findings = shared_findings(plans)
    assert kinds(findings["other"]) == {OnSharedBuffer}
    assert not findings["forward"]


def test_shared_buffer_in_two_places() -> None:
    plans = methods_with_shared_counter() | {"again": methods_with_shared_counter()["forward"]}
    again = plans["again"]
    again["b_total"].mem_offset = again.sizes[1]
    again.sizes[1] += 32
    assert all(SharedApart in kinds(shared_findings(plans)[name]) for name in ("forward", "again"))


# --- waste -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chain", "counter", "viewed", "two conds", "viewed cond"])
def test_nothing_is_planned_and_never_used(name: str) -> None:
    sound = plan(name)
    assert not unused_places(sound.graph_module, sound.signature)


def test_output_that_nothing_computes() -> None:
    """What stock does for each write-back."""
    wasteful = plan("chain")
    output = wasteful.graph_module.graph.output_node()
    stray = copy.copy(wasteful["aten_cos_default"])
    output.meta["spec"] = (*output.meta["spec"], stray)
    names = [each.name for each in unused_places(wasteful.graph_module, wasteful.signature)]
    assert names == [output.name]


@pytest.mark.parametrize("name", ["map", "scan"])
def test_loops_plan_no_input_that_their_body_shares_with_the_caller(name: str) -> None:
    """Upstream gives all inputs of a body memory, but only slices need it."""
    loop = plan(name)
    assert unused_places(loop.graph_module, loop.signature) == []


# --- peak ------------------------------------------------------------------------------------


def test_peak_of_a_chain() -> None:
    """At the exponential: the sine that it reads, the cosine that is needed later, itself."""
    chain = plan("chain")
    peak = peak_live_bytes(chain.graph_module, chain.signature)[1]
    assert (peak.bytes, peak.step) == (96, "aten_exp_default")


def test_peak_counts_one_branch() -> None:
    """In the first cond: x, a branch's two tensors, and p, which the second one asks."""
    conds = plan("two conds")
    peak = peak_live_bytes(conds.graph_module, conds.signature)[1]
    assert peak.bytes == 3 * 64 + 8


def test_peak_counts_views_and_nested_storage_once(nested: Plan) -> None:
    peak = peak_live_bytes(nested.graph_module, nested.signature)[1]
    # At the exponential: y with the cosine inside (64 bytes) and the exponential.
    assert peak.bytes == 64 + 32
