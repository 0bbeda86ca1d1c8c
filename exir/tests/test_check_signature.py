# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Tuple

import torch
from executorch.exir import EdgeProgramManager, to_edge
from executorch.exir.passes.check_signature import check_signature
from torch.export import export


class TwoBuffers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        self.a.add_(x)
        self.b.mul_(x)
        return x + x, x.relu()


class TestCheckSignature(unittest.TestCase):
    def setUp(self) -> None:
        self.manager: EdgeProgramManager = to_edge(
            export(TwoBuffers(), (torch.ones(4),))
        )
        self.program = self.manager.exported_program()
        self.outputs = list(self.program.graph.output_node().args[0])
        self.specs = self.program.graph_signature.output_specs

    def return_instead(self, *outputs: object) -> None:
        self.program.graph.output_node().args = (outputs,)

    def assert_refused(self, message: str) -> None:
        with self.assertRaisesRegex(ValueError, message):
            self.manager.to_executorch()

    def test_right_one_is_accepted(self) -> None:
        check_signature(self.program)

    def test_too_few_outputs(self) -> None:
        self.return_instead(*self.outputs[:3])
        self.assert_refused("forward: the signature has 4 outputs .* returns 3 values")

    def test_too_many_outputs(self) -> None:
        self.return_instead(*self.outputs, self.outputs[0])
        self.assert_refused("the signature has 4 outputs .* returns 5 values")

    def test_too_few_inputs(self) -> None:
        self.program.graph_signature.input_specs.pop()
        self.assert_refused("the signature has 2 inputs .* 3 placeholders")

    def test_mutation_of_a_buffer_that_is_none(self) -> None:
        self.specs[0].target = "c"
        self.assert_refused(r"BUFFER_MUTATION of c, .* \['a', 'b'\]")

    def test_mutation_of_another_kind(self) -> None:
        self.specs[0].kind = type(self.specs[0].kind).USER_INPUT_MUTATION
        self.assert_refused(r"USER_INPUT_MUTATION of a, .* \['x'\]")

    def test_new_contents_that_are_no_tensor(self) -> None:
        self.return_instead(7, *self.outputs[1:])
        self.assert_refused("BUFFER_MUTATION of a, .* returns 7")

    def test_mutations_in_another_order(self) -> None:
        self.return_instead(self.outputs[1], self.outputs[0], *self.outputs[2:])
        self.assert_refused("a is to become .* the graph returns")

    def test_user_outputs_go_by_their_places(self) -> None:
        self.return_instead(*self.outputs[:2], self.outputs[3], self.outputs[2])
        check_signature(self.program)

    def test_nodes_may_be_renamed(self) -> None:
        self.outputs[0].name = "renamed"
        check_signature(self.program)

    def test_buffers_may_become_the_same_value(self) -> None:
        self.specs[1].arg.name = self.specs[0].arg.name
        self.return_instead(self.outputs[0], self.outputs[0], *self.outputs[2:])
        check_signature(self.program)
