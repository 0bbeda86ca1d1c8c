# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Export a tiny language model as `prefill` and `decode`, which share its key/value cache.

python examples/shared_arenas/export.py model.pte
python examples/shared_arenas/export.py --own model.pte
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.exir import ExecutorchBackendConfig, ExecutorchProgramManager, to_edge
from executorch.exir.passes import MemoryPlanningPass
from torch import Tensor, fx, nn
from torch.export import export
from torch.export.graph_signature import ExportGraphSignature

CONTEXT = 32  # tokens that the cache has room for
METHODS = {"prefill": 8, "decode": 1}  # and how many tokens each takes

BUFFERS = ("position", "keys", "values")
# A board may have several memories. What isn't named here goes to arena 1.
ARENAS = {"keys": 2, "values": 3}


class TinyDecoder(nn.Module):
    """One layer of attention over all tokens so far; the weights are random.

    A call takes int64 tokens of shape [n] and returns the next one, of shape [1]. What it
    has to remember is in three buffers, so a sequence may be cut into calls anywhere.
    """

    def __init__(self, vocabulary: int = 64, width: int = 32, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def weight(rows: int, columns: int, scale: float) -> nn.Parameter:
            values = torch.randn(rows, columns, generator=generator) * scale
            return nn.Parameter(values, requires_grad=False)

        self.embedding = weight(vocabulary, width, 1)
        self.place = weight(CONTEXT, width, 1)
        self.to_query = weight(width, width, width**-0.5)
        self.to_key = weight(width, width, width**-0.5)
        self.to_value = weight(width, width, width**-0.5)
        self.head = weight(width, vocabulary, width**-0.5)
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("keys", torch.zeros(CONTEXT, width))
        self.register_buffer("values", torch.zeros(CONTEXT, width))

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.position + torch.arange(tokens.shape[0])
        x = self.embedding[tokens] + self.place[places]
        self.keys.index_put_((places,), x @ self.to_key)
        self.values.index_put_((places,), x @ self.to_value)
        self.position.add_(tokens.shape[0])

        scores = self.keys @ (x @ self.to_query).T / math.sqrt(x.shape[1])
        in_future = torch.arange(CONTEXT).unsqueeze(1) > places
        weights = scores.masked_fill(in_future, -math.inf).softmax(0)
        last = (x + weights.T @ self.values)[-1:]
        return (last @ self.head).argmax(-1)


class FirstBuffer(nn.Module):
    """Returns the buffer whose name is the first of all, itself and no copy."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.name = min(BUFFERS)
        self.register_buffer(self.name, model.get_buffer(self.name))

    def forward(self) -> Tensor:
        return self.get_buffer(self.name)


class PlanInArenas(MemoryPlanningPass):
    """Plans the buffers that `arenas` names in those arenas, and all else as usual."""

    def __init__(self, arenas: Mapping[str, int], **planning: Any) -> None:
        super().__init__(**planning)
        self.arenas = arenas

    def run(
        self, graph_module: fx.GraphModule, graph_signature: ExportGraphSignature | None = None
    ) -> Any:
        buffers = graph_signature.inputs_to_buffers if graph_signature else {}
        for node in graph_module.graph.find_nodes(op="placeholder"):
            arena = self.arenas.get(buffers.get(node.target))
            if arena is not None:
                node.meta["spec"].mem_id = arena
        return super().run(graph_module, graph_signature)


def lower(
    model: TinyDecoder,
    methods: Mapping[str, int] = METHODS,
    arenas: Mapping[str, int] = ARENAS,
    *,
    own: bool = False,
) -> ExecutorchProgramManager:
    """Lower the model to a program with `methods`, by the number of tokens each takes.

    With `own`, all state is in one arena that holds nothing else, whatever `arenas` says, and
    a method `first_buffer` returns what lies there first.
    """
    programs = {
        method: export(model, (torch.zeros(tokens, dtype=torch.int64),))
        for method, tokens in methods.items()
    }
    if own:
        programs["first_buffer"] = export(FirstBuffer(model), ())
    planning = PlanInArenas(
        arenas,
        share_mutable_buffers=True,
        shared_buffer_fqns=BUFFERS,
        shared_arena="own" if own else "front",
    )
    return to_edge(programs).to_executorch(
        ExecutorchBackendConfig(memory_planning_pass=planning, run_reinplace_pass=True)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="the .pte file to write")
    parser.add_argument(
        "--own", action="store_true", help="keep all state in an arena that holds nothing else"
    )
    given = parser.parse_args(arguments)
    given.path.write_bytes(lower(TinyDecoder(), own=given.own).buffer)


if __name__ == "__main__":
    main()
