# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""What there is in a program, to count how many of each kind were run."""

import re
from collections.abc import Callable, Iterator

from tests.fuzz.program import RING, Options, Program

_BODIES = r"\b(?:cond|mapped|scan)\("


def _lines(pattern: str) -> Callable[[Program], bool]:
    search = re.compile(pattern).search
    return lambda program: any(search(line) for line in program.lines)


def _state(*dtypes: str) -> Callable[[Program], bool]:
    return lambda program: any(t.dtype in dtypes for t in program.buffers)


def _inner(program: Program) -> Iterator[str]:
    """The lines that have a body, each from its first body on."""
    for line in program.lines:
        found = re.search(_BODIES + ".*", line)
        if found is not None:
            yield found[0]


def _views_results(program: Program) -> bool:
    results = {
        name
        for line in program.lines
        if re.search(rf" = {_BODIES}", line)
        for name in line.partition(" = ")[0].split(", ")
    }
    views = r"\.(view|reshape|flatten|transpose|permute|unsqueeze|squeeze)\("
    viewed = {m[1] for line in program.lines for m in re.finditer(r"\b(v\d+)" + views, line)}
    return bool(results & viewed)


KINDS: dict[str, Callable[[Program], bool]] = {
    "mutated input": _lines(r"^x\d(\.\w+_\(|\[.*\] \+?= |\[.*\]\.\w+_\()"),
    "float64, int32 or int64 state": _state("float64", "int32", "int64"),
    "half state": _state("float16", "bfloat16"),
    "bool state": _state("bool"),
    "8- or 16-bit state": _state("uint8", "int8", "int16"),
    "channels_last state": lambda program: any(t.is_channels_last for t in program.buffers),
    "conversion of dim order": _lines(r"channels_last|contiguous_format"),
    "quantized state": lambda program: (
        _state("uint8", "int8")(program) and _lines(r"\b(quantized|real)\(")(program)
    ),
    "cond": _lines(r"\bcond\("),
    "map": _lines(r"\bmapped\("),
    "scan": _lines(r"\bscan\("),
    "nested bodies": _lines(_BODIES + ".*" + _BODIES),
    "view in a body": lambda program: any(".view(" in line for line in _inner(program)),
    "closed-over state in a body": lambda program: any(
        re.search(r"lambda[^\[]*self\.", line) for line in _inner(program)
    ),
    "view of a body's result": _views_results,
    "dynamic shape": lambda program: any(t.is_dynamic for t in program.inputs),
    "data-dependent position": _lines(r"\bpos\b"),
    "position in state": lambda program: any(
        f"self.{RING}" in line for line in program.lines if not line.startswith("old_")
    ),
    "index_put": _lines(r"index_put_|\[(k|p|self\.at|torch\.arange.*)\] \+?= "),
    "custom operator that writes": _lines(r"\bllama\."),
}


def _options_of(options: Options) -> Iterator[str]:
    for name in options.passes:
        yield f"pass {name}"
    for name, is_so in {
        "run_reinplace_pass": options.run_reinplace_pass,
        "reinplace_extra_ops": bool(options.reinplace_extra_ops),
        "alloc_graph_input=False": not options.alloc_graph_input,
        "alloc_graph_output=False": not options.alloc_graph_output,
        "alloc_mutable_buffers=False": not options.alloc_mutable_buffers,
        "XNNPACK": options.xnnpack,
        "do_quant_fusion_and_const_prop": options.do_quant_fusion_and_const_prop,
        "remove_view_copy=False": not options.remove_view_copy,
        "_skip_dim_order": options.skip_dim_order,
        "emit_stacktrace": options.emit_stacktrace,
        "own to_out_var and sym_shape_eval": options.own_last_passes,
        "lowered twice, same config": options.lowered_before == "same",
        "lowered twice, other config": options.lowered_before == "other",
        "write_state_in_place": options.write_state_in_place,
    }.items():
        if is_so:
            yield name


def kinds_of(program: Program) -> list[str]:
    """The names of all kinds that `program` is of."""
    return [name for name, is_of in KINDS.items() if is_of(program)] + [
        *_options_of(program.options)
    ]
