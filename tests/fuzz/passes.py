# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Passes that a user may put into `ExecutorchBackendConfig.passes`, by name.

Some are ExecuTorch's. The others do what a user's own might: each keeps the meaning of a graph
that is functional up to the write-backs at its end, as upstream hands it to such a pass.
"""

from collections.abc import Callable, Iterator

import torch
from executorch.backends.transforms.remove_clone_ops import RemoveCloneOpsTransform
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportPass, PassResult
from executorch.exir.passes.quant_fusion_pass import QuantFusionPass
from torch.fx import Graph, GraphModule, Node

try:
    from executorch.exir.passes.cse_pass import CSEPass
except ImportError:  # releases before 1.5
    CSEPass = None
try:
    from executorch.backends.transforms.fuse_view_copy import FuseViewCopyTransform
except ImportError:
    FuseViewCopyTransform = None

COPIES = (torch.ops.aten.copy_.default, ops.edge.aten.copy_.default)


def graphs(module: GraphModule) -> Iterator[GraphModule]:
    for inner in module.modules():
        if isinstance(inner, GraphModule):
            yield inner


def _last_copies(graph: Graph) -> list[Node]:
    """The write-backs that stand together at the end of the graph, in order."""
    nodes = [node for node in graph.nodes if node.op != "output"]
    copies: list[Node] = []
    while nodes and nodes[-1].target in COPIES:
        copies.insert(0, nodes.pop())
    return copies


def _is_pure(node: Node) -> bool:
    """A call that gives tensors and does nothing else."""
    schema = getattr(node.target, "_schema", None)
    return (
        node.op == "call_function"
        and schema is not None
        and not schema.is_mutable
        and bool(node.users)
        and isinstance(node.meta.get("val"), torch.Tensor)
    )


class _OnGraphs(ExportPass):
    """Changes the graph of the program and of all bodies, one by one, without tracing anew."""

    def change(self, graph: Graph) -> None:
        raise NotImplementedError

    def call(self, graph_module: GraphModule) -> PassResult:
        for module in list(graphs(graph_module)):
            self.change(module.graph)
            module.graph.lint()
            module.recompile()
        return PassResult(graph_module, True)


class ReadsLate(_OnGraphs):
    """Moves each read, and all that is computed, to its first user, as far as the write-backs
    at the end."""

    def change(self, graph: Graph) -> None:
        copies = _last_copies(graph)
        (output,) = (node for node in graph.nodes if node.op == "output")
        end = copies[0] if copies else output
        for node in reversed(list(graph.nodes)):
            if _is_pure(node) and node < end:
                min(*node.users, end).prepend(node)


class InPlace(_OnGraphs):
    """Writes rows in place where the state that they go to isn't read any more."""

    def change(self, graph: Graph) -> None:
        written = {copy.args[0]: copy.args[1] for copy in _last_copies(graph)}
        for node in list(graph.nodes):
            if node.target != ops.edge.aten.index_put.default:
                continue
            state = node.args[0]
            others = [user for user in state.users if user not in (node, *_last_copies(graph))]
            is_read = any(user > node for user in others)
            # Another state may become this one's old contents.
            is_copied = any(value is state for value in written.values())
            if written.get(state) is not node or is_read or is_copied or not _fits(node):
                continue
            node.target = ops.edge.aten.index_put_.default


def _fits(node: Node) -> bool:
    """Whether the runtime's in-place kernel takes these arguments."""
    state, indices, values, *accumulate = node.args
    return (
        len(indices) == 1
        and indices[0] is not None
        and not any(accumulate)
        and values.meta["val"].dim() == state.meta["val"].dim()
        and values.meta["val"].shape[1:] == state.meta["val"].shape[1:]
        and values.meta["val"].shape[0] == indices[0].meta["val"].numel()
    )


class Renames(_OnGraphs):
    """Gives what is computed other names."""

    def change(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function" and node.target not in COPIES:
                node._rename(f"renamed_{node.name}")


class RenamesAll(_OnGraphs):
    """Gives the write-backs other names, too."""

    def change(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function":
                node._rename(f"renamed_{node.name}")


class EqualOutputs(_OnGraphs):
    """Returns an equal tensor in place of each that the program computes for its caller."""

    def change(self, graph: Graph) -> None:
        (output,) = (node for node in graph.nodes if node.op == "output")
        replaced: dict[Node, Node] = {}

        def equal(value: Node) -> Node:
            made = value.meta.get("val")
            if value.op != "call_function" or value.target in COPIES:
                return value
            if not isinstance(made, torch.Tensor) or not made.is_contiguous():
                return value
            if not all(isinstance(size, int) for size in made.shape):
                return value
            if value not in replaced:
                with graph.inserting_after(value):
                    view = graph.call_function(
                        ops.edge.aten.view_copy.default, (value, list(made.shape))
                    )
                view.meta = {k: v for k, v in value.meta.items() if k != "spec"}
                replaced[value] = view
            return replaced[value]

        output.args = torch.fx.map_arg(output.args, equal)


class Retraces(ExportPass):
    """Changes nothing, by the means that ExecuTorch has for it: all nodes are made anew."""


PASSES: dict[str, Callable[[], ExportPass]] = {
    "quant_fusion": lambda: QuantFusionPass(_fix_node_meta_val=True),
    "remove_clones": RemoveCloneOpsTransform,
    "reads_late": ReadsLate,
    "in_place": InPlace,
    "renames": Renames,
    "renames_all": RenamesAll,
    "equal_outputs": EqualOutputs,
    "retraces": Retraces,
}
if CSEPass is not None:
    PASSES["cse"] = CSEPass
if FuseViewCopyTransform is not None:
    PASSES["fuse_view_copy"] = FuseViewCopyTransform
