# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Run N random programs that share buffers: `python -m tests.fuzz_shared N [SEED]`.

Stops at the first program that goes wrong, with its shortest form. The methods to pick from are
more than the tests take, and other ones for another seed.
"""

import argparse
import logging
import time
import warnings

import hypothesis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.shared_machine import OPTIONS, SharedBuffers
from tests.shared_programs import quick_decompositions

ROUND = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=int, help="how many programs to run")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    SharedBuffers.supply = 40
    start = time.monotonic()
    number = 0
    with quick_decompositions():
        while SharedBuffers.programs_run < arguments.programs:
            wanted = min(ROUND, arguments.programs - SharedBuffers.programs_run)
            machine = hypothesis.seed(f"{arguments.seed}/{number}")(
                type("Round", (SharedBuffers,), {})
            )
            run_state_machine_as_test(machine, settings=settings(OPTIONS, max_examples=wanted))
            number += 1
            print(
                f"{SharedBuffers.programs_run} programs, {SharedBuffers.calls_made} calls, "
                f"{time.monotonic() - start:.0f} s: all right",
                flush=True,
            )


if __name__ == "__main__":
    main()
