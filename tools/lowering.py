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
        return Exported(_export(module, method, inputs, False, dynamic_shapes), False)
    except Exception as error:
        first = error
    try:
        program = _export(module, method, inputs, True, dynamic_shapes)
    except Exception as error:
        message = f"{one_line(first)}; with strict=True, {one_line(error)}"
        raise ExportFailed(message).with_traceback(first.__traceback__) from error
    return Exported(program, True, one_line(first))


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
    """torch.export sees `forward` only, so that is what `method` becomes."""
    own = vars(module).get("forward")
    module.forward = getattr(module, method)
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


@contextmanager
def _state_kept(module: Any) -> Iterator[None]:
    """An export that fails half-way may leave a fake tensor where a buffer was."""
    places = [
        (owner, name, buffer)
        for owner in module.modules()
        for name, buffer in owner.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for owner, name, buffer in places:
            owner._buffers[name] = buffer


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
