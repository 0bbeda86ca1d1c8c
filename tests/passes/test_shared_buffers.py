# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Methods of one loaded program see one copy of the buffers that they share."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, ExecutorchProgramManager, to_edge
from executorch.exir.memory_planning import (
    MemoryPlanningAlgorithmSuite,
    get_node_tensor_specs,
    greedy,
)
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.schema import TensorShapeDynamism
from executorch.exir.tensor import TensorSpec
from torch import Tensor, nn
from torch.export import export

from tests.support import harness, plan_checker
from tests.support.cases import SHARED_BUFFER
from tests.support.trees import patched_tree
from tools.patching import series
from tools.paths import ROOT


def sharing(*fqns: str, **planning: Any) -> dict[str, Any]:
    """Arguments of a memory planning pass that shares `fqns`."""
    return {"share_mutable_buffers": True, "shared_buffer_fqns": fqns, **planning}


def places(program: ExecutorchProgramManager, fqn: str) -> dict[str, tuple[int, int]]:
    """(arena, offset) of the buffer in each method that has it, by what was emitted."""
    found = {}
    for plan in program.executorch_program.execution_plan:
        for value in plan.values:
            info = getattr(value.val, "extra_tensor_info", None)
            if info is not None and info.fully_qualified_name == fqn:
                place = value.val.allocation_info
                assert place.memory_offset_high == 0
                found[plan.name] = (place.memory_id, place.memory_offset_low)
    return found


LAYOUTS: dict[str, dict[str, Any]] = {
    "default": {},
    "strict_alignment": {"alignment": 128},
    "callers_inputs": {"alloc_graph_input": False},
    "callers_outputs": {"alloc_graph_output": False},
    "callers_both": {"alloc_graph_input": False, "alloc_graph_output": False},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SHARED_BUFFER)
def test_case(name: str, layout: str) -> None:
    case = SHARED_BUFFER[name]
    planning = sharing(*case.shared, **LAYOUTS[layout])
    harness.check(case.module(), case.methods, case.sequence, planning=planning, **case.options)


@pytest.mark.parametrize("name", SHARED_BUFFER)
def test_emitted_names_stand_at_one_place(name: str) -> None:
    case = SHARED_BUFFER[name]
    program = harness.lower(
        harness.export_methods(case.module(), case.methods),
        planning=sharing(*case.shared),
        emit_mutable_buffer_names=True,
        **case.options,
    )
    (fqn,) = case.shared
    found = places(program, fqn)
    # An exported method lists all buffers of its module, used or not.
    assert set(found) == set(case.methods)
    assert set(found.values()) == {(1, 0)}


# --- together with other parts of ExecuTorch ------------------------------------------------


@pytest.mark.parametrize("name", SHARED_BUFFER)
def test_external_constants(name: str) -> None:
    """What a method only reads looks like a constant, but must not leave the program."""
    case = SHARED_BUFFER[name]
    harness.check(
        case.module(),
        case.methods,
        case.sequence,
        planning=sharing(*case.shared),
        external_constants=True,
        **case.options,
    )


def test_parameters_stay_external() -> None:
    programs = {
        name: export(module, (torch.ones(2),))
        for name, module in {"count": Counter(), "look": Reader()}.items()
    }
    program = harness.lower(programs, planning=sharing("steps"), external_constants=True)
    for method in program.methods:
        graph = program.exported_program(method).graph
        tagged = [node.name for node in graph.nodes if "constant_tag" in node.meta]
        assert tagged == ["p_scale"]


class Filter(nn.Module):
    """One method goes to XNNPACK but for the state, another only resets it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("state", torch.zeros(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x + self.state)
        self.state.copy_(y)
        return self.linear(y)

    def reset(self, x: Tensor) -> Tensor:
        self.state.copy_(x)
        return x.sum()


def test_padding_behind_delegates() -> None:
    """XNNPACK reads up to 64 bytes behind a tensor: they are still there at the arena's end."""
    methods = {"forward": (torch.randn(2, 8),), "reset": (torch.zeros(2, 8),)}
    calls = ["forward", "forward", "reset", "forward", "forward"]
    program = harness.check(
        Filter(),
        methods,
        calls,
        planning=sharing("state"),
        partitioner=XnnpackPartitioner(),
        emit_mutable_buffer_names=True,
    )
    for method, padding in {"forward": 64, "reset": 0}.items():
        graph_module = program.exported_program(method).graph_module
        ends = [
            spec.mem_offset + spec.allocated_memory
            for node in graph_module.graph.nodes
            for spec in get_node_tensor_specs(node)
            if spec.mem_offset is not None
        ]
        assert graph_module.meta["non_const_buffer_sizes"] == [0, max(ends) + padding]
    assert places(program, "state") == dict.fromkeys(methods, (1, 0))


LOWER_ALL = """
import hashlib, warnings
import torch
from tests.support import harness
from tests.support.cases import SHARED_BUFFER
from executorch.exir.passes import MemoryPlanningPass

class Pooled(MemoryPlanningPass):
    def run(self, graph_module, graph_signature=None):
        for node in graph_module.graph.nodes:
            if node.op == "placeholder":
                node.meta["spec"].mem_id = 3
        return super().run(graph_module, graph_signature)

def lower_all():
    for name, case in SHARED_BUFFER.items():
        exported = harness.export_methods(case.module(), case.methods)
        for planner in (MemoryPlanningPass, Pooled):
            for sharing in (False, True):
                planning = planner(share_mutable_buffers=sharing)
                try:
                    program = harness.lower(
                        exported, memory_planning_pass=planning, **case.options
                    )
                    outcome = hashlib.sha256(program.buffer).hexdigest()
                except Exception as error:
                    outcome = repr(error)
                print(name, planner.__name__, sharing, outcome)

warnings.simplefilter("ignore")
with harness.quick_decompositions():
    lower_all()
"""


def test_without_names_nothing_changes(tmp_path: Path) -> None:
    """Programs and errors are those from before the patch, byte for byte."""
    release, _, _ = metadata.version("executorch").partition("+")
    loaded = series.load()
    numbers = [patch.number for patch in loaded.patches]
    (position,) = (
        index
        for index, patch in enumerate(loaded.patches)
        for file in patch.files
        if "MemoryPlanningPass._front_pack_shared_buffers" in file.define
    )
    before, after = numbers[:position], numbers[: position + 1]
    outcomes = []
    for chosen in (before, after):
        directory = tmp_path / chosen[-1]
        directory.mkdir()
        tree = patched_tree(release, directory, loaded.only(tuple(chosen)))
        run = subprocess.run(
            [sys.executable, "-c", LOWER_ALL],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), str(ROOT)])},
            capture_output=True,
            text=True,
            check=True,
        )
        outcomes.append(run.stdout.splitlines())
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) == 4 * len(SHARED_BUFFER)
    assert any("Cannot share mutable" in line for line in outcomes[0])


# --- what can't be shared -------------------------------------------------------------------


class Counter(nn.Module):
    """A method with one buffer `steps`; `scale` is a parameter."""

    def __init__(self, size: int = 4, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(size, dtype=dtype))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        self.steps.add_(1)
        return x * self.scale + self.steps.sum().to(x.dtype)


class Reader(Counter):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.steps.sum().to(x.dtype)


def lower_methods(methods: dict[str, nn.Module], planner: Any) -> ExecutorchProgramManager:
    programs = {name: export(module, (torch.ones(2),)) for name, module in methods.items()}
    config = ExecutorchBackendConfig(memory_planning_pass=planner)
    return to_edge(programs).to_executorch(config)


def refuse(methods: dict[str, nn.Module], *fqns: str, planner: Any = None) -> str:
    """The message with which sharing `fqns` is refused."""
    with pytest.raises(ValueError) as caught:
        lower_methods(methods, planner or MemoryPlanningPass(**sharing(*fqns)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("planning", "told"),
    [
        ({"shared_buffer_fqns": ["steps"]}, ("steps", "share_mutable_buffers is False")),
        (sharing(), ("empty",)),
        (sharing() | {"shared_buffer_fqns": "steps"}, ("single string 'steps'",)),
        (sharing() | {"shared_buffer_fqns": [3]}, ("3", "int", "strings")),
    ],
)
def test_names_that_are_none(planning: dict[str, Any], told: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        MemoryPlanningPass(**planning)
    for words in told:
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("methods", "fqn", "told"),
    [
        ({"count": Counter()}, "step", ("'step'", "'count'", "'steps'", "nearest")),
        ({"count": Counter()}, "scale", ("'scale'", "parameter", "'count'")),
        (
            {"one": Counter(4), "other": Counter(8)},
            "steps",
            ("'steps'", "'one'", "'other'", "[4] (16 bytes)", "[8] (32 bytes)"),
        ),
        (
            {"one": Counter(), "other": Counter(dtype=torch.int32)},
            "steps",
            ("'steps'", "'one'", "'other'", "torch.float32", "torch.int32"),
        ),
    ],
)
def test_buffers_that_are_none(
    methods: dict[str, nn.Module], fqn: str, told: tuple[str, ...]
) -> None:
    message = refuse(methods, fqn)
    for words in told:
        assert words in message


class Tampering(MemoryPlanningPass):
    """Changes the state's placement in one method, before planning or after it."""

    def __init__(self, method: int, **changes: Any) -> None:
        super().__init__(**sharing("steps"))
        self.method, self.changes, self.runs = method, changes, 0

    def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
        self.runs += 1
        if self.runs == self.method:
            for node in graph_module.graph.nodes:
                if node.target == "b_steps":
                    for field, value in self.changes.items():
                        setattr(node.meta["spec"], field, value)
        return super().run(graph_module, graph_signature)


def test_another_arena() -> None:
    methods = {"one": Counter(), "other": Counter()}
    message = refuse(methods, planner=Tampering(2, mem_id=3))
    for words in ("'steps'", "arena 1 in method 'one'", "arena 3 in method 'other'"):
        assert words in message


def test_unbounded_size() -> None:
    unbounded = TensorShapeDynamism.DYNAMIC_UNBOUND
    message = refuse({"one": Counter()}, planner=Tampering(1, shape_dynamism=unbounded))
    for words in ("'steps'", "'one'", "no upper bound"):
        assert words in message


def careless(change: Callable[[list[TensorSpec]], None]) -> MemoryPlanningPass:
    """A pass whose algorithm spoils what greedy has planned; `steps` comes first."""
    suite = MemoryPlanningAlgorithmSuite([greedy])

    def algorithm(alignment: int, specs: Any, *rest: Any) -> list[int]:
        sizes = suite(alignment, specs, *rest)
        change(sorted(specs, key=lambda spec: list(spec.shape) != [4]))
        return sizes

    return MemoryPlanningPass(memory_planning_algo=algorithm, **sharing("steps"))


def test_placement_left_unset() -> None:
    def forget(specs: list[TensorSpec]) -> None:
        specs[0].mem_offset = None

    message = refuse({"one": Counter()}, planner=careless(forget))
    for words in ("'steps'", "'one'", "arena 1", "offset None"):
        assert words in message


def test_overlap() -> None:
    def overlap(specs: list[TensorSpec]) -> None:
        specs[1].mem_offset = specs[0].mem_offset

    message = refuse({"one": Counter()}, planner=careless(overlap))
    for words in ("shared buffer 'steps'", "'one'", "overlaps", "bytes"):
        assert words in message


@pytest.mark.keeps_operators
def test_buffer_that_a_backend_owns() -> None:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(8, 8))

        def put(self, x: Tensor) -> Tensor:
            self.steps.copy_(x)
            return x.sum()

        def get(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.steps)

    methods = {"put": (torch.ones(8, 8),), "get": (torch.ones(2, 8),)}
    with pytest.raises(ValueError) as caught:
        harness.lower(
            harness.export_methods(Projected(), methods),
            planning=sharing("steps"),
            partitioner=XnnpackPartitioner(),
        )
    for words in ("'steps'", "'get'", "XnnpackBackend", "partition"):
        assert words in str(caught.value)


def test_methods_planned_apart() -> None:
    planner = {"one": MemoryPlanningPass(**sharing("steps"))}
    message = refuse({"one": Counter(), "other": Counter()}, planner=planner)
    for words in ("'one'", "['steps']", "'other'", "None"):
        assert words in message


def test_nothing_changes_when_methods_disagree() -> None:
    """What `run` has planned stays as it was when the program is refused."""
    planner = MemoryPlanningPass(**sharing("steps"))
    methods = {"one": Counter(4), "other": Counter(8)}
    plans = []

    def record() -> list[Any]:
        return [
            (list(graph.meta["non_const_buffer_sizes"]), [spec.mem_offset for spec in specs])
            for graph, specs in plans
        ]

    class Recording(MemoryPlanningPass):
        def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
            result = super().run(graph_module, graph_signature)
            specs = [
                node.meta["spec"]
                for node in graph_module.graph.nodes
                if isinstance(node.meta.get("spec"), TensorSpec)
            ]
            plans.append((graph_module, specs))
            self.before = record()
            return result

    planner = Recording(**sharing("steps"))
    refuse(methods, planner=planner)
    assert record() == planner.before
    lower_methods({"one": Counter(4), "other": Counter(4)}, planner)


def test_warning_about_private_copies() -> None:
    class Two(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(x)
            return super().forward(x)

    planner = MemoryPlanningPass(**sharing("steps"))
    with pytest.warns(UserWarning) as caught:
        lower_methods({"one": Two(), "other": Two()}, dict.fromkeys(["one", "other"], planner))
    told = [str(each.message) for each in caught if "shared_buffer_fqns" in str(each.message)]
    assert len(told) == 1
    assert "'total' ('one', 'other')" in told[0]
    assert "steps" not in told[0]


# --- nothing else lies there ----------------------------------------------------------------


@pytest.mark.parametrize("name", SHARED_BUFFER)
def test_plan_checker_finds_nothing(name: str) -> None:
    case = SHARED_BUFFER[name]
    program = harness.lower(
        harness.export_methods(case.module(), case.methods),
        planning=sharing(*case.shared),
        **case.options,
    )
    methods = {
        method: plan_checker.Method(
            program.exported_program(method).graph_module,
            program.exported_program(method).graph_signature,
        )
        for method in program.methods
    }
    for method, findings in plan_checker.check_methods(methods, case.shared).items():
        assert not findings, f"{method}: {plan_checker.report(findings)}"
