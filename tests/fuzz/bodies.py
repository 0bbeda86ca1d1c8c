# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Steps with bodies: cond, map and scan, in each other, with views of all that they can see."""

import re

from torch import Tensor

from tests.fuzz import steps  # noqa: F401  simple steps come first, and are what shrinking ends in
from tests.fuzz.builder import Builder, Numbers, is_like, step

# In all of them `a` and `b` are alike, SIZE is the number of their elements, SHAPE their shape.
_COND = "cond(b.sum() > a.sum(), lambda a, b: a + b, lambda a, b: b.clone(), [a, b])"
_COND_OF_VIEWS = (
    "cond(b.sum() > a.sum(), lambda a, b: a.view(SIZE).view(SHAPE) * 2, "
    "lambda a, b: (a - b).view(SIZE).view(SHAPE), [a, b])"
)
_MAP = "mapped(lambda a, b: a.view(-1).view(a.shape) * 2 + b[0], a, b)"
_SCAN = "scan(lambda a, b: (a + b, a.view(-1).view(a.shape) * 2), b[0] + 1, a)[1]"
_SAME_SHAPE = (
    "a + b",
    "a - 1",
    "torch.maximum(a, b)",
    "-(a + 1)",
    "a.clone()",
    "b * 2 + a",
    _COND,
    "a.view(SIZE).view(SHAPE) + b",
    "b.view(SIZE).view(SHAPE) * 2",
    _COND_OF_VIEWS,
    _MAP,
    _SCAN,
    "OUTER + a",
    "OUTER.view(SIZE).view(SHAPE) * 2 - b",
)
_FLAT = (
    "a.view(SIZE) + b.view(SIZE)",
    "a.reshape(SIZE) * 2",
    "(a - b).view(SIZE)",
    "torch.view_copy(b, [SIZE]) + 1",
    "torch.view_copy(a, [SIZE])",
    f"{_COND}.view(SIZE) * 2",
    f"{_COND_OF_VIEWS}.view(SIZE) + 1",
    f"{_MAP}.view(SIZE) - 1",
    f"{_SCAN}.view(SIZE) + 1",
    "OUTER.view(SIZE) + b.view(SIZE)",
)


def _outer(b: Builder, number: int, like: Tensor) -> str | None:
    """A value that a body can close over in place of one like `like`."""
    return b.pick(number, lambda t: t.is_contiguous() and is_like(t, like))


def _filled(form: str, like: Tensor, outer: str) -> str:
    size, shape = str(like.numel()), str(list(like.shape))
    return form.replace("SIZE", size).replace("SHAPE", shape).replace("OUTER", outer)


def _expression(b: Builder, number: int, is_flat: bool, like: Tensor) -> str:
    """The result of a body whose operands `a` and `b` are like `like`."""
    forms = _FLAT if is_flat else _SAME_SHAPE
    return _filled(forms[number % len(forms)], like, _outer(b, number, like) or "a")


def _pick_pair(b: Builder, n: Numbers, dims: int) -> tuple[str, str] | None:
    """Two values that are alike, of at least so many dimensions."""
    one = b.pick(n[0], lambda t: t.is_contiguous() and t.dim() >= dims)
    if one is None:
        return None
    like = b.tensor(one)
    other = b.pick(n[1], lambda t: t.is_contiguous() and is_like(t, like))
    return one, other or one


@step(3)
def branched(b: Builder, n: Numbers) -> list[str]:
    pair = _pick_pair(b, n, 1)
    if pair is None:
        return []
    one, other = pair
    test = b.pick(n[2])
    left, right = (_expression(b, number, n[3] % 2 == 1, b.tensor(one)) for number in (n[2], n[3]))
    if one == other and re.search(r"mapped\(|scan\(", left + right):
        other = f"{one}.clone()"  # two operands of theirs may not be one
    v = b.new()
    if n[3] % 5 == 0:
        left, right = f"({left}, a - 2)", f"({right}, b + a)"
        v = f"{v}, {b.new(1)}"
    return [
        f"{v} = cond({test}.sum() > 0, lambda a, b: {left}, lambda a, b: {right}, [{one}, {other}])"
    ]


@step(1)
def mapped(b: Builder, n: Numbers) -> list[str]:
    """Over the rows of a value, with one more operand: a row, or what is viewed as a row."""
    xs = b.pick(n[0], lambda t: t.is_contiguous() and t.dim() > 1)
    if xs is None:
        return []
    row = b.tensor(xs)[0]
    operand = b.pick(
        n[1], lambda t: t.is_contiguous() and t.numel() == row.numel() and t.dtype == row.dtype
    )
    result = _expression(b, n[2], n[3] % 2 == 1, row)
    if operand is None:
        body = f"(lambda b: {result})(a + 1)"
        return [f"{b.new()} = mapped(lambda a: {body}, {xs})"]
    if b.tensor(operand).shape != row.shape:
        result = f"(lambda b: {result})(b.view({list(row.shape)}))"
    if operand == xs:
        operand = f"{xs}.clone()"  # two operands may not be one
    return [f"{b.new()} = mapped(lambda a, b: {result}, {xs}, {operand})"]


_CARRIES = (
    "c + a",
    "c * 2 - a",
    "torch.maximum(c, a)",
    "c.view(SIZE).view(SHAPE) + a",
    "a.view(SIZE).view(SHAPE) * 2",
    "cond(a.sum() > 0, lambda c, a: c + a, lambda c, a: c.view(SIZE).view(SHAPE) - 1, [c, a])",
    "OUTER + c",
)
_RESULTS = (
    "c + 1",
    "c.view(SIZE) + 1",
    "c.view(SIZE) + a.view(SIZE)",
    "(c + a).view(SIZE) * 2",
    "c.clone()",
    "c.view(SIZE).sum(0)",
    "cond(c.sum() > 0, lambda c, a: c.view(SIZE) + 1, lambda c, a: a.view(SIZE) * 2, [c, a])",
    "OUTER.view(SIZE) * 2 + c.view(SIZE)",
    "a * 2",
)


@step(1)
def scanned(b: Builder, n: Numbers) -> list[str]:
    xs = b.pick(n[0], lambda t: t.is_contiguous() and t.dim() > 1)
    if xs is None:
        return []
    like = b.tensor(xs)[0]
    start = _outer(b, n[1], like) or f"({xs}[{n[1] % len(b.tensor(xs))}] + 1)"
    outer = _outer(b, n[3], like)
    # torch.export wants no operand to be another, or a part of it.
    closed_over = f"({outer} + 1)" if outer not in (None, start) else "c"
    carry, result = (
        _filled(form, like, closed_over)
        for form in (_CARRIES[n[2] % len(_CARRIES)], _RESULTS[n[3] % len(_RESULTS)])
    )
    v = b.new()
    return [f"{v}, {b.new(1)} = scan(lambda c, a: ({carry}, {result}), {start}, {xs})"]
