# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Random programs, as a Hypothesis strategy.

A program has a theme, which says what its tensors are and which steps are drawn more often. It is
then drawn as a list of steps (see `builder`). So nearly all programs export, and shrinking a
program is shrinking a list of numbers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from executorch.exir import ExecutorchBackendConfig
from hypothesis import strategies as st
from torch import Tensor

from tests.fuzz import bodies  # noqa: F401  it registers its steps, after those of `steps`
from tests.fuzz.builder import STEPS, Builder, Numbers, is_channels_last
from tests.fuzz.passes import PASSES
from tests.fuzz.program import INDEX, POSITION, RING, Options, Program, TensorType
from tests.fuzz.steps import DTYPES

# Two shapes have the same number of elements, so that views of one fit the other.
SHAPES = ((2, 3), (6,), (4,), (2, 2, 3), (3, 2))
# Those that the reinplace pass can serve without an in-place kernel; see `steps.extra`.
EXTRA_OPS = (
    "aten._softmax.default",
    "aten._log_softmax.default",
    "aten.maximum.default",
    "aten.minimum.default",
    "aten.slice_scatter.default",
    "aten.select_scatter.default",
    "aten.where.self",
)
HAS_STATE_IN_PLACE = any(f.name == "write_state_in_place" for f in fields(ExecutorchBackendConfig))

Type = tuple[tuple[int, ...], str, bool]
_NUMBER = st.integers(0, 60)


def _types(
    shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], layouts: Sequence[bool] = (False,)
) -> st.SearchStrategy[Type]:
    return st.tuples(st.sampled_from(shapes), st.sampled_from(dtypes), st.sampled_from(layouts))


_USUAL = _types(SHAPES, DTYPES)


@dataclass(frozen=True)
class Theme:
    """What the programs of one kind are made of."""

    types: st.SearchStrategy[Type] = _USUAL
    others: st.SearchStrategy[Type] = _USUAL
    inputs: st.SearchStrategy[Type] | None = None
    """Of some of the inputs; the rest is like the buffers."""
    favours: Mapping[str, int] = field(default_factory=dict)
    """By how much more often than usual a step is drawn."""
    only: Sequence[str] = ()
    """Steps; all if there are none."""
    passes: Sequence[str] = ()
    """What is often in `config.passes`."""
    has_position: bool = False
    dynamic: st.SearchStrategy[Type] | None = None
    """Of an input with a dynamic number of rows."""
    skips_dim_order: Sequence[bool] = (False, False, True)


_SMALL_SHAPES = ((2, 3), (6,), (3, 2))
THEMES = {
    "plain": Theme(),
    "bodies": Theme(
        _types(((2, 3), (2, 3), (3, 2), (2, 2, 3)), ("float32", "float32", "int64")),
        favours={"branched": 4, "mapped": 8, "scanned": 8, "view": 2},
    ),
    "position": Theme(
        _types(((2, 3), (4, 3), (3, 2), (2, 2, 3)), ("float32", "float32", "int64", "float16")),
        favours={"read_at_position": 5, "written_at_position": 8, "ring": 6, "rows_put": 2},
        has_position=True,
    ),
    "dynamic": Theme(
        _types(((2, 3), (8, 3), (8, 3)), ("float32", "float32", "int64")),
        favours={"flowing": 12, "flowing_scan": 2, "flowing_written": 10},
        has_position=True,
        dynamic=_types(((5, 3),), ("float32", "float32", "int64")),
    ),
    "channels_last": Theme(
        _types(((1, 3, 2, 2),), ("float32",), (True, True, False)),
        _types(((1, 3, 2, 2),), ("float32", "float32", "float16"), (True, False)),
        favours={"laid_out": 2, "copied_over_layouts": 1},
        only=(
            "unary",
            "binary",
            "copied",
            "updated",
            "copied_across",
            "laid_out",
            "copied_over_layouts",
        ),
        skips_dim_order=(False, False, False, True),
    ),
    "quantized": Theme(
        _types(((2, 3), (6,), (1, 6)), ("uint8", "int8")),
        _types(((2, 3), (6,)), ("uint8", "int8", "float32")),
        inputs=_types(((2, 3), (6,), (1, 6)), ("float32",)),
        favours={"requantized": 14, "quantized_state_updated": 10},
        passes=("quant_fusion", "quant_fusion", "remove_clones"),
    ),
    "small": Theme(
        _types(_SMALL_SHAPES, ("float16", "bfloat16", "bool", "uint8", "int8", "int16")),
        _types(_SMALL_SHAPES, ("float16", "bool", "int8", "float32")),
    ),
    "custom": Theme(
        _types(((1, 4, 1, 3), (1, 4, 1, 3), (1, 3, 2, 3)), ("float32", "float32", "int8")),
        _types(((1, 4, 1, 3), (4,)), ("float32",)),
        favours={"cache_updated": 12},
        has_position=True,
    ),
}
DRAWN_THEMES = (
    *("plain",) * 3,
    *("bodies",) * 2,
    *("position",) * 2,
    *("dynamic",) * 2,
    "channels_last",
    *("quantized",) * 2,
    "small",
    "small",
    "custom",
)


def _steps(theme: Theme, kinds: Iterable[str]) -> st.SearchStrategy[list[tuple[str, Numbers]]]:
    weighted = [
        kind
        for kind in kinds
        if not theme.only or kind in theme.only
        for _ in range(STEPS[kind][0] + theme.favours.get(kind, 0))
    ]
    numbers = st.tuples(_NUMBER, _NUMBER, _NUMBER, _NUMBER)
    return st.lists(st.tuples(st.sampled_from(weighted), numbers), min_size=1, max_size=12)


def _one_in(count: int) -> st.SearchStrategy[bool]:
    return st.sampled_from((False,) * (count - 1) + (True,))


def _options(theme: Theme) -> st.SearchStrategy[Options]:
    one_pass = st.sampled_from((*sorted(PASSES), *theme.passes))
    return st.builds(
        Options,
        run_reinplace_pass=st.booleans(),
        alloc_graph_input=st.sampled_from((True, True, False)),
        alloc_graph_output=st.sampled_from((True, True, False)),
        alloc_mutable_buffers=_one_in(40).map(lambda drawn: not drawn),
        xnnpack=_one_in(6),
        passes=st.one_of(
            st.just(()),
            st.lists(one_pass, min_size=1, max_size=3, unique=True).map(tuple),
        ),
        reinplace_extra_ops=st.one_of(
            st.just(()),
            st.just(()),
            st.lists(st.sampled_from(EXTRA_OPS), min_size=1, max_size=4, unique=True).map(tuple),
        ),
        do_quant_fusion_and_const_prop=_one_in(3 if theme.passes else 8),
        remove_view_copy=_one_in(4).map(lambda drawn: not drawn),
        skip_dim_order=st.sampled_from(theme.skips_dim_order),
        emit_stacktrace=_one_in(12),
        own_last_passes=_one_in(12),
        lowered_before=st.sampled_from(("",) * 12 + ("same", "other")),
        write_state_in_place=st.booleans() if HAS_STATE_IN_PLACE else st.just(False),
    )


def _named(prefix: str, types: Iterable[Type], is_dynamic: bool = False) -> list[TensorType]:
    return [
        TensorType(f"{prefix}{i}", *kind, is_dynamic=is_dynamic) for i, kind in enumerate(types)
    ]


def _shares_storage(b: Builder, name: str, others: Iterable[str]) -> bool:
    storage = b.tensor(name).untyped_storage().data_ptr()
    return any(b.tensor(other).untyped_storage().data_ptr() == storage for other in others)


def _returned(b: Builder, number: int, options: Options) -> str:
    """A value to return, or a new one where returning it would ask for more than there is."""
    names = [*b.values, *b.flowing]
    name = names[-1 - number % len(names)]
    written = [name for name in b.state if b.is_written(name)]
    if _shares_storage(b, name, written):
        # torch.export confuses a written buffer, returned as it is, with the buffer's update.
        return f"{name}.clone()"
    # The runtime has an input that is passed on by pointer from elsewhere, and then takes no
    # memory of the caller's own for it.
    passed_on = _shares_storage(b, name, [t.name for t in b.inputs])
    if passed_on and not (options.alloc_graph_input and options.alloc_graph_output):
        # A clone could be dropped by a pass.
        return _computed(b.tensor(name), name)
    return name


@st.composite
def programs(
    draw: st.DrawFn, kinds: Sequence[str] = (), themes: Sequence[str] = DRAWN_THEMES
) -> Program:
    """A program with one to five buffers, most of them alike, so that they fit each other.

    `kinds` are the kinds of steps to draw from: all, if there are none.
    """
    theme = THEMES[draw(st.sampled_from(themes))]
    main = draw(theme.types)
    alike = st.one_of(st.just(main), st.just(main), theme.others)
    buffers = _named("b", draw(st.lists(alike, min_size=1, max_size=5)))
    given = st.one_of(theme.inputs, alike) if theme.inputs is not None else alike
    inputs = _named("x", draw(st.lists(given, min_size=1, max_size=2)))
    inputs.append(TensorType(INDEX, (2,), "int64"))
    if theme.has_position:
        inputs.append(TensorType(POSITION, (1,), "int64"))
        buffers += [TensorType(RING, (1,), "int64")] if draw(st.booleans()) else []
    if theme.dynamic is not None:
        inputs += _named("y", [draw(theme.dynamic)], is_dynamic=True)
    options = draw(_options(theme))
    builder = Builder(
        buffers,
        inputs,
        options,
        # What becomes of a mutated input is an output, too: see `_returned`.
        mutate_inputs=draw(_one_in(3)) and options.alloc_graph_input and options.alloc_graph_output,
    )
    for kind, numbers in draw(_steps(theme, kinds or STEPS)):
        builder.add(kind, numbers)
    returned = draw(st.lists(_NUMBER, min_size=1, max_size=3))
    outputs = dict.fromkeys(_returned(builder, number, options) for number in returned)
    # To see the state that a call left, return some of what a call finds in the buffers.
    found = [t for t in builder.buffers if draw(st.booleans())]
    reads = [f"old_{t.name} = {_computed(t.zeros(), f'self.{t.name}')}" for t in found]
    return Program(
        builder.buffers,
        builder.inputs,
        (*reads, *builder.lines),
        (*outputs, *(f"old_{t.name}" for t in found)),
        _fitting(options, builder.lines),
    )


def _fitting(options: Options, lines: Sequence[str]) -> Options:
    """Without what the untouched release refuses of any program with such lines."""
    if not any(re.search(r"\b(cond|mapped|scan)\(.*\b(cond|mapped|scan)\(", x) for x in lines):
        return options
    # Both kinds of it look for the bodies of bodies in the program itself.
    return replace(
        options,
        passes=tuple(name for name in options.passes if name != "quant_fusion"),
        do_quant_fusion_and_const_prop=False,
    )


def _computed(t: Tensor, name: str) -> str:
    """Something that shows what `name` holds, by an operator that makes it anew."""
    if t.dtype == torch.bool:
        return f"~{name}"
    return f"{name}.abs()" if is_channels_last(t) else f"{name} + 0"
