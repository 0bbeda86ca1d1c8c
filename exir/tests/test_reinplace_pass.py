# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import copy
import unittest
from typing import Any, FrozenSet, Tuple

import torch
from executorch.exir import to_edge
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.dialects._ops import ops as edge_ops
from executorch.exir.tests.test_reinplace_pass import _find_nodes
from executorch.extension.pybindings.portable_lib import (
    _load_for_executorch_from_buffer,
)
from torch import nn, Tensor
from torch.export import export
from torch.utils import _pytree as pytree


class TestReinplacePass(unittest.TestCase):
    def _assert_in_place(
        self,
        module: nn.Module,
        inputs: Tuple[Tensor, ...],
        in_place: int,
        extra_ops: FrozenSet[Any] = frozenset(),
    ) -> None:
        """
        Assert that three calls in the runtime return what `module` does, and that
        `in_place` of the program's calls work in place or in borrowed memory.
        """
        reference = copy.deepcopy(module)
        with torch.no_grad():
            edge = to_edge(export(module, inputs, strict=True))
        lowered = edge.to_executorch(
            ExecutorchBackendConfig(
                run_reinplace_pass=True, reinplace_extra_ops=extra_ops
            )
        )
        program = lowered.exported_program()
        borrowed = [
            node
            for node in program.graph.nodes
            if node.meta.get("_share_alloc_with_arg_idx") is not None
        ]
        found = [*_find_nodes(program, "index_put_"), *borrowed]
        self.assertEqual(len(found), in_place, program.graph)
        loaded = _load_for_executorch_from_buffer(lowered.buffer)
        for call in range(3):
            expected = pytree.tree_leaves(reference(*[x.clone() for x in inputs]))
            for ours, theirs in zip(loaded.forward(inputs), expected, strict=True):
                torch.testing.assert_close(ours, theirs, msg=f"call {call}: {ours}")

    def test_old_contents_go_to_another_buffer(self) -> None:
        class DelayLine(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("newest", torch.zeros(4))
                self.register_buffer("older", torch.zeros(4))

            def forward(self, i: Tensor, v: Tensor) -> Tensor:
                returned = self.older + 0
                self.older.copy_(self.newest)
                self.newest.index_put_((i,), v + returned.sum())
                return returned

        self._assert_in_place(DelayLine(), (torch.tensor([1]), torch.ones(1)), 0)

    def test_first_of_two_results_is_returned(self) -> None:
        class Twice(nn.Module):
            def forward(self, x: Tensor, i: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
                first = (x * 2).index_put((i,), v)
                return first, first.index_put((i,), v + 1)

        inputs = (torch.arange(4.0), torch.tensor([1]), torch.ones(1))
        self._assert_in_place(Twice(), inputs, 1)

    def test_old_contents_are_read_through_a_view(self) -> None:
        class Viewed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("state", torch.zeros(2, 2))

            def forward(self, i: Tensor, v: Tensor) -> Tensor:
                old = self.state.view(4).view(1, 4)
                new = self.state.index_put((i,), v + old.sum())
                doubled = old * 2
                self.state.copy_(new)
                return doubled

        self._assert_in_place(Viewed(), (torch.tensor([1]), torch.ones(2)), 0)

    def test_view_of_weights(self) -> None:
        class Patched(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("table", torch.arange(4.0).view(2, 2))

            def forward(self, i: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
                before = self.table.sum()
                return before, self.table.view(4).index_put((i,), v).sum()

        self._assert_in_place(Patched(), (torch.tensor([1]), torch.ones(1)), 0)

    def test_view_of_state(self) -> None:
        class Viewed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("state", torch.zeros(2, 2))

            def forward(self, i: Tensor, v: Tensor) -> Tensor:
                self.state.view(4).index_put_((i,), v)
                return self.state * 2

        self._assert_in_place(Viewed(), (torch.tensor([1]), torch.ones(1)), 1)

    def test_operator_that_reads_what_it_writes(self) -> None:
        class Rotated(nn.Module):
            def forward(self, x: Tensor, i: Tensor) -> Tensor:
                y = x * 2
                return y.index_put((i,), y)

        class RotatedView(nn.Module):
            def forward(self, x: Tensor, i: Tensor) -> Tensor:
                y = x * 2
                return y.index_put((i,), y.view(2, 2).view(4))

        inputs = (torch.arange(4.0), torch.tensor([1, 2, 3, 0]))
        self._assert_in_place(Rotated(), inputs, 0)
        self._assert_in_place(RotatedView(), inputs, 0)

    def test_other_argument_of_call_in_borrowed_memory(self) -> None:
        class Read(nn.Module):
            def forward(self, x: Tensor, i: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
                y, z = x * 2, x * 3
                put = y.index_put((i,), v)
                return put, torch.maximum(z, y)

        # There is no maximum_, so the call is told whose memory it may borrow.
        inputs = (-torch.arange(4.0), torch.tensor([1]), torch.ones(1))
        extra_ops = frozenset({edge_ops.edge.aten.maximum.default})
        self._assert_in_place(Read(), inputs, 1, extra_ops)

    def test_pointwise_operator_reads_an_element_twice(self) -> None:
        class Squared(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                y = x * 2
                return torch.maximum(y, y)

        extra_ops = frozenset({edge_ops.edge.aten.maximum.default})
        self._assert_in_place(Squared(), (torch.arange(4.0),), 1, extra_ops)
