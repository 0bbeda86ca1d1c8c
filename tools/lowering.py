# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Export a module's methods, and plan them so that they share their state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class ExportFailed(Exception):
    """A method exports neither way; the message says why, and the traceback is the first
    attempt's."""


@dataclass(frozen=True)
class Exported:
    """A method's exported program, and how it came about."""

    program: Any
    strict: bool
    refused: str = ""
    """Why the other way of exporting, which was tried first, failed; empty if it wasn't."""

    def note(self, method: str) -> str:
        """What a person should know of it: nothing if export works as it does by default."""
        if not self.strict:
            return ""
        return f"{method}: exported with strict=True; strict=False fails: {self.refused}"


def export_method(
    module: Any,
    method: str,
    inputs: tuple[Any, ...],
    *,
    strict: bool | None = None,
    dynamic_shapes: Any = None,
) -> Exported:
    """Export one method of a module.

    Args:
        strict: As torch.export takes it; None tries False, its default, and then True.

    Raises:
        ExportFailed: It exports neither way.
    """
    if strict is not None:
        return Exported(_export(module, method, inputs, strict, dynamic_shapes), strict)
    try:
        program = _export(module, method, inputs, False, dynamic_shapes)
        _check_state_is_seen(program)
        return Exported(program, False)
    except Exception as error:
        first = error
    try:
        program = _export(module, method, inputs, True, dynamic_shapes)
    except Exception as error:
        message = f"{one_line(first)}; with strict=True, {one_line(error)}"
        raise ExportFailed(message).with_traceback(first.__traceback__) from error
    return Exported(program, True, one_line(first))


def _check_state_is_seen(program: Any) -> None:
    """Refuse a program that writes to a tensor that export took for a constant.

    That is how state looks that the module reaches by another way than as its buffer, as in the
    caches of transformers. Such a program can't be lowered, or forgets.

    Raises:
        ValueError: It has such a constant.
    """
    from torch.fx import Node

    constants = program.graph_signature.inputs_to_lifted_tensor_constants
    hidden = {node for node in program.graph.nodes if node.name in constants}
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        for position, argument in enumerate(schema.arguments if schema is not None else ()):
            given = node.args[position] if position < len(node.args) else None
            if argument.alias_info is None or not isinstance(given, Node) or given not in hidden:
                continue
            if argument.alias_info.is_write:
                raise ValueError(f"{node} writes to {given}, which it takes for a constant")
            hidden.add(node)


def _export(
    module: Any, method: str, inputs: tuple[Any, ...], strict: bool, dynamic_shapes: Any
) -> Any:
    import torch

    # Dynamo takes a size that it has met with two values for a dynamic one.
    torch._dynamo.reset()
    with _as_forward(module, method), _state_kept(module), torch.no_grad():
        return torch.export.export(module, inputs, strict=strict, dynamic_shapes=dynamic_shapes)


@contextmanager
def _as_forward(module: Any, method: str) -> Iterator[None]:
    """torch.export sees `forward` only, so that is what `method` becomes.

    In the class and not in the instance: strict export names constants by the way to the function.
    """
    own = type(module)
    if method == "forward" and "forward" not in vars(module):
        yield
        return
    mine = vars(module).pop("forward", None)
    chosen = mine if method == "forward" else getattr(own, method)
    module.__class__ = type(own.__name__, (own,), {"forward": chosen})
    try:
        yield
    finally:
        module.__class__ = own
        if mine is not None:
            module.forward = mine


@contextmanager
def _state_kept(module: Any) -> Iterator[None]:
    """An export that fails half-way may leave a fake tensor where a buffer was."""
    kept = [(owner, dict(owner._buffers)) for owner in module.modules()]
    try:
        yield
    finally:
        for owner, buffers in kept:
            owner._buffers.clear()
            owner._buffers.update(buffers)


def one_line(error: BaseException, limit: int = 160) -> str:
    """An exception as one line of at most `limit` characters."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shared_names(signatures: Sequence[Any]) -> list[str]:
    """The buffers that one method writes and another has as well."""
    written = {fqn for signature in signatures for fqn in signature.buffers_to_mutate.values()}
    held = [fqn for signature in signatures for fqn in signature.inputs_to_buffers.values()]
    return sorted(fqn for fqn in written if held.count(fqn) > 1)


def planning_pass(signatures: Mapping[str, Any] | Sequence[Any]) -> Any:
    """A memory-planning pass with which several methods share the state that one of them writes.

    Args:
        signatures: Of the methods in edge dialect; only then do they say what is written.
    """
    from executorch.exir.passes import MemoryPlanningPass

    listed = list(signatures.values()) if isinstance(signatures, Mapping) else list(signatures)
    shared = shared_names(listed)
    if not shared:
        return MemoryPlanningPass()
    make_pass: Callable[..., Any] = MemoryPlanningPass
    if "shared_buffer_fqns" in inspect.signature(MemoryPlanningPass).parameters:
        return make_pass(share_mutable_buffers=True, shared_buffer_fqns=shared)
    return make_pass(share_mutable_buffers=True)
