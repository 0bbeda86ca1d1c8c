"""Turn this repository's overlay and patch files into a patched ExecuTorch."""
