"""Upstream's build files follow the series: each new file in a target, each new import in its
dependencies."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.support.small_tree import MODULE, OVERLAY, PATCH, UPSTREAM, make_series, make_tree
from tools.errors import Conflicts
from tools.patching import buildfiles, export, render, series, tree
from tools.patching.buildfiles import targets, with_dependency, with_target
from tools.patching.series import NewTarget, Series
from tools.patching.splice import Misfit
from tools.patching.tree import reader

CHECKOUT = os.environ.get("EXECUTORCH_CHECKOUT")

BUCK = """\
load("//build:runtime_wrapper.bzl", "runtime")

target(_kind = runtime.python_library,
    name = "memory_planning",
    srcs = [
        "memory_planning.py",
    ],
    deps = [
        "fbsource//third-party/pypi/numpy:numpy",
        ":error",
        ":tensor",  # @manual
        "//caffe2:torch",
        "//executorch/exir/operator:convert",
    ] + (["//executorch/exir/fb:logger"] if not runtime.is_oss else []),
)

target(_kind = runtime.python_library,
    name = "error",
    srcs = ["error.py"],
)

target(_kind = runtime.python_library,
    name = "schema",
    srcs = ["schema.py"],
)
"""
ADDS_TARGET = """\
  exir/BUCK:
    targets:
      packing:
        after: memory_planning
        srcs: [packing.py]
        deps: ["//caffe2:torch"]
"""
ADDS_DEPENDENCY = """\
    deps:
      memory_planning: [":packing"]
"""
PACKING = (
    "# Our header.\n\nimport torch\n\n\ndef pack() -> torch.Tensor:\n    return torch.ones(1)\n"
)


def changed_lines(before: str, after: str) -> list[str]:
    return [line.strip() for line in after.splitlines() if line not in before.splitlines()]


@pytest.mark.parametrize(
    ("label", "above"),
    [
        (":delegate", ":error"),
        (":schema", ":tensor"),
        (":zeta", "//caffe2:torch"),
        ("//executorch/exir:schema", "//executorch/exir/operator:convert"),
        ("//executorch/exir/zeta:lib", None),
    ],
)
def test_a_dependency_goes_where_the_order_wants_it(label: str, above: str | None) -> None:
    after = with_dependency(BUCK, "memory_planning", label)
    lines = after.splitlines()
    at = lines.index(f'        "{label}",')
    assert above is None or f'"{above}"' in lines[at + 1]
    assert [line for n, line in enumerate(lines) if n != at] == BUCK.splitlines()
    found = {target.label: target for target in targets(after, "exir")}
    whole = f"//executorch/exir{label}" if label.startswith(":") else label
    assert whole in found["//executorch/exir:memory_planning"].dependencies


def test_a_dependency_that_is_there_is_not_put_twice() -> None:
    assert with_dependency(BUCK, "memory_planning", ":tensor") == BUCK


def test_a_target_is_of_the_kind_of_the_one_before_it() -> None:
    new = NewTarget("packing", "memory_planning", ("packing.py",), ("//caffe2:torch", ":error"))
    after = with_target(BUCK, new)
    assert changed_lines(BUCK, after) == ['name = "packing",', '"packing.py",']
    added = next(each for each in targets(after, "exir") if each.label.endswith(":packing"))
    assert added.sources == {"exir/packing.py"}
    assert added.dependencies == {"//executorch/exir:error", "//caffe2:torch"}
    assert after.count("target(_kind = runtime.python_library,") == 4
    inside = textwrap.indent(BUCK, "    ").replace("    load", "def define():\n    load", 1)
    assert "\n    target(_kind" in with_target(inside, new).partition('"packing"')[0][-60:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: with_dependency(BUCK, "gone", ":a"), "one target called gone"),
        (lambda: with_dependency(BUCK, "error", ":a"), "a list of dependencies"),
        (lambda: with_target(BUCK, NewTarget("p", "gone", ("p.py",), ())), "called gone"),
        (lambda: with_target(BUCK, NewTarget("error", "schema", ("e.py",), ())), "new to upstream"),
    ],
)
def test_what_does_not_fit_is_told(change: object, message: str) -> None:
    with pytest.raises(Misfit) as caught:
        change()  # type: ignore[operator]
    assert message in caught.value.wanted


def fork(directory: Path, patch: str) -> Series:
    overlay = OVERLAY.replace("import math\n", "import math\n\nimport torch\n") + (
        "\n\nfrom executorch.exir.packing import pack\n\n\ndef packed():\n    return pack(torch)\n"
    )
    patch = patch.replace("LAST]", "LAST, packed]").replace(
        "files:\n", "files:\n  exir/packing.py: {define: [pack]}\n"
    )
    made = make_series(directory, overlay, p0001_try=patch)
    (directory / "exir" / "packing.py").write_text(PACKING, encoding="utf-8")
    return made


def checkout(directory: Path) -> Path:
    package = make_tree(directory) / "executorch"
    (package / "exir" / "BUCK").write_text(BUCK, encoding="utf-8")
    return package


def faults_of(loaded: Series, package: Path) -> list[str]:
    return buildfiles.faults(reader(package), render.render(loaded, reader(package)))


def test_what_a_build_file_lacks_is_found(tmp_path: Path) -> None:
    package = checkout(tmp_path / "tree")
    assert faults_of(fork(tmp_path / "none", PATCH), package) == [
        "exir/packing.py: no target of exir has it in its srcs"
    ]
    assert faults_of(fork(tmp_path / "target", PATCH + ADDS_TARGET), package) == [
        "exir/memory_planning.py: //executorch/exir:memory_planning lacks the dependency on "
        "executorch.exir.packing"
    ]
    bare = ADDS_TARGET.replace('        deps: ["//caffe2:torch"]\n', "")
    assert faults_of(fork(tmp_path / "bare", PATCH + bare + ADDS_DEPENDENCY), package) == [
        "exir/packing.py: //executorch/exir:packing lacks the dependency on torch"
    ]
    assert faults_of(fork(tmp_path / "all", PATCH + ADDS_TARGET + ADDS_DEPENDENCY), package) == []


def test_a_checkout_has_its_build_files_changed_and_a_wheel_none(tmp_path: Path) -> None:
    loaded = fork(tmp_path / "fork", PATCH + ADDS_TARGET + ADDS_DEPENDENCY)
    package = checkout(tmp_path / "tree")
    assert "exir/BUCK" in tree.apply(loaded, package)
    assert '":packing",' in (package / "exir" / "BUCK").read_text(encoding="utf-8")
    without = make_tree(tmp_path / "release")
    assert tree.apply(loaded, without) == [MODULE, "exir/packing.py"]
    assert not (without / "executorch" / "exir" / "BUCK").exists()


def test_a_target_that_is_gone_is_a_conflict(tmp_path: Path) -> None:
    package = checkout(tmp_path / "tree")
    buck = package / "exir" / "BUCK"
    buck.write_text(BUCK.replace('"memory_planning"', '"planning"'), encoding="utf-8")
    loaded = fork(tmp_path / "fork", PATCH + ADDS_TARGET + ADDS_DEPENDENCY)
    with pytest.raises(Conflicts) as caught:
        tree.apply(loaded, package)
    assert [each.file for each in caught.value.conflicts] == ["exir/BUCK"] * 2
    assert (package / MODULE).read_text(encoding="utf-8") == UPSTREAM


@pytest.mark.skipif(
    CHECKOUT is None, reason="EXECUTORCH_CHECKOUT names no git checkout of upstream's main"
)
def test_the_build_files_of_a_checkout_follow_each_patch() -> None:
    assert CHECKOUT is not None
    base = export.base_of(CHECKOUT)
    after: dict[str, str] = {}
    for step in render.steps(base.fitting(series.load()), base.read):
        after |= step.after
        assert buildfiles.faults(base.read, after) == [], step.patch.name
