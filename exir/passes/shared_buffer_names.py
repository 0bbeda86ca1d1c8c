# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Which buffers of a program's methods are one buffer, by the names that a user gives.

A name is an FQN that holds in every method, or stands for one FQN in each. Names are
given in good faith: a tensor may have several, of which export keeps one, and another
one in each method; an earlier pass may have left a buffer without use or mutation.
So a name is looked up in all that a program still knows of its module, and names that
are found to mean one tensor are one buffer. In three phases: `checked_names` reads what
the user gave, `names_of_program` what a program knows, and `resolve_names` puts the two
together or refuses all names that mean nothing, in one message.

It is assumed that one tensor in a program's state is one tensor in its module. What the
buffers have to have in common is checked in `memory_planning_pass`.
"""

import difflib
import re
from dataclasses import dataclass, field
from typing import (
    Any,
    Dict,
    Hashable,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import torch
from executorch.exir.delegate import executorch_call_delegate
from torch.export.exported_program import ExportedProgram, ExportGraphSignature

# What `MemoryPlanningPass` takes: FQNs, or for each label an FQN, or one by method.
FqnByMethod = Mapping[str, str]
SharedBufferFqns = Union[Iterable[str], Mapping[str, Union[str, FqnByMethod]]]

# Constants get such names when they become inputs of a program; no module has them.
_NAME_OF_CONSTANT = re.compile(r"_*(lifted|prop|frozen)*_*tensor_constant_*\d*$")

_NEAREST = 3


@dataclass(frozen=True)
class SharedNames:
    """Which names are declared; each stands for one buffer of the program."""

    # FQNs that hold in every method, by label. Mostly a label is its FQN.
    everywhere: Mapping[str, str]
    # FQNs by method, by label.
    by_method: Mapping[str, FqnByMethod]

    def __str__(self) -> str:
        return ", ".join(map(repr, sorted([*self.everywhere, *self.by_method])))

    def in_method(self, method: str) -> Dict[str, str]:
        """By label, the FQN that is declared for a method."""
        found = dict(self.everywhere)
        for label, fqns in self.by_method.items():
            if method in fqns:
                found[label] = fqns[method]
        return found


@dataclass(frozen=True)
class MethodNames:
    """What a method's program knows of names, whether or not it uses the tensors."""

    # By name, what tells one tensor from another.
    tensors: Mapping[str, Hashable]
    # Of these, the names that aren't buffers', with what they are.
    others: Mapping[str, str]

    def buffers(self) -> Iterator[str]:
        return (name for name in self.tensors if name not in self.others)


@dataclass(frozen=True)
class ResolvedNames:
    """Which names mean the declared buffers."""

    # By method, the labels by FQN.
    labels: Mapping[str, Mapping[str, str]]
    # By label, the methods whose programs know the buffer, used or not.
    known_in: Mapping[str, Tuple[str, ...]]


def checked_names(
    fqns: Optional[SharedBufferFqns], share_mutable_buffers: bool
) -> Optional[SharedNames]:
    """What `shared_buffer_fqns` declares, if it makes sense; raises ValueError if not."""
    if fqns is None:
        return None
    if isinstance(fqns, (str, bytes)):
        raise ValueError(
            f"shared_buffer_fqns is the single string {fqns!r}, not a collection of "
            f"names; did you mean [{fqns!r}]?"
        )
    if isinstance(fqns, Mapping):
        fqns_of = {f: dict(fqn) for f, fqn in fqns.items() if isinstance(fqn, Mapping)}
        everywhere = {f: fqn for f, fqn in fqns.items() if f not in fqns_of}
    else:
        fqns, fqns_of = list(fqns), {}
        _check_strings(fqns)
        everywhere = {fqn: fqn for fqn in fqns}
    names = SharedNames(everywhere, fqns_of)
    _check_strings([*everywhere, *everywhere.values(), *fqns_of])
    for by_method in fqns_of.values():
        _check_strings([*by_method, *by_method.values()])
    if not fqns:
        raise ValueError(
            "shared_buffer_fqns is empty; name the buffers to share, or leave it at "
            "None to share all mutable buffers in an arena of their own"
        )
    if not share_mutable_buffers:
        raise ValueError(
            f"shared_buffer_fqns names {names} but "
            "share_mutable_buffers is False; set share_mutable_buffers=True to share"
        )
    return names


def _check_strings(given: Iterable[Any]) -> None:
    for name in given:
        if not isinstance(name, str):
            raise ValueError(
                f"shared_buffer_fqns holds {name!r}, a {type(name).__name__}; expected "
                "fully qualified names of buffers, which are strings"
            )


def _identity(name: str, tensor: Any) -> Hashable:
    """What two names have in common if and only if they mean one tensor."""
    if not isinstance(tensor, torch.Tensor):
        return name
    try:
        storage = tensor.untyped_storage()._cdata
    except RuntimeError:
        # A tensor without storage, as of a subclass, is known by being itself.
        return id(tensor)
    return (
        storage,
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
    )


def names_of_signature(signature: ExportGraphSignature) -> MethodNames:
    """What a signature alone tells: it knows each tensor by one name."""
    kinds = {
        "parameter": signature.inputs_to_parameters.values(),
        "constant": signature.inputs_to_lifted_tensor_constants.values(),
    }
    others = {name: kind for kind, names in kinds.items() for name in names}
    inputs = signature.inputs_to_buffers.values()
    others.update({name: "constant" for name in inputs if is_constant_name(name)})
    return MethodNames({name: name for name in (*inputs, *others)}, others)


def names_of_program(program: ExportedProgram) -> MethodNames:
    """All names that a program knows, also those of tensors that it has no use for."""
    known = names_of_signature(program.graph_signature)
    state = {**program.state_dict, **program.constants}
    tensors = dict(known.tensors)
    tensors.update({fqn: fqn for fqn in _owned_by_backends(program.graph_module)})
    tensors.update({name: _identity(name, value) for name, value in state.items()})
    others = dict(known.others)
    for name, value in state.items():
        if isinstance(value, torch.nn.Parameter):
            others[name] = "parameter"
        elif is_constant_name(name):
            others[name] = "constant"
    return MethodNames(tensors, others)


def _owned_by_backends(graph_module: torch.fx.GraphModule) -> Iterator[str]:
    for node in graph_module.graph.nodes:
        if node.target is executorch_call_delegate:
            lowered = getattr(graph_module, node.args[0].target)
            owned = lowered.original_module.graph_signature.inputs_to_buffers
            yield from owned.values()


def is_constant_name(name: str) -> bool:
    """Whether a buffer's name was made up for a constant, and no module has it."""
    return _NAME_OF_CONSTANT.match(name.rpartition(".")[2]) is not None


@dataclass
class _Groups:
    """Which labels are one buffer, and by which tensors of which methods they go."""

    parents: Dict[str, str] = field(default_factory=dict)
    labels: Dict[str, Dict[Hashable, str]] = field(default_factory=dict)

    def find(self, label: str) -> str:
        while self.parents.get(label, label) != label:
            label = self.parents[label]
        return label

    def add(self, label: str, method: str, tensor: Hashable) -> None:
        """Note that `label` means that tensor; so do all other labels of it."""
        of_method = self.labels.setdefault(method, {})
        present = self.find(of_method.setdefault(tensor, label))
        first, second = sorted((present, self.find(label)))
        self.parents[second] = first


def resolve_names(
    declared: SharedNames, methods: Mapping[str, MethodNames]
) -> ResolvedNames:
    """Find out which inputs of which methods are one buffer.

    Raises:
        ValueError: Some names mean no buffer, all of which are told, or one name means
            two buffers of a method.
    """
    groups = _Groups()
    faults: List[str] = []
    for label, fqn in sorted(declared.everywhere.items()):
        knowing = {m: names for m, names in methods.items() if fqn in names.tensors}
        faults += _faults_of_name(fqn, knowing, methods)
        for method, names in knowing.items():
            groups.add(label, method, names.tensors[fqn])
    for label, fqns in sorted(declared.by_method.items()):
        for method, fqn in fqns.items():
            if method not in methods:
                faults.append(_unknown_method(label, method, methods))
                continue
            names = methods[method]
            if fqn in names.tensors:
                faults += _faults_of_name(fqn, {method: names}, methods)
                groups.add(label, method, names.tensors[fqn])
            else:
                faults.append(
                    f"Shared buffer '{label}': method '{method}' has no buffer "
                    f"'{fqn}'; the nearest that it has: "
                    f"{_nearest(fqn, names.buffers())}"
                )
    _refuse(faults)
    return _resolved(groups, methods)


def _refuse(faults: Sequence[str]) -> None:
    if len(faults) == 1:
        raise ValueError(faults[0])
    if faults:
        raise ValueError(f"{len(faults)} names can't be shared:\n" + "\n".join(faults))


def _resolved(groups: _Groups, methods: Mapping[str, MethodNames]) -> ResolvedNames:
    labels: Dict[str, Dict[str, str]] = {}
    known_in: Dict[str, Set[str]] = {}
    for method, names in methods.items():
        means = {
            tensor: groups.find(label)
            for tensor, label in groups.labels.get(method, {}).items()
        }
        _check_one_tensor_each(method, names, means)
        labels[method] = {
            fqn: means[tensor]
            for fqn, tensor in names.tensors.items()
            if tensor in means
        }
        for label in means.values():
            known_in.setdefault(label, set()).add(method)
    return ResolvedNames(
        labels,
        {
            label: tuple(m for m in methods if m in known)
            for label, known in known_in.items()
        },
    )


def _check_one_tensor_each(
    method: str, names: MethodNames, means: Mapping[Hashable, str]
) -> None:
    first: Dict[str, Hashable] = {}
    for tensor, label in means.items():
        other = first.setdefault(label, tensor)
        if other != tensor:
            fqns = sorted(f for f, t in names.tensors.items() if t in (tensor, other))
            raise ValueError(
                f"Shared buffer '{label}' stands for several buffers of method "
                f"'{method}': {', '.join(map(repr, fqns))}; expected one. Name buffers "
                "that aren't one tensor in separate entries of shared_buffer_fqns"
            )


def check_names_of_method(
    declared: SharedNames, method: str, names: MethodNames
) -> None:
    """Refuse, as `resolve_names` does, what a method alone shows to be no buffer.

    Raises:
        ValueError: A declared name is that of a parameter or of a constant.
    """
    faults: List[str] = []
    for _, fqn in sorted(declared.in_method(method).items()):
        if fqn in names.others:
            faults += _faults_of_name(fqn, {method: names}, {})
    _refuse(faults)


def _faults_of_name(
    fqn: str, knowing: Mapping[str, MethodNames], methods: Mapping[str, MethodNames]
) -> List[str]:
    """What is wrong with a name, in words; nothing for a buffer's."""
    if not knowing:
        return [_unknown_buffer(fqn, methods)]
    for method, names in knowing.items():
        if fqn in names.others:
            return [
                f"Shared buffer '{fqn}' is a {names.others[fqn]} in method '{method}'; "
                "expected a buffer. Constants are stored once for all methods as it "
                "is: take the name out of shared_buffer_fqns"
            ]
    return []


def _nearest(name: str, known: Iterable[str]) -> str:
    by_likeness = sorted(
        known,
        key=lambda other: (
            -difflib.SequenceMatcher(None, name, other).ratio(),
            other,
        ),
    )
    return ", ".join(f"'{other}'" for other in by_likeness[:_NEAREST]) or "none at all"


def _unknown_buffer(fqn: str, methods: Mapping[str, MethodNames]) -> str:
    known: Set[str] = set()
    for names in methods.values():
        known.update(names.buffers())
    searched = ", ".join(f"'{method}'" for method in methods)
    return (
        f"Shared buffer '{fqn}' is in none of the methods ({searched}); the nearest "
        f"buffers that they have: {_nearest(fqn, known)}"
    )


def _unknown_method(label: str, method: str, methods: Iterable[str]) -> str:
    return (
        f"Shared buffer '{label}' is declared for method '{method}', which the program "
        f"doesn't have; its nearest methods: {_nearest(method, methods)}"
    )
