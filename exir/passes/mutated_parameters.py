# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import copy
import dataclasses
from typing import Collection, Dict, Iterator, Mapping

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.tensor import TensorSpec
from torch.export.exported_program import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
)
from torch.fx import Node


def mutated_parameters_to_buffers(program: ExportedProgram) -> ExportedProgram:
    """
    Call what forward changes a buffer, also where the module calls it a parameter,
    for the data of a parameter is taken as constant all over.

    The state dict keeps the `nn.Parameter`. So one can tell such a buffer from
    others, and lowering gives it its initial values.
    """
    mutated = set(program.graph_signature.parameters_to_mutate.values())
    return _parameters_to_buffers(program, mutated) if mutated else program


def _parameters_to_buffers(
    program: ExportedProgram, fqns: Collection[str]
) -> ExportedProgram:
    signature = program.graph_signature
    for spec in signature.output_specs:
        if spec.kind == OutputKind.GRADIENT_TO_PARAMETER and spec.target in fqns:
            raise ValueError(
                f"Parameter {spec.target} is changed by a method, and a gradient is "
                "returned for it. Only one of both can be lowered: change it under "
                "another name, as a buffer, or leave it to the optimizer."
            )

    def as_input(spec: InputSpec) -> InputSpec:
        if spec.kind != InputKind.PARAMETER or spec.target not in fqns:
            return spec
        return dataclasses.replace(spec, kind=InputKind.BUFFER, persistent=True)

    def as_output(spec: OutputSpec) -> OutputSpec:
        if spec.kind != OutputKind.PARAMETER_MUTATION:
            return spec
        return dataclasses.replace(spec, kind=OutputKind.BUFFER_MUTATION)

    converted = copy.copy(program)
    converted._graph_signature = ExportGraphSignature(
        input_specs=[as_input(spec) for spec in signature.input_specs],
        output_specs=[as_output(spec) for spec in signature.output_specs],
    )
    return converted


def _buffers_with_values(program: ExportedProgram) -> Iterator[Node]:
    """The placeholders of the buffers that are parameters of the module."""
    fqns = program.graph_signature.inputs_to_buffers
    for node in program.graph.find_nodes(op="placeholder"):
        value = program.state_dict.get(fqns.get(node.target))
        if isinstance(value, torch.nn.Parameter):
            yield node


def _mutated_inputs(program: ExportedProgram) -> Iterator[Node]:
    signature = program.graph_signature
    fqns = set(signature.buffers_to_mutate.values())
    names = set(signature.user_inputs_to_mutate.values())
    for node in program.graph.find_nodes(op="placeholder"):
        if signature.inputs_to_buffers.get(node.target) in fqns or node.target in names:
            yield node


def prepare_state(
    programs: Mapping[str, ExportedProgram]
) -> Dict[str, ExportedProgram]:
    """
    Prepare the state of a program's methods for lowering, in place but for what is
    called a parameter and becomes a buffer.

    A parameter that a method changes is a buffer in all of them, so that they can
    share it. The runtime is told to load its initial values. And what is mutated
    must not require a gradient, for an in-place operator refuses to write it.
    """
    mutated = {
        fqn
        for program in programs.values()
        for fqn in program.graph_signature.parameters_to_mutate.values()
    }
    mutated.update(
        program.graph_signature.inputs_to_buffers[node.target]
        for program in programs.values()
        for node in _buffers_with_values(program)
    )
    if mutated:
        programs = {
            name: _parameters_to_buffers(program, mutated)
            for name, program in programs.items()
        }
    for name, program in programs.items():
        _check_delegates(name, program)
        for node in _buffers_with_values(program):
            node.meta["et_init_buffer"] = True
        for node in _mutated_inputs(program):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.requires_grad:
                node.meta["val"] = value.detach()
    return dict(programs)


def _check_delegates(method: str, program: ExportedProgram) -> None:
    """
    Refuse a changed parameter that a backend has taken, for it may have taken it as a
    constant, as XNNPACK does with the weights of a linear layer.
    """
    for module in program.graph_module.modules():
        if not isinstance(module, LoweredBackendModule):
            continue
        taken = module.original_module
        mutated = {
            *program.graph_signature.buffers_to_mutate.values(),
            *taken.graph_signature.buffers_to_mutate.values(),
        }
        for node in _buffers_with_values(taken):
            fqn = taken.graph_signature.inputs_to_buffers[node.target]
            if fqn not in mutated:
                continue
            raise ValueError(
                f"Parameter {fqn} is changed by method {method}, but backend "
                f"{module.backend_id} has taken it, as if it were constant. Keep what "
                "uses the parameter out of the partition, or lower without a partitioner."
            )


def check_initial_values(programs: Mapping[str, ExportedProgram]) -> None:
    """
    Refuse a parameter that a method changes but that planning gave no memory, for its
    initial values would be taken as a constant, and written to.
    """
    for method, program in programs.items():
        signature = program.graph_signature
        mutated = set(signature.buffers_to_mutate.values())
        for node in _buffers_with_values(program):
            fqn = signature.inputs_to_buffers[node.target]
            spec = node.meta.get("spec")
            is_planned = isinstance(spec, TensorSpec) and spec.mem_id is not None
            if fqn in mutated and not is_planned:
                raise ValueError(
                    f"Parameter {fqn} is changed by method {method}, so it needs memory "
                    "that holds its initial values when the method is loaded, but memory "
                    "planning gave it none. Plan with alloc_mutable_buffers=True, or "
                    "register it as a buffer and set its values at run time."
                )
