# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

import unittest
from typing import Any, Dict, List, Mapping

import torch
from executorch.exir import EdgeProgramManager, mutable_buffer_fqns, to_edge
from executorch.exir.passes.shared_buffer_names import (
    checked_names,
    MethodNames,
    names_of_program,
    resolve_names,
)
from torch import nn
from torch.export import export


class _Holder(nn.Module):
    def __init__(self, **buffers: torch.Tensor) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)


class _Tied(nn.Module):
    """One tensor of two names; one buffer without use, one that only `unused` writes."""

    def __init__(self) -> None:
        super().__init__()
        self.a = _Holder(state=torch.zeros(4))
        self.b = _Holder(state=self.a.state)
        self.idle = nn.Buffer(torch.zeros(4))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a.state.add_(x * torch.tensor([1.0, 2.0, 3.0, 4.0]))
        return self.b.state * self.scale


def _edge(**modules: nn.Module) -> EdgeProgramManager:
    with torch.no_grad():
        # Only strict export takes a mutable buffer of two names.
        programs = {
            name: export(module, (torch.ones(4),), strict=True)
            for name, module in modules.items()
        }
    return to_edge(programs)


def _known(*names: str, **others: str) -> MethodNames:
    """A method that knows each name's tensor by that name, but for `{name: of}`."""
    return MethodNames({**{name: name for name in names}, **others}, {})


def _resolve(declared: Any, methods: Mapping[str, MethodNames]) -> Dict[str, Any]:
    return dict(resolve_names(checked_names(declared, True), methods).labels)


class TestSharedBufferNames(unittest.TestCase):
    def refused(self, declared: Any, methods: Mapping[str, MethodNames]) -> List[str]:
        with self.assertRaises(ValueError) as caught:
            _resolve(declared, methods)
        return str(caught.exception).splitlines()

    def test_what_a_program_knows(self) -> None:
        known = names_of_program(_edge(forward=_Tied()).exported_program())
        self.assertEqual(known.tensors["a.state"], known.tensors["b.state"])
        self.assertNotEqual(known.tensors["a.state"], known.tensors["idle"])
        self.assertEqual(set(known.buffers()), {"a.state", "b.state", "idle"})
        self.assertEqual(known.others["scale"], "parameter")
        self.assertEqual(set(known.others.values()), {"parameter", "constant"})

    def test_mutable_buffer_fqns(self) -> None:
        class Other(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.z = nn.Buffer(torch.zeros(4))
                self.read = nn.Buffer(torch.zeros(4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.z.add_(x)
                return x + self.read

        self.assertEqual(mutable_buffer_fqns(_edge(one=Other())), ["z"])
        both = mutable_buffer_fqns(_edge(one=Other(), two=_Tied(), three=Other()))
        self.assertIn(both, (["a.state", "z"], ["b.state", "z"]))

    def test_one_tensor_by_any_of_its_names(self) -> None:
        methods = {"one": _known("a", b="a"), "two": _known("a", b="a")}
        for declared in (["a"], ["b"]):
            labels = dict.fromkeys(("a", "b"), declared[0])
            self.assertEqual(
                _resolve(declared, methods), {"one": labels, "two": labels}
            )
        labels = {"a": "a", "b": "a"}
        self.assertEqual(_resolve(["b", "a"], methods)["one"], labels)

    def test_names_meet_in_another_method(self) -> None:
        methods = {"one": _known("a"), "two": _known("b"), "both": _known("a", b="a")}
        self.assertEqual(
            _resolve(["b", "a"], methods),
            {"one": {"a": "a"}, "two": {"b": "a"}, "both": {"a": "a", "b": "a"}},
        )

    def test_names_by_method(self) -> None:
        methods = {"prefill": _known("model.k", "pos"), "decode": _known("lm.k", "pos")}
        declared = {"kv": {"prefill": "model.k", "decode": "lm.k"}, "pos": "pos"}
        resolved = resolve_names(checked_names(declared, True), methods)
        self.assertEqual(
            resolved.labels,
            {
                "prefill": {"model.k": "kv", "pos": "pos"},
                "decode": {"lm.k": "kv", "pos": "pos"},
            },
        )
        self.assertEqual(resolved.known_in["kv"], ("prefill", "decode"))
        lone = resolve_names(checked_names(["model.k"], True), methods)
        self.assertEqual(lone.known_in, {"model.k": ("prefill",)})

    def test_all_bad_names_at_once(self) -> None:
        methods = {"prefill": _known("model.k", "model.v"), "decode": _known("lm.k")}
        declared = {
            "model.kk": "model.kk",
            "lm.k": "lm.k",
            "v": {"prefil": "model.v"},
            "k": {"decode": "model.k"},
        }
        self.assertEqual(
            self.refused(declared, methods),
            [
                "3 names can't be shared:",
                "Shared buffer 'model.kk' is in none of the methods ('prefill', "
                "'decode'); the nearest buffers that they have: 'model.k', 'model.v', "
                "'lm.k'",
                "Shared buffer 'k': method 'decode' has no buffer 'model.k'; the "
                "nearest that it has: 'lm.k'",
                "Shared buffer 'v' is declared for method 'prefil', which the program "
                "doesn't have; its nearest methods: 'prefill', 'decode'",
            ],
        )

    def test_constants_are_no_buffers(self) -> None:
        known = names_of_program(_edge(forward=_Tied()).exported_program())
        (constant,) = (n for n, kind in known.others.items() if kind == "constant")
        (told,) = self.refused(["lifted_tensor"], {"forward": known})
        self.assertNotIn(constant, told)
        for name, kind in ((constant, "constant"), ("scale", "parameter")):
            (told,) = self.refused([name], {"forward": known})
            self.assertIn(f"'{name}' is a {kind} in method 'forward'", told)

    def test_one_name_for_two_buffers(self) -> None:
        methods = {"one": _known("a", b="a"), "two": _known("a", "b")}
        (told,) = self.refused(["a", "b"], methods)
        for words in ("'a'", "'two'", "'a', 'b'"):
            self.assertIn(words, told)

    def test_names_that_are_none(self) -> None:
        for declared in ([3], [["a"]], {"kv": 3}, {"kv": {"prefill": 3}}, {3: "kv"}):
            with self.assertRaisesRegex(ValueError, "expected fully qualified names"):
                checked_names(declared, True)
        with self.assertRaisesRegex(ValueError, "single string 'kv'"):
            checked_names("kv", True)
        with self.assertRaisesRegex(ValueError, "is empty"):
            checked_names({}, True)
        with self.assertRaisesRegex(ValueError, "'kv' but share_mutable_buffers is"):
            checked_names({"kv": "a"}, False)
