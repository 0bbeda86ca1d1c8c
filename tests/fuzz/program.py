# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""A fuzzed program as plain data, the module that it stands for, and a script that shows it."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.harness import Call

CALLS = 3
INDEX = "k"  # the input that holds the rows 0 and 1 in some order, for index_put and the like


@dataclass(frozen=True)
class TensorType:
    """Name, shape and dtype (`float32` for `torch.float32`) of a buffer or an input."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{list(self.shape)} {self.dtype}"


@dataclass(frozen=True)
class Options:
    """How a program is lowered."""

    run_reinplace_pass: bool = False
    alloc_graph_input: bool = True
    alloc_graph_output: bool = True
    alloc_mutable_buffers: bool = True
    xnnpack: bool = False


@dataclass(frozen=True)
class Program:
    """A module with buffers; `lines` and `returns` are the Python of its `forward`."""

    buffers: tuple[TensorType, ...]
    inputs: tuple[TensorType, ...]
    lines: tuple[str, ...]
    returns: tuple[str, ...]
    options: Options = Options()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Program":
        data = json.loads(text)

        def types(key: str) -> tuple[TensorType, ...]:
            return tuple(TensorType(t["name"], tuple(t["shape"]), t["dtype"]) for t in data[key])

        return cls(
            types("buffers"),
            types("inputs"),
            tuple(data["lines"]),
            tuple(data["returns"]),
            Options(**data["options"]),
        )

    def source(self) -> str:
        """The source of the module, class `Fuzzed`."""
        body = [f"        {line}" for line in self.lines]
        names = ", ".join(["self", *(t.name for t in self.inputs)])
        registered = [
            f'        self.register_buffer("{t.name}", '
            f"torch.zeros({list(t.shape)}, dtype=torch.{t.dtype}))"
            for t in self.buffers
        ]
        return "\n".join(
            [
                "import torch",
                "from torch import cond, nn",
                "",
                "",
                "class Fuzzed(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                *registered,
                "",
                f"    def forward({names}):",
                *body,
                f"        return {', '.join(self.returns)}",
            ]
        )

    def module(self) -> nn.Module:
        namespace: dict[str, Any] = {}
        exec(compile(self.source(), "<fuzzed>", "exec"), namespace)
        made: nn.Module = namespace["Fuzzed"]()
        return made

    def example(self, call: int = 0) -> tuple[Tensor, ...]:
        """Inputs of one call. All numbers are small and whole, so that no result depends on
        how a kernel rounds."""
        generator = torch.Generator().manual_seed(call)

        def draw(t: TensorType) -> Tensor:
            dtype: torch.dtype = getattr(torch, t.dtype)
            if t.name == INDEX:
                return torch.randperm(2, generator=generator).to(dtype)
            return torch.randint(-4, 5, t.shape, generator=generator).to(dtype)

        return tuple(draw(t) for t in self.inputs)

    def calls(self) -> list[Call]:
        return [Call("forward", self.example(call)) for call in range(CALLS)]


_SCRIPT = '''"""Shows a difference between a program's meaning and what it does when lowered.

{finding}

Run it from the root of the repository: python {path}
"""

import sys
from pathlib import Path

{source}


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    from tests.fuzz.check import check
    from tests.fuzz.program import Options, Program, TensorType

    program = {program}
    print(check(program, Fuzzed()))
'''


def script(program: Program, finding: str, path: str) -> str:
    """A standalone script for one program: the module to read, and the run to repeat."""
    quoted = finding.replace("\\", "\\\\").replace('"""', "'''")
    return _SCRIPT.format(finding=quoted, path=path, source=program.source(), program=repr(program))
