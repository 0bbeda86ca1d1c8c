# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Checks programs in a process of their own: a kernel that aborts costs one program."""

import gc
import multiprocessing
import os
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType

from tests.fuzz.check import Outcome, Verdict, check
from tests.fuzz.program import Program
from tests.support.harness import quick_decompositions

SECONDS = 300.0  # for one program; a usual one takes less than one

# The server imports PyTorch and ExecuTorch once; a process forked from it starts at once.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.fuzz.check", "executorch.runtime"])


def _serve(connection: Connection) -> None:
    # Kernels and the runtime report to the terminal what the outcome says already.
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    # What is imported stays; the collector need not look through it again and again.
    gc.freeze()
    with quick_decompositions():
        while True:
            try:
                program = Program.from_json(connection.recv())
            except EOFError:
                return
            connection.send(check(program))


class Checker:
    """Runs `check` in another process, and starts a new one when that dies or hangs.

    A process is replaced after `lifetime` programs, since caches in PyTorch only grow.
    """

    def __init__(self, lifetime: int = 500) -> None:
        self._lifetime = lifetime
        self._done = 0
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> "Checker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self) -> Connection:
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._done = 0
        return self._connection

    def _stop(self) -> int | None:
        """End the process; returns its exit code if it had ended by itself."""
        if self._process is None or self._connection is None:
            return None
        self._connection.close()
        self._process.join(timeout=2)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
        self._process = self._connection = None
        return code

    def check(self, program: Program) -> Outcome:
        if self._done >= self._lifetime:
            self._stop()
        connection = self._connection or self._start()
        self._done += 1
        connection.send(program.to_json())
        try:
            if not connection.poll(SECONDS):
                self._stop()
                return Outcome(Verdict.DIED, f"no result after {SECONDS:.0f} seconds")
            outcome: Outcome = connection.recv()
        except (EOFError, ConnectionResetError):
            code = self._stop()
            return Outcome(Verdict.DIED, f"exit code {code}")
        return outcome
