"""Read the memory plan out of a lowered program. Works with stock and patched ExecuTorch."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from executorch.exir import ExecutorchProgramManager, memory
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.tensor import TensorSpec
from executorch.version import __version__
from torch import fx
from torch.export.graph_signature import ExportGraphSignature, OutputKind
from torch.utils._pytree import tree_leaves

from tools.plan.data import Graph, Method, Plan, Tensor, with_shared

_WRITE_BACKS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def extract(manager: ExecutorchProgramManager, label: str = "") -> Plan:
    """Read the plan of every method.

    Args:
        manager: What `to_executorch()` returns.
        label: Names the plan in a report, before the version of the ExecuTorch in use.
    """
    programs = {name: manager.exported_program(name) for name in sorted(manager.methods)}
    methods = [
        read_method(name, program.graph_module, program.graph_signature)
        for name, program in programs.items()
    ]
    return Plan(f"{label or 'executorch'} {__version__.removesuffix('+cpu')}", with_shared(methods))


def read_method(name: str, module: fx.GraphModule, signature: ExportGraphSignature) -> Method:
    """Read the plan of one method, branches included.

    Args:
        module: The graph after `MemoryPlanningPass`, with the sizes of its arenas in
            `meta["non_const_buffer_sizes"]`.
    """
    reader = _Reader(signature)
    reader.read_graph(Graph(name, _names(module)), module)
    sizes = module.meta["non_const_buffer_sizes"]
    # Entry 0 stands for constants, which no plan places.
    arenas = {arena: size for arena, size in enumerate(sizes) if arena > 0}
    return Method(name, tuple(reader.graphs), arenas, tuple(reader.tensors))


@dataclass
class _Piece:
    """What is known of one storage while its graph is being read."""

    spec: Any
    name: str
    operator: str
    kind: str
    buffer: str = ""
    aliases: list[str] = field(default_factory=list)


class _Reader:
    """Reads one method. A spec is one storage however many nodes hold it, so specs are keys."""

    def __init__(self, signature: ExportGraphSignature) -> None:
        self.buffers = dict(signature.inputs_to_buffers)
        self.written_back = [
            spec.target for spec in signature.output_specs if spec.kind in _WRITE_BACKS
        ]
        self.graphs: list[Graph] = []
        self.tensors: list[Tensor] = []
        self.seen: set[Any] = set()

    def read_graph(self, graph: Graph, module: fx.GraphModule) -> None:
        position = len(self.graphs)
        self.graphs.append(graph)
        pieces = self._pieces(module, is_branch=graph.parent is not None)
        self.tensors += [_tensor(piece, position, len(graph.nodes) - 1) for piece in pieces]
        for call, node in enumerate(_nodes(module)):
            bodies = [body for body in node.all_input_nodes if _is_graph(module, body)]
            for part, body in enumerate(bodies):
                child = _attribute(module, body)
                label = f"{graph.name}.{body.target}"
                nodes = _names(child)
                self.read_graph(Graph(label, nodes, position, call, part, len(bodies)), child)

    def _pieces(self, module: fx.GraphModule, is_branch: bool) -> list[_Piece]:
        found: dict[Any, _Piece] = {}
        # An allocation or getitem holds what some operator produces: that one names it.
        for node in sorted(_nodes(module), key=_is_plumbing):
            for name, made_by, spec in self._held(node, module):
                root = _root(spec)
                if root in self.seen or root.mem_id is None or root.mem_offset is None:
                    continue
                piece = found.setdefault(root, _Piece(root, name, made_by, "activation"))
                if is_branch:
                    piece.kind = "branch"
                elif node.op == "placeholder":
                    piece.buffer = self.buffers.get(str(node.target), "")
                    piece.kind = "mutable buffer" if piece.buffer else "input"
                elif node.op == "output" and piece.kind == "activation":
                    piece.kind = "output"
                if name != piece.name and node.op != "output" and not _is_plumbing(node):
                    piece.aliases.append(name)
        self.seen.update(found)
        return list(found.values())

    def _held(self, node: fx.Node, module: fx.GraphModule) -> Iterator[tuple[str, str, Any]]:
        """Each spec that a node holds, with its name and what produces it."""
        specs = tree_leaves(node.meta.get("spec"))
        if node.op == "output":
            sources = self._output_sources(node, len(specs), module)
        else:
            made_by = _operator_name(node, module)
            names = [f"{node.name}[{index}]" for index in range(len(specs))]
            sources = [(node.name if len(specs) == 1 else name, made_by) for name in names]
        for (name, made_by), spec in zip(sources, specs, strict=True):
            if isinstance(spec, TensorSpec):
                yield name, made_by, spec

    def _output_sources(
        self, node: fx.Node, count: int, module: fx.GraphModule
    ) -> list[tuple[str, str]]:
        results = [
            (result.name, _operator_name(result, module))
            if isinstance(result, fx.Node)
            else (str(result), "constant")
            for result in tree_leaves(node.args[0])
        ]
        # Lowering drops the written-back results from the arguments, but not their specs.
        dropped = max(count - len(results), 0)
        written = [(f"write-back of {target}", "write-back") for target in self.written_back]
        unnamed = [(f"result {index}", "output") for index in range(len(written), dropped)]
        return (written[:dropped] + unnamed + results)[:count]


def _tensor(piece: _Piece, graph: int, last_node: int) -> Tensor:
    first, last = piece.spec.lifetime
    if piece.kind == "mutable buffer":
        # It outlives the call; a method that only reads it is told so by nothing in its spec.
        first, last = 0, last_node
    return Tensor(
        name=piece.name,
        shape=tuple(int(size) for size in piece.spec.shape),
        dtype=str(piece.spec.dtype).removeprefix("torch."),
        bytes=piece.spec.allocated_memory,
        arena=piece.spec.mem_id,
        offset=piece.spec.mem_offset,
        first=first,
        last=last,
        kind=piece.kind,
        operator=piece.operator,
        graph=graph,
        buffer=piece.buffer,
        aliases=tuple(piece.aliases),
    )


def _nodes(module: fx.GraphModule) -> list[fx.Node]:
    # Planning inserts the calls to free after it has numbered the nodes.
    return [node for node in module.graph.nodes if node.target is not memory.free]


def _names(module: fx.GraphModule) -> tuple[str, ...]:
    # "alloc_17" says nothing: what it allocates for does.
    return tuple(
        next(iter(node.users), node).name if node.target is memory.alloc else node.name
        for node in _nodes(module)
    )


def _root(spec: Any) -> Any:
    """The spec whose storage this one lies in, in the end: itself, mostly."""
    while True:
        if isinstance(spec, _ViewSpec):
            base = spec._base
        else:
            # 1.4 calls it inplace_base.
            base = vars(spec).get("storage_base", vars(spec).get("inplace_base"))
        if base is None:
            return spec
        spec = base


def _is_plumbing(node: fx.Node) -> bool:
    return node.target in (memory.alloc, operator.getitem)


def _is_graph(module: fx.GraphModule, node: fx.Node) -> bool:
    return node.op == "get_attr" and isinstance(_attribute(module, node), fx.GraphModule)


def _attribute(module: fx.GraphModule, node: fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(module)


def _operator_name(node: fx.Node, module: fx.GraphModule) -> str:
    """What produces a node, as a person would write it."""
    if node.op != "call_function":
        return node.op
    if node.target is executorch_call_delegate:
        return f"delegate call ({_attribute(module, node.all_input_nodes[0]).backend_id})"
    # An edge operator keeps the plain one that it stands for.
    target = getattr(node.target, "_op", None)
    named = target if hasattr(target, "_schema") else node.target
    return str(named) if hasattr(named, "_schema") else getattr(named, "__name__", str(named))
