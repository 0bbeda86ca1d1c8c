# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

from executorch.exir.memory_planning import get_cond_nodes
from executorch.exir.tensor import TensorSpec
from torch import fx
from torch.utils._pytree import tree_flatten


def _borrows_or_lends_storage(graph_module: fx.GraphModule, spec: TensorSpec) -> bool:
    """Whether `spec` lies inside another spec of the graph, or another one inside it."""
    # ExecuTorch 1.4 calls the base of an in-place result `inplace_base`.
    base = "storage_base" if hasattr(spec, "storage_base") else "inplace_base"
    specs = tree_flatten([nd.meta.get("spec") for nd in graph_module.graph.nodes])[0]
    return getattr(spec, base, None) is not None or any(
        getattr(other, base, None) is spec
        for other in specs
        if isinstance(other, TensorSpec)
    )


def _place_branch_result(
    branch: fx.GraphModule, number: int, place: TensorSpec
) -> None:
    """
    Let `branch` write its result `number` to where the graph around it planned it.

    A result that has no memory of the branch's own (an input handed through, a
    constant, a tensor that the runtime allocates) stays where it is, and so does one
    that shares its storage with another tensor or wouldn't fit.
    """
    result = tree_flatten(branch.graph.output_node().args)[0][number]
    spec = result.meta.get("spec") if isinstance(result, fx.Node) else None
    if (
        isinstance(spec, TensorSpec)
        and not spec.const
        and spec.mem_offset is not None
        and spec.allocated_memory <= place.allocated_memory
        and not _borrows_or_lends_storage(branch, spec)
    ):
        spec.mem_id = place.mem_id
        spec.mem_offset = place.mem_offset


def _place_branch_results(graph_module: fx.GraphModule) -> None:
    """
    Let the branches of each cond, nested ones too, write their results to where the
    graph around the cond has them.

    The runtime takes a branch's result over by pointer, and all branches are planned
    over one another at the front of the arena: left there, the result is lost when
    the next control-flow node runs, and a view of it, which reads the memory that the
    surrounding graph planned, never sees it. No arena changes its size by this.
    """
    for cond_node in get_cond_nodes(graph_module):
        for branch_node in cond_node.args[1:3]:
            branch = getattr(graph_module, branch_node.target)
            for number, place in enumerate(tree_flatten(cond_node.meta["spec"])[0]):
                if isinstance(place, TensorSpec) and place.mem_offset is not None:
                    _place_branch_result(branch, number, place)
            _place_branch_results(branch)
