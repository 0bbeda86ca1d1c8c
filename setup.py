"""For whoever calls setup.py by itself: the wheel that the backend of pyproject.toml builds."""

import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tools import versions
from tools.shipping import backend


class BuildWheel(Command):
    """Stands in for setuptools' own bdist_wheel."""

    description = "build the custom wheel"
    user_options: ClassVar = [("dist-dir=", "d", "where to put the wheel")]

    def initialize_options(self):
        self.dist_dir = None

    def finalize_options(self):
        self.dist_dir = self.dist_dir or "dist"

    def run(self):
        backend.build_wheel(self.dist_dir)


setup(
    name="executorch",
    version=versions.custom(backend.release()),
    packages=[],
    py_modules=[],
    cmdclass={"bdist_wheel": BuildWheel},
)
