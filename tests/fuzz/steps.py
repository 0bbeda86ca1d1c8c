# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Steps of one operator or a few: what a program reads, computes and writes."""

import itertools

import torch
from torch import Tensor

from tests.fuzz.builder import Builder, Numbers, is_channels_last, is_like, step
from tests.fuzz.program import INDEX, MOST, POSITION, RING

DTYPES = ("float32", "float32", "float32", "int64", "int32", "float64")

# --- reading --------------------------------------------------------------------------------


def _choose(number: int, *forms: str) -> str:
    return forms[number % len(forms)]


def _unary_forms(t: Tensor) -> tuple[str, ...]:
    if t.dtype == torch.bool:
        return ("~{v}", "{v}.logical_not()", "{v} ^ True", "{v} & {v}")
    if is_channels_last(t):
        # A Python number becomes a tensor of its own, which is not channels_last.
        return ("-{v}", "{v}.abs()", "{v}.clamp(-5, 5)", "{v} + {v}")
    return ("{v} + 1", "{v} * 2", "-{v}", "{v}.abs()", "{v}.clamp(-5, 5)", "{v} - 3")


@step(3)
def unary(b: Builder, n: Numbers) -> list[str]:
    v = b.need(n[0])
    return [f"{b.new()} = {_choose(n[1], *_unary_forms(b.tensor(v))).format(v=v)}"]


@step(4)
def binary(b: Builder, n: Numbers) -> list[str]:
    v = b.need(n[0])
    w = b.pick_like(n[1], v)
    forms = ["{v} + {w}", "{v} - {w}", "torch.maximum({v}, {w})"]
    if b.tensor(v).dtype == torch.bool:
        forms = ["{v} ^ {w}", "{v} & {w}", "{v} | {w}", "{v}.logical_or({w})"]
    if not is_channels_last(b.tensor(v)):
        forms.append("torch.where({v} > 0, {v}, {w})")
    form = _choose(n[2], *forms)
    return [f"{b.new()} = {form.format(v=v, w=w)}"]


def _shape(number: int, t: Tensor) -> list[int]:
    size = t.numel()
    shapes = [[size], [1, size], [size, 1]]
    shapes += [[p, size // p] for p in (2, 3) if size % p == 0]
    shapes += [[2, 2, size // 4]] if size % 4 == 0 else []
    return shapes[number % len(shapes)]


@step(4)
def view(b: Builder, n: Numbers) -> list[str]:
    v = b.need(n[0])
    shape = _shape(n[1], b.tensor(v))
    form = _choose(
        n[2], "{v}.view({s})", "torch.view_copy({v}, {s})", "{v}.reshape({s})", "{v}.flatten()"
    )
    return [f"{b.new()} = {form.format(v=v, s=shape)}"]


@step(2)
def rearranged(b: Builder, n: Numbers) -> list[str]:
    v = b.need(n[0], lambda t: t.dim() > 0)
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
    v = b.need(n[0], lambda t: t.dim() > 0)
    return [f"{b.new()} = {v}[{_part(n, b.tensor(v))}]"]


@step(1)
def split(b: Builder, n: Numbers) -> list[str]:
    v = b.need(n[0], lambda t: t.dim() > 0)
    dim = n[1] % max(1, b.tensor(v).dim())
    form = _choose(n[2], "torch.split({v}, 2, {d})", "torch.chunk({v}, 2, {d})")
    return [f"{b.new()} = {form.format(v=v, d=dim)}[{n[3] % 2}]"]


@step(2)
def joined(b: Builder, n: Numbers) -> list[str]:
    v = b.need(n[0], lambda t: 0 < t.dim() < 4 and t.numel() < 50)
    w = b.pick_like(n[1], v)
    dim = n[2] % max(1, b.tensor(v).dim())
    return [f"{b.new()} = torch.{_choose(n[3], 'cat', 'stack')}([{v}, {w}], {dim})"]


@step(1)
def reduced(b: Builder, n: Numbers) -> list[str]:
    v = b.need(n[0], lambda t: t.dim() > 0)
    dim = n[1] % max(1, b.tensor(v).dim())
    form = _choose(n[2], "{v}.sum({d}, dtype={v}.dtype)", "{v}.amax({d})")
    return [f"{b.new()} = {form.format(v=v, d=dim)}"]


@step(1)
def selected(b: Builder, n: Numbers) -> list[str]:
    v = b.need(n[0], lambda t: t.dim() > 0 and t.shape[0] > 1)
    return [f"{b.new()} = {_choose(n[1], f'{v}[{INDEX}]', f'{v}.index_select(0, {INDEX})')}"]


@step(2)
def copied(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0])
    dtypes = [*DTYPES, *dict.fromkeys(t.dtype for t in b.buffers)]
    # What a negative number is as uint8 is up to the machine.
    dtype = dtypes[n[1] % len(dtypes)]
    value = f"{v}.abs().clamp(0, 9)" if dtype == "uint8" else v
    form = _choose(n[2], f"{v}.clone()", f"{value}.to(torch.{dtype})", f"{v}.contiguous()")
    return [f"{b.new()} = {form}"]


# --- writing --------------------------------------------------------------------------------


def _update_forms(t: Tensor) -> list[str]:
    forms = ["{t}.copy_({v})", "{t}.add_({v})", "{t}.copy_({v})", "{t}.sub_({v})"]
    if t.dtype == torch.bool:
        forms = ["{t}.copy_({v})", "{t}.logical_xor_({v})", "{t}.copy_(~{v})", "{t}.fill_(True)"]
    elif not is_channels_last(t):
        # What a number becomes is not channels_last.
        forms += ["{t}.add_(1)", "{t}.zero_()", "{t}.fill_(3)"]
    return [*forms, "{t}.neg_()", "{t}.copy_({t} + {v})", "{t}.clamp_(-5, 5)"]


@step(6)
def updated(b: Builder, n: Numbers) -> list[str]:
    t = b.pick_target(n[0])
    v = b.pick_like(n[1], t)
    return [_choose(n[2], *_update_forms(b.tensor(t))).format(t=t, v=v)]


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
    v = b.pick(n[1], lambda x: x.shape == like.shape and x.dtype == like.dtype) or f"({t}[:2] + 1)"
    forms = ["{t}.index_put_(({k},), {v})", "{t}.index_copy_(0, {k}, {v})"]
    forms.append("{t}.index_put_(({k},), {v}, accumulate=True)")
    # A row for both, a number for all, and what more than one index says.
    forms += ["{t}[{k}] = {v}[0]", "{t}[{k}] = 2", "{t}[{k}, {k}] = {v}[0, 0]", "{t}[:, {k}] = 3"]
    form = _choose(n[2], *forms)
    return [form.format(t=t, k=INDEX, v=v)]


@step(2)
def copied_across(b: Builder, n: Numbers) -> list[str]:
    """From buffer to buffer: one copy, a swap, or a rotation of all that fit."""
    a = f"self.{b.buffers[n[0] % len(b.buffers)].name}"
    like = b.tensor(a)
    others = [name for name in b.state if name != a and is_like(b.tensor(name), like)]
    if not others:
        return []
    ring = [a, *others[: 1 + n[1] % len(others)]]
    if n[2] % 2:
        return [f"{ring[0]}.copy_({ring[1]})"]
    saved = b.new()
    moves = [f"{to}.copy_({source})" for to, source in itertools.pairwise(ring)]
    return [f"{saved} = {a}.clone()", *moves, f"{ring[-1]}.copy_({saved})"]


# --- values that are no whole numbers -------------------------------------------------------


@step(1)
def extra(b: Builder, n: Numbers) -> list[str]:
    """Operators that the reinplace pass may be told of by `reinplace_extra_ops`."""
    v = b.pick(n[0], lambda t: t.dtype == torch.float32 and t.dim() > 0 and t.is_contiguous())
    if v is None:
        return []
    w = b.pick_like(n[1], v)
    form = _choose(
        n[2],
        "torch.softmax({v}, -1)",
        "torch.softmax({v} + 1, 0)",
        "torch.log_softmax({v}, -1)",
        "torch.minimum({v}, {w})",
        "torch.maximum({v} * 2, {w})",
        "torch.slice_scatter({v}, {w}[:1], 0, 0, 1)",
        "torch.select_scatter({v}, {w}[0], 0, 1)",
    )
    return [f"{b.new()} = {form.format(v=v, w=w)}"]


# --- dim order ------------------------------------------------------------------------------


@step(0)
def laid_out(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0], lambda t: t.dim() == 4)
    form = _choose(
        n[1],
        "{v}.to(memory_format=torch.channels_last)",
        "{v}.contiguous()",
        "{v}.clone(memory_format=torch.contiguous_format)",
        "{v}.contiguous(memory_format=torch.channels_last)",
    )
    return [] if v is None else [f"{b.new()} = {form.format(v=v)}"]


@step(0)
def copied_over_layouts(b: Builder, n: Numbers) -> list[str]:
    t = b.state[n[0] % len(b.state)]
    like = b.tensor(t)
    v = b.pick(n[1], lambda x: x.shape == like.shape and x.dtype == like.dtype) or t
    return [_choose(n[2], "{t}.copy_({v})", "{t}.add_({v})").format(t=t, v=v)]


# --- quantized state ------------------------------------------------------------------------


def _pick_quantized(b: Builder, number: int) -> str | None:
    return b.pick(number, lambda t: t.dtype in (torch.uint8, torch.int8) and t.dim() > 0)


def _low(t: Tensor) -> str:
    return ", -128" if t.dtype == torch.int8 else ""


@step(0)
def requantized(b: Builder, n: Numbers) -> list[str]:
    """Patterns that QuantFusionPass makes one operator of, and some that it leaves alone."""
    q = _pick_quantized(b, n[0])
    if q is None:
        return []
    like = b.tensor(q)
    other = b.pick_like(n[1], q)
    x = b.pick(n[1], lambda t: t.dtype == torch.float32 and t.shape == like.shape) or f"real({q})"
    form = _choose(
        n[2],
        "quantized(real({q}) + real({o}){low})",
        "real({q})",
        "quantized({x}{low})",
        "real(quantized(real({q}) + real(quantized({x}{low})){low}))",
        "quantized(real({q}) + {x}{low})",
        "quantized(torch.cat([real({q}), real({o})]){low})",
        "quantized(real({q}).view(-1){low})",
        "quantized(real({q})[:1]{low})",
        "quantized(torch.relu(real({q}) + real({o})){low})",
        "quantized(real({q}) * real({o}){low})",
        "real({q}.view(-1))",
    )
    return [f"{b.new()} = {form.format(q=q, o=other, x=x, low=_low(like))}"]


@step(0)
def quantized_state_updated(b: Builder, n: Numbers) -> list[str]:
    t = b.state[n[0] % len(b.state)]
    like = b.tensor(t)
    if like.dtype not in (torch.uint8, torch.int8):
        return []
    x = b.pick(n[1], lambda v: v.dtype == torch.float32 and v.shape == like.shape)
    q = b.pick_like(n[1], t)
    form = _choose(
        n[2],
        "{t}.copy_(quantized({x}{low}))",
        "{t}.copy_({q})",
        "{t}.copy_(quantized(real({t}) + {x}{low}))",
        "{t}.copy_(quantized(real({t}) + real({q}){low}))",
    )
    return [form.format(t=t, x=x or f"real({q})", q=q, low=_low(like))]


# --- at a position --------------------------------------------------------------------------


def _position(b: Builder) -> list[str]:
    """The lines that bind `pos`, if they are not there yet."""
    if b.has("pos"):
        return []
    return [f"pos = {POSITION}.item()", "torch._check(pos >= 0)", "torch._check(pos < 2)"]


@step(0)
def read_at_position(b: Builder, n: Numbers) -> list[str]:
    v = b.pick(n[0], lambda t: t.dim() > 0 and t.shape[0] > 1)
    if v is None or not b.has(POSITION):
        return []
    form = _choose(
        n[1], "{v}[{p}]", "{v}.narrow(0, pos, 1)", "{v}.index_select(0, {p})", "{v}[pos]"
    )
    line = f"{b.new()} = {form.format(v=v, p=POSITION)}"
    return [*(_position(b) if "pos" in form else []), line]


@step(0)
def written_at_position(b: Builder, n: Numbers) -> list[str]:
    t = b.pick_target(n[0])
    if not b.has(POSITION) or b.tensor(t).dim() == 0 or b.tensor(t).shape[0] < 2:
        return []
    like = b.tensor(t)
    row = b.pick(n[1], lambda x: x.shape == like.shape[1:] and x.dtype == like.dtype)
    alike = b.pick(n[1], lambda x: is_like(x, like))
    x = row or (f"{alike}[{n[1] % like.shape[0]}]" if alike and n[1] % 2 else str(n[1]))
    rows = (
        b.pick(n[1], lambda x: x.shape == (1, *like.shape[1:]) and x.dtype == like.dtype)
        or f"{t}[:1] * 2"
    )
    form = _choose(
        n[2],
        "{t}[{p}] = {x}",
        "{t}.narrow(0, pos, 1).copy_({r})",
        "{t}.narrow(0, pos, 1).add_(1)",
        "{t}[pos] = {x}",
        "{t}.index_put_(({p},), {r})",
        "{t}.index_copy_(0, {p}, {r})",
        "{t}.index_put_(({p},), {r}, accumulate=True)",
        "{t}[{p}] += 1",
    )
    line = form.format(t=t, x=x, r=rows, p=POSITION)
    return [*(_position(b) if "pos" in form else []), line]


@step(0)
def ring(b: Builder, n: Numbers) -> list[str]:
    """Writes at a position that is state itself, and advances it."""
    t = b.state[n[0] % len(b.state)]
    if not b.has(RING) or b.tensor(t).dim() == 0 or b.tensor(t).shape[0] < 2:
        return []
    like = b.tensor(t)
    row = b.pick(n[1], lambda x: x.shape == like.shape[1:] and x.dtype == like.dtype) or str(n[1])
    at = f"self.{RING}"
    read = f"{b.new()} = {t}[{at}]"
    write = f"{t}[{at}] = {row}"
    advance = f"{at}.add_(1).remainder_(2)"
    return [[write, advance], [read, write, advance], [advance, write], [write, read]][n[2] % 4]


# --- a dynamic number of rows ---------------------------------------------------------------


def _pick_flowing(b: Builder, number: int) -> str | None:
    rows = [name for name in b.flowing if b.tensor(name).dim() > 1]
    return rows[-1 - number % len(rows)] if rows else None


@step(0)
def flowing(b: Builder, n: Numbers) -> list[str]:
    """What is computed from rows of a dynamic number, row by row or over all of them."""
    y = _pick_flowing(b, n[0])
    if y is None:
        return []
    like = b.tensor(y)
    other = _pick_flowing(b, n[1])
    if b.tensor(other or y).shape != like.shape or b.tensor(other or y).dtype != like.dtype:
        other = y
    state = b.pick(
        n[1], lambda t: t.dim() == 2 and t.shape[0] >= MOST and t.shape[1:] == like.shape[1:]
    )
    size = f"{y}.shape[0]"
    forms = [
        "{y} + 1",
        "{y} * 2 - {o}",
        "{y}.sum(0, dtype={y}.dtype)",
        "{y}[-2:]",
        "{y}.flip(0)",
        "{y}.view(-1).view(-1, {c})",
        "{y}.amax(0)",
        "{y}.transpose(0, 1).amax(1)",
        "cond({y}.sum() > 0, lambda a: a + 1, lambda a: a.view(-1).view(-1, {c}) * 2, [{y}])",
        "torch.cat([{y}[:2], {y}[-2:]])",
    ]
    if state is not None:
        forms += ["{y} + {s}[:{n}]", "{s}[:{n}]", "{s}.narrow(0, 0, {n}) * 2"]
        forms += ["torch.cat([{s}, {y}])[-{rows}:]", "{s}[torch.arange({n})]"]
    rows = b.tensor(state).shape[0] if state is not None else 0
    form = _choose(n[2], *forms)
    filled = form.format(y=y, o=other, s=state, n=size, c=like.shape[1], rows=rows)
    return [f"{b.new()} = {filled}"]


@step(0)
def flowing_scan(b: Builder, n: Numbers) -> list[str]:
    y = _pick_flowing(b, n[0])
    if y is None:
        return []
    like = b.tensor(y)[0]
    start = b.pick(n[1], lambda t: is_like(t, like) and t.is_contiguous())
    if start is None:
        return []
    body = _choose(n[2], "(c + a, c * 2)", f"(c.view({like.numel()}) + a, (c + a).view(-1) + 1)")
    return [f"{b.new()}, {b.new(1)} = scan(lambda c, a: {body}, {start}, {y})"]


@step(0)
def flowing_written(b: Builder, n: Numbers) -> list[str]:
    y = _pick_flowing(b, n[0])
    states = [
        t for t in b.state
        if y is not None and b.tensor(t).shape[1:] == b.tensor(y).shape[1:]
        and b.tensor(t).dtype == b.tensor(y).dtype
    ]  # fmt: skip
    if not states:
        return []
    t = states[n[1] % len(states)]
    few = b.tensor(t).shape[0]
    forms = ["{t}.copy_(torch.cat([{t}, {y}])[-{few}:])", "{t}.add_({y}.sum(0, dtype={y}.dtype))"]
    if few > MOST:
        forms += [
            "{t}[:{n}].copy_({y})",
            "{t}[:{n}].add_({y})",
            "{t}.index_put_((torch.arange({n}),), {y})",
            "{t}.index_put_((torch.arange({n}) + p,), {y})",
            "{t}.index_copy_(0, torch.arange({n}) + p, {y})",
            "{t}[torch.arange({n})] = {y}[0]",
            "{t}.index_put_((torch.arange({n}),), {y}, accumulate=True)",
        ]
    form = _choose(n[2], *forms)
    return [form.format(t=t, y=y, n=f"{y}.shape[0]", few=few)]


# --- operators of ExecuTorch's own that write their arguments -------------------------------


@step(0)
def cache_updated(b: Builder, n: Numbers) -> list[str]:
    targets = [
        name
        for name in (b.state if n[3] % 3 else b.values)
        if b.tensor(name).dim() == 4
        and b.tensor(name).shape[1] > 2  # a position and two rows
        and name not in b.user_inputs
    ]
    if not targets or not b.has(POSITION):
        return []
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401,PLC0415

    t = targets[n[0] % len(targets)]
    like = b.tensor(t)
    v = b.pick(n[1], lambda x: is_like(x, like) and x.is_contiguous())
    value = f"{v or t}[:, :{1 + n[2] % 2}]"
    form = _choose(n[2] // 2, "{x} * 2", "{x} + 1", "{x}.contiguous()")
    keep = [[], [f"{b.new()} = {t}.clone()"], [f"{b.new()} = {t}[:, 1:]"]][n[3] % 3]
    update = f"torch.ops.llama.update_cache({form.format(x=value)}, {t}, pos)"
    return [*_position(b), *keep, update]
