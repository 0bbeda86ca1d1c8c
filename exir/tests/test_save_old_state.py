# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any, Callable, List

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.passes.save_old_state import save_old_state
from executorch.runtime import Runtime
from torch import Tensor
from torch.export import export


class Stateful(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        for name in "abc":
            self.register_buffer(name, torch.zeros(4))
        self.register_buffer("square", torch.zeros(2, 2))
        self.weight = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def delay(self: Stateful, x: Tensor) -> Tensor:
    y = self.c * 2
    self.c.copy_(self.b)
    self.b.copy_(self.a)
    self.a.copy_(x)
    return y


def delay_of_sums(self: Stateful, x: Tensor) -> Tensor:
    y = self.b * 2
    self.b.copy_(self.a)
    self.a.add_(x)
    return y


def delay_through_view(self: Stateful, x: Tensor) -> Tensor:
    y = self.square * 2
    self.square.copy_(self.a.view(2, 2))
    self.a.add_(x)
    return y


def delay_through_transposed(self: Stateful, x: Tensor) -> Tensor:
    y = self.square * 2
    self.square.copy_(self.a.view(2, 2).transpose(0, 1))
    self.a.add_(x)
    return y


def delay_of_part(self: Stateful, x: Tensor) -> Tensor:
    y = self.square * 2
    self.square.copy_(self.a.split(2)[1])
    self.a.add_(x)
    return y


def swap(self: Stateful, x: Tensor) -> Tensor:
    old = self.a.view(4) + 0
    self.a.copy_(self.b)
    self.b.copy_(old + x)
    return self.a * 2


def delay_of_parameter(self: Stateful, x: Tensor) -> Tensor:
    y = self.a * 2
    self.a.copy_(self.weight)
    self.weight.add_(x)
    return y


DELAYS = [
    delay,
    delay_of_sums,
    delay_through_view,
    delay_through_transposed,
    delay_of_part,
    swap,
    delay_of_parameter,
]


def accumulate(self: Stateful, x: Tensor) -> Tensor:
    self.a.add_(x)
    self.b.copy_(x * 2)
    return self.a.view(2, 2) + self.c.view(2, 2)


class TestSaveOldState(unittest.TestCase):
    def assert_runs_as_eager(
        self, function: Callable[..., Any], partitioners: List[Any]
    ) -> None:
        eager = Stateful(function)
        exported = export(Stateful(function), (torch.ones(4),))
        edge = to_edge_transform_and_lower(exported, partitioner=partitioners)
        program = Runtime.get().load_program(edge.to_executorch().buffer)
        method = program.load_method("forward")
        for _ in range(5):
            x = torch.randn(4)
            expected = eager(x)
            torch.testing.assert_close(method.execute([x])[-1], expected)

    def test_old_contents_go_to_another_buffer(self) -> None:
        for function in DELAYS:
            for partitioners in ([], [XnnpackPartitioner()]):
                with self.subTest(function=function.__name__, to=partitioners):
                    self.assert_runs_as_eager(function, partitioners)

    def test_other_programs_stay_as_they_are(self) -> None:
        exported = export(Stateful(accumulate), (torch.ones(4),))
        program = exported.run_decompositions({})
        before = str(program.graph)
        self.assertIs(save_old_state(program), program)
        self.assertEqual(str(program.graph), before)
