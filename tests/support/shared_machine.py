# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""A state machine: one loaded program beside its eager modules, called in random order."""

import torch
from executorch.runtime import Runtime
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch import Tensor

from tests.support.shared_programs import PEEK, Program, lower, programs

CALLS = 20
OPTIONS = settings(
    stateful_step_count=CALLS + 1,  # loading is a step, too
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class SharedBuffers(RuleBasedStateMachine):
    """After each call, its outputs and all buffers are compared."""

    supply = 5
    """How many methods each world has."""
    programs_run = 0
    calls_made = 0

    @initialize(data=st.data())
    def load(self, data: st.DataObject) -> None:
        self.program: Program = data.draw(programs(type(self).supply))
        note(str(self.program))
        lowered = lower(self.program)
        self.modules = lowered.modules
        self.loaded = Runtime.get().load_program(lowered.manager.buffer)
        SharedBuffers.programs_run += 1

    @rule(method=st.integers(0, 11), seed=st.integers(0, 2**16))
    def call(self, method: int, seed: int) -> None:
        name = self.program.names[method % len(self.program.names)]
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(self.program.world.shape, generator=generator)
        predicate = torch.randn(2, generator=generator)
        self._compare(name, x, predicate)
        self._compare(PEEK)
        SharedBuffers.calls_made += 1

    def _compare(self, name: str, *inputs: Tensor) -> None:
        method = self.loaded.load_method(name)
        assert method is not None
        got = [output.clone() for output in method.execute([x.clone() for x in inputs])]
        with torch.no_grad():
            wanted = self.modules[name](*inputs)
        for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
            torch.testing.assert_close(
                a,
                b,
                rtol=1e-4,
                atol=1e-4,
                check_stride=False,
                msg=lambda text, index=index: f"output {index} of {name}: {text}",
            )
