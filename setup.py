"""`pip wheel .` and `pip install .`: the custom wheel, built by the tools of this repository.

EXECUTORCH_VERSION chooses the release (default: the pinned one).
"""

import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tools import versions
from tools.errors import UserError
from tools.patching import series
from tools.shipping.wheel import build, dist_info

UPSTREAM = os.environ.get("EXECUTORCH_VERSION", versions.DEFAULT)


def build_wheel(directory):
    try:
        return build(series.load(), UPSTREAM, Path(directory))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None


class BuildWheel(Command):
    """Stands in for setuptools' own bdist_wheel."""

    description = "build the custom wheel"
    user_options: ClassVar = [("dist-dir=", "d", "where to put the wheel")]

    def initialize_options(self):
        self.dist_dir = None

    def finalize_options(self):
        self.dist_dir = self.dist_dir or "dist"

    def run(self):
        wheel = build_wheel(self.dist_dir)
        self.distribution.dist_files.append(("bdist_wheel", "", str(wheel)))


class DistInfo(Command):
    """Stands in for setuptools' dist_info: pip resolves by what the wheel itself says."""

    description = "write the metadata of the custom wheel"
    user_options: ClassVar = [
        ("output-dir=", "o", "where to put the .dist-info directory"),
        ("keep-egg-info", None, "accepted and without effect"),
    ]

    def initialize_options(self):
        self.output_dir = None
        self.keep_egg_info = False

    def finalize_options(self):
        self.output_dir = Path(self.output_dir or ".")

    def run(self):
        scratch = self.output_dir / "wheel"
        folder = dist_info(versions.custom(UPSTREAM))
        with zipfile.ZipFile(build_wheel(scratch)) as wheel:
            wheel.extractall(
                self.output_dir,
                [name for name in wheel.namelist() if name.startswith(f"{folder}/")],
            )
        shutil.rmtree(scratch)
        # The build backend expects setuptools' own by-product beside it.
        (self.output_dir / "executorch.egg-info").mkdir(exist_ok=True)


setup(
    name="executorch",
    version=versions.custom(UPSTREAM),
    packages=[],
    py_modules=[],
    cmdclass={"bdist_wheel": BuildWheel, "dist_info": DistInfo},
)
