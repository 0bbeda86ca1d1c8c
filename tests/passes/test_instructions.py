# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""What `print_instructions` says of emitted programs."""

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import Tensor, nn

from tests.support import harness
from tests.support.instructions import print_instructions


class Rows(nn.Module):
    """Reads its state late, so that it is copied in any plan."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3))

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        old = self.rows.clone()
        self.rows.index_put_((i,), x)
        return old.view(12)[:3].sin()


class Chosen(nn.Module):
    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        return torch.cond(p, lambda a: a.sin(), lambda a: a.cos(), (x,))


class Counted(nn.Module):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        count = i.item()
        torch._check(count >= 0)
        torch._check(count < 4)
        return x.narrow(0, 0, count + 1)


def lines(
    module: nn.Module, *inputs: Tensor, with_places: bool = False, **options: object
) -> list[str]:
    program = harness.lower(harness.export_methods(module, {"forward": inputs}), **options)
    return print_instructions(program, with_places=with_places).splitlines()


def test_state_bears_its_name() -> None:
    printed = lines(Rows(), torch.ones(1, 3), torch.tensor([1]))
    clone = next(line for line in printed if "clone" in line)
    assert "(rows, " in clone and clone.endswith("out=t0)")
    put = next(line for line in printed if "index_put" in line)
    assert "(rows, [i], x" in put
    assert printed[-1].startswith("return t")


def test_view_has_the_name_of_its_base() -> None:
    printed = lines(Rows(), torch.ones(1, 3), torch.tensor([1]))
    clone = next(line for line in printed if "clone" in line)
    name = clone.rpartition("out=")[2].rstrip(")")
    cut = next(line for line in printed if "slice_copy" in line)
    assert f"slice_copy.Tensor_out({name}, " in cut


def test_branches() -> None:
    assert lines(Chosen(), torch.ones(3), torch.tensor(True)) == [
        "0: unless p go to 4",
        "1: aten::sin.out(x, out=t0)",
        "2: t1 = t0",
        "3: go to 6",
        "4: aten::cos.out(x, out=t2)",
        "5: t1 = t2",
        "return t1",
    ]


def test_numbers_that_are_computed() -> None:
    assert lines(Counted(), torch.ones(4), torch.tensor(2)) == [
        "0: aten::_local_scalar_dense(i) -> t0",
        "1: executorch_prim::add.Scalar(t0, 1) -> t1",
        "2: aten::slice_copy.Tensor_out(x, 0, 0, t1, 1, out=t2)",
        "return t2",
    ]


def test_delegate() -> None:
    printed = lines(nn.Linear(3, 2), torch.ones(1, 3), partitioner=XnnpackPartitioner())
    name = printed[0].partition("(")[2].partition(",")[0]
    assert printed == [f"0: XnnpackBackend({name}, out=t0)", "return t0"]


class Rectified(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu()


def test_places() -> None:
    printed = lines(Rectified(), torch.ones(4), with_places=True)
    first, second = "x@1:0", "t0@1:16"
    if first not in printed[0]:
        first, second = "x@1:16", "t0@1:0"
    assert printed == [f"0: aten::relu.out({first}, out={second})", f"return {second}"]


def test_method_that_is_not_there() -> None:
    program = harness.lower(harness.export_methods(nn.ReLU(), {"forward": (torch.ones(4),)}))
    with pytest.raises(ValueError, match="no method 'backward', but \\['forward'\\]"):
        print_instructions(program, "backward")
