"""The recipes of examples/: each is lowered and run, and returns what eager returns."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.paths import CACHE, ROOT

PACKAGES = sorted(CACHE.glob("models-packages*/transformers"))
"""Where `make models` puts what the recipes need."""


def run(name: str) -> dict[str, float]:
    path = [str(ROOT), *(str(found.parent) for found in PACKAGES[:1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.recipes", name],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def check(name: str) -> None:
    answer = run(name)
    assert answer["worst"] < 1e-4
    # Or a lost update couldn't show.
    assert answer["matters"] > 1e-3


needs_transformers = pytest.mark.skipif(
    not PACKAGES and importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed; `make models-packages` puts it in place",
)


def test_a_streaming_codec() -> None:
    check("codec")


@needs_transformers
@pytest.mark.parametrize("name", ["transformers_cache", "whisper"])
def test_a_model_of_transformers(name: str) -> None:
    check(name)


def test_recipes_are_short() -> None:
    """What a user writes, without the model itself, is ten to thirty lines."""
    for name in ("codec", "transformers_cache", "whisper"):
        text = Path(ROOT, "examples", f"{name}.py").read_text(encoding="utf-8")
        lowering = text[text.index("def lower(") :].splitlines()
        assert 10 <= len([line for line in lowering if line.strip()]) <= 30
