"""How many bytes of state a call copies, against programs whose copies can be counted by hand.

Counted in the untouched release, whose lowering doesn't change, in a process of its own.
"""

import functools
import json
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.sides import Side
from benchmarks.state_bytes import state_bytes_copied
from tests.support.harness import export_methods, lower
from tools import versions
from tools.paths import ROOT
from tools.shipping import upstream

STATE = 8 * 4 * 4
"""Bytes of the buffer of all programs here: 8 rows of 4 floats."""


class _Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(8, 4))


class Cache(_Stateful):
    """Writes a row, and reads the whole through a transposition."""

    def forward(self, position: Tensor, row: Tensor) -> Tensor:
        self.state.index_put_((position,), row)
        return (self.state.transpose(0, 1) * 2.0).sum(1)


class Decaying(_Stateful):
    """Makes all of its state anew."""

    def forward(self, x: Tensor) -> Tensor:
        self.state.copy_(0.9 * self.state + x)
        return self.state.sum(0)


class Window(_Stateful):
    """Moves seven rows up and adds one."""

    def forward(self, row: Tensor) -> Tensor:
        self.state.copy_(torch.cat([self.state[1:], row]))
        return self.state.sum(0)


class OnlyRead(_Stateful):
    """Copies what it reads, which doesn't change the state."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.state, x])


class Chosen(_Stateful):
    """Writes a row in one branch, and all rows in the other."""

    def forward(self, row: Tensor) -> Tensor:
        self.state.copy_(
            torch.cond(row.sum() > 0, self.shifted, self.filled, (self.state.clone(), row))
        )
        return self.state.sum(0)

    @staticmethod
    def shifted(state: Tensor, row: Tensor) -> Tensor:
        return torch.cat([state[1:], row])

    @staticmethod
    def filled(state: Tensor, row: Tensor) -> Tensor:
        return row.expand(8, 4) + 0.0


ROW = torch.randn(1, 4)
AT = torch.tensor([2])
WHOLE = torch.randn(8, 4)


def measure() -> dict[str, int]:
    """Lower the programs with the ExecuTorch that this process imports, and count."""

    def copied(module: nn.Module, *inputs: Tensor, **config: Any) -> int:
        return state_bytes_copied(lower(export_methods(module, {"forward": inputs}), **config))

    return {
        "cache": copied(Cache(), AT, ROW, run_reinplace_pass=False),
        "cache in place": copied(Cache(), AT, ROW, run_reinplace_pass=True),
        "decaying": copied(Decaying(), WHOLE),
        "window": copied(Window(), ROW),
        "only read": copied(OnlyRead(), ROW),
        "chosen": copied(Chosen(), ROW),
    }


@functools.cache
def stock() -> dict[str, int]:
    """What `measure` says of the untouched release."""
    side = Side("stock", upstream.unpacked(versions.DEFAULT))
    command = [sys.executable, "-m", "tests.tools.test_state_bytes"]
    done = subprocess.run(
        command, cwd=ROOT, env=side.environment(ROOT), check=True, stdout=subprocess.PIPE, text=True
    )
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counts


def test_an_update_out_of_place_copies_the_buffer_into_a_value_and_that_into_the_buffer() -> None:
    assert stock()["cache"] == 2 * STATE


def test_an_update_in_place_copies_nothing() -> None:
    assert stock()["cache in place"] == 0


def test_what_is_computed_is_copied_into_the_buffer_alone() -> None:
    assert stock()["decaying"] == STATE


def test_a_window_is_cut_joined_and_copied() -> None:
    rows_kept = 7 * ROW.nbytes
    assert stock()["window"] == rows_kept + 2 * STATE


def test_what_is_only_read_is_no_copy_of_state() -> None:
    assert stock()["only read"] == 0


def test_of_two_branches_the_one_that_copies_most_counts() -> None:
    rows_kept = 7 * ROW.nbytes
    # The clone, what the first branch cuts and joins, and the write-back.
    assert stock()["chosen"] == STATE + rows_kept + STATE + STATE


def test_the_patched_passes_copy_no_more() -> None:
    patched = measure()
    assert {name: max(count, patched[name]) for name, count in stock().items()} == stock()


if __name__ == "__main__":
    print(json.dumps(measure()))
