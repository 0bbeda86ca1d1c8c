# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Differential fuzzing: random stateful modules, lowered, against their own meaning.

`program` says what a program is (plain data, and the source of a module), `generate` makes
random ones, `check` lowers and runs one, `pool` does so in a process that may die, and
`python -m tests.fuzz N` runs many.
"""
