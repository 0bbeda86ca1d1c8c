# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Run N random programs that share buffers, on all cores: `python -m tests.fuzz.shared N`.

Stops at the first program that goes wrong, with its shortest form. The methods to pick from are
more than the tests take, and other ones for another seed. Exit codes: 0 all right, 1 a finding.
"""

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed

import hypothesis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.harness import quick_decompositions
from tests.support.shared_machine import OPTIONS, SharedBuffers

ROUND = 100


def _set_up() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    SharedBuffers.supply = 40
    gc.freeze()  # what is imported stays


def _run_round(seed: str, programs: int) -> tuple[int, int]:
    """The programs and calls of one round. A wrong one raises, with its shortest form printed."""
    before = SharedBuffers.programs_run, SharedBuffers.calls_made
    machine = hypothesis.seed(seed)(type("Round", (SharedBuffers,), {}))
    with quick_decompositions():
        run_state_machine_as_test(machine, settings=settings(OPTIONS, max_examples=programs))
    return SharedBuffers.programs_run - before[0], SharedBuffers.calls_made - before[1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.shared", description=__doc__)
    parser.add_argument("programs", type=int, help="how many programs to run")
    parser.add_argument("--seed", type=int, default=0, help="other programs for another seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="default: all cores")
    arguments = parser.parse_args()
    began = time.monotonic()
    programs = calls = 0
    with ProcessPoolExecutor(
        arguments.jobs, multiprocessing.get_context("spawn"), initializer=_set_up
    ) as pool:
        futures = [
            pool.submit(
                _run_round,
                f"{arguments.seed}/{start // ROUND}",
                min(ROUND, arguments.programs - start),
            )
            for start in range(0, arguments.programs, ROUND)
        ]
        for future in as_completed(futures):
            if (error := future.exception()) is not None:
                pool.shutdown(cancel_futures=True)
                print("".join(["finding: ", str(error), *getattr(error, "__notes__", [])]))
                return 1
            programs += future.result()[0]
            calls += future.result()[1]
            seconds = time.monotonic() - began
            print(f"{programs} programs, {calls} calls, {seconds:.0f} s: all right", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
