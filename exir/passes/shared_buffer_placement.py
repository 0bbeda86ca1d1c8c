# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""In which arenas the mutable buffers of a program go, and what else lives there.

The layout in `shared_buffers` lines up what it is told, in the arenas that it is told.
Here it is told: each buffer stays in the arena that the algorithm gave it, or all go to
an arena of their own for each device, behind all that any method has. `lay_out` decides
this for the methods known so far, `check_capacity` holds that no memory bank is asked
for more than it has, and `place` lets one method have it so.

That the methods agree on what they share has been seen to in `shared_buffer_agreement`.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Container, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import torch
from executorch.exir.passes.shared_buffer_agreement import SharingMethod
from executorch.exir.passes.shared_buffers import (
    alignments_of,
    apply_moves,
    ArenaMove,
    Fronts,
    iter_unique_specs,
    lay_out_fronts,
    MethodPlan,
    sizes_after,
    Slot,
    spans_by_arena,
)
from executorch.exir.tensor import TensorSpec


@dataclass(frozen=True)
class PlannedMethod:
    """A method that has been planned, and where its buffers are by now."""

    method: SharingMethod
    plan: MethodPlan
    # The state of this method alone.
    private: Mapping[Slot, TensorSpec]
    # What says on which device the algorithm has put a buffer; None for the host.
    devices: Mapping[Slot, Optional[Any]]
    # The first arena behind all that hold anything but mutable buffers.
    first_free_arena: int
    # Where the program's buffers were when this method was last laid out.
    fronts: Optional[Fronts] = None


def shared_slot(label: str) -> Slot:
    return Slot(-1, label)


def first_free_arena(
    graph_module: torch.fx.GraphModule, state: Container[TensorSpec]
) -> int:
    """The first arena behind all that hold, or are reserved for, anything but `state`."""
    spans = spans_by_arena(graph_module)
    used = {1}
    for arena, size in enumerate(graph_module.meta["non_const_buffer_sizes"]):
        roots = [span.root for span in spans.get(arena, ())]
        if any(root not in state for root in roots) or (size > 0 and not roots):
            used.add(arena)
    return max(used) + 1


def pinned_arenas(
    graph_module: torch.fx.GraphModule, state: Container[TensorSpec]
) -> Iterator[int]:
    """The arenas that passes before planning have chosen for anything but `state`."""
    for spec in iter_unique_specs(graph_module):
        if spec.mem_id is not None and spec not in state:
            yield spec.mem_id


def _device_key(entry: Optional[Any]) -> Tuple[int, int]:
    return (0, 0) if entry is None else (entry.device_type.value, entry.device_index)


def lay_out(
    planned: Sequence[PlannedMethod],
    homes: Mapping[str, SharingMethod],
    first_own_arena: Optional[int],
) -> Tuple[Fronts, Dict[int, int], Dict[int, Optional[Any]]]:
    """Give each buffer of the program a place.

    Args:
        planned: The methods.
        homes: By label, the method that decides on a shared buffer.
        first_own_arena: The first of the arenas for nothing but these buffers, one for
            each device. If it is None, each buffer keeps its arena.

    Returns:
        The places, the alignments of arenas, and the devices of the arenas for nothing
        but these buffers.
    """
    specs: Dict[Slot, TensorSpec] = {}
    devices: Dict[Slot, Optional[Any]] = {}
    for each in planned:
        specs.update(each.private)
        devices.update(each.devices)
    for label, home in homes.items():
        specs[shared_slot(label)] = home.written[label]
    arenas = {slot: spec.mem_id for slot, spec in specs.items()}
    alignments = alignments_of([each.plan for each in planned])
    own: Dict[int, Optional[Any]] = {}
    if first_own_arena is not None:
        entries = {_device_key(devices[slot]): devices[slot] for slot in specs}
        numbers = {key: first_own_arena + i for i, key in enumerate(sorted(entries))}
        arenas = {slot: numbers[_device_key(devices[slot])] for slot in specs}
        own = {numbers[key]: entry for key, entry in entries.items()}
        of_specs = [spec.alignment for spec in specs.values()]
        of_methods = [each.plan.alignment for each in planned]
        for arena in own:
            alignments[arena] = math.lcm(
                alignments.get(arena, 1), *of_specs, *of_methods
            )
    return lay_out_fronts(specs, arenas, alignments), alignments, own


def _name_devices(
    graph_module: torch.fx.GraphModule,
    own: Mapping[int, Optional[Any]],
    held: Container[int],
) -> None:
    """Say of a method's arenas from the first own one on which device they are."""
    entries = graph_module.meta.get("non_const_buffer_device")
    if entries is not None and own:
        entries[:] = [each for each in entries if each.buffer_idx < min(own)] + [
            dataclasses.replace(entry, buffer_idx=arena)
            for arena, entry in own.items()
            if entry is not None and arena in held
        ]


def place(
    planned: PlannedMethod,
    fronts: Fronts,
    moves: Mapping[int, ArenaMove],
    own: Mapping[int, Optional[Any]],
    alignments: Mapping[Slot, int],
) -> PlannedMethod:
    """Let a method have the program's buffers at the fronts, and keep away from them."""
    for each in planned.method.read():
        slot = shared_slot(each.label)
        if slot in fronts.places:
            # Nothing has planned it, nor aligned it; and `external_constants` may have
            # said that it goes to a file of constants.
            each.spec.realign(alignments[slot])
            each.placeholder.meta.pop("constant_tag", None)
    plan = apply_moves(planned.plan, fronts, moves)
    held = {spec.mem_id for _, spec in (*plan.planned.items(), *plan.read)}
    _name_devices(plan.graph_module, own, held)
    return dataclasses.replace(planned, plan=plan, fronts=fronts)


def banks_of(algorithm: Any) -> Dict[int, Any]:
    """The memory banks that an algorithm has to keep within, by arena."""
    banks: Dict[int, Any] = {}
    for each in (algorithm, *getattr(algorithm, "algo_list", ())):
        for bank in getattr(getattr(each, "target", None), "banks", ()):
            banks[bank.mem_id] = bank
    return banks


def check_capacity(
    planned: PlannedMethod,
    fronts: Fronts,
    moves: Mapping[int, ArenaMove],
    banks: Mapping[int, Any],
) -> None:
    """Refuse a front that doesn't fit into its bank; ValueError."""
    for arena, size in enumerate(sizes_after(planned.plan, fronts, moves)):
        if arena not in banks or size <= banks[arena].size:
            continue
        there = [slot for slot, place in fronts.places.items() if place[0] == arena]
        largest = max(there, key=lambda slot: fronts.nbytes[slot])
        raise ValueError(
            f"Bank {banks[arena].name} (arena {arena}) has {banks[arena].size} bytes, "
            f"but method {planned.method.name} needs {size} there: "
            f"{fronts.bytes[arena]} are for mutable buffers, which no other method may "
            f"use, the largest of which is '{largest.name}' with "
            f"{fronts.nbytes[largest]} bytes. Give the bank more room, pin that buffer "
            "to another one, or plan with shared_arena='own'"
        )
