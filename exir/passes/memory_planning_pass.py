# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import dataclasses
from dataclasses import field
from typing import Any, Iterable, List

from executorch.exir.pass_base import PassBase


def _share_in_second_arena(state: "_MemoryPlanningState", alignment: int) -> None:
    """Line up all mutable buffers in arena 2, at the same offsets in every method.

    Raises:
        ValueError: A method uses other arenas than the default one.
    """
    arenas = [each.meta["non_const_buffer_sizes"] for each in state.graph_modules]
    if any(len(sizes) != 2 for sizes in arenas):
        raise ValueError("Cannot share mutable state if not using default memory ids")
    front = 0
    for fqn, mutable in state.mutable_buffers.items():
        specs = [*mutable, *state.maybe_mutable_buffers.get(fqn, ())]
        for spec in specs:
            spec.realign(alignment)
            spec.mem_id, spec.mem_offset = 2, front
        front += specs[0].allocated_memory
    for sizes in arenas:
        sizes.append(front)


def begin_program(planned_by: Any, methods: Iterable[str]) -> None:
    """Tell planning passes that a program starts; what they know of another is void.

    Arguments:
        planned_by: the pass for all methods, or a dict of passes by method
        methods: the program's methods, in the order in which they will be planned
    """
    passes = planned_by if isinstance(planned_by, dict) else {None: planned_by}
    by_method = {name: passes.get(name, passes.get(None)) for name in methods}
    for each in passes.values():
        if isinstance(each, MemoryPlanningPass):
            names = [name for name, planner in by_method.items() if planner is each]
            each.state = _MemoryPlanningState(method_names=names)


class _MemoryPlanningState:
    # The program's methods in the order of planning, if the caller told.
    method_names: List[str] = field(default_factory=list)
    # Whether a method is being planned; still set when that has failed.
    in_method: bool = False

    def take(self) -> "_MemoryPlanningState":
        """All that is known of the program, which is forgotten here."""
        taken = dataclasses.replace(self)
        vars(self).update(vars(_MemoryPlanningState()))
        return taken


class MemoryPlanningPass(PassBase):

    def _begin_method(self) -> None:
        # The last one has failed, and with it the program that it was part of.
        if self.state.in_method:
            self.state.take()
        self.state.in_method = True

    def run_multimethod(self) -> None:
        """Settle what takes all methods to know; called when each has been planned.

        The next `run` starts another program, whether this succeeds or not.

        Raises:
            ValueError: The methods can't share their buffers.
        """
        state = self.state.take()
        if self.share_mutable_buffers:
            _share_in_second_arena(state, self.alignment)
