# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Random programs, as a Hypothesis strategy.

A program is drawn as a list of steps, each a kind and a few numbers. A step reads as one line of
Python (or a few), which is tried at once on real tensors: what eager PyTorch refuses is left
out, and what it accepts tells the shapes that the next steps choose from. So nearly all programs
export, and shrinking a program is shrinking a list of numbers.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.fuzz.program import INDEX, Options, Program, TensorType

# Two shapes have the same number of elements, so that views of one fit the other.
SHAPES = ((2, 3), (6,), (4,), (2, 2, 3), (3, 2))
DTYPES = ("float32", "float32", "float32", "int64", "int32", "float64")

Numbers = tuple[int, int, int, int]
Step = Callable[["Builder", Numbers], list[str]]
STEPS: dict[str, tuple[int, Step]] = {}


def step(weight: int) -> Callable[[Step], Step]:
    """Register a kind of step, drawn `weight` times as often as one of weight 1."""

    def register(function: Step) -> Step:
        STEPS[function.__name__] = (weight, function)
        return function

    return register


class Builder:
    """Turns steps into lines, keeping at hand what each name stands for."""

    def __init__(
        self,
        buffers: Iterable[TensorType],
        inputs: Iterable[TensorType],
        options: Options,
        mutate_inputs: bool,
    ) -> None:
        self.buffers = tuple(buffers)
        self.inputs = tuple(inputs)
        self.options = options
        self.mutate_inputs = mutate_inputs
        program = Program(self.buffers, self.inputs, (), ())
        state = {t.name: torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in self.buffers}
        # A line sees the same names here as in the module, but a cond just runs a branch.
        self.names: dict[str, Any] = {
            "torch": torch,
            "self": SimpleNamespace(**state),
            "cond": lambda pred, left, right, operands: left(*operands),
        }
        self.names.update(zip((t.name for t in self.inputs), program.example(), strict=True))
        self.user_inputs = [t.name for t in self.inputs if t.name != INDEX]
        self.state = [f"self.{t.name}" for t in self.buffers]
        self.values = [*self.user_inputs, *self.state]
        self.from_cond: set[str] = set()
        self.lines: list[str] = []

    def tensor(self, name: str) -> Tensor:
        value: Tensor = eval(name, self.names)
        return value

    def pick(self, number: int, among: Callable[[Tensor], bool] = lambda _: True) -> str | None:
        fitting = [name for name in self.values if among(self.tensor(name))]
        return fitting[-1 - number % len(fitting)] if fitting else None

    def pick_like(self, number: int, name: str) -> str:
        like = self.tensor(name)
        return self.pick(number, lambda t: t.shape == like.shape and t.dtype == like.dtype) or name

    def pick_target(self, number: int) -> str:
        """Something to write: a buffer, a value that is no input, or an input if it may be one."""
        targets = self.state
        if number % 3 == 0:
            targets = [v for v in self.values if v not in self.user_inputs]
        elif number % 3 == 1 and self.mutate_inputs:
            targets = self.user_inputs
        return targets[-1 - number // 3 % len(targets)]

    def new(self) -> str:
        return f"v{sum(name.startswith('v') for name in self.values)}"

    def add(self, kind: str, numbers: Numbers) -> None:
        lines = STEPS[kind][1](self, numbers)
        before = self._writes_to_inputs()
        try:
            for line in lines:
                exec(line, self.names)
        except (RuntimeError, TypeError, IndexError, ValueError):
            return
        if self._writes_to_inputs() > before and not self.mutate_inputs:
            return  # through a view of an input
        self.lines.extend(lines)
        for line in lines:
            self._remember(line)

    def _writes_to_inputs(self) -> int:
        return sum(self.tensor(t.name)._version for t in self.inputs)

    def _remember(self, line: str) -> None:
        names, equals, value = line.partition(" = ")
        for name in names.split(", "):
            known = name in self.values
            if equals and name.isidentifier() and not known and self.tensor(name).numel():
                self.values.append(name)
                if value.startswith("cond("):
                    self.from_cond.add(name)


# --- reading --------------------------------------------------------------------------------


def _choose(number: int, *forms: str) -> str:
    return forms[number % len(forms)]


@step(3)
def unary(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0])
    form = _choose(n[1], "{v} + 1", "{v} * 2", "-{v}", "{v}.abs()", "{v}.clamp(-5, 5)", "{v} - 3")
    return [f"{b.new()} = {form.format(v=v)}"]


@step(4)
def binary(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0]) or ""
    w = b.pick_like(n[1], v)
    form = _choose(
        n[2],
        "{v} + {w}",
        "{v} - {w}",
        "torch.maximum({v}, {w})",
        "torch.where({v} > 0, {v}, {w})",
    )
    return [f"{b.new()} = {form.format(v=v, w=w)}"]


def _shape(number: int, t: Tensor) -> list[int]:
    size = t.numel()
    shapes = [[size], [1, size], [size, 1]]
    shapes += [[p, size // p] for p in (2, 3) if size % p == 0]
    shapes += [[2, 2, size // 4]] if size % 4 == 0 else []
    return shapes[number % len(shapes)]


@step(4)
def view(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0]) or ""
    shape = _shape(n[1], b.tensor(v))
    form = _choose(
        n[2], "{v}.view({s})", "torch.view_copy({v}, {s})", "{v}.reshape({s})", "{v}.flatten()"
    )
    return [f"{b.new()} = {form.format(v=v, s=shape)}"]


@step(2)
def rearranged(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0], lambda t: t.dim() > 0) or ""
    dim = n[1] % max(1, b.tensor(v).dim())
    form = _choose(
        n[2],
        "{v}.transpose(0, {d})",
        "{v}.permute({p})",
        "{v}.unsqueeze({d})",
        "{v}.squeeze({d})",
        "{v}.flip({d})",
    )
    order = list(reversed(range(b.tensor(v).dim())))
    return [f"{b.new()} = {form.format(v=v, d=dim, p=order)}"]


def _part(n: Numbers, t: Tensor) -> str:
    """Index part of a tensor: a slice or a row, by some dimension."""
    dim = n[1] % max(1, t.dim())
    size = t.shape[dim] if t.dim() else 1
    start = n[2] % size
    if n[3] % 3 == 0:
        return ":, " * dim + str(start)
    stop = start + 1 + n[3] % (size - start)
    return ":, " * dim + f"{start}:{stop}"


@step(3)
def part(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0], lambda t: t.dim() > 0) or ""
    return [f"{b.new()} = {v}[{_part(n, b.tensor(v))}]"]


@step(1)
def split(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0], lambda t: t.dim() > 0) or ""
    dim = n[1] % max(1, b.tensor(v).dim())
    form = _choose(n[2], "torch.split({v}, 2, {d})", "torch.chunk({v}, 2, {d})")
    return [f"{b.new()} = {form.format(v=v, d=dim)}[{n[3] % 2}]"]


@step(2)
def joined(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0], lambda t: 0 < t.dim() < 4 and t.numel() < 50) or ""
    w = b.pick_like(n[1], v)
    dim = n[2] % max(1, b.tensor(v).dim())
    return [f"{b.new()} = torch.{_choose(n[3], 'cat', 'stack')}([{v}, {w}], {dim})"]


@step(1)
def reduced(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0], lambda t: t.dim() > 0) or ""
    dim = n[1] % max(1, b.tensor(v).dim())
    form = _choose(n[2], "{v}.sum({d}, dtype={v}.dtype)", "{v}.amax({d})")
    return [f"{b.new()} = {form.format(v=v, d=dim)}"]


@step(1)
def selected(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0], lambda t: t.dim() > 0 and t.shape[0] > 1)
    return [f"{b.new()} = {_choose(n[1], f'{v}[{INDEX}]', f'{v}.index_select(0, {INDEX})')}"]


@step(2)
def copied(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0])
    dtype = DTYPES[n[1] % len(DTYPES)]
    form = _choose(n[2], f"{v}.clone()", f"{v}.to(torch.{dtype})", f"{v}.contiguous()")
    return [f"{b.new()} = {form}"]


# --- writing --------------------------------------------------------------------------------


@step(6)
def updated(b: Builder, n: Numbers) -> list[str]:
    t = b.pick_target(n[0])
    v = b.pick_like(n[1], t)
    form = _choose(
        n[2],
        "{t}.copy_({v})",
        "{t}.add_({v})",
        "{t}.copy_({v})",
        "{t}.sub_({v})",
        "{t}.add_(1)",
        "{t}.neg_()",
        "{t}.copy_({t} + {v})",
        "{t}.zero_()",
        "{t}.fill_(3)",
        "{t}.clamp_(-5, 5)",
    )
    return [form.format(t=t, v=v)]


@step(3)
def part_updated(b: Builder, n: Numbers) -> list[str]:
    t = b.pick_target(n[0])
    if not b.tensor(t).dim():
        return []
    written = f"{t}[{_part(n, b.tensor(t))}]"
    like = b.tensor(written)
    v = b.pick(n[1], lambda x: x.shape == like.shape and x.dtype == like.dtype) or str(n[1])
    form = _choose(n[2], "{t} = {v}", "{t}.add_({v})", "{t}.copy_({t} * 2)", "{t}.fill_(2)")
    return [form.format(t=written, v=v)]


@step(3)
def rows_put(b: Builder, n: Numbers) -> list[str]:
    t = b.pick_target(n[0])
    if not b.tensor(t).dim() or b.tensor(t).shape[0] < 2:
        return []
    like = b.tensor(t)[:2]
    v = b.pick(n[1], lambda x: x.shape == like.shape and x.dtype == like.dtype) or f"{t}[:2] + 1"
    forms = ["{t}.index_put_(({k},), {v})", "{t}.index_copy_(0, {k}, {v})"]
    if not b.options.run_reinplace_pass:
        # The in-place kernel can't accumulate.
        forms.append("{t}.index_put_(({k},), {v}, accumulate=True)")
    form = _choose(n[2], *forms)
    return [form.format(t=t, k=INDEX, v=v)]


@step(2)
def copied_across(b: Builder, n: Numbers) -> list[str]:
    """From buffer to buffer: one copy, a swap, or a rotation of all that fit."""
    a = f"self.{b.buffers[n[0] % len(b.buffers)].name}"
    like = b.tensor(a)
    others = [
        name
        for name in b.state
        if name != a and b.tensor(name).shape == like.shape and b.tensor(name).dtype == like.dtype
    ]
    if not others:
        return []
    ring = [a, *others[: 1 + n[1] % len(others)]]
    if n[2] % 2:
        return [f"{ring[0]}.copy_({ring[1]})"]
    saved = b.new()
    moves = [f"{to}.copy_({source})" for to, source in itertools.pairwise(ring)]
    return [f"{saved} = {a}.clone()", *moves, f"{ring[-1]}.copy_({saved})"]


# --- branching ------------------------------------------------------------------------------

_NESTED = "cond(b.sum() > a.sum(), lambda a, b: a + b, lambda a, b: b.clone(), [a, b])"
_SAME_SHAPE = (
    "a + b",
    "a - 1",
    "torch.maximum(a, b)",
    "-(a + 1)",
    "a.clone()",
    "b * 2 + a",
    _NESTED,
)
_FLAT = (
    "a.view(SIZE) + b.view(SIZE)",
    "a.reshape(SIZE) * 2",
    "(a - b).view(SIZE)",
    "torch.view_copy(b, [SIZE]) + 1",
    "torch.view_copy(a, [SIZE])",
    f"{_NESTED}.view(SIZE) * 2",
)


@step(3)
def branched(b: Builder, n: Numbers) -> list[str]:
    a = b.pick(n[0], lambda t: t.is_contiguous() and t.dim() > 0)
    if a is None:
        return []
    like = b.tensor(a)
    c = (
        b.pick(
            n[1],
            lambda t: t.is_contiguous() and t.shape == like.shape and t.dtype == like.dtype,
        )
        or a
    )
    test = b.pick(n[2])
    forms = _FLAT if n[3] % 2 else _SAME_SHAPE
    left, right = (
        forms[number % len(forms)].replace("SIZE", str(like.numel())) for number in (n[2], n[3])
    )
    v = b.new()
    if n[3] % 5 == 0:
        left, right = f"({left}, a - 2)", f"({right}, b + a)"
        v = f"{v}, v{int(v[1:]) + 1}"
    return [f"{v} = cond({test}.sum() > 0, lambda a, b: {left}, lambda a, b: {right}, [{a}, {c}])"]


# --- whole programs -------------------------------------------------------------------------

_NUMBER = st.integers(0, 60)


def _steps(kinds: Iterable[str]) -> st.SearchStrategy[list[tuple[str, Numbers]]]:
    weighted = [kind for kind in kinds for _ in range(STEPS[kind][0])]
    numbers = st.tuples(_NUMBER, _NUMBER, _NUMBER, _NUMBER)
    return st.lists(st.tuples(st.sampled_from(weighted), numbers), min_size=1, max_size=12)


_TYPES = st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES))
_OPTIONS = st.builds(
    Options,
    run_reinplace_pass=st.booleans(),
    alloc_graph_input=st.sampled_from((True, True, False)),
    alloc_graph_output=st.sampled_from((True, True, False)),
    alloc_mutable_buffers=st.just(True),
    xnnpack=st.sampled_from((False,) * 5 + (True,)),
)


def _named(prefix: str, types: list[tuple[tuple[int, ...], str]]) -> list[TensorType]:
    return [TensorType(f"{prefix}{i}", *kind) for i, kind in enumerate(types)]


def _shares_storage(b: Builder, name: str, others: Iterable[str]) -> bool:
    storage = b.tensor(name).untyped_storage().data_ptr()
    return any(b.tensor(other).untyped_storage().data_ptr() == storage for other in others)


def _returned(b: Builder, number: int, options: Options) -> str:
    """A value to return, or a new one where returning it would ask for more than there is."""
    name = b.values[-1 - number % len(b.values)]
    written = [name for name in b.state if b.tensor(name)._version]
    if _shares_storage(b, name, written):
        # torch.export confuses a written buffer, returned as it is, with the buffer's update.
        return f"{name}.clone()"
    # The runtime has some outputs by pointer from elsewhere, an input that is passed on or the
    # result of a branch, and then takes no memory of the caller's own for them.
    passed_on = _shares_storage(b, name, [t.name for t in b.inputs])
    if passed_on and not (options.alloc_graph_input and options.alloc_graph_output):
        return f"{name} + 1"
    if _shares_storage(b, name, b.from_cond) and not options.alloc_graph_output:
        return f"{name} + 1"
    return name


@st.composite
def programs(draw: st.DrawFn, kinds: Sequence[str] = tuple(STEPS)) -> Program:
    """A program with one to five buffers, most of them alike, so that they fit each other.

    `kinds` are the kinds of steps to draw from.
    """
    main = draw(_TYPES)
    buffers = draw(
        st.lists(st.one_of(st.just(main), st.just(main), _TYPES), min_size=1, max_size=5)
    )
    inputs = draw(st.lists(st.one_of(st.just(main), _TYPES), min_size=1, max_size=2))
    options = draw(_OPTIONS)
    builder = Builder(
        _named("b", buffers),
        [*_named("x", inputs), TensorType(INDEX, (2,), "int64")],
        options,
        # What becomes of a mutated input is an output, too: see `_returned`.
        mutate_inputs=draw(st.sampled_from((False, False, True)))
        and options.alloc_graph_input
        and options.alloc_graph_output,
    )
    for kind, numbers in draw(_steps(kinds)):
        builder.add(kind, numbers)
    returned = draw(st.lists(_NUMBER, min_size=1, max_size=3))
    outputs = dict.fromkeys(_returned(builder, number, options) for number in returned)
    # To see the state that a call left, return some of what a call finds in the buffers.
    found = [f"old_{t.name}" for t in builder.buffers if draw(st.booleans())]
    reads = [f"{name} = self.{name.removeprefix('old_')} + 0" for name in found]
    return Program(
        builder.buffers, builder.inputs, (*reads, *builder.lines), (*outputs, *found), options
    )
