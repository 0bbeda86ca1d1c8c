"""Every supported release: build the wheel, install it by itself, and run the tests on it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tools.patching.series import Series
from tools.paths import CACHE, ROOT
from tools.shipping import upstream
from tools.shipping.wheel import build
from tools.versions import custom

# What is run, by the column's name; `{stock}` stands for the untouched release.
SUITES = {
    "exir/tests": ("-m", "pytest", "-q", "exir/tests"),
    "cases": (
        "-m",
        "pytest",
        "-q",
        "tests/passes/test_cases.py",
        "tests/passes/test_shared_buffers.py",
    ),
    "upstream core": ("-m", "tests.support.upstream_suites", "--core", "--stock", "{stock}"),
}


@dataclass(frozen=True)
class Row:
    """What came out for one release."""

    version: str
    results: dict[str, str]
    passed: bool
    seconds: float


def run(series: Series, versions: tuple[str, ...]) -> list[Row]:
    return [_row(series, version) for version in versions]


def table(rows: list[Row]) -> str:
    head = ["release", *SUITES, "minutes"]
    body = [
        [row.version, *(row.results[suite] for suite in SUITES), f"{row.seconds / 60:.1f}"]
        for row in rows
    ]
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, *body]
    )


def _row(series: Series, version: str) -> Row:
    started = time.monotonic()
    directory = CACHE / "matrix" / version
    python = _environment(series, version, directory)
    results, passed = {}, True
    for suite, arguments in SUITES.items():
        print(f"{version}: {suite} ...", file=sys.stderr, flush=True)
        log = directory / f"{suite.replace('/', '-').replace(' ', '-')}.log"
        stock = str(upstream.unpacked(version))
        command = [str(python), *(each.format(stock=stock) for each in arguments)]
        with log.open("w", encoding="utf-8") as out:
            code = subprocess.run(
                command, cwd=ROOT, check=False, stdout=out, stderr=subprocess.STDOUT
            ).returncode
        passed = passed and code == 0
        results[suite] = _summary(log) if code == 0 else f"FAILED, see {log.relative_to(ROOT)}"
    return Row(version, results, passed, time.monotonic() - started)


def _environment(series: Series, version: str, directory: Path) -> Path:
    """An environment of its own with the custom wheel of the release."""
    environment = directory / "venv"
    python = environment / "bin" / "python"
    wheel = build(series, version, directory / "wheel")
    print(f"{version}: installing {custom(version)} ...", file=sys.stderr, flush=True)
    quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(python), *quiet, "-r", str(ROOT / "requirements.txt")], check=True)
    constraint = ["--constraint", str(ROOT / "requirements.txt")]
    subprocess.run([str(python), *quiet, *constraint, str(wheel)], check=True)
    subprocess.run([str(python), *quiet, "--force-reinstall", "--no-deps", str(wheel)], check=True)
    return python


def _summary(log: Path) -> str:
    """The last line that counts passes, without its decoration."""
    for line in reversed(log.read_text(encoding="utf-8").splitlines()):
        found = re.search(r"\d+ passed(, \d+ \w+)*", line)
        if found:
            return found[0]
    return "passed"
