# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Time the write-back pass, stock's and the patched one in turn, in one process.

python -m benchmarks.bench_write_back --stock DIR
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from executorch.exir.passes.insert_write_back_for_buffers_pass import (
    insert_write_back_for_buffers_pass,
)
from executorch.exir.passes.place_write_backs_pass import place_write_backs
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule

from benchmarks.lowering import export_model, to_edge
from benchmarks.models import MODELS
from benchmarks.write_back_results import LLAMA, Row, faults, growth, table

SIZES = (16, 64, 256, 1024)
"""Numbers of buffers."""
REPETITIONS = 7

Pass = Callable[[Any], Any]


def load_stock_pass(stock: Path) -> Pass:
    """The pass of the untouched package in `stock`, beside the one that is installed."""
    file = stock / "executorch/exir/passes/insert_write_back_for_buffers_pass.py"
    spec = importlib.util.spec_from_file_location("stock_write_back_pass", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise FileNotFoundError(f"no executorch package in {stock}: there is no {file}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Pass = module.insert_write_back_for_buffers_pass
    return found


def stateful_program(buffers: int) -> SimpleNamespace:
    """As much of an exported program as the pass looks at, with ten nodes a buffer.

    Each buffer is read twice, once through a view, and its new value is kept by most of the
    graph: a layer with a state, as in recurrent models and key/value caches.
    """
    graph = Graph()
    placeholders = [graph.placeholder(f"b_{i}") for i in range(buffers)]
    x = graph.placeholder("x")
    edge, values, result = ops.edge.aten, [], x
    for buffer in placeholders:
        view = graph.call_function(edge.view_copy.default, (buffer, [2, 2]))
        mixed = graph.call_function(edge.mul.Tensor, (view, result))
        new = graph.call_function(edge.add.Tensor, (buffer, result))
        values.append(new)
        result = graph.call_function(edge.add.Tensor, (mixed, new))
        for target in (edge.sin, edge.cos, edge.tanh, edge.sigmoid, edge.relu):
            result = graph.call_function(target.default, (result,))
    graph.output((*values, result))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(2, 2, device="meta")
    signature = ExportGraphSignature(
        input_specs=[
            InputSpec(InputKind.BUFFER, TensorArgument(node.name), node.name, True)
            for node in placeholders
        ]
        + [InputSpec(InputKind.USER_INPUT, TensorArgument(x.name), None)],
        output_specs=[
            OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(value.name), node.name)
            for node, value in zip(placeholders, values, strict=True)
        ]
        + [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(result.name), None)],
    )
    module = GraphModule(torch.nn.Module(), graph)
    return SimpleNamespace(graph_module=module, graph=module.graph, graph_signature=signature)


def llama_program() -> Any:
    """The edge program of ExecuTorch's example transformer."""
    model = MODELS[LLAMA]()
    return to_edge({"forward": export_model(model)}, model.lowering).exported_program()


def write_back(program: Any) -> None:
    """Both halves of what the patched package does: insert the copies, and place them."""
    module, signature = insert_write_back_for_buffers_pass(program)
    place_write_backs(module, signature)


def fresh(program: Any) -> Any:
    """A copy for one run, since the pass changes what it is given."""
    module = GraphModule(program.graph_module, copy.deepcopy(program.graph))
    return SimpleNamespace(
        graph_module=module,
        graph=module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
    )


def seconds(timed: Pass, program: Any) -> float:
    """CPU seconds of one run."""
    own = fresh(program)
    gc.collect()
    gc.disable()
    started = time.process_time()
    timed(own)
    taken = time.process_time() - started
    gc.enable()
    return taken


def measure(name: str, program: Any, stock_pass: Pass, repetitions: int) -> Row:
    """Run both passes in turn; the first turn only warms up."""
    turns = [
        (seconds(stock_pass, program), seconds(write_back, program)) for _ in range(repetitions + 1)
    ][1:]
    kinds = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
    return Row(
        program=name,
        buffers=sum(spec.kind in kinds for spec in program.graph_signature.output_specs),
        nodes=len(program.graph.nodes),
        stock=statistics.median(stock for stock, _ in turns),
        patched=statistics.median(patched for _, patched in turns),
    )


def run(
    stock: Path,
    progress: Callable[[str], None],
    *,
    sizes: Sequence[int] = SIZES,
    llama: bool = True,
) -> list[Row]:
    """Measure all programs against the untouched package in `stock`."""
    stock_pass = load_stock_pass(stock)
    rows = []
    for size in sizes:
        progress(f"write-back pass, {size} buffers")
        program = stateful_program(size)
        rows.append(measure("ten nodes a buffer", program, stock_pass, REPETITIONS))
    if llama:
        progress(f"write-back pass, {LLAMA}")
        rows.append(measure(LLAMA, llama_program(), stock_pass, REPETITIONS))
    return rows


def main(arguments: Sequence[str]) -> int:
    """Print the table; the exit code is 1 if a target isn't met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_write_back")
    parser.add_argument(
        "--stock", type=Path, required=True, help="directory with the untouched package"
    )
    parser.add_argument("--events", action="store_true", help="print the rows as JSON")
    parser.add_argument("--no-llama", action="store_true", help="only the small graphs")
    options = parser.parse_args(arguments)

    def progress(text: str) -> None:
        if options.events:
            print(json.dumps({"event": "progress", "text": text}), flush=True)
        else:
            print(text, file=sys.stderr)

    rows = run(options.stock, progress, llama=not options.no_llama)
    if options.events:
        print("\n".join(json.dumps({"event": "row", **asdict(row)}) for row in rows))
        return 0
    print(table(rows))
    print(f"1024 buffers take {growth(rows):.1f} times as long as 256")
    short = faults(rows)
    print("\n".join(short) or "all targets are met")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
