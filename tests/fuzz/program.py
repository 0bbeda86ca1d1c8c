# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""A fuzzed program as plain data, the module that it stands for, and a script that shows it."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.support.harness import Call

CALLS = 3
INDEX = "k"  # the input that holds the rows 0 and 1 in some order, for index_put and the like
POSITION = "p"  # the input that holds one row, 0 or 1, to read or write at
RING = "at"  # the buffer that holds one row, 0 or 1, and is advanced by the program
ROWS = (5, 2, 6)  # of an input with a dynamic number of rows, call by call
FEWEST, MOST = min(ROWS), max(ROWS)


@dataclass(frozen=True)
class TensorType:
    """Name, shape and dtype (`float32` for `torch.float32`) of a buffer or an input.

    A dynamic one has `ROWS` rows, whatever its shape says of the first dimension.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_channels_last: bool = False
    is_dynamic: bool = False

    def __str__(self) -> str:
        text = f"{list(self.shape)} {self.dtype}"
        return text + (" channels_last" if self.is_channels_last else "")

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def zeros(self) -> Tensor:
        made: Tensor = eval(self.source(), {"torch": torch})
        return made

    def source(self) -> str:
        zeros = f"torch.zeros({list(self.shape)}, dtype=torch.{self.dtype})"
        return zeros + (".to(memory_format=torch.channels_last)" if self.is_channels_last else "")


@dataclass(frozen=True)
class Options:
    """How a program is lowered. The first value of each is the usual one."""

    run_reinplace_pass: bool = False
    alloc_graph_input: bool = True
    alloc_graph_output: bool = True
    alloc_mutable_buffers: bool = True
    xnnpack: bool = False
    passes: tuple[str, ...] = ()
    """Of the user's, by their names in `tests.fuzz.passes`."""
    reinplace_extra_ops: tuple[str, ...] = ()
    """Operators of edge dialect, such as `aten._softmax.default`."""
    do_quant_fusion_and_const_prop: bool = False
    remove_view_copy: bool = True
    skip_dim_order: bool = False
    emit_stacktrace: bool = False
    own_last_passes: bool = False
    """Give `to_out_var_pass` and `sym_shape_eval_pass` subclasses of upstream's."""
    lowered_before: str = ""
    """Call `to_executorch` once before, with the `same` config or an `other`."""
    write_state_in_place: bool = False
    """Ignored where `ExecutorchBackendConfig` has no such option."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Options":
        """From what JSON makes of them: tuples are lists there."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})

    def __repr__(self) -> str:
        """Just what is not as usual."""
        usual = Options
        changed = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(usual)
            if getattr(self, field.name) != field.default
        ]
        return f"Options({', '.join(changed)})"


# What the source of a module needs where its lines match.
_NEEDS = {
    r"\bmapped\(": "from torch._higher_order_ops.map import map as mapped",
    r"\bscan\(": "from torch._higher_order_ops import scan",
    r"\bllama\.": "from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401",
    r"\b(quantized|real)\(": "from torch.ao.quantization.fx import _decomposed  # noqa: F401",
}
QUANTIZATION = '''
def quantized(x, low=0):
    """As uint8 for `low` 0, as int8 for -128, in steps of a half, so that no rounding shows."""
    dtype = torch.int8 if low else torch.uint8
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
    return quantize(x, 0.5, low + 128, low, low + 255, dtype)


def real(q):
    low = -128 if q.dtype is torch.int8 else 0
    dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
    return dequantize(q, 0.5, low + 128, low, low + 255, q.dtype)
'''


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
            return tuple(TensorType(**{**t, "shape": tuple(t["shape"])}) for t in data[key])

        return cls(
            types("buffers"),
            types("inputs"),
            tuple(data["lines"]),
            tuple(data["returns"]),
            Options.of(data["options"]),
        )

    def source(self) -> str:
        """The source of the module, class `Fuzzed`."""
        body = [f"        {line}" for line in self.lines]
        names = ", ".join(["self", *(t.name for t in self.inputs)])
        registered = [
            f'        self.register_buffer("{t.name}", {t.source()})' for t in self.buffers
        ]
        text = "\n".join(self.lines + self.returns)
        needs = [line for pattern, line in _NEEDS.items() if re.search(pattern, text)]
        helpers = [QUANTIZATION] if re.search(r"\b(quantized|real)\(", text) else []
        return "\n".join(
            [
                "import torch",
                "from torch import cond, nn",
                *needs,
                *helpers,
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

    def dynamic_shapes(self) -> tuple[dict[int, Any] | None, ...] | None:
        """As torch.export takes them; None if no input is dynamic."""
        if not any(t.is_dynamic for t in self.inputs):
            return None
        rows = {0: Dim("rows", min=FEWEST, max=MOST)}
        return tuple(rows if t.is_dynamic else None for t in self.inputs)

    def example(self, call: int = 0) -> tuple[Tensor, ...]:
        """Inputs of one call. All numbers are small and whole, so that no result depends on
        how a kernel rounds."""
        generator = torch.Generator().manual_seed(call)

        def draw(t: TensorType) -> Tensor:
            dtype = t.torch_dtype
            if t.name == INDEX:
                return torch.randperm(2, generator=generator).to(dtype)
            if t.name == POSITION:
                return torch.randint(0, 2, t.shape, generator=generator).to(dtype)
            shape = (ROWS[call % len(ROWS)], *t.shape[1:]) if t.is_dynamic else t.shape
            numbers = torch.randint(-4, 5, shape, generator=generator)
            if dtype == torch.bool:
                numbers = numbers > 0
            elif dtype == torch.uint8:
                numbers = numbers.abs()
            drawn = numbers.to(dtype)
            return drawn.to(memory_format=torch.channels_last) if t.is_channels_last else drawn

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
