# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Real models, stock and patched ExecuTorch side by side."""

MODELS = ("silero-vad", "llama", "llama-methods")
"""What the demo can run, in order."""
