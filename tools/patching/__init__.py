"""The series: patch files and overlay, put into an ExecuTorch tree or exported from it."""
