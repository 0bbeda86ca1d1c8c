# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""The C++ example: it builds against the installed package and generates Python's tokens."""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import ModuleType

import cmake
import pytest
import torch
from executorch.runtime import Runtime
from torch import Tensor

from tools.paths import ROOT

EXAMPLE = ROOT / "examples" / "shared_arenas"
PROMPTS = (
    (3, 1, 4, 1, 5, 9, 2, 6),
    (56, 57, 58, 59, 60, 61, 62, 63),
    (17, 42, 8, 8, 30, 5, 61, 23),
)


def _load_export() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shared_arenas_export", EXAMPLE / "export.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


export = _load_export()
# As many tokens as fit: the last one generated isn't fed back.
COUNT = export.CONTEXT - export.METHODS["prefill"] + 1


def _readme_block(language: str) -> str:
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    return text.partition(f"```{language}\n")[2].partition("```")[0]


# --- building -------------------------------------------------------------------------------


def _require_compiler() -> None:
    compilers = [os.environ["CXX"]] if "CXX" in os.environ else ["c++", "g++", "clang++"]
    if not any(shutil.which(compiler) for compiler in compilers):
        pytest.fail(
            f"the example is C++ and none of {', '.join(compilers)} is here; install a C++ "
            "compiler (Debian, Ubuntu: apt-get install g++)"
        )
    if shutil.which("make") is None:
        pytest.fail("CMake builds the example with make; install it")


def _shell(commands: str) -> str:
    """Run commands as the README gives them, warnings of the compiler being errors."""
    _require_compiler()
    commands = commands.replace(".venv/bin/python", shlex.quote(sys.executable))
    commands = commands.replace(".venv/bin/cmake", shlex.quote(f"{cmake.CMAKE_BIN_DIR}/cmake"))
    done = subprocess.run(
        ["bash", "-euc", commands],
        cwd=ROOT,
        env={**os.environ, "CXXFLAGS": "-Werror"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"{commands}\n{done.stdout}{done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class Built:
    """The program and its model as the README's commands make them, and what they print."""

    program: Path
    model: Path
    printed: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    directory = tmp_path_factory.mktemp("build")
    commands = _readme_block("sh").replace("build/shared_arenas/", f"{directory}/")
    printed = _shell(commands.replace("build/shared_arenas", str(directory)))
    return Built(directory / "shared_arenas", directory / "model.pte", printed)


@pytest.fixture(scope="module")
def module_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for `Module`."""
    source = tmp_path_factory.mktemp("module")
    shutil.copy(EXAMPLE / "CMakeLists.txt", source)
    shutil.copy(ROOT / "tests" / "support" / "module_tokens.cpp", source / "main.cpp")
    build = _readme_block("sh").partition(".venv/bin/python examples")[0]
    build = build.replace("examples/shared_arenas", str(source))
    _shell(build.replace("build/shared_arenas", f"{source}/build"))
    return source / "build" / "shared_arenas"


# --- running --------------------------------------------------------------------------------


def _run(
    program: Path, model: Path, prompt: Sequence[int], count: int = COUNT
) -> subprocess.CompletedProcess[str]:
    command = [str(program), str(model), str(count), *map(str, prompt)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _tokens(program: Path, model: Path, prompt: Sequence[int]) -> list[int]:
    done = _run(program, model, prompt)
    assert done.returncode == 0, done.stderr
    name, _, tokens = done.stdout.splitlines()[-1].partition(":")
    assert name == "tokens"
    return [int(token) for token in tokens.split()]


def _generate(call: Callable[[str, Tensor], Tensor], prompt: Sequence[int]) -> list[int]:
    tokens = [int(call("prefill", torch.tensor(prompt)))]
    while len(tokens) < COUNT:
        tokens.append(int(call("decode", torch.tensor(tokens[-1:]))))
    return tokens


def _eager_tokens(prompt: Sequence[int]) -> list[int]:
    model = export.TinyDecoder()
    return _generate(lambda _, tokens: model(tokens), prompt)


def _python_tokens(model: Path, prompt: Sequence[int]) -> list[int]:
    loaded = Runtime.get().load_program(model.read_bytes())

    def call(method: str, tokens: Tensor) -> Tensor:
        (token,) = loaded.load_method(method).execute([tokens])
        return token.clone()

    return _generate(call, prompt)


# --- state in an arena of its own -----------------------------------------------------------


@pytest.fixture(scope="module")
def own_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "model.pte"
    path.write_bytes(export.lower(export.TinyDecoder(), own=True).buffer)
    return path


@pytest.mark.parametrize("prompt", PROMPTS)
def test_own_arena(built: Built, module_program: Path, own_model: Path, prompt: list[int]) -> None:
    """It is the second, so `Module` shares it, too."""
    expected = _eager_tokens(prompt)
    for program in (built.program, module_program):
        assert _tokens(program, own_model, prompt) == expected
    assert _python_tokens(own_model, prompt) == expected


def test_all_state_is_one_copy(built: Built, own_model: Path) -> None:
    """After a text, the program goes on from the copy as it did from the state itself."""
    tokens = " ".join(map(str, _eager_tokens(PROMPTS[0])))
    shown = [f"tokens: {tokens}", f"again: {tokens}"]
    numbers = [str(COUNT), *map(str, PROMPTS[0])]
    for command in (
        [str(built.program), "--again"],
        [sys.executable, str(EXAMPLE / "snapshot.py")],
    ):
        done = subprocess.run(
            [*command, str(own_model), *numbers], capture_output=True, text=True, check=True
        )
        lines = done.stdout.splitlines()
        assert [line for line in lines if "tokens:" in line or "again:" in line] == shown


def test_state_that_is_not_restored_shows(built: Built) -> None:
    """Or else the test above could pass with no copy at all: here the copy is of values alone."""
    done = _run(Path(built.program), built.model, PROMPTS[0], 8)
    expected = done.stdout.splitlines()[-1].partition(":")[2]
    command = [str(built.program), "--again", str(built.model), "8", *map(str, PROMPTS[0])]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.stdout.splitlines()[-1].partition(":")[2] != expected


# --- tests ----------------------------------------------------------------------------------


def test_the_readme_shows_what_is_printed(built: Built) -> None:
    shown = _readme_block("text").splitlines()
    assert built.printed.splitlines()[-len(shown) :] == shown


@pytest.mark.parametrize("prompt", PROMPTS)
def test_tokens_are_pythons(built: Built, prompt: Sequence[int]) -> None:
    expected = _eager_tokens(prompt)
    assert _tokens(built.program, built.model, prompt) == expected
    assert _python_tokens(built.model, prompt) == expected


def test_the_tokens_depend_on_the_whole_cache() -> None:
    """Or else the tests here would not see a buffer that isn't shared."""
    prompt, expected = PROMPTS[0], _eager_tokens(PROMPTS[0])
    for forgotten in export.BUFFERS:
        model = export.TinyDecoder()

        def call(method: str, tokens: Tensor, model=model, forgotten=forgotten) -> Tensor:
            token = model(tokens)
            if method == "prefill":
                model.get_buffer(forgotten).zero_()
            return token

        assert _generate(call, prompt) != expected, forgotten


def test_each_arena_is_as_large_as_the_largest_need(built: Built) -> None:
    lowered = export.lower(export.TinyDecoder())
    assert built.model.read_bytes() == lowered.buffer
    plans = lowered.executorch_program.execution_plan
    # Arena 0 is that of constants, which the runtime doesn't ask for.
    needs = {plan.name: plan.non_const_buffer_sizes[1:] for plan in plans}
    assert needs["prefill"] != needs["decode"]
    largest = [max(sizes) for sizes in zip_longest(*needs.values(), fillvalue=0)]
    arenas = _run(built.program, built.model, PROMPTS[0]).stdout.splitlines()[:-1]
    assert arenas == [f"arena {n}: {size} bytes" for n, size in enumerate(largest, start=1)]


@pytest.mark.parametrize(
    ("arenas", "shares"),
    [({}, True), ({"keys": 2, "values": 2}, True), ({"keys": 2, "values": 3}, False)],
    ids=["arena_1", "arena_2", "arena_3"],
)
def test_module_shares_arenas_1_and_2(
    built: Built,
    module_program: Path,
    tmp_path: Path,
    arenas: Mapping[str, int],
    shares: bool,
) -> None:
    """So the example's README says. What `Module` can't share, the example can."""
    model = tmp_path / "model.pte"
    model.write_bytes(export.lower(export.TinyDecoder(), arenas=arenas).buffer)
    expected = _eager_tokens(PROMPTS[0])
    assert _tokens(built.program, model, PROMPTS[0]) == expected
    assert (_tokens(module_program, model, PROMPTS[0]) == expected) is shares


def _assert_told(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("shared_arenas: ")]
    assert told == [f"shared_arenas: {message}"]


def test_a_missing_file_is_told(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "none.pte"
    done = _run(built.program, path, PROMPTS[0])
    _assert_told(done, f"{path}: cannot open the file: Error::AccessFailed")


def test_a_file_of_another_kind_is_told(built: Built) -> None:
    path = EXAMPLE / "main.cpp"
    done = _run(built.program, path, PROMPTS[0])
    _assert_told(done, f"{path}: cannot load the program: Error::InvalidProgram")


def test_a_missing_method_is_told(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "prefill.pte"
    methods = {"prefill": export.METHODS["prefill"]}
    path.write_bytes(export.lower(export.TinyDecoder(), methods).buffer)
    done = _run(built.program, path, PROMPTS[0])
    _assert_told(done, "decode: cannot find the method in the program: Error::InvalidArgument")


def test_a_prompt_that_is_too_short_is_told(built: Built) -> None:
    done = _run(built.program, built.model, PROMPTS[0][:3])
    _assert_told(done, "prefill: cannot set the input to 3 token(s): Error::NotSupported")


def test_a_cache_that_is_full_is_told(built: Built) -> None:
    done = _run(built.program, built.model, PROMPTS[0], COUNT + 1)
    _assert_told(done, "decode: cannot execute the method on 1 token(s): Error::InvalidArgument")
    tokens = " ".join(map(str, _eager_tokens(PROMPTS[0])))
    assert done.stdout.splitlines()[-1] == f"tokens: {tokens}"


def test_bad_arguments_are_told(built: Built) -> None:
    for arguments in ([], ["4"], ["four", "1"], ["4", "1", "two"], ["-4", "1"]):
        command = [str(built.program), str(built.model), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: ")
