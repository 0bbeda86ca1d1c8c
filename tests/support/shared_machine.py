# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""A state machine: one loaded program beside its eager modules, called in random order."""

import torch
from executorch.runtime import Runtime
from hypothesis import HealthCheck, note, reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch import Tensor

from tests.support.shared_programs import PEEK, Lowered, Program, lower, programs

CALLS = 20
OPTIONS = settings(
    stateful_step_count=CALLS + 1,  # loading is a step, too
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def lower_or_reject(program: Program) -> Lowered:
    """Lower; a bank that is too small for what all methods keep is no finding."""
    try:
        return lower(program)
    except Exception as error:
        full = ("Bank fast (arena 1) has", "pinned to bank fast")
        if program.lowering.fast_bank and any(words in str(error) for words in full):
            reject()
        raise


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
        lowered = lower_or_reject(self.program)
        self.modules = lowered.modules
        self.loaded = Runtime.get().load_program(lowered.manager.buffer)
        # Loading runs the initial values, so all comes first.
        self.methods = {name: self.loaded.load_method(name) for name in self.modules}
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
        method = self.methods[name]
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
