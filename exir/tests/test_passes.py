# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from executorch.backends.transforms.remove_clone_ops import RemoveCloneOpsTransform
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    edge_to_executorch_passes,
    ExecutorchBackendConfig,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.dialects._ops import ops
from executorch.exir.passes.insert_write_back_for_buffers_pass import (
    insert_write_back_for_buffers_pass,
)
from executorch.exir.passes.place_write_backs_pass import with_write_backs_placed
from executorch.exir.passes.reinplace import reinplace_pass
from expecttest import assert_expected_inline
from torch.export import export, ExportedProgram
from torch.export._remove_auto_functionalized_pass import (
    unsafe_remove_auto_functionalized_pass,
)
from torch.fx.passes.infra.pass_base import PassResult


class StatefulModule(torch.nn.Module):
    """A module whose buffers and forward function are given from outside."""

    def __init__(
        self, buffers: Dict[str, torch.Tensor], function: Callable[..., Any]
    ) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def export_stateful(
    buffers: Dict[str, torch.Tensor],
    function: Callable[..., Any],
    *inputs: torch.Tensor,
) -> ExportedProgram:
    return export(StatefulModule(buffers, function), inputs, strict=False)


def to_stateful_edge(
    names: str, function: Callable[..., Any], *inputs: torch.Tensor
) -> ExportedProgram:
    """The edge program of a module that has a buffer of 4 elements for each name."""
    buffers = {name: torch.zeros(4) for name in names.split()}
    return to_edge(export_stateful(buffers, function, *inputs)).exported_program()


def place_all_write_backs(
    ep: ExportedProgram, config: Optional[ExecutorchBackendConfig] = None
) -> torch.fx.GraphModule:
    """The graph in which it is decided where the buffers are written."""
    if config is None:
        config = ExecutorchBackendConfig(write_state_in_place=False)
    gm, _ = insert_write_back_for_buffers_pass(ep)
    passes = edge_to_executorch_passes(config)
    for each in with_write_backs_placed(passes, ep, config)[:-1]:
        gm = each(gm).graph_module
    return gm


def print_write_backs(
    ep: ExportedProgram, config: Optional[ExecutorchBackendConfig] = None
) -> str:
    """Place the write-backs, and print each node as name, operator and arguments."""
    lines = []
    for node in place_all_write_backs(ep, config).graph.nodes:
        name = getattr(node.target, "__name__", str(node.target))
        if node.op == "placeholder":
            lines.append(node.name)
        elif node.op == "output":
            lines.append(f"return {node.args[0]}")
        elif node.op == "call_function":
            lines.append(f"{node.name} = {name}{node.args}")
    return "\n".join(lines)


def list_write_backs(ep: ExportedProgram) -> List[Tuple[str, str]]:
    """Insert the write-backs, and return (what is overwritten, what by)."""
    gm, _ = insert_write_back_for_buffers_pass(ep)
    return [
        (node.args[0].name, node.args[1].name)
        for node in gm.graph.nodes
        if node.target is torch.ops.aten.copy_.default
    ]


def remove_clones(ep: ExportedProgram) -> None:
    """Do what a pass may do to a functional program: return what a clone is of."""
    for module in ep.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op == "call_function" and "clone" in str(node.target):
                node.replace_all_uses_with(node.args[0])
        module.graph.eliminate_dead_code()
        module.recompile()
    for spec, output in zip(
        ep.graph_signature.output_specs, ep.graph.output_node().args[0]
    ):
        spec.arg.name = output.name


@torch.library.custom_op("write_back_test::accumulate", mutates_args=("total",))
def accumulate(total: torch.Tensor, x: torch.Tensor) -> None:
    total.add_(x)


@accumulate.register_fake
def accumulate_fake(total: torch.Tensor, x: torch.Tensor) -> None:
    pass


def delay_line(module: StatefulModule, x: torch.Tensor) -> torch.Tensor:
    module.a.copy_(module.b)
    module.b.copy_(module.c)
    module.c.copy_(x)
    return module.a + module.b


def rotate(module: StatefulModule, x: torch.Tensor) -> torch.Tensor:
    old = module.a.clone()
    module.a.copy_(module.b)
    module.b.copy_(module.c)
    module.c.copy_(old)
    return module.a + x


def choose(module: StatefulModule, x: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    old = torch.cond(x.sum() > 0, torch.clone, torch.sin, (module.a,))
    module.a.copy_(x)
    return old.cos(), x.sin()


class TestPasses(unittest.TestCase):
    def test_write_back_of_another_buffer(self) -> None:
        self.assertCountEqual(
            list_write_backs(to_stateful_edge("a b c", delay_line, torch.randn(4))),
            [("b_a", "b_b"), ("b_b", "b_c"), ("b_c", "inputs_0")],
        )

    def test_write_back_of_another_input(self) -> None:
        def swap_inputs(module, x, y):
            old = x.clone()
            x.copy_(y)
            y.copy_(old)
            return old + y

        ep = to_stateful_edge("", swap_inputs, torch.randn(4), torch.randn(4))
        remove_clones(ep)
        for node in ep.graph.find_nodes(
            op="call_function", target=ops.edge.aten.copy.default
        ):
            node.replace_all_uses_with(node.args[1])
        overwritten = [mutated for mutated, _ in list_write_backs(ep)]
        self.assertCountEqual(overwritten, ["inputs_0", "inputs_1"])

    def test_no_write_back_of_what_is_done_in_place(self) -> None:
        def write_twice(module, x):
            module.a.index_put_((torch.tensor([1]),), x[:1])
            module.a.index_put_((torch.tensor([2]),), x[2:3])
            return x.cos()

        ep = reinplace_pass(to_stateful_edge("a", write_twice, torch.randn(4)))
        self.assertEqual(list_write_backs(ep), [])

    def test_write_back_keeps_output_order(self) -> None:
        def update(module, x):
            module.a.index_put_((torch.tensor([1]),), x[:1])
            module.b.copy_(module.b + x)
            return module.a + module.b

        ep = reinplace_pass(to_stateful_edge("a b", update, torch.randn(4)))
        gm, signature = insert_write_back_for_buffers_pass(ep)
        in_place, copied, returned = gm.graph.output_node().args[0]
        self.assertEqual(in_place.target, ops.edge.aten.index_put_.default)
        self.assertEqual(copied.args[0].name, "b_b")
        self.assertEqual(returned.target, ops.edge.aten.add.Tensor)
        self.assertEqual(
            signature.buffers_to_mutate, {in_place.name: "a", copied.name: "b"}
        )
        self.assertEqual(signature.user_outputs, (returned.name,))

    def test_write_back_early_update(self) -> None:
        def update_first(module, x):
            module.a.add_(x)
            return x.sin().cos()

        ep = to_stateful_edge("a", update_first, torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
inputs_0
aten_add_tensor = aten.add.Tensor(b_a, inputs_0)
copy__default = copy_.default(b_a, aten_add_tensor)
aten_sin_default = aten.sin.default(inputs_0,)
aten_cos_default = aten.cos.default(aten_sin_default,)
return (copy__default, aten_cos_default)""",
        )

    def test_write_back_after_late_read(self) -> None:
        def read_late(module, x):
            new = x.exp()
            late = module.a + x.sin()
            module.a.copy_(new)
            return late.cos()

        ep = to_stateful_edge("a", read_late, torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
inputs_0
aten_exp_default = aten.exp.default(inputs_0,)
aten_sin_default = aten.sin.default(inputs_0,)
aten_add_tensor = aten.add.Tensor(b_a, aten_sin_default)
copy__default = copy_.default(b_a, aten_exp_default)
aten_cos_default = aten.cos.default(aten_add_tensor,)
return (copy__default, aten_cos_default)""",
        )

    def test_write_back_after_read_through_view(self) -> None:
        def read_through_view(module, x):
            new = x.exp()
            old = torch.view_copy(module.a, [2, 2])
            module.a.copy_(new)
            return old.cos(), x.sin()

        ep = to_stateful_edge("a", read_through_view, torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
inputs_0
aten_exp_default = aten.exp.default(inputs_0,)
aten_view_copy_default = view(b_a, [2, 2])
aten_cos_default = aten.cos.default(aten_view_copy_default,)
copy__default = copy_.default(b_a, aten_exp_default)
aten_sin_default = aten.sin.default(inputs_0,)
return (copy__default, aten_cos_default, aten_sin_default)""",
        )

    def test_write_back_after_read_through_chain_of_views(self) -> None:
        def read_through_views(module, x):
            new = x.exp()
            old = torch.view_copy(torch.view_copy(module.a, [2, 2]), [1, 4])
            late = old.cos()
            module.a.copy_(new)
            return late, x.sin()

        ep = to_stateful_edge("a", read_through_views, torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
inputs_0
aten_exp_default = aten.exp.default(inputs_0,)
aten_view_copy_default_1 = view(b_a, [1, 4])
aten_cos_default = aten.cos.default(aten_view_copy_default_1,)
copy__default = copy_.default(b_a, aten_exp_default)
aten_sin_default = aten.sin.default(inputs_0,)
return (copy__default, aten_cos_default, aten_sin_default)""",
        )

    def test_write_back_does_not_wait_for_returned_view_copy(self) -> None:
        # An output stays a copy, and so does the view_copy here.
        def return_view_copy(module, x):
            old = torch.view_copy(module.a, [2, 2])
            module.a.copy_(x)
            return old, x.sin()

        ep = to_stateful_edge("a", return_view_copy, torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
inputs_0
aten_view_copy_default = aten.view_copy.default(b_a, [2, 2])
copy__default = copy_.default(b_a, inputs_0)
aten_sin_default = aten.sin.default(inputs_0,)
return (copy__default, aten_view_copy_default, aten_sin_default)""",
        )

    def test_write_back_delay_line(self) -> None:
        ep = to_stateful_edge("a b c", delay_line, torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
b_b
b_c
inputs_0
copy__default = copy_.default(b_a, b_b)
aten_add_tensor = aten.add.Tensor(b_b, b_c)
copy__default_1 = copy_.default(b_b, b_c)
copy__default_2 = copy_.default(b_c, inputs_0)
return (copy__default, copy__default_1, copy__default_2, aten_add_tensor)""",
        )

    def test_write_back_delay_line_registered_in_reverse(self) -> None:
        ep = to_stateful_edge("c b a", delay_line, torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_c
b_b
b_a
inputs_0
copy__default_2 = copy_.default(b_a, b_b)
aten_add_tensor = aten.add.Tensor(b_b, b_c)
copy__default_1 = copy_.default(b_b, b_c)
copy__default = copy_.default(b_c, inputs_0)
return (copy__default, copy__default_1, copy__default_2, aten_add_tensor)""",
        )

    def test_write_back_rotation(self) -> None:
        ep = to_stateful_edge("a b c", rotate, torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
b_b
b_c
inputs_0
clone_default = clone.default(b_c,)
copy__default_2 = copy_.default(b_c, b_a)
copy__default = copy_.default(b_a, b_b)
aten_add_tensor = aten.add.Tensor(b_b, inputs_0)
copy__default_1 = copy_.default(b_b, clone_default)
return (copy__default, copy__default_1, copy__default_2, aten_add_tensor)""",
        )

    def test_write_back_rotation_without_clone(self) -> None:
        ep = to_stateful_edge("a b c", rotate, torch.randn(4))
        remove_clones(ep)
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
b_b
b_c
inputs_0
clone_default = clone.default(b_c,)
copy__default_2 = copy_.default(b_c, b_a)
copy__default = copy_.default(b_a, b_b)
aten_add_tensor = aten.add.Tensor(b_b, inputs_0)
copy__default_1 = copy_.default(b_b, clone_default)
return (copy__default, copy__default_1, copy__default_2, aten_add_tensor)""",
        )

    def test_write_back_swap_without_clones(self) -> None:
        def swap(module, x):
            old_a, old_b = module.a.clone(), module.b.clone()
            module.a.copy_(old_b)
            module.b.copy_(old_a)
            return x.cos()

        ep = to_stateful_edge("a b", swap, torch.randn(4))
        remove_clones(ep)
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
b_b
inputs_0
clone_default = clone.default(b_b,)
copy__default_1 = copy_.default(b_b, b_a)
copy__default = copy_.default(b_a, clone_default)
aten_cos_default = aten.cos.default(inputs_0,)
return (copy__default, copy__default_1, aten_cos_default)""",
        )

    def test_write_back_swap_saves_what_is_returned(self) -> None:
        # The output needs the old value of `a` in any case; the swap takes it, too.
        def swap(module, x):
            old_a, old_b = module.a.clone(), module.b.clone()
            module.a.copy_(old_b)
            module.b.copy_(old_a)
            return x.cos(), old_a

        ep = to_stateful_edge("a b", swap, torch.randn(4))
        remove_clones(ep)
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
b_b
inputs_0
clone_default = clone.default(b_a,)
copy__default = copy_.default(b_a, b_b)
copy__default_1 = copy_.default(b_b, clone_default)
aten_cos_default = aten.cos.default(inputs_0,)
return (copy__default, copy__default_1, aten_cos_default, clone_default)""",
        )

    def test_write_back_returns_old_value(self) -> None:
        def return_old(module, x):
            old = module.a.clone()
            module.a.add_(x)
            return old, x.sin()

        ep = to_stateful_edge("a", return_old, torch.randn(4))
        remove_clones(ep)
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
inputs_0
aten_add_tensor = aten.add.Tensor(b_a, inputs_0)
clone_default = clone.default(b_a,)
copy__default = copy_.default(b_a, aten_add_tensor)
aten_sin_default = aten.sin.default(inputs_0,)
return (copy__default, clone_default, aten_sin_default)""",
        )

    def test_write_back_in_place_beside_copied(self) -> None:
        def update(module, x):
            module.b.copy_(module.b + x)
            module.a.index_put_((module.i,), x[:1])
            return module.a + module.b

        buffers = {"i": torch.tensor([1]), "a": torch.zeros(4), "b": torch.zeros(4)}
        ep = to_edge(export_stateful(buffers, update, torch.randn(4)))
        ep = reinplace_pass(ep.exported_program())
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_i
b_a
b_b
inputs_0
aten_add_tensor = aten.add.Tensor(b_b, inputs_0)
copy__default = copy_.default(b_b, aten_add_tensor)
aten_slice_copy_tensor = aten.slice_copy.Tensor(inputs_0, 0, 0, 1)
aten_index_put__default = aten.index_put_.default(b_a, [b_i], aten_slice_copy_tensor)
aten_add_tensor_1 = aten.add.Tensor(aten_index_put__default, aten_add_tensor)
return (aten_index_put__default, copy__default, aten_add_tensor_1)""",
        )

    def test_write_back_delegated(self) -> None:
        def update(module, x):
            old = module.a.cumsum(0) - x
            module.a.copy_(x + x)
            return old.cumsum(0) * x

        ep = to_edge_transform_and_lower(
            export_stateful({"a": torch.zeros(4)}, update, torch.randn(4)),
            partitioner=[XnnpackPartitioner()],
        ).exported_program()
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
inputs_0
aten_cumsum_default = aten.cumsum.default(b_a, 0)
executorch_call_delegate = executorch_call_delegate(lowered_module_0, aten_cumsum_default, inputs_0)
getitem = getitem(executorch_call_delegate, 0)
aten_cumsum_default_1 = aten.cumsum.default(getitem, 0)
executorch_call_delegate_1 = executorch_call_delegate(lowered_module_1, inputs_0, aten_cumsum_default_1)
getitem_1 = getitem(executorch_call_delegate_1, 0)
copy__default = copy_.default(b_a, getitem_1)
getitem_2 = getitem(executorch_call_delegate_1, 1)
return (copy__default, getitem_2)""",
        )

    def test_write_back_mutated_user_input(self) -> None:
        def update(module, x, y):
            old = module.a.exp()
            module.a.copy_(x)
            x.add_(old)
            return x + y

        ep = to_stateful_edge("a", update, torch.randn(4), torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
inputs_0
inputs_1
aten_exp_default = aten.exp.default(b_a,)
copy__default = copy_.default(b_a, inputs_0)
aten_add_tensor = aten.add.Tensor(inputs_0, aten_exp_default)
copy__default_1 = copy_.default(inputs_0, aten_add_tensor)
aten_add_tensor_1 = aten.add.Tensor(aten_add_tensor, inputs_1)
return (copy__default, copy__default_1, aten_add_tensor_1)""",
        )

    def test_write_back_two_results(self) -> None:
        def update(module, x):
            values, indices = x.max(1)
            module.a.copy_(values)
            module.b.copy_(indices)
            return x.cos()

        buffers = {"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.int64)}
        ep = to_edge(export_stateful(buffers, update, torch.randn(2, 3)))
        assert_expected_inline(
            print_write_backs(ep.exported_program()),
            """\
b_a
b_b
inputs_0
aten_max_dim = aten.max.dim(inputs_0, 1)
getitem = getitem(aten_max_dim, 0)
copy__default = copy_.default(b_a, getitem)
getitem_1 = getitem(aten_max_dim, 1)
copy__default_1 = copy_.default(b_b, getitem_1)
aten_cos_default = aten.cos.default(inputs_0,)
return (copy__default, copy__default_1, aten_cos_default)""",
        )

    def test_write_back_custom_operator_that_writes(self) -> None:
        # Nothing is left to be copied to `a`. The first call reads the old `b`, the
        # second writes what `b` becomes.
        def update(module, x):
            new = x.exp()
            torch.ops.write_back_test.accumulate(module.a, module.b)
            torch.ops.write_back_test.accumulate(new, x)
            module.b.copy_(new)
            return x.sin()

        ep = to_stateful_edge("a b", update, torch.randn(4))
        ep = unsafe_remove_auto_functionalized_pass(ep)
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
b_b
inputs_0
aten_exp_default = aten.exp.default(inputs_0,)
accumulate = accumulate.default(b_a, b_b)
accumulate_1 = accumulate.default(aten_exp_default, inputs_0)
copy__default = copy_.default(b_b, aten_exp_default)
aten_sin_default = aten.sin.default(inputs_0,)
return (b_a, copy__default, aten_sin_default)""",
        )

    def test_write_back_after_cond(self) -> None:
        # The branches read `a`; their results are memory of their own.
        ep = to_stateful_edge("a", choose, torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
inputs_0
aten_sum_dim_int_list = aten.sum.dim_IntList(inputs_0, [])
aten_gt_scalar = aten.gt.Scalar(aten_sum_dim_int_list, 0)
cond = cond(aten_gt_scalar, submodule_0, submodule_1, [b_a])
copy__default = copy_.default(b_a, inputs_0)
getitem = getitem(cond, 0)
aten_cos_default = aten.cos.default(getitem,)
aten_sin_default = aten.sin.default(inputs_0,)
return (copy__default, aten_cos_default, aten_sin_default)""",
        )

    def test_write_back_after_cond_that_returns_operand(self) -> None:
        # The emitter moves the results of a branch by pointer: this one may be `a`.
        ep = to_stateful_edge("a", choose, torch.randn(4))
        remove_clones(ep)
        assert_expected_inline(
            print_write_backs(ep),
            """\
b_a
inputs_0
aten_sum_dim_int_list = aten.sum.dim_IntList(inputs_0, [])
aten_gt_scalar = aten.gt.Scalar(aten_sum_dim_int_list, 0)
cond = cond(aten_gt_scalar, submodule_0, submodule_1, [b_a])
getitem = getitem(cond, 0)
aten_cos_default = aten.cos.default(getitem,)
copy__default = copy_.default(b_a, inputs_0)
aten_sin_default = aten.sin.default(inputs_0,)
return (copy__default, aten_cos_default, aten_sin_default)""",
        )

    def test_write_back_buffer_and_input_of_same_name(self) -> None:
        class SameName(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("x", torch.zeros(4))

            def forward(self, x):
                self.x.add_(x)
                return x.cos()

        ep = to_edge(export(SameName(), (torch.randn(4),))).exported_program()
        self.assertEqual(list_write_backs(ep), [("b_x", "aten_add_tensor")])

    def _print_in_place(self, *args: Any) -> str:
        config = ExecutorchBackendConfig()
        return print_write_backs(to_stateful_edge(*args), config)

    def test_state_is_made_where_it_stands(self) -> None:
        def update(module, x):
            module.a.add_(x)
            module.b.copy_(x.exp())
            return (module.a + module.b).sin()

        assert_expected_inline(
            self._print_in_place("a b", update, torch.randn(4)),
            """\
b_a
b_b
inputs_0
aten_add_tensor = aten.add.Tensor(b_a, inputs_0)
aten_exp_default = aten.exp.default(inputs_0,)
aten_add_tensor_1 = aten.add.Tensor(aten_add_tensor, aten_exp_default)
aten_sin_default = aten.sin.default(aten_add_tensor_1,)
return (aten_add_tensor, aten_exp_default, aten_sin_default)""",
        )

    def test_state_in_place_by_a_proved_index(self) -> None:
        def update(module, x):
            at = torch.arange(1, 2)
            module.a.index_put_((at,), x[:1])
            return module.a * 2

        assert_expected_inline(
            self._print_in_place("a", update, torch.randn(4)),
            """\
b_a
_lifted_tensor_constant1
inputs_0
aten_arange_start_step = aten.arange.start_step(1, 2)
aten_slice_copy_tensor = aten.slice_copy.Tensor(inputs_0, 0, 0, 1)
aten_index_put_default = aten.index_put_.default(b_a, [aten_arange_start_step], aten_slice_copy_tensor)
dim_order_ops__to_dim_order_copy_default = dim_order_ops._to_dim_order_copy.default(_lifted_tensor_constant1,)
aten_mul_tensor = aten.mul.Tensor(aten_index_put_default, dim_order_ops__to_dim_order_copy_default)
return (aten_index_put_default, aten_mul_tensor)""",
        )

    def test_state_in_place_by_an_index_that_may_be_negative(self) -> None:
        def update(module, x, at):
            module.a.index_put_((at,), x[:1])
            return module.a * 2

        assert_expected_inline(
            self._print_in_place("a", update, torch.randn(4), torch.tensor([1])),
            """\
b_a
_lifted_tensor_constant1
inputs_0
inputs_1
aten_slice_copy_tensor = aten.slice_copy.Tensor(inputs_0, 0, 0, 1)
aten_index_put_default = aten.index_put.default(b_a, [inputs_1], aten_slice_copy_tensor)
dim_order_ops__to_dim_order_copy_default = dim_order_ops._to_dim_order_copy.default(_lifted_tensor_constant1,)
aten_mul_tensor = aten.mul.Tensor(aten_index_put_default, dim_order_ops__to_dim_order_copy_default)
return (aten_index_put_default, aten_mul_tensor)""",
        )

    def test_state_is_copied_where_old_contents_are_read_late(self) -> None:
        def update(module, x):
            new = x.exp()
            late = module.a + x.sin()
            module.a.copy_(new)
            return late.cos()

        assert_expected_inline(
            self._print_in_place("a", update, torch.randn(4)),
            """\
b_a
inputs_0
aten_exp_default = aten.exp.default(inputs_0,)
aten_sin_default = aten.sin.default(inputs_0,)
aten_add_tensor = aten.add.Tensor(b_a, aten_sin_default)
copy__default = copy_.default(b_a, aten_exp_default)
aten_cos_default = aten.cos.default(aten_add_tensor,)
return (copy__default, aten_cos_default)""",
        )

    def test_state_is_copied_where_it_is_returned(self) -> None:
        def update(module, x):
            module.a.add_(x)
            return module.a

        assert_expected_inline(
            self._print_in_place("a", update, torch.randn(4)),
            """\
b_a
inputs_0
aten_add_tensor = aten.add.Tensor(b_a, inputs_0)
copy__default = copy_.default(b_a, aten_add_tensor)
return (copy__default, aten_add_tensor)""",
        )

    def test_state_is_copied_where_the_kernel_reads_what_it_wrote(self) -> None:
        def update(module, x):
            module.a.copy_(module.a.flip(0) + 0)
            module.b.copy_(module.b.flip(0))
            return x.cos()

        assert_expected_inline(
            self._print_in_place("a b", update, torch.randn(4)),
            """\
b_a
b_b
_lifted_tensor_constant2
inputs_0
aten_flip_default = aten.flip.default(b_a, [0])
dim_order_ops__to_dim_order_copy_default = dim_order_ops._to_dim_order_copy.default(_lifted_tensor_constant2,)
aten_add_tensor = aten.add.Tensor(aten_flip_default, dim_order_ops__to_dim_order_copy_default)
aten_flip_default_1 = aten.flip.default(b_b, [0])
copy__default = copy_.default(b_b, aten_flip_default_1)
aten_cos_default = aten.cos.default(inputs_0,)
return (aten_add_tensor, copy__default, aten_cos_default)""",
        )

    def test_one_of_two_buffers_is_made_where_it_stands(self) -> None:
        def update(module, x):
            new = x.exp()
            module.a.copy_(new)
            module.b.copy_(new.clone())
            return x.cos()

        ep = to_stateful_edge("a b", update, torch.randn(4))
        remove_clones(ep)
        assert_expected_inline(
            print_write_backs(ep, ExecutorchBackendConfig()),
            """\
b_a
b_b
inputs_0
aten_exp_default = aten.exp.default(inputs_0,)
copy__default = copy_.default(b_b, aten_exp_default)
aten_cos_default = aten.cos.default(inputs_0,)
return (aten_exp_default, copy__default, aten_cos_default)""",
        )

    def test_write_backs_are_placed_after_the_users_passes(self) -> None:
        def keep_old(module, x):
            old = module.a.clone()
            module.a.copy_(x * 2)
            return x.sin().cos() + old

        config = ExecutorchBackendConfig(passes=[RemoveCloneOpsTransform()])
        ep = to_stateful_edge("a", keep_old, torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep, config),
            """\
b_a
_lifted_tensor_constant1
inputs_0
dim_order_ops__to_dim_order_copy_default = dim_order_ops._to_dim_order_copy.default(_lifted_tensor_constant1,)
aten_mul_tensor = aten.mul.Tensor(inputs_0, dim_order_ops__to_dim_order_copy_default)
aten_sin_default = aten.sin.default(inputs_0,)
aten_cos_default = aten.cos.default(aten_sin_default,)
aten_add_tensor = aten.add.Tensor(aten_cos_default, b_a)
copy__default = copy_.default(b_a, aten_mul_tensor)
return (copy__default, aten_add_tensor)""",
        )

    def test_output_that_a_pass_replaced_is_written_back(self) -> None:
        def return_values(gm: torch.fx.GraphModule) -> PassResult:
            output = gm.graph.output_node()
            copied, *returned = output.args[0]
            output.args = ((copied.args[1], *returned),)
            gm.graph.erase_node(copied)
            return PassResult(gm, True)

        def update(module, x):
            module.a.add_(x)
            return x.cos()

        config = ExecutorchBackendConfig(
            passes=[return_values], write_state_in_place=False
        )
        ep = to_stateful_edge("a", update, torch.randn(4))
        assert_expected_inline(
            print_write_backs(ep, config),
            """\
b_a
inputs_0
aten_add_tensor = aten.add.Tensor(b_a, inputs_0)
copy__default = copy_.default(b_a, aten_add_tensor)
aten_cos_default = aten.cos.default(inputs_0,)
return (copy__default, aten_cos_default)""",
        )

    def test_pass_that_drops_an_output_is_refused(self) -> None:
        def drop(gm: torch.fx.GraphModule) -> PassResult:
            output = gm.graph.output_node()
            output.args = (output.args[0][:-1],)
            return PassResult(gm, True)

        def update(module, x):
            module.a.add_(x)
            return x.cos()

        ep = to_stateful_edge("a", update, torch.randn(4))
        with self.assertRaisesRegex(ValueError, "2 outputs but the graph returns 1"):
            print_write_backs(ep, ExecutorchBackendConfig(passes=[drop]))

    def test_operands_of_several_dim_orders_are_given_one(self) -> None:
        def update(module, x):
            module.a.add_(x)
            return x.cos()

        state = torch.zeros(1, 2, 2, 2).to(memory_format=torch.channels_last)
        ep = to_edge(export_stateful({"a": state}, update, torch.randn(1, 2, 2, 2)))
        assert_expected_inline(
            print_write_backs(ep.exported_program()),
            """\
b_a
inputs_0
dim_order_ops__to_dim_order_copy_default = dim_order_ops._to_dim_order_copy.default(b_a,)
aten_add_tensor = aten.add.Tensor(dim_order_ops__to_dim_order_copy_default, inputs_0)
dim_order_ops__to_dim_order_copy_default_1 = dim_order_ops._to_dim_order_copy.default(aten_add_tensor,)
copy__default = copy_.default(b_a, dim_order_ops__to_dim_order_copy_default_1)
aten_cos_default = aten.cos.default(inputs_0,)
return (copy__default, aten_cos_default)""",
        )

    def test_value_of_fewer_dimensions_is_copied_as_it_is(self) -> None:
        def broadcast(gm: torch.fx.GraphModule) -> PassResult:
            # What torch.export makes of `module.a.copy_(row)` is a copy of its own.
            (copied, *returned) = gm.graph.output_node().args[0]
            copied.update_arg(1, gm.graph.find_nodes(op="placeholder")[1])
            return PassResult(gm, True)

        def update(module, row):
            module.a.copy_(row)
            return row.cos()

        buffers = {"a": torch.zeros(2, 4)}
        ep = to_edge(export_stateful(buffers, update, torch.randn(4)))
        config = ExecutorchBackendConfig(passes=[broadcast])
        gm = place_all_write_backs(ep.exported_program(), config)
        (copy,) = gm.graph.find_nodes(
            op="call_function", target=torch.ops.aten.copy_.default
        )
        self.assertEqual([arg.name for arg in copy.args], ["b_a", "inputs_0"])
