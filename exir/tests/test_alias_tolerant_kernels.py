# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any, List, Optional, Tuple

import torch
from executorch.exir import to_edge
from executorch.exir.passes.alias_tolerant_kernels import (
    may_write_over,
    takes_in_place,
    why_not_over,
)
from torch.export import export
from torch.fx import Graph, Node

_CHANNELS_LAST = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)


class TestAliasTolerantKernels(unittest.TestCase):
    def _call(self, op: Any, *values: Any, **options: Any) -> Tuple[Node, List[Node]]:
        """A call of `op`, and its tensor arguments in their order."""
        graph = Graph()
        tensors: List[Node] = []

        def node(value: Any) -> Any:
            if isinstance(value, list):
                return [node(v) for v in value]
            if not isinstance(value, torch.Tensor):
                return value
            tensors.append(graph.placeholder(f"x{len(tensors)}"))
            tensors[-1].meta["val"] = value
            return tensors[-1]

        call = graph.call_function(op, tuple(node(v) for v in values), options)
        call.meta["val"] = op(*values, **options)
        return call, tensors

    def _index_put(
        self,
        into: torch.Tensor,
        indices: List[Optional[Node]],
        values: torch.Tensor,
        accumulate: bool = False,
    ) -> Node:
        graph = Graph() if not any(indices) else next(filter(None, indices)).graph
        written, source = graph.placeholder("into"), graph.placeholder("source")
        written.meta["val"], source.meta["val"] = into, values
        arguments = (written, indices, source, accumulate)
        return graph.call_function(torch.ops.aten.index_put.default, arguments)

    def _node(self, op: Any, *arguments: Any, **options: Any) -> Node:
        node = Graph().call_function(op, arguments, options)
        node.meta["val"] = op(*arguments, **options)
        return node

    def test_names_of_arguments(self) -> None:
        aten = torch.ops.aten
        self.assertEqual(may_write_over(aten.add.Tensor), {"self", "other"})
        self.assertEqual(may_write_over(aten.full_like.default), {"self"})
        self.assertEqual(may_write_over(aten.index_put.default), {"self"})
        self.assertEqual(may_write_over(aten.flip.default), set())
        self.assertEqual(may_write_over(aten.lerp.Tensor), set())

    def test_argument_that_is_read_elsewhere(self) -> None:
        rows, index = torch.zeros(4, 3), torch.tensor([1, 2])
        call, (written, _, values) = self._call(
            torch.ops.aten.index_put.default, rows, [index], torch.ones(2, 3)
        )
        self.assertIsNone(why_not_over(call, written))
        self.assertIn("values", why_not_over(call, values) or "")
        call, (written,) = self._call(torch.ops.aten.flip.default, rows, [0])
        self.assertIn("another element", why_not_over(call, written) or "")

    def test_one_tensor_for_two_arguments(self) -> None:
        call, (first, _) = self._call(
            torch.ops.aten.mul.Tensor, torch.ones(3), torch.ones(3)
        )
        call.args = (first, first)
        self.assertIsNone(why_not_over(call, first))

    def test_other_memory_format(self) -> None:
        mul = torch.ops.aten.mul.Tensor
        call, (small, large) = self._call(mul, torch.ones(3), torch.ones(2, 3))
        self.assertIn("sizes", why_not_over(call, small) or "")
        self.assertIsNone(why_not_over(call, large))
        call, (whole, real) = self._call(mul, torch.ones(3).int(), torch.ones(3))
        self.assertIn("dtype", why_not_over(call, whole) or "")
        self.assertIsNone(why_not_over(call, real))

    def test_broadcast_over_channels_last(self) -> None:
        mul = torch.ops.aten.mul.Tensor
        call, (image, _) = self._call(mul, _CHANNELS_LAST, _CHANNELS_LAST + 1)
        self.assertIsNone(why_not_over(call, image))
        call, (image, _) = self._call(mul, _CHANNELS_LAST, torch.ones(3, 1, 1))
        self.assertIn("broadcast", why_not_over(call, image) or "")

    def test_index_put_in_place(self) -> None:
        rows, aten = torch.zeros(4, 6, 5), torch.ops.aten
        few = self._node(aten.arange.start_step, 1, 3)
        self.assertIsNone(
            takes_in_place(self._index_put(rows, [few], torch.ones(2, 6, 5)))
        )
        self.assertIsNone(
            takes_in_place(self._index_put(rows, [None, few], torch.ones(4, 2, 5)))
        )
        refused = {
            "accumulate": ([few], torch.ones(2, 6, 5), True),
            "broadcast": ([few], torch.ones(1, 6, 5), False),
            "rank": ([few], torch.ones(6, 5), False),
            "one index tensor": ([few, few], torch.ones(2, 5), False),
            "torch.float64": ([few], torch.ones(2, 6, 5).double(), False),
        }
        for words, (indices, values, accumulate) in refused.items():
            with self.subTest(words):
                call = self._index_put(rows, indices, values, accumulate)
                self.assertIn(words, takes_in_place(call) or "")

    def test_kinds_of_indices(self) -> None:
        rows, aten = torch.zeros(4, 5), torch.ops.aten
        refused = {
            "flat": self._node(aten.full.default, [1, 2], 0),
            "torch.bool": self._node(aten.full.default, [4], True),
            "negative": self._node(aten.arange.start_step, -2, 2),
        }
        for words, index in refused.items():
            with self.subTest(words):
                call = self._index_put(rows, [index], torch.ones(4, 5))
                self.assertIn(words, takes_in_place(call) or "")

    def _is_known(self, *steps: Tuple[Any, ...]) -> bool:
        """Whether an index of unknown origin is known not to be negative after `steps`."""
        index = Graph().placeholder("i")
        index.meta["val"] = torch.tensor([1])
        for op, *options in steps:
            call = index.graph.call_function(op, (index, *options))
            call.meta["val"] = op(index.meta["val"], *options)
            index = call
        call = self._index_put(torch.zeros(4, 5), [index], torch.ones(1, 5))
        return takes_in_place(call) is None

    def test_indices_that_are_never_negative(self) -> None:
        aten = torch.ops.aten
        eight, limited = (aten.remainder.Scalar, 8), (aten.clamp.default, 0, 7)
        self.assertFalse(self._is_known())
        self.assertTrue(self._is_known(eight))
        self.assertFalse(self._is_known((aten.remainder.Scalar, -8)))
        self.assertTrue(self._is_known(limited))
        self.assertTrue(self._is_known((aten.clamp.default, 0)))
        self.assertFalse(self._is_known((aten.clamp.default, 0, -1)))
        self.assertFalse(self._is_known((aten.clamp.default, None, 3)))
        self.assertFalse(self._is_known((aten.add.Tensor, 1)))
        self.assertTrue(self._is_known(eight, (aten.add.Tensor, 1)))
        self.assertFalse(self._is_known(eight, (aten.add.Tensor, -1)))
        self.assertTrue(self._is_known((aten.relu.default,)))
        # It may wrap around.
        self.assertFalse(self._is_known((aten.relu.default,), (aten.add.Tensor, 1)))

    def test_indices_of_another_dtype(self) -> None:
        aten, narrow = torch.ops.aten, torch.int32
        index = Graph().placeholder("i")
        index.meta["val"] = torch.tensor([1])
        for step, is_known in (
            (aten.relu.default, False),
            (aten.remainder.Scalar, True),
        ):
            source = index.graph.call_function(step, (index, 8)[: 1 + is_known])
            source.meta["val"] = index.meta["val"]
            cast = index.graph.call_function(
                aten._to_copy.default, (source,), {"dtype": narrow}
            )
            cast.meta["val"] = source.meta["val"].to(narrow)
            call = self._index_put(torch.zeros(4, 5), [cast], torch.ones(1, 5))
            self.assertEqual(takes_in_place(call) is None, is_known)

    def test_position_that_is_checked(self) -> None:
        class Cache(torch.nn.Module):
            def __init__(self, has_check: bool) -> None:
                super().__init__()
                self.has_check = has_check
                self.register_buffer("rows", torch.zeros(16, 4))

            def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
                position = start.item()
                if self.has_check:
                    torch._check(position >= 0)
                    torch._check(position < 16)
                index = torch.arange(2) + position
                self.rows.index_copy_(0, index, x)
                return self.rows.sum(0)

        for has_check in (True, False):
            with self.subTest(has_check=has_check), torch.no_grad():
                inputs = (torch.ones(2, 4), torch.tensor(3))
                program = to_edge(export(Cache(has_check), inputs)).exported_program()
                [call] = [n for n in program.graph.nodes if "index_put" in n.name]
                reason = takes_in_place(call)
                if has_check:
                    self.assertIsNone(reason)
                else:
                    self.assertIn("negative", reason or "")

    def test_copy_in_place(self) -> None:
        copy = torch.ops.aten.copy.default
        call, _ = self._call(copy, torch.zeros(2, 3), torch.ones(3))
        self.assertIsNone(takes_in_place(call))
        call, _ = self._call(copy, _CHANNELS_LAST, torch.ones(2, 3, 4, 5))
        self.assertIn("dim order", takes_in_place(call) or "")
        call, _ = self._call(torch.ops.aten.add.Tensor, torch.ones(3), torch.ones(3))
        self.assertIn("no in-place kernel", takes_in_place(call) or "")
