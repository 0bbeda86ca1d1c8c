# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""What the timing of the write-back pass measures, and what it says of it."""

from pathlib import Path

import executorch.exir
import pytest
import torch

from benchmarks.bench_write_back import load_stock_pass, measure, stateful_program
from benchmarks.write_back_results import MOST_OF_STOCK, Row, faults, growth, write_back_section

INSTALLED = Path(executorch.exir.__file__).parents[2]


def row(buffers: int, stock: float = 1.0, patched: float = 1.0) -> Row:
    return Row("a program", buffers, buffers * 10, stock, patched)


def test_the_program_has_ten_nodes_a_buffer_and_all_are_written_back() -> None:
    write_back = load_stock_pass(INSTALLED)
    measured = measure("a program", stateful_program(8), write_back, repetitions=1)
    assert (measured.buffers, measured.nodes) == (8, 8 * 10 + 2)
    assert measured.stock > 0 and measured.patched > 0
    program = stateful_program(8)
    write_back(program)
    copies = program.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert [copy.args[0].name for copy in copies] == [f"b_{i}" for i in range(8)]


def test_targets() -> None:
    fine = [row(256, patched=1.0), row(1024, stock=4.0, patched=5.0)]
    assert growth(fine) == 5.0
    assert faults(fine) == []
    assert "at most 1.5 times" in write_back_section(fine)
    slow = [row(256, patched=1.0), row(1024, stock=4.0, patched=4.0 * MOST_OF_STOCK + 1)]
    assert len(faults(slow)) == 2
    assert "Short of the target" in write_back_section(slow)


def test_a_directory_without_the_package_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no executorch package"):
        load_stock_pass(tmp_path)
