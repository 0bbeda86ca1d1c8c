# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

from executorch.exir.passes.memory_planning_pass import begin_program  # noqa: F401
from executorch.exir.passes.place_write_backs_pass import (  # noqa: F401
    with_write_backs_placed,
)
