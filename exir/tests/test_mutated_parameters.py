# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any, Callable, Dict, List

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.mutated_parameters import mutated_parameters_to_buffers
from executorch.runtime import Runtime
from torch import nn
from torch.export import export
from torch.export.experimental import _export_forward_backward
from torch.export.graph_signature import InputKind, OutputKind


class Adaptive(nn.Module):
    """The old weight is used, and the new one is kept for the next call."""

    def __init__(self, requires_grad: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0), requires_grad=requires_grad)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2 + self.weight
        with torch.no_grad():
            self.weight.add_(x)
        return y


class Overwritten(nn.Module):
    """Nothing reads the parameter but the next method."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.copy_(x)
        return x + 1


class AdaptiveLinear(nn.Module):
    """A weight of a kind that backends take as constant, beside one that is constant."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.fixed = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fixed(self.linear(x.view(1, 4))).view(4)
        with torch.no_grad():
            self.linear.weight.add_(x)
        return y


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.tensor([3], dtype=torch.int8), False)
        self.scale = nn.Parameter(torch.full((2, 2), 1.5, dtype=torch.half), False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.scale.mul_(2)
        return x * self.count + self.scale.float()


class StateThatRequiresGrad(nn.Module):
    """Exported without no_grad, its buffer requires a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(self.linear(x))
        return self.total * 2


class ReadOnly(nn.Module):
    """Reads what another method of the program changes."""

    def __init__(self, adaptive: Adaptive) -> None:
        super().__init__()
        self.weight = adaptive.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight


def edge_of(
    module: nn.Module, partitioners: List[Any], shape: Any = (4,)
) -> EdgeProgramManager:
    exported = export(module, (torch.ones(shape),))
    if partitioners:
        return to_edge_transform_and_lower(exported, partitioner=partitioners)
    return to_edge(exported)


class TestMutatedParameters(unittest.TestCase):
    def assert_runs_as_eager(
        self,
        make: Callable[[], nn.Module],
        partitioners: List[Any],
        config: Dict[str, Any],
        shape: Any = (4,),
    ) -> None:
        module = make()
        eager = make()
        eager.load_state_dict(module.state_dict())
        lowered = edge_of(module, partitioners, shape).to_executorch(
            ExecutorchBackendConfig(**config)
        )
        # Keep the program until the method has run: the method is in its memory.
        program = Runtime.get().load_program(lowered.buffer)
        method = program.load_method("forward")
        for _ in range(4):
            x = torch.randn(shape)
            # Eager keeps no gradient, so neither does what is compared.
            expected = eager(x).detach()
            torch.testing.assert_close(method.execute([x])[-1], expected)

    def test_changes_are_kept(self) -> None:
        configs = {
            "default": {},
            "reinplace": {"run_reinplace_pass": True},
            "propagation": {"do_quant_fusion_and_const_prop": True},
            "external": {"external_constants": True},
            "shared": {
                "memory_planning_pass": MemoryPlanningPass(share_mutable_buffers=True)
            },
        }
        modules = {
            "adaptive": Adaptive,
            "requires_grad": lambda: Adaptive(requires_grad=True),
            "overwritten": Overwritten,
        }
        for name, make in modules.items():
            for title, config in configs.items():
                with self.subTest(module=name, config=title):
                    self.assert_runs_as_eager(make, [], config)

    def test_changes_are_kept_beside_a_backend(self) -> None:
        for make in (Adaptive, Overwritten):
            with self.subTest(module=make.__name__):
                self.assert_runs_as_eager(make, [XnnpackPartitioner()], {})

    def test_other_dtypes(self) -> None:
        self.assert_runs_as_eager(Half, [], {}, shape=(2, 2))

    def test_weight_of_a_linear_layer(self) -> None:
        self.assert_runs_as_eager(AdaptiveLinear, [], {})

    def test_state_that_requires_grad(self) -> None:
        self.assert_runs_as_eager(StateThatRequiresGrad, [], {})

    def test_weight_that_a_backend_takes_is_refused(self) -> None:
        edge = edge_of(AdaptiveLinear(), [XnnpackPartitioner()])
        with self.assertRaisesRegex(ValueError, r"linear\.weight .* XnnpackBackend"):
            edge.to_executorch()

    def test_weight_without_memory_is_refused(self) -> None:
        edge = edge_of(Adaptive(), [])
        config = ExecutorchBackendConfig(
            memory_planning_pass=MemoryPlanningPass(alloc_mutable_buffers=False),
            emit_mutable_buffer_names=True,
        )
        with self.assertRaisesRegex(ValueError, "weight .* method forward"):
            edge.to_executorch(config)

    def test_a_parameter_with_a_gradient_is_refused(self) -> None:
        # torch.export makes no such program today, so that one is made by hand.
        class Loss(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(3, 3)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.linear(x).sum()

        program = _export_forward_backward(export(Loss(), (torch.ones(3),)))
        program = to_edge(program).exported_program()
        specs = program.graph_signature.output_specs
        gradient = next(s for s in specs if s.kind == OutputKind.GRADIENT_TO_PARAMETER)
        mutation = next(s for s in specs if s.kind == OutputKind.LOSS_OUTPUT)
        mutation.kind = OutputKind.PARAMETER_MUTATION
        mutation.target = gradient.target
        with self.assertRaisesRegex(ValueError, f"{gradient.target}.*gradient"):
            mutated_parameters_to_buffers(program)

    def test_only_what_is_changed_becomes_a_buffer(self) -> None:
        program = edge_of(AdaptiveLinear(), []).exported_program()
        kinds = {s.target: s.kind for s in program.graph_signature.input_specs}
        self.assertEqual(kinds["linear.weight"], InputKind.BUFFER)
        self.assertEqual(kinds["fixed.weight"], InputKind.PARAMETER)
        self.assertIsInstance(program.state_dict["linear.weight"], nn.Parameter)
        self.assertIs(mutated_parameters_to_buffers(program), program)

    def test_two_methods_share_a_parameter(self) -> None:
        module = Adaptive()
        edge = to_edge(
            {
                "adapt": export(module, (torch.ones(4),)),
                "read": export(ReadOnly(module), (torch.ones(4),)),
            }
        )
        lowered = edge.to_executorch(
            ExecutorchBackendConfig(
                memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True),
                emit_mutable_buffer_names=True,
            )
        )
        plans = {p.name: p for p in lowered.executorch_program.execution_plan}
        places = []
        for name in ("adapt", "read"):
            tensors = [
                value.val
                for value in plans[name].values
                if getattr(value.val, "extra_tensor_info", None) is not None
                and value.val.extra_tensor_info.fully_qualified_name == "weight"
            ]
            self.assertEqual(len(tensors), 1)
            allocation = tensors[0].allocation_info
            self.assertIsNotNone(allocation)
            places.append((allocation.memory_id, allocation.memory_offset_low))
            self.assertGreater(tensors[0].data_buffer_idx, 0)
        self.assertEqual(places[0], places[1])

    def test_methods_that_do_not_share_keep_values_of_their_own(self) -> None:
        module = Adaptive()
        edge = to_edge(
            {
                "adapt": export(module, (torch.ones(4),)),
                "read": export(ReadOnly(module), (torch.ones(4),)),
            }
        )
        program = Runtime.get().load_program(edge.to_executorch().buffer)
        adapt, read = program.load_method("adapt"), program.load_method("read")
        x = torch.ones(4)
        for call in range(3):
            expected = x * 2 + torch.arange(4.0) + call
            torch.testing.assert_close(adapt.execute([x])[0], expected)
            torch.testing.assert_close(read.execute([x])[0], x + torch.arange(4.0))
