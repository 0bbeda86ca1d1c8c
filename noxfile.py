"""The matrix: each supported release in an environment of its own, with its custom wheel.

nox -s release                  all of them
nox -s "release(1.4.1)"         one
"""

from __future__ import annotations

import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tools import versions
from tools.patching import series
from tools.paths import CACHE
from tools.shipping import upstream
from tools.shipping.wheel import build

nox.options.sessions = ["release"]
nox.options.reuse_existing_virtualenvs = True
nox.options.envdir = str(CACHE / "nox")

CASES = ("tests/passes/test_cases.py", "tests/passes/test_shared_buffers.py")


@nox.session
@nox.parametrize("version", versions.SUPPORTED, ids=versions.SUPPORTED)
def release(session: nox.Session, version: str) -> None:
    """Build the wheel, install it, and run the new tests, the cases and upstream's core."""
    wheel = build(series.load(), version, CACHE / "matrix" / version)
    session.install("-r", "requirements.txt")
    session.install("-c", "requirements.txt", str(wheel))
    # Another wheel of the same version may be there from the run before.
    session.install("--force-reinstall", "--no-deps", str(wheel))
    session.run("python", "-m", "pytest", "-q", "exir/tests", *session.posargs)
    session.run("python", "-m", "pytest", "-q", "--all", *CASES, *session.posargs)
    stock = str(upstream.unpacked(version))
    session.run("python", "-m", "tests.support.upstream_suites", "--core", "--stock", stock)
