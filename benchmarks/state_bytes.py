# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""How many bytes of state does one call of a lowered method copy?

State is what a method writes: its mutable buffers, and the inputs that it changes. Counted are

- the destination of each `copy_` (and of an out-of-place `copy` made there), and
- each value that an operator made outside the buffer from the buffer's old contents by moving
  them only, on their way back into a buffer: an out-of-place `index_put` writes a few elements
  and copies all others, a `cat` shifts a window.

What is computed anew (`0.9 * state + x`) isn't a copy, what is made in the buffer isn't either,
and what is only read (a cache that attention transposes) doesn't come back. Works with stock and
patched ExecuTorch.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from executorch.exir import ExecutorchProgramManager, memory
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.tensor import TensorSpec
from torch import fx
from torch.export.graph_signature import OutputKind
from torch.utils._pytree import tree_leaves

_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_COPIES = ("aten::copy_", "aten::copy")
_UPDATES = (
    "index_copy index_fill index_put index_add index_reduce scatter scatter_add scatter_reduce "
    "slice_scatter select_scatter diagonal_scatter as_strided_scatter masked_fill masked_scatter"
)
"""Change a few elements of their first argument and copy the others."""
_MOVES = (
    "alias_copy as_strided_copy cat clone constant_pad_nd contiguous expand_copy flip narrow_copy "
    "permute_copy roll select_copy slice_copy squeeze_copy stack t_copy transpose_copy "
    "unsqueeze_copy view_copy _clone_dim_order _to_dim_order_copy"
)
"""Put elements elsewhere and compute nothing."""
_MOVING = frozenset(f"{_UPDATES} {_MOVES}".split())


@dataclass(frozen=True)
class StateCopy:
    """One node that copies state."""

    node: str
    operator: str
    buffer: str
    """Name of the buffer or of the mutated input whose contents these are."""
    bytes: int


def state_bytes_copied(program: ExecutorchProgramManager, method: str = "forward") -> int:
    """Bytes of state that one call of `method` copies."""
    return sum(copy.bytes for copy in state_copies(program, method))


def state_copies(program: ExecutorchProgramManager, method: str = "forward") -> list[StateCopy]:
    """The copies of state that one call of `method` makes.

    Of the branches of a `cond` the one that copies most counts, the body of a loop once.
    """
    exported = program.exported_program(method)
    signature = exported.graph_signature
    names = {**signature.inputs_to_buffers, **{name: name for name in signature.user_inputs}}
    written = {str(s.target) for s in signature.output_specs if s.kind in _WRITES}
    state = {
        node: names[node.name]
        for node in exported.graph.nodes
        if node.op == "placeholder" and names.get(node.name) in written
    }
    return _Copies(exported.graph_module, state, {}).found()


class _Copies:
    """The copies in one graph, given which of its placeholders are state or hold it."""

    def __init__(
        self,
        module: fx.GraphModule,
        state: Mapping[fx.Node, str],
        values: Mapping[fx.Node, str],
    ) -> None:
        self.module = module
        self.state = dict(state)
        """Nodes that lie in a buffer, and in which."""
        self.specs = {_root(node.meta.get("spec")): name for node, name in state.items()}
        self.values = dict(values)
        """Nodes outside of all buffers that hold what a buffer held, and which buffer."""

    def found(self) -> list[StateCopy]:
        copies: list[StateCopy] = []
        returning: list[fx.Node] = []
        for node in self.module.graph.nodes:
            bodies = list(_bodies(self.module, node))
            if bodies:
                copies += self._in_bodies(node, bodies)
            self._place(node)
            if node.op == "output":
                returning += self._handed_on(node)
            elif node not in self.state:
                self._follow(node)
            elif node.op == "call_function":
                returning += [n for n in node.all_input_nodes if n in self.values]
                if _operator(node) in _COPIES:
                    copies.append(self._copy(node, self.state[node]))
        return copies + self._made_outside(returning)

    def _in_bodies(self, node: fx.Node, bodies: list[fx.GraphModule]) -> list[StateCopy]:
        operands = _operands(node)
        found = []
        for body in bodies:
            inner = [n for n in body.graph.nodes if n.op == "placeholder"]
            pairs = list(zip(inner, operands, strict=False))
            state = {own: self.state[given] for own, given in pairs if given in self.state}
            values = {own: self.values[given] for own, given in pairs if given in self.values}
            branch = _Branch(body, state, values)
            found.append(branch.found())
            # One name for all results: what matters is that the old contents are in there.
            for name in branch.returned():
                self.values[node] = name
        return max(found, key=lambda copies: sum(copy.bytes for copy in copies))

    def _place(self, node: fx.Node) -> None:
        """Find out whether a node lies in a buffer."""
        if node.op != "call_function" or node in self.state:
            return
        base = node.args[0] if node.target is memory.view else _written_argument(node)
        if isinstance(base, fx.Node) and base in self.state:
            self.state[node] = self.state[base]
            return
        specs = [s for s in tree_leaves(node.meta.get("spec")) if isinstance(s, TensorSpec)]
        if len(specs) == 1 and _root(specs[0]) in self.specs:
            self.state[node] = self.specs[_root(specs[0])]

    def _follow(self, node: fx.Node) -> None:
        """Find out whether a node holds what a buffer held."""
        if node.target is operator.getitem and node.args[0] in self.values:
            self.values[node] = self.values[node.args[0]]
            return
        moves = node.target is memory.view or _moves(node)
        if node.op != "call_function" or not moves:
            return
        held = {**self.state, **self.values}
        # Of an update, the first argument alone lives on; of a cat, all do.
        source = next((n for n in _sources(node) if n in held), None)
        if source is not None:
            self.values[node] = held[source]

    def _handed_on(self, output: fx.Node) -> list[fx.Node]:
        """The values that leave a graph on their way into a buffer."""
        # What the caller of a method is given stays outside.
        return []

    def _made_outside(self, returning: list[fx.Node]) -> list[StateCopy]:
        """The values on the way to `returning`, made by operators that move elements only."""
        seen: set[fx.Node] = set()
        while returning:
            node = returning.pop()
            if node in seen:
                continue
            seen.add(node)
            passed = node.all_input_nodes if _is_control_flow(node) else _sources(node)
            returning += [n for n in passed if n in self.values]
        made = [n for n in seen if _moves(n)]
        return [self._copy(node, self.values[node]) for node in made]

    def _copy(self, node: fx.Node, buffer: str) -> StateCopy:
        specs = [s for s in tree_leaves(node.meta.get("spec")) if isinstance(s, TensorSpec)]
        return StateCopy(node.name, _operator(node), buffer, sum(s.nbytes() for s in specs))


class _Branch(_Copies):
    """The copies in a branch or in the body of a loop."""

    def _handed_on(self, output: fx.Node) -> list[fx.Node]:
        return [n for n in output.all_input_nodes if n in self.values]

    def returned(self) -> list[str]:
        """The buffers whose old contents the graph returns."""
        results = next(n for n in self.module.graph.nodes if n.op == "output").all_input_nodes
        held = {**self.state, **self.values}
        return [held[node] for node in results if node in held]


def _root(spec: Any) -> Any:
    """The spec whose storage this one lies in."""
    while True:
        if isinstance(spec, _ViewSpec):
            base = spec._base
        else:
            # 1.4 calls it inplace_base.
            known = vars(spec) if isinstance(spec, TensorSpec) else {}
            base = known.get("storage_base", known.get("inplace_base"))
        if base is None:
            return spec
        spec = base


def _schema(node: fx.Node) -> Any:
    # An edge operator keeps the plain one that it stands for.
    if node.op != "call_function":
        return None
    plain = getattr(node.target, "_op", node.target)
    return getattr(plain, "_schema", getattr(node.target, "_schema", None))


def _operator(node: fx.Node) -> str:
    schema = _schema(node)
    if schema is None:
        return getattr(node.target, "__name__", str(node.target))
    return str(schema.name)


def _moves(node: fx.Node) -> bool:
    return _schema(node) is not None and _operator(node).rpartition("::")[2] in _MOVING


def _written_argument(node: fx.Node) -> Any:
    """The argument that an in-place or out operator writes and returns, if it does."""
    schema = _schema(node)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[position] if position < len(node.args) else None
            return node.kwargs.get(argument.name, given)
    return None


def _sources(node: fx.Node) -> list[fx.Node]:
    """What an operator that moves elements takes them from."""
    first = node.args[0] if node.args else next(iter(node.kwargs.values()), None)
    return [n for n in tree_leaves(first) if isinstance(n, fx.Node)]


def _bodies(module: fx.GraphModule, node: fx.Node) -> Iterator[fx.GraphModule]:
    """The graphs that a control-flow operator runs."""
    if node.op != "call_function":
        return
    for argument in node.all_input_nodes:
        if argument.op == "get_attr":
            body = operator.attrgetter(str(argument.target))(module)
            if isinstance(body, fx.GraphModule):
                yield body


def _is_control_flow(node: fx.Node) -> bool:
    return any(argument.op == "get_attr" for argument in node.all_input_nodes)


def _operands(node: fx.Node) -> list[Any]:
    """What a control-flow operator passes to its graphs, in their order."""
    # cond(predicate, true, false, operands), while_loop(condition, body, carried, additional),
    # map(body, mapped, others), scan(body, carried, mapped, others): all lists, in this order.
    lists = [a for a in [*node.args, *node.kwargs.values()] if isinstance(a, (list, tuple))]
    return [item for group in lists for item in group]
