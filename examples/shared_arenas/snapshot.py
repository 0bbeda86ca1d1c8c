# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Save and restore all state of a loaded program: one copy of one arena, in Python.

    python examples/shared_arenas/export.py --own model.pte
    python examples/shared_arenas/snapshot.py model.pte 16 3 1 4 1 5 9 2 6

Python's runtime has no call for an arena, but it can return a buffer without copying it, and the
one that `first_buffer` returns is where the arena of all state begins.
"""

import argparse
import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.runtime import Program, Runtime
from torch import Tensor


def state_of(program: Program, size: int) -> Tensor:
    """The first `size` bytes of the arena itself; valid while the program is loaded."""
    method = program.load_method("first_buffer")
    assert method is not None
    (first,) = method._method.call([], clone_outputs=False)
    return torch.frombuffer(
        (ctypes.c_uint8 * size).from_address(first.data_ptr()), dtype=torch.uint8
    )


def size_of_last_arena(data: bytes) -> int:
    """How many bytes the state takes, of which the file tells."""
    plan = deserialize_pte_binary(data).program.execution_plan[0]
    return plan.non_const_buffer_sizes[-1]


def generate(program: Program, first: Tensor, count: int) -> list[int]:
    """`count` tokens, of which `first` is the first."""
    decode = program.load_method("decode")
    assert decode is not None
    tokens = [first]
    while len(tokens) < count:
        tokens += [token.clone() for token in decode.execute(tokens[-1:])]
    return [int(token) for token in tokens]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="the .pte file, exported with --own")
    parser.add_argument("count", type=int, help="how many tokens to generate")
    parser.add_argument("prompt", type=int, nargs="+", help="the tokens to start from")
    given = parser.parse_args(arguments)
    data = given.path.read_bytes()
    program = Runtime.get().load_program(data)
    # All before the first call: loading writes initial values, if a buffer has any.
    methods = {name: program.load_method(name) for name in program.method_names}
    (first,) = methods["prefill"].execute([torch.tensor(given.prompt)])
    state = state_of(program, size_of_last_arena(data))
    saved = state.clone()
    print("tokens:", *generate(program, first, given.count))
    state.copy_(saved)
    print("again:", *generate(program, first, given.count))


if __name__ == "__main__":
    main()
