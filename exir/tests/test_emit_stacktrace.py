# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import tempfile
import unittest
from typing import Any, Callable, Dict, List, Tuple

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.schema import KernelCall
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401
from executorch.runtime import Runtime
from torch import Tensor
from torch.export import export


class Stateful(torch.nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        for name in "ab":
            self.register_buffer(name, torch.zeros(1, 4, 1, 2))
        self.weight = torch.nn.Parameter(torch.ones(1, 4, 1, 2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def accumulate(self: Stateful, x: Tensor) -> Tensor:
    self.a.add_(x)
    return self.a * 2


def swap(self: Stateful, x: Tensor) -> Tensor:
    old = self.a.clone()
    self.a.copy_(self.b + x)
    self.b.copy_(old)
    return self.a * 2


def return_old(self: Stateful, x: Tensor) -> Tensor:
    old = self.a.clone()
    self.a.add_(x)
    return old


def adapt(self: Stateful, x: Tensor) -> Tensor:
    self.weight.mul_(x)
    return self.weight + x


def update_cache(self: Stateful, x: Tensor) -> Tensor:
    self.b.copy_(self.a)
    torch.ops.llama.update_cache(x[:, :1], self.a, 1)
    return x + x


def choose(self: Stateful, x: Tensor) -> Tensor:
    def double(x: Tensor) -> Tensor:
        return (x + x).view(2, 4).view(8)

    def negate(x: Tensor) -> Tensor:
        return -x

    chosen = torch.cond(x.sum() > 0, double, negate, (x.view(8),))
    self.a.add_(chosen.view(1, 4, 1, 2))
    return self.a.view(8) + 1


X = torch.ones(1, 4, 1, 2)

# Plain, and with a backend.
PROGRAMS: Dict[str, Tuple[Callable[..., Tensor], List[Any]]] = {
    "accumulate": (accumulate, []),
    "swap": (swap, []),
    "return_old": (return_old, []),
    "adapt": (adapt, []),
    "update_cache": (update_cache, []),
    "choose": (choose, []),
    "accumulate_delegated": (accumulate, [XnnpackPartitioner()]),
    "return_old_delegated": (return_old, [XnnpackPartitioner()]),
    "adapt_delegated": (adapt, [XnnpackPartitioner()]),
    "choose_delegated": (choose, [XnnpackPartitioner()]),
}


def edge_of(
    function: Callable[..., Tensor], partitioners: List[Any]
) -> EdgeProgramManager:
    # Dynamo guesses dynamic shapes from the exports before, also for branches.
    torch._dynamo.reset()
    exported = export(Stateful(function), (X,))
    if not partitioners:
        return to_edge(exported, generate_etrecord=True)
    return to_edge_transform_and_lower(
        exported, partitioner=partitioners, generate_etrecord=True
    )


class TestEmitStacktrace(unittest.TestCase):
    def assert_runs(
        self, lowered: ExecutorchProgramManager, function: Callable[..., Tensor]
    ) -> None:
        eager = Stateful(function)
        program = Runtime.get().load_program(lowered.buffer)
        method = program.load_method("forward")
        for sign in (1, -1, 1, 1):
            x = torch.rand_like(X) * sign
            expected = eager(x)
            torch.testing.assert_close(method.execute([x])[-1], expected)

    def test_programs_with_state(self) -> None:
        for name, (function, partitioners) in PROGRAMS.items():
            for is_reinplaced in (False, True):
                with self.subTest(program=name, is_reinplaced=is_reinplaced):
                    edge = edge_of(function, partitioners)
                    lowered = edge.to_executorch(
                        ExecutorchBackendConfig(
                            emit_stacktrace=True, run_reinplace_pass=is_reinplaced
                        )
                    )
                    (chain,) = lowered.executorch_program.execution_plan[0].chains
                    self.assertLessEqual(len(chain.stacktrace), len(chain.instructions))
                    named = [
                        frame.filename
                        for trace, instruction in zip(
                            chain.stacktrace, chain.instructions
                        )
                        if isinstance(instruction.instr_args, KernelCall)
                        for frame in trace.items
                    ]
                    # With a backend, all that is left may be copies.
                    self.assertTrue(partitioners or __file__ in named)
                    self.assert_runs(lowered, function)

    def test_debug_maps_and_etrecord(self) -> None:
        for name, (function, partitioners) in PROGRAMS.items():
            with self.subTest(program=name):
                edge = edge_of(function, partitioners)
                first, second = edge.to_executorch(), edge.to_executorch()
                self.assertEqual(first.debug_handle_map, second.debug_handle_map)
                self.assertEqual(first.delegate_map, second.delegate_map)
                self.assertEqual(
                    bool(first.delegate_map["forward"]), bool(partitioners)
                )
                instructions = first.executorch_program.execution_plan[0].chains[0]
                self.assertLessEqual(
                    set(first.debug_handle_map["forward"]),
                    set(range(len(instructions.instructions))),
                )
                for lowered in (first, second):
                    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
                        lowered.get_etrecord().save(file.name)
