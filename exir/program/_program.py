# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

from executorch.exir.passes.check_signature import check_signatures  # noqa: F401
from executorch.exir.passes.memory_planning_pass import begin_program  # noqa: F401
from executorch.exir.passes.mutated_parameters import (  # noqa: F401
    check_initial_values,
    mutated_parameters_to_buffers,
    prepare_state,
)
from executorch.exir.passes.place_write_backs_pass import (  # noqa: F401
    with_write_backs_placed,
)
from executorch.exir.passes.save_old_state import save_old_state  # noqa: F401
from executorch.exir.passes.save_overwritten import (  # noqa: F401
    save_what_is_overwritten,
)
from executorch.exir.program._lowering_copy import copy_for_lowering  # noqa: F401
