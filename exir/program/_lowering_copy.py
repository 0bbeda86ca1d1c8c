# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import copy
import dataclasses
from typing import Any, Dict, List, Mapping

import torch
from executorch.exir.tensor import TensorSpec
from torch.export.exported_program import (
    _create_graph_module_for_export,
    ExportedProgram,
    ExportGraphSignature,
    ModuleCallEntry,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg


class _Copier:
    """
    Copies what lowering writes to. What is met twice is copied once, so that nodes
    that shared a spec or a graph share its copy.
    """

    def __init__(self) -> None:
        # The originals are kept, too, for their ids must stay theirs.
        self._copies: Dict[int, Any] = {}
        self._originals: List[Any] = []

    def _remember(self, original: Any, duplicate: Any) -> Any:
        self._originals.append(original)
        self._copies[id(original)] = duplicate
        return duplicate

    def module(self, original: GraphModule) -> GraphModule:
        """A graph module of its own over the same parameters and lowered modules."""
        if id(original) in self._copies:
            return self._copies[id(original)]
        duplicate = _create_graph_module_for_export(
            original, self._graph(original.graph)
        )
        self._remember(original, duplicate)
        duplicate.meta = {
            name: self._contents(value) for name, value in original.meta.items()
        }
        self._copy_bodies(duplicate)
        return duplicate

    def _copy_bodies(self, module: torch.nn.Module) -> None:
        """Give `module` graphs of its own where it calls those of control flow."""
        for name, child in list(module._modules.items()):
            if isinstance(child, GraphModule):
                setattr(module, name, self.module(child))
            elif type(child) is torch.nn.Module:
                # What holds the parts of a dotted name, made with this copy.
                self._copy_bodies(child)

    def _graph(self, original: Graph) -> Graph:
        duplicate = Graph(tracer_cls=original._tracer_cls)
        nodes: Dict[Node, Node] = {}
        for node in original.nodes:
            nodes[node] = duplicate.create_node(
                node.op,
                node.target,
                map_arg(node.args, nodes.__getitem__),
                map_arg(node.kwargs, nodes.__getitem__),
                node.name,
                node.type,
            )
            # A graph makes up another name where this is one of Python's.
            nodes[node].name = node.name
            nodes[node].meta = {
                name: self._contents(value) for name, value in node.meta.items()
            }
        duplicate._codegen = copy.copy(original._codegen)
        return duplicate

    def _contents(self, value: Any) -> Any:
        """A copy of metadata, as deep as lowering writes: containers and specs."""
        kind = type(value)
        if kind is tuple:
            return tuple(map(self._contents, value)) if value else value
        if kind is not dict and kind is not list and not isinstance(value, TensorSpec):
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        if kind is dict:
            duplicate = self._remember(value, {})
            duplicate.update((k, self._contents(v)) for k, v in value.items())
        elif kind is list:
            duplicate = self._remember(value, [])
            duplicate.extend(map(self._contents, value))
        else:
            duplicate = self._remember(value, copy.copy(value))
            vars(duplicate).update(
                (name, self._contents(field)) for name, field in vars(value).items()
            )
            duplicate.extra_tensor_info = copy.copy(value.extra_tensor_info)
        return duplicate


def _copy_signature(original: ExportGraphSignature) -> ExportGraphSignature:
    return dataclasses.replace(
        original,
        input_specs=[
            dataclasses.replace(spec, arg=copy.copy(spec.arg))
            for spec in original.input_specs
        ],
        output_specs=[
            dataclasses.replace(spec, arg=copy.copy(spec.arg))
            for spec in original.output_specs
        ],
    )


def _copy_call(original: ModuleCallEntry) -> ModuleCallEntry:
    if original.signature is None:
        return copy.copy(original)
    signature = dataclasses.replace(
        original.signature,
        inputs=[copy.copy(argument) for argument in original.signature.inputs],
        outputs=[copy.copy(argument) for argument in original.signature.outputs],
    )
    return dataclasses.replace(original, signature=signature)


def _copy_program(original: ExportedProgram) -> ExportedProgram:
    # Not by its constructor, which would verify a program that is verified already.
    duplicate = copy.copy(original)
    duplicate._graph_module = _Copier().module(original.graph_module)
    duplicate._graph_signature = _copy_signature(original.graph_signature)
    duplicate._state_dict = copy.copy(original.state_dict)
    duplicate._constants = copy.copy(original.constants)
    duplicate._module_call_graph = [
        _copy_call(entry) for entry in original.module_call_graph
    ]
    return duplicate


def copy_for_lowering(
    programs: Mapping[str, ExportedProgram]
) -> Dict[str, ExportedProgram]:
    """
    Copy all of the methods' edge programs that lowering them changes: the graphs,
    the metadata of their nodes, the signatures, and the tables of weights and
    constants.

    The weights and constants themselves, the fake tensors and the lowered modules
    of delegates are shared.
    """
    return {name: _copy_program(program) for name, program in programs.items()}
