# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Checks programs in a process of their own: a kernel that aborts costs one program.

`python -m tests.fuzz.pool` does so for each program that it reads, as one line of JSON, and
answers with a line. In the environment of another ExecuTorch, that is how this one's process asks
the other's; see `StockChecker`.
"""

import gc
import json
import logging
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

from tests.fuzz.check import Outcome, Verdict, check
from tests.fuzz.program import Program
from tests.support.harness import quick_decompositions
from tools.paths import ROOT
from tools.shipping import upstream
from tools.versions import DEFAULT

_ANSWER = "answer: "
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
    logging.disable(logging.CRITICAL)
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


class StockChecker:
    """Runs `check` on the untouched release, in a process that imports that one."""

    def __init__(self, tree: Path | None = None) -> None:
        self._tree = tree
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "StockChecker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.communicate()  # it ends with its input
            self._process = None

    def _start(self) -> "subprocess.Popen[str]":
        tree = self._tree or upstream.unpacked(DEFAULT)
        path = os.pathsep.join([str(tree), str(ROOT)])
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.fuzz.pool"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def check(self, program: Program) -> Outcome:
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None and self._process.stdout is not None
        print(program.to_json(), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                verdict, detail = json.loads(line.removeprefix(_ANSWER))
                return Outcome(Verdict(verdict), detail)
        raise RuntimeError("the process that checks programs on stock has ended")


class BothCheckers:
    """Runs `check` here and, where that is no success, on stock: see `Outcome.beside`."""

    def __init__(self) -> None:
        self.patched = Checker()
        self.stock = StockChecker()

    def __enter__(self) -> "BothCheckers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.patched.__exit__(kind, error, trace)
        self.stock.__exit__(kind, error, trace)

    def check(self, program: Program) -> Outcome:
        outcome = self.patched.check(program)
        return outcome.beside(self.stock.check(program)) if outcome.is_finding else outcome


def main() -> None:
    with Checker() as checker:
        for line in sys.stdin:
            outcome = checker.check(Program.from_json(line))
            answer = json.dumps([outcome.verdict.value, outcome.detail])
            print(f"{_ANSWER}{answer}", flush=True)


if __name__ == "__main__":
    main()
