# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

from collections import Counter
from typing import Dict, List, Mapping, Set

import torch
from torch.export.exported_program import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec
from torch.fx import Node
from torch.utils import _pytree as pytree


# What a mutation of each kind may name.
_MUTABLE = {
    OutputKind.BUFFER_MUTATION: InputKind.BUFFER,
    OutputKind.PARAMETER_MUTATION: InputKind.PARAMETER,
    OutputKind.USER_INPUT_MUTATION: InputKind.USER_INPUT,
}

_ADVICE = (
    "A pass that adds, removes or moves inputs or outputs has to update the "
    "signature of the program, too."
)


def _inputs_by_kind(program: ExportedProgram) -> Dict[InputKind, Set[str]]:
    inputs: Dict[InputKind, Set[str]] = {kind: set() for kind in InputKind}
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name if spec.kind == InputKind.USER_INPUT else spec.target
        inputs[spec.kind].add(name)
    return inputs


def _check_mutation(
    method: str, spec: OutputSpec, output: object, mutable: Set[str]
) -> None:
    what = f"Method {method}: output {getattr(spec.arg, 'name', spec.arg)}"
    if spec.target not in mutable:
        raise ValueError(
            f"{what} of the signature is a {spec.kind.name} of {spec.target}, but the "
            f"inputs of that kind are {sorted(mutable)}. {_ADVICE}"
        )
    value = output.meta.get("val") if isinstance(output, Node) else output
    is_tensor = isinstance(value, torch.Tensor)
    # A node without metadata may be anything.
    if not is_tensor and not (isinstance(output, Node) and value is None):
        raise ValueError(
            f"{what} of the signature is a {spec.kind.name} of {spec.target}, so the "
            f"graph has to return a tensor there, but it returns {output!r}. {_ADVICE}"
        )


def check_signature(program: ExportedProgram, method: str = "forward") -> None:
    """
    Refuse a program whose graph has other inputs or outputs than its signature says.
    To pair them in spite of that would write a value to the wrong buffer.
    """
    signature = program.graph_signature
    placeholders = program.graph.find_nodes(op="placeholder")
    if len(placeholders) != len(signature.input_specs):
        raise ValueError(
            f"Method {method}: the signature has {len(signature.input_specs)} inputs "
            f"but the graph has {len(placeholders)} placeholders. {_ADVICE}"
        )
    specs = signature.output_specs
    outputs = pytree.tree_leaves(program.graph.output_node().args)
    if len(outputs) != len(specs):
        raise ValueError(
            f"Method {method}: the signature has {len(specs)} outputs but the graph "
            f"returns {len(outputs)} values. {_ADVICE}"
        )
    inputs = _inputs_by_kind(program)
    for spec, output in zip(specs, outputs):
        if spec.kind in _MUTABLE:
            _check_mutation(method, spec, output, inputs[_MUTABLE[spec.kind]])
    _check_order(method, specs, outputs)


def _check_order(method: str, specs: List[OutputSpec], outputs: List[object]) -> None:
    """Refuse mutations whose values are returned in other places."""
    expected = [getattr(spec.arg, "name", None) for spec in specs]
    found = [output.name if isinstance(output, Node) else None for output in outputs]
    # Other names say nothing: passes rename nodes.
    if expected == found or Counter(expected) != Counter(found):
        return
    for spec, name in zip(specs, found):
        if spec.kind in _MUTABLE and spec.arg.name != name:
            raise ValueError(
                f"Method {method}: {spec.target} is to become {spec.arg.name}, but in "
                f"that place the graph returns {name}. {_ADVICE}"
            )


def check_signatures(
    programs: Mapping[str, ExportedProgram]
) -> Mapping[str, ExportedProgram]:
    """Check the signatures of all methods, and return them."""
    for method, program in programs.items():
        check_signature(program, method)
    return programs
