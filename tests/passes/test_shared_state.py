# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""What a user says of shared buffers, in good faith, and what becomes of all other state."""

import warnings
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchProgramManager, mutable_buffer_fqns
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.tensor import TensorSpec
from executorch.runtime import Runtime
from torch import Tensor, nn
from torch.export import ExportedProgram, export

from tests.support import harness, plan_checker
from tests.support.cases import SHARED_BUFFER


class Holder(nn.Module):
    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)


class TwoNames(nn.Module):
    """One tensor that two submodules know."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Holder(state=torch.zeros(5))
        self.decoder = Holder(state=self.encoder.state)

    def forward(self, x: Tensor) -> Tensor:
        self.encoder.state.sub_(x)
        return self.decoder.state * 3

    def get(self) -> Tensor:
        return self.decoder.state - 1


class WithIdle(Holder):
    """One buffer isn't used at all, and one is written with what it holds."""

    def __init__(self) -> None:
        super().__init__(state=torch.zeros(5), idle=torch.zeros(3), same=torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.state.add_(x)
        self.same.copy_(self.same)
        return self.state * 2

    def get(self) -> Tensor:
        return self.state.neg()


class TwoJobs(Holder):
    """`encoder` is the business of `forward` alone, `decoder` that of `decode`."""

    def __init__(self) -> None:
        super().__init__(position=torch.zeros(4), encoder=torch.zeros(4), decoder=torch.zeros(9))

    def forward(self, x: Tensor) -> Tensor:
        self.position.add_(1)
        self.encoder.add_(x)
        return self.encoder + self.position

    def decode(self, x: Tensor) -> Tensor:
        self.position.add_(1)
        self.decoder.add_(x.sum())
        return (x.repeat(8).sin().exp() * self.position.repeat(8)).sum() + self.decoder.cos()


FIVE, FOUR = (torch.randn(5),), (torch.randn(4),)
IN_TURN = ["forward", "get", "forward", "get"]
NAMED: dict[str, tuple[Any, dict[str, Any], Any, list[str]]] = {
    "by_one_name": (TwoNames, {"forward": FIVE, "get": ()}, ["encoder.state"], IN_TURN),
    "by_the_other": (TwoNames, {"forward": FIVE, "get": ()}, ["decoder.state"], IN_TURN),
    "by_both": (
        TwoNames,
        {"forward": FIVE, "get": ()},
        ["decoder.state", "encoder.state"],
        IN_TURN,
    ),
    "all_there_are": (
        WithIdle,
        {"forward": FIVE, "get": ()},
        ["state", "idle", "same"],
        IN_TURN,
    ),
    "some": (TwoJobs, {"forward": FOUR, "decode": FOUR}, ["position"], ["forward", "decode"] * 3),
    "listed": (TwoJobs, {"forward": FOUR, "decode": FOUR}, None, ["forward", "decode"] * 3),
}


def export_strictly(
    module: nn.Module, methods: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> dict[str, ExportedProgram]:
    """Non-strict export can't lower a mutable buffer of two names."""
    monkeypatch.setattr(harness, "export", lambda *args, **kw: export(*args, **kw, strict=True))
    return harness.export_methods(module, methods)


@pytest.mark.parametrize("shared_arena", ["front", "own"])
@pytest.mark.parametrize("name", NAMED)
def test_named(name: str, shared_arena: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, methods, fqns, sequence = NAMED[name]
    module = make()
    manager = harness.to_edge_programs(export_strictly(module, methods, monkeypatch))
    program = harness.finish(
        manager,
        planning={
            "share_mutable_buffers": True,
            "shared_buffer_fqns": fqns or mutable_buffer_fqns(manager),
            "shared_arena": shared_arena,
        },
    )
    calls = harness.random_calls(methods, sequence)
    got = harness.run_in_runtime(program, calls)
    harness.assert_same(got, harness.run_eagerly(module, calls))


@pytest.mark.parametrize("name", SHARED_BUFFER)
def test_own_arena(name: str) -> None:
    """It holds the buffers and nothing else, at one index in every method."""
    case = SHARED_BUFFER[name]
    program = harness.check(
        case.module(),
        case.methods,
        case.sequence,
        planning={
            "share_mutable_buffers": True,
            "shared_buffer_fqns": case.shared,
            "shared_arena": "own",
        },
        **case.options,
    )
    methods = {
        method: plan_checker.Method(exported.graph_module, exported.graph_signature)
        for method in program.methods
        for exported in [program.exported_program(method)]
    }
    for method, findings in plan_checker.check_methods(methods, case.shared).items():
        assert not findings, f"{method}: {plan_checker.report(findings)}"
    for method in program.methods:
        exported = program.exported_program(method)
        buffers = exported.graph_signature.inputs_to_buffers
        for node in exported.graph_module.graph.nodes:
            spec = node.meta.get("spec")
            if node.op == "placeholder" and isinstance(spec, TensorSpec):
                in_arena = spec.mem_id == 2
                assert in_arena == (buffers.get(node.target) in case.shared), method


# --- one buffer by several names ------------------------------------------------------------


class Wrapper(nn.Module):
    """A model that another module knows by another name, and its own."""

    def __init__(self, name: str, model: nn.Module, *, reads: bool) -> None:
        super().__init__()
        self.add_module(name, model)
        self.name, self.reads = name, reads

    def forward(self, x: Tensor) -> Tensor:
        state = self.get_submodule(self.name).get_buffer("k")
        if self.reads:
            return state * x
        state.add_(x)
        return x + 1


def wrapped() -> tuple[dict[str, nn.Module], dict[str, ExportedProgram]]:
    model = Holder(k=torch.zeros(4))
    modules = {
        "prefill": Wrapper("model", model, reads=False),
        "decode": Wrapper("lm", model, reads=True),
    }
    with torch.no_grad():
        return modules, {name: export(each, FOUR) for name, each in modules.items()}


def run_wrapped(modules: dict[str, nn.Module], program: ExecutorchProgramManager) -> bool:
    """Whether `decode` sees what `prefill` has written."""
    calls = harness.random_calls(dict.fromkeys(modules, FOUR), ["prefill", "decode"] * 2)
    got = [result.outputs[0] for result in harness.run_in_runtime(program, calls)]
    with torch.no_grad():
        wanted = [modules[call.method](*call.inputs) for call in calls]
    return all(torch.allclose(a, b) for a, b in zip(got, wanted, strict=True))


def test_names_by_method() -> None:
    modules, programs = wrapped()
    names = {"kv": {"prefill": "model.k", "decode": "lm.k"}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = harness.lower(
            programs, planning={"share_mutable_buffers": True, "shared_buffer_fqns": names}
        )
    assert not [each for each in caught if "shared_buffer_fqns" in str(each.message)]
    assert run_wrapped(modules, program)


def test_a_name_that_only_one_method_has() -> None:
    modules, programs = wrapped()
    planning = {"share_mutable_buffers": True, "shared_buffer_fqns": ["model.k"]}
    with pytest.warns(UserWarning, match=r"only one method has.*'model\.k' \(prefill\)"):
        program = harness.lower(programs, planning=planning)
    assert not run_wrapped(modules, program)


def test_all_bad_names_before_anything_is_planned() -> None:
    _, programs = wrapped()

    class Unplanned(MemoryPlanningPass):
        def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
            raise AssertionError("planned")

    planner = Unplanned(share_mutable_buffers=True, shared_buffer_fqns=["model.q", "k"])
    with pytest.raises(ValueError, match=r"2 names(.|\n)*'k'(.|\n)*'model\.k'(.|\n)*'model\.q'"):
        harness.lower(programs, memory_planning_pass=planner)


# --- as early as it can be known ------------------------------------------------------------


class Counting(Holder):
    def __init__(self, size: int, *, reads: bool = False) -> None:
        super().__init__(steps=torch.zeros(size))
        self.reads = reads

    def forward(self, x: Tensor) -> Tensor:
        if not self.reads:
            self.steps.add_(1)
        return x + self.steps.sum()


class Watching(MemoryPlanningPass):
    """Notes where the steps are after each method."""

    def __init__(self, **planning: Any) -> None:
        names = ["steps"]
        super().__init__(share_mutable_buffers=True, shared_buffer_fqns=names, **planning)
        self.seen: list[tuple[int | None, int | None]] = []

    def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
        result = super().run(graph_module, graph_signature)
        (spec,) = (n.meta["spec"] for n in graph_module.graph.nodes if n.target == "b_steps")
        self.seen.append((spec.mem_id, spec.mem_offset))
        return result


@pytest.mark.parametrize("shared_arena", ["front", "own"])
def test_places_are_final_where_they_are_known(shared_arena: str) -> None:
    planner = Watching(shared_arena=shared_arena)
    modules = {"a": Counting(4, reads=True), "b": Counting(4), "c": Counting(4, reads=True)}
    programs = {name: export(module, FOUR) for name, module in modules.items()}
    harness.lower(programs, memory_planning_pass=planner)
    place = (1 if shared_arena == "front" else 2, 0)
    # Nobody knows that "a" reads what "b" writes.
    assert planner.seen == [(None, None), place, place]


def test_another_size_is_told_at_once() -> None:
    planner = Watching()
    modules = {"a": Counting(4), "b": Counting(8), "c": Counting(4)}
    programs = {name: export(module, FOUR) for name, module in modules.items()}
    with pytest.raises(ValueError, match=r"size \[4\].*method 'a' but size \[8\].*method 'b'"):
        harness.lower(programs, memory_planning_pass=planner)
    assert planner.seen == [(1, 0)]


# --- state that nothing keeps ---------------------------------------------------------------


def warned(programs: dict[str, ExportedProgram], **planning: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        harness.lower(programs, planning=planning, emit_mutable_buffer_names=True)
    told = [str(each.message) for each in caught]
    return [text for text in told if "no place of their own" in text]


def test_warning_of_lost_state() -> None:
    both = harness.export_methods(TwoJobs(), {"forward": FOUR, "decode": FOUR})
    (told,) = warned(both)
    for words in ("'forward' ('encoder', 'position')", "'decode' ('decoder', 'position')"):
        assert words in told
    assert not warned({"forward": both["forward"]})
    assert not warned(both, share_mutable_buffers=True)
    assert not warned(both, share_mutable_buffers=True, shared_buffer_fqns=["position"])
    assert not warned(both, methods_share_arenas=False)
    assert not warned(both, alloc_mutable_buffers=False)


def test_warning_comes_once_for_several_passes() -> None:
    both = harness.export_methods(TwoJobs(), {"forward": FOUR, "decode": FOUR})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        harness.lower(both, memory_planning_pass={name: MemoryPlanningPass() for name in both})
    told = [str(each.message) for each in caught if "no place of their own" in str(each.message)]
    assert len(told) == 1
    assert "'forward'" in told[0] and "'decode'" in told[0]


def test_a_promise_saves_the_room() -> None:
    both = harness.export_methods(TwoJobs(), {"forward": FOUR, "decode": FOUR})
    apart, promised = (
        {
            plan.name: plan.non_const_buffer_sizes[1]
            for plan in harness.lower(
                both,
                planning={
                    "share_mutable_buffers": True,
                    "shared_buffer_fqns": ["position"],
                    "methods_share_arenas": share,
                },
            ).executorch_program.execution_plan
        }
        for share in (True, False)
    )
    # What the other method keeps: nine floats of the decoder's, aligned, or four.
    assert {name: apart[name] - promised[name] for name in both} == {"forward": 48, "decode": 16}


# --- loading --------------------------------------------------------------------------------


def test_loading_resets_what_is_initialized() -> None:
    """So all methods are loaded before the first call, as README says."""
    programs = {
        name: export(module, FOUR) for name, module in {"a": Counting(4), "b": Counting(4)}.items()
    }
    for exported in programs.values():
        exported.state_dict["steps"].fill_(0.5)
    program = harness.lower(
        programs,
        planning={"share_mutable_buffers": True, "shared_buffer_fqns": ["steps"]},
        passes=[InitializedMutableBufferPass(["steps"])],
    )
    loaded = Runtime.get().load_program(program.buffer)
    zero = torch.zeros(4)
    first = loaded.load_method("a")
    assert first.execute([zero])[0][0].item() == 4 * 1.5
    late = loaded.load_method("b")
    assert late.execute([zero])[0][0].item() == 4 * 1.5
    assert first.execute([zero])[0][0].item() == 4 * 2.5


# --- banks ----------------------------------------------------------------------------------

try:
    from executorch.exir import banked_memory_planning as banked
except ImportError:  # before ExecuTorch 1.5.1
    banked = None
needs_banks = pytest.mark.skipif(banked is None, reason="needs ExecuTorch 1.5.1")


class LargeStates(Holder):
    def __init__(self) -> None:
        super().__init__(shared=torch.zeros(64), mine=torch.zeros(256), yours=torch.zeros(256))

    def forward(self, x: Tensor) -> Tensor:
        self.shared.add_(1)
        self.mine.add_(x.sum())
        return x + self.mine.sum() + self.shared.sum()

    def other(self, x: Tensor) -> Tensor:
        self.shared.add_(1)
        self.yours.add_(x.sum())
        return x - self.yours.sum() + self.shared.sum()


def in_banks(fast: int, **planning: Any) -> ExecutorchProgramManager:
    target = banked.TargetMemoryMap([banked.Bank("sram", fast, 1), banked.Bank("dram", 1 << 16, 2)])
    suite = MemoryPlanningAlgorithmSuite([banked.BankedGreedy(target)])
    return harness.check(
        LargeStates(),
        {"forward": FOUR, "other": FOUR},
        ["forward", "other"] * 3,
        planning={
            "memory_planning_algo": suite,
            "share_mutable_buffers": True,
            "shared_buffer_fqns": ["shared"],
            **planning,
        },
    )


@needs_banks
def test_fronts_in_banks() -> None:
    program = in_banks(4096)
    for plan in program.executorch_program.execution_plan:
        assert 0 < plan.non_const_buffer_sizes[1] <= 4096


@needs_banks
def test_a_front_that_is_too_large_for_its_bank() -> None:
    """Each method fits by itself; with what the other keeps it doesn't."""
    with pytest.raises(ValueError) as caught:
        in_banks(1792)
    told = str(caught.value)
    for words in ("Bank sram (arena 1) has 1792 bytes", "'other'", "'mine'", "1024 bytes"):
        assert words in told, told


@needs_banks
def test_an_own_arena_takes_nothing_from_banks() -> None:
    program = in_banks(256, shared_arena="own")
    for plan in program.executorch_program.execution_plan:
        sizes = plan.non_const_buffer_sizes
        assert len(sizes) == 4 and sizes[1] <= 256
        assert sizes[3] == 256 + 2 * 1024
