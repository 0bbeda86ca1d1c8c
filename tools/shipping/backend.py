"""The PEP 517 backend of `pip wheel .` and `pip install .`: they give the custom wheel.

EXECUTORCH_VERSION chooses the release (default: the pinned one).
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

from tools import versions
from tools.errors import UserError
from tools.patching import series
from tools.shipping.wheel import build, dist_info


def release() -> str:
    return os.environ.get("EXECUTORCH_VERSION", versions.DEFAULT)


def build_wheel(
    wheel_directory: str, config_settings: object = None, metadata_directory: object = None
) -> str:
    """Build the wheel; return its name in `wheel_directory`."""
    try:
        return build(series.load(), release(), Path(wheel_directory)).name
    except UserError as error:
        raise SystemExit(f"error: {error}") from None


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: object = None
) -> str:
    """Write the metadata that the wheel itself has; return the name of their directory."""
    folder = dist_info(versions.custom(release()))
    with tempfile.TemporaryDirectory() as scratch:
        name = build_wheel(scratch)
        with zipfile.ZipFile(Path(scratch) / name) as wheel:
            metadata = [each for each in wheel.namelist() if each.startswith(f"{folder}/")]
            wheel.extractall(metadata_directory, metadata)
    return folder


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    raise SystemExit("error: there is no source distribution; build a wheel in a checkout")
