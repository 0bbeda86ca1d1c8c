# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import operator
from typing import Optional, Set

import torch
from executorch.exir.operator.convert import unwrap_op_overload
from executorch.exir.passes.insert_write_back_for_buffers_pass import _operator_effects
from torch.export.exported_program import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree


def _viewed(node: Node) -> Optional[Node]:
    """The node that this one is a view of, by its operator's schema."""
    if node.target is operator.getitem:
        return node.args[0]
    try:
        effects = _operator_effects(unwrap_op_overload(node.target))
    except TypeError:
        return None
    if effects.writes or not any(effects.results):
        return None
    viewed = next(filter(None, effects.results))[0]
    return next(iter(viewed.nodes(node)), None)


def _base(node: Node) -> Node:
    """What `node` is a view of, at the end of all views."""
    base: Optional[Node] = node
    while base is not None and base.op == "call_function":
        node, base = base, _viewed(base)
    return base if base is not None else node


def _mutated_names(program: ExportedProgram) -> Set[str]:
    signature = program.graph_signature
    fqns = {
        *signature.buffers_to_mutate.values(),
        *signature.parameters_to_mutate.values(),
    }
    names = {spec.arg.name for spec in signature.input_specs if spec.target in fqns}
    return names | set(signature.user_inputs_to_mutate.values())


def save_old_state(program: ExportedProgram) -> ExportedProgram:
    """
    Give each output that is the old contents of a mutated input a copy of its own,
    in place, so that the program may be decomposed again.

    For that, torch.export makes a module of it, which writes the new contents back one
    after the other, so that the second may read what the first has overwritten.
    """
    mutated = _mutated_names(program)
    if not mutated:
        return program
    output = program.graph.output_node()
    outputs = pytree.tree_leaves(output.args)
    copies = 0
    for index, spec in enumerate(program.graph_signature.output_specs):
        value = outputs[index]
        if not isinstance(value, Node) or not isinstance(
            value.meta.get("val"), torch.Tensor
        ):
            continue
        if _base(value).op != "placeholder" or _base(value).name not in mutated:
            continue
        with program.graph.inserting_before(output):
            copied = program.graph.call_function(torch.ops.aten.clone.default, (value,))
        copied.meta = {k: v for k, v in value.meta.items() if k != "tensor_meta"}
        copied.meta["val"] = value.meta["val"].detach().clone()
        outputs[index] = copied
        spec.arg.name = copied.name
        copies += 1
    if copies:
        output.args = (tuple(outputs),)
        program.graph_module.recompile()
    return program
