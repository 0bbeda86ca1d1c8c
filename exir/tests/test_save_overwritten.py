# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any, Callable, List, Optional, Tuple

import torch
from executorch.backends.transforms.remove_clone_ops import RemoveCloneOpsTransform
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.passes.save_overwritten import save_what_is_overwritten
from executorch.exir.program._lowering_copy import copy_for_lowering
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401
from executorch.runtime import Runtime
from torch import Tensor
from torch.export import export, ExportedProgram
from torch.export._remove_auto_functionalized_pass import (
    unsafe_remove_auto_functionalized_pass,
)
from torch.fx import Interpreter

update_cache = torch.ops.llama.update_cache


@torch.library.custom_op("mutbuf_test::add_to", mutates_args=("a",))
def add_to(a: Tensor, x: Tensor) -> None:
    a.add_(x)


@torch.library.custom_op("mutbuf_test::add_and_scale", mutates_args=("a", "b"))
def add_and_scale(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    a.add_(x)
    b.mul_(2).add_(x)
    return a - b


@add_and_scale.register_fake
def _fake_add_and_scale(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    return torch.empty_like(a)


@torch.library.custom_op("mutbuf_test::add_to_all", mutates_args=("tensors", "last"))
def add_to_all(tensors: List[Tensor], x: Tensor, last: Optional[Tensor]) -> None:
    for tensor in tensors:
        tensor.add_(x)
    if last is not None:
        last.add_(1)


class Stateful(torch.nn.Module):
    """Two buffers that change, one that doesn't, and a forward from outside."""

    def __init__(self, shape: Tuple[int, ...], function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        for offset, name in enumerate("abc"):
            # Odd values tell old from new and one buffer from another.
            value = torch.arange(float(torch.Size(shape).numel())) * 3 + offset
            self.register_buffer(name, value.view(shape))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def remove_clones(program: ExportedProgram) -> None:
    """Do what a pass may do to a functional program."""
    for module in program.graph_module.modules():
        for node in module.graph.nodes:
            if "clone" in str(node.target):
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
        module.recompile()
    outputs = program.graph.output_node().args[0]
    for spec, output in zip(program.graph_signature.output_specs, outputs):
        spec.arg.name = output.name


def edge_of(function: Callable[..., Any], x: Tensor) -> ExportedProgram:
    """The edge program, without clones: that is how old contents are still needed."""
    exported = export(Stateful(tuple(x.shape), function), (x,))
    program = to_edge(exported).exported_program()
    remove_clones(program)
    return program


def interpret(program: ExportedProgram, x: Tensor) -> List[Any]:
    """The outputs, as they are at the end, and then the inputs."""
    fqns = program.graph_signature.inputs_to_buffers
    inputs = [
        program.state_dict[fqns[node.name]].clone() if node.name in fqns else x.clone()
        for node in program.graph.find_nodes(op="placeholder")
    ]
    outputs = Interpreter(program.graph_module).run(*inputs, enable_io_processing=False)
    return [*outputs, *inputs]


def in_place(program: ExportedProgram) -> ExportedProgram:
    program = copy_for_lowering({"forward": program})["forward"]
    return unsafe_remove_auto_functionalized_pass(save_what_is_overwritten(program))


def count_copies(program: ExportedProgram) -> int:
    return sum(
        node.target is torch.ops.aten.copy.default
        for module in program.graph_module.modules()
        for node in module.graph.nodes
    )


def keep_in_other_buffer(self: Stateful, x: Tensor) -> Tensor:
    self.b.copy_(self.a)
    torch.ops.mutbuf_test.add_to(self.a, x)
    return x + 1


def return_view_of_old(self: Stateful, x: Tensor) -> Tensor:
    old = self.a.clone().view(-1)
    torch.ops.mutbuf_test.add_to(self.a, x)
    return old * 2


def change_twice_keep_each(self: Stateful, x: Tensor) -> Tuple[Tensor, ...]:
    first = self.a.clone().view(-1)
    torch.ops.mutbuf_test.add_to(self.a, x)
    second = self.a.clone().view(2, -1)
    torch.ops.mutbuf_test.add_to(self.a, x * 3)
    return first + 1, second + 1, self.a + 1


def change_and_restore(self: Stateful, x: Tensor) -> Tensor:
    old = self.a.clone()
    torch.ops.mutbuf_test.add_to(self.a, x)
    changed = self.a * 2
    self.a.copy_(old)
    return changed


def overlapping_argument(self: Stateful, x: Tensor) -> Tensor:
    torch.ops.mutbuf_test.add_to(self.a, self.a)
    return self.a + x


def two_arguments_of_which_one_is_kept(self: Stateful, x: Tensor) -> Any:
    old = self.b.clone().view(-1)
    result = torch.ops.mutbuf_test.add_and_scale(self.a, x, self.b)
    return old * 2, result


def list_of_which_one_is_kept(self: Stateful, x: Tensor) -> Tensor:
    old = self.b.clone().view(-1)
    torch.ops.mutbuf_test.add_to_all([self.a, self.b], x, None)
    return old * 2


def optional_argument_is_kept(self: Stateful, x: Tensor) -> Tensor:
    old = self.b.clone().view(-1)
    torch.ops.mutbuf_test.add_to_all([self.a], x, self.b)
    return old * 2


def part_of_a_base_is_changed(self: Stateful, x: Tensor) -> Tensor:
    old = self.a.clone().view(-1)
    torch.ops.mutbuf_test.add_to(self.a[1:], x[1:])
    return old * 2


def input_is_changed_and_kept(self: Stateful, x: Tensor) -> Tensor:
    self.a.copy_(x)
    torch.ops.mutbuf_test.add_to(x, self.c)
    return x * 2


SAVED_ONCE = [
    keep_in_other_buffer,
    return_view_of_old,
    change_and_restore,
    overlapping_argument,
    two_arguments_of_which_one_is_kept,
    list_of_which_one_is_kept,
    optional_argument_is_kept,
    part_of_a_base_is_changed,
    input_is_changed_and_kept,
]


def change(self: Stateful, x: Tensor) -> Tensor:
    before = self.a * 2
    torch.ops.mutbuf_test.add_to(self.a, x)
    return before + self.a


def change_twice(self: Stateful, x: Tensor) -> Tensor:
    torch.ops.mutbuf_test.add_to(self.a, x)
    before = self.a * 2
    torch.ops.mutbuf_test.add_to(self.a, x)
    return before


def change_all(self: Stateful, x: Tensor) -> Tensor:
    torch.ops.mutbuf_test.add_to_all([self.a, self.b], x, None)
    return torch.ops.mutbuf_test.add_and_scale(self.a, self.c, self.b)


def change_what_is_computed(self: Stateful, x: Tensor) -> Tensor:
    local = x * 2
    torch.ops.mutbuf_test.add_to(local, self.c)
    return local


def new_contents_go_to_other_buffer(self: Stateful, x: Tensor) -> Tensor:
    torch.ops.mutbuf_test.add_to(self.a, x)
    self.b.copy_(self.a * 2)
    return self.a + 1


SAVED_NEVER = [
    change,
    change_twice,
    change_all,
    change_what_is_computed,
    new_contents_go_to_other_buffer,
]


def change_copy_of_constant(self: Stateful, x: Tensor) -> Tensor:
    local = self.c.clone()
    torch.ops.mutbuf_test.add_to(local, x)
    return local + self.c


def change_three_copies(self: Stateful, x: Tensor) -> Tuple[Tensor, ...]:
    first, second = self.a.clone(), self.a.clone()
    torch.ops.mutbuf_test.add_to(first, x)
    torch.ops.mutbuf_test.add_to(second, x * 2)
    torch.ops.mutbuf_test.add_to(self.a, x * 3)
    return first, second, self.a * 2


def change_copy_in_branch(self: Stateful, x: Tensor) -> Tensor:
    def change_copy(x: Tensor, a: Tensor) -> Tensor:
        local = a.clone()
        torch.ops.mutbuf_test.add_to(local, x)
        return local * 2 + a

    def add(x: Tensor, a: Tensor) -> Tensor:
        return x + a

    result = torch.cond(x.sum() > 0, change_copy, add, (x, self.c))
    return result + self.c


class TestSaveOverwritten(unittest.TestCase):
    def assert_same_in_place(self, program: ExportedProgram, copies: int) -> None:
        x = torch.arange(6.0).view(3, 2) + 1
        lowered = in_place(program)
        self.assertNotIn("auto_functionalized", str(lowered.graph))
        self.assertEqual(count_copies(lowered), copies)
        expected, actual = interpret(program, x), interpret(lowered, x)
        outputs = program.graph_signature.output_specs
        for value, wanted in zip(actual[: len(outputs)], expected):
            torch.testing.assert_close(value, wanted)
        # What the signature doesn't call mutated is as it was.
        mutated = {
            *program.graph_signature.buffers_to_mutate.values(),
            *program.graph_signature.user_inputs_to_mutate.values(),
        }
        inputs = program.graph_signature.input_specs
        for spec, value, before in zip(
            inputs, actual[len(outputs) :], expected[len(outputs) :]
        ):
            if spec.target not in mutated and spec.arg.name not in mutated:
                torch.testing.assert_close(value, before)
        names = [spec.arg.name for spec in lowered.graph_signature.output_specs]
        nodes = lowered.graph.output_node().args[0]
        self.assertEqual(names, [node.name for node in nodes])

    def test_old_contents_that_are_needed_are_saved_once(self) -> None:
        for function in SAVED_ONCE:
            with self.subTest(function=function.__name__):
                program = edge_of(function, torch.zeros(3, 2))
                self.assert_same_in_place(program, copies=1)

    def test_each_of_two_contents_is_saved(self) -> None:
        program = edge_of(change_twice_keep_each, torch.zeros(3, 2))
        self.assert_same_in_place(program, copies=2)

    def test_nothing_is_saved_that_nobody_needs(self) -> None:
        for function in SAVED_NEVER:
            with self.subTest(function=function.__name__):
                program = edge_of(function, torch.zeros(3, 2))
                self.assert_same_in_place(program, copies=0)

    def test_a_copy_of_a_constant_is_changed(self) -> None:
        program = edge_of(change_copy_of_constant, torch.zeros(3, 2))
        self.assert_same_in_place(program, copies=1)

    def test_three_calls_change_the_same_old_contents(self) -> None:
        program = edge_of(change_three_copies, torch.zeros(3, 2))
        self.assert_same_in_place(program, copies=2)

    def test_a_call_in_a_branch_changes_no_operand(self) -> None:
        program = edge_of(change_copy_in_branch, torch.zeros(3, 2))
        self.assert_same_in_place(program, copies=1)

    def test_results_are_taken_apart_late(self) -> None:
        program = edge_of(change_twice_keep_each, torch.zeros(3, 2))
        output = program.graph.output_node()
        for node in list(program.graph.nodes):
            if "getitem" in node.name and all(u.op == "output" for u in node.users):
                output.prepend(node)
        self.assert_same_in_place(program, copies=2)

    def test_clones_that_are_not_needed_stay_clones(self) -> None:
        def clone_new(self: Stateful, x: Tensor) -> Tensor:
            early = self.a.clone() * 2
            torch.ops.mutbuf_test.add_to(self.a, x)
            return early + self.a.clone()

        exported = export(Stateful((3, 2), clone_new), (torch.zeros(3, 2),))
        program = to_edge(exported).exported_program()
        lowered = in_place(program)
        self.assertEqual(count_copies(lowered), 0)
        self.assertEqual(str(lowered.graph).count("_clone_dim_order.default]"), 2)

    def test_old_cache_in_the_runtime(self) -> None:
        def keep_cache(self: Stateful, x: Tensor) -> Tensor:
            y = self.b.sum(1)
            self.b.copy_(self.a)
            update_cache(x[:, :1] * 2, self.a, 1)
            return y

        def return_old_cache(self: Stateful, x: Tensor) -> Tensor:
            old = self.a.clone().view(-1)
            update_cache(x[:, :1] * 2, self.a, 1)
            return old + 1

        def change_in_branch(self: Stateful, x: Tensor) -> Tensor:
            def change_copy(x: Tensor, a: Tensor) -> Tensor:
                local = a.clone()
                update_cache(x[:, :1] * 2, local, 1)
                return local + a

            def add(x: Tensor, a: Tensor) -> Tensor:
                return x + a

            result = torch.cond(x.sum() > 0, change_copy, add, (x, self.a))
            update_cache(x[:, 1:2] * 2, self.a, 2)
            return result + self.a

        def return_clone_of_old(self: Stateful, x: Tensor) -> Tensor:
            old = self.a.clone()
            update_cache(x[:, :1] * 2, self.a, 1)
            return old

        def change_clone(self: Stateful, x: Tensor) -> Tensor:
            local = self.a.clone()
            update_cache(x[:, :1] * 2, local, 1)
            self.b.add_(local)
            return local + self.a * 2 + self.b

        configs = {
            "default": {},
            "reinplace": {"run_reinplace_pass": True},
            "without_clones": {"passes": [RemoveCloneOpsTransform()]},
        }
        shape = (1, 4, 1, 2)
        for function in (
            keep_cache,
            return_old_cache,
            change_in_branch,
            return_clone_of_old,
            change_clone,
        ):
            for title, config in configs.items():
                with self.subTest(function=function.__name__, config=title):
                    eager = Stateful(shape, function)
                    for buffer in eager.buffers():
                        buffer.zero_()
                    edge = to_edge(export(eager, (torch.ones(shape),)))
                    lowered = edge.to_executorch(ExecutorchBackendConfig(**config))
                    program = Runtime.get().load_program(lowered.buffer)
                    method = program.load_method("forward")
                    for sign in (1, -1, 1, 1):
                        x = torch.rand(shape) * sign
                        expected = eager(x)
                        torch.testing.assert_close(method.execute([x])[-1], expected)
