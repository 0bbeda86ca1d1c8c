# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""What the methods of a program have to agree on to share buffers, and who disagrees.

Each method is described once, by `describe_method`: which of its buffers are declared,
which of these it writes, and which state is its own. All else here compares such
descriptions. `agree` gives each declared buffer the method that decides on it, the first
that writes it, or says who can't have the buffer there. A buffer that no method writes
is a constant of each, which is no error and takes no agreement.

It is called for all methods so far whenever one has been described, so that what can't
be is told as early as it can be known. Nothing here changes a graph or a plan. What a
declared name means is found in `shared_buffer_names`, where buffers go is decided in
`memory_planning_pass`.
"""

import warnings
from dataclasses import dataclass
from typing import (
    Any,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.passes.shared_buffers import (
    find_overlap,
    is_placed,
    iter_graph_modules,
    owner_of_placement,
    resolve_inplace_root,
    Slot,
    spans_by_arena,
)
from executorch.exir.schema import DeviceType, TensorShapeDynamism
from executorch.exir.tensor import TensorSpec
from torch.export.exported_program import ExportGraphSignature
from torch.fx import Node
from torch.utils import _pytree as pytree


HOST = f"{DeviceType.CPU.name}:0"


@dataclass(frozen=True)
class DeclaredBuffer:
    """A buffer of a method that methods share, by one of its inputs."""

    label: str
    placeholder: Node
    is_mutated: bool

    @property
    def spec(self) -> TensorSpec:
        return owner_of_placement(self.placeholder.meta["spec"])


@dataclass(frozen=True)
class SharingMethod:
    """A method of the program, as the others need to know it."""

    # In quotes, or else its number.
    name: str
    graph_module: torch.fx.GraphModule
    declared: Sequence[DeclaredBuffer]
    # By label, those of the declared buffers that it writes, and so are planned.
    written: Mapping[str, TensorSpec]
    # The other buffers that it writes, by FQN.
    private: Mapping[str, TensorSpec]
    # The FQNs of the buffers that it uses.
    used: FrozenSet[str]
    # By label, the backend that has taken a declared buffer over.
    backends: Mapping[str, str]
    # By label, the arena in which the algorithm has put a buffer, and its device.
    arenas: Mapping[str, int]
    devices: Mapping[str, str]
    is_planned: bool

    def read(self) -> Iterator[DeclaredBuffer]:
        """The declared buffers that it has and doesn't write; nothing plans those."""
        return (each for each in self.declared if not each.is_mutated)


def describe_method(
    name: str,
    graph_module: torch.fx.GraphModule,
    graph_signature: ExportGraphSignature,
    labels: Mapping[str, str],
    *,
    is_planned: bool,
) -> SharingMethod:
    """Describe a method; `labels` has the declared buffers by FQN."""
    inputs = graph_signature.inputs_to_buffers
    mutated = frozenset(graph_signature.buffers_to_mutate.values())
    declared: List[DeclaredBuffer] = []
    private: Dict[str, TensorSpec] = {}
    used: List[str] = []
    for node in graph_module.graph.nodes:
        fqn = inputs.get(node.target) if node.op == "placeholder" else None
        if fqn is None:
            continue
        if node.users:
            used.append(fqn)
        if fqn in labels:
            declared.append(DeclaredBuffer(labels[fqn], node, fqn in mutated))
        elif fqn in mutated:
            private[fqn] = resolve_inplace_root(node.meta["spec"])
    arenas = {each.label: each.spec.mem_id for each in declared if each.is_mutated}
    return SharingMethod(
        name=name,
        graph_module=graph_module,
        declared=declared,
        written={each.label: each.spec for each in declared if each.is_mutated},
        private=private,
        used=frozenset(used),
        backends=_backends_of(graph_module, labels),
        arenas=arenas,
        devices={
            f: device_of_arena(graph_module, arena) for f, arena in arenas.items()
        },
        is_planned=is_planned,
    )


def _backends_of(
    graph_module: torch.fx.GraphModule, labels: Mapping[str, str]
) -> Dict[str, str]:
    backends: Dict[str, str] = {}
    for module in iter_graph_modules(graph_module):
        for node in module.graph.nodes:
            if node.target is executorch_call_delegate:
                lowered = getattr(module, node.args[0].target)
                owned = lowered.original_module.graph_signature.inputs_to_buffers
                for fqn in owned.values():
                    if fqn in labels:
                        backends[labels[fqn]] = lowered.backend_id
    return backends


def agree(
    methods: Sequence[SharingMethod], *, keeps_arenas: bool
) -> Dict[str, SharingMethod]:
    """By label, the first method that writes a declared buffer.

    Args:
        methods: The methods so far, of which the last one may not be planned yet.
        keeps_arenas: Whether buffers stay in the arenas that the algorithm gives them.

    Raises:
        ValueError: Another method can't have the buffer where that one has it.
    """
    homes: Dict[str, SharingMethod] = {}
    for method in methods:
        for label in method.written:
            homes.setdefault(label, method)
    for method in methods:
        for label, backend in method.backends.items():
            if label in homes:
                raise _owned_by_backend(label, method, backend)
        for each in method.declared:
            if each.label in homes:
                _check_same(each, homes[each.label], method, keeps_arenas)
    return homes


def _owned_by_backend(label: str, method: SharingMethod, backend: str) -> ValueError:
    return ValueError(
        f"Shared buffer '{label}' of method {method.name} belongs to a delegate to "
        f"{backend}, which keeps a copy of its own; expected an input of the method. "
        "Keep the operators that read it out of the partition, or take the name out of "
        "shared_buffer_fqns"
    )


def check_bounded(method: SharingMethod) -> None:
    """Refuse, before anything is planned, a size that isn't known; ValueError."""
    for each in method.declared:
        spec = each.spec
        if spec.shape_dynamism == TensorShapeDynamism.DYNAMIC_UNBOUND:
            raise ValueError(
                f"Shared buffer '{each.label}' of method {method.name} has the shape "
                f"{list(spec.shape)}, which has no upper bound; expected a bounded "
                "one, since a shared buffer has a fixed place"
            )


def _check_same(
    buffer: DeclaredBuffer,
    home: SharingMethod,
    other: SharingMethod,
    keeps_arenas: bool,
) -> None:
    """Check that a buffer is in one method what it is in the one that decides on it."""
    label = buffer.label
    wanted = _traits(home.written[label])
    found = _traits(buffer.spec)
    if home.is_planned and other.is_planned:
        arena, device = home.arenas[label], home.devices[label]
        if keeps_arenas:
            # Who only reads it has no say in the arena, but must be able to have it
            # there.
            wanted["arena"] = arena
            found["arena"] = other.arenas.get(label, arena)
            there = device_of_arena(other.graph_module, arena)
        else:
            there = device if _knows_devices(other.graph_module) else HOST
        wanted["device"] = device
        found["device"] = other.devices.get(label, there)
    for trait, value in wanted.items():
        if found[trait] != value:
            raise ValueError(
                f"Shared buffer '{label}' has {trait} {value} in method {home.name} "
                f"but {trait} {found[trait]} in method {other.name}; one place can't "
                "serve both. Export both methods from the same buffer and plan it "
                "alike, or take the name out of shared_buffer_fqns"
            )


def _traits(spec: TensorSpec) -> Dict[str, Any]:
    return {
        "dtype": spec.dtype,
        "size": f"{list(spec.shape)} ({spec.nbytes()} bytes)",
        "dim order": list(spec.dim_order),
    }


def device_entry(graph_module: torch.fx.GraphModule, arena: int) -> Optional[Any]:
    """What says that an arena is on an accelerator; None for one of the host's."""
    for entry in graph_module.meta.get("non_const_buffer_device") or ():
        if entry.buffer_idx == arena:
            return entry
    return None


def _knows_devices(graph_module: torch.fx.GraphModule) -> bool:
    return graph_module.meta.get("non_const_buffer_device") is not None


def device_of_arena(graph_module: torch.fx.GraphModule, arena: int) -> str:
    entry = device_entry(graph_module, arena)
    return HOST if entry is None else f"{entry.device_type.name}:{entry.device_index}"


def check_apart(method: SharingMethod, planned: Mapping[Slot, TensorSpec]) -> None:
    """Check that the algorithm gave each buffer bytes of its own for all of the method.

    Raises:
        ValueError: Arena or offset is unset, or another tensor lies there.
    """
    for label, spec in method.written.items():
        if not is_placed(spec):
            raise ValueError(
                f"Shared buffer '{label}' of method {method.name}: the planning "
                f"algorithm left it at arena {spec.mem_id}, offset {spec.mem_offset}; "
                "expected both to be set"
            )
    for arena, spans in sorted(spans_by_arena(method.graph_module).items()):
        overlap = find_overlap(spans, planned.values())
        if overlap is not None:
            first, second = (
                f"{_describe(method, span.root)} at bytes {span.start} to {span.end}"
                for span in overlap
            )
            raise ValueError(
                f"In method {method.name}, {first} of arena {arena} overlaps {second}; "
                "expected each mutable buffer to have its bytes for itself. The "
                "planning algorithm must keep mutable buffers for all of the method"
            )


def _describe(method: SharingMethod, spec: Optional[TensorSpec]) -> str:
    """Name a tensor for a reader: the buffer, or the node that makes it."""
    for each in method.declared:
        if each.spec is spec:
            return f"shared buffer '{each.label}'"
    for fqn, private in method.private.items():
        if private is spec:
            return f"mutable buffer '{fqn}'"
    for module in iter_graph_modules(method.graph_module):
        for node in module.graph.nodes:
            leaves = pytree.tree_leaves(node.meta.get("spec"))
            if any(leaf is spec for leaf in leaves):
                return f"tensor '{node.name}'"
    return "another tensor"


def warn_of_private_copies(methods: Sequence[SharingMethod]) -> None:
    """Warn, once for all, of state that several methods have and that isn't shared."""
    lines: List[str] = []
    for fqn in sorted(frozenset().union(*(method.private for method in methods))):
        using = [method.name for method in methods if fqn in method.used]
        if len(using) > 1:
            lines.append(f"'{fqn}' ({', '.join(using)})")
    if lines:
        warnings.warn(
            "Mutable buffers that are not in shared_buffer_fqns though several "
            f"methods use them: {'; '.join(lines)}. Each method that writes one has "
            "it for itself, and a method that only reads one has the initial value, "
            "so none sees what another writes.",
            stacklevel=4,
        )


def warn_of_lone_buffers(known_in: Mapping[str, Tuple[str, ...]]) -> None:
    """Warn of declared buffers that only one method's program knows."""
    lone = [
        f"'{label}' ({methods[0]})"
        for label, methods in sorted(known_in.items())
        if len(methods) == 1
    ]
    if lone:
        warnings.warn(
            "Buffers in shared_buffer_fqns that only one method has, so that nothing "
            f"shares them: {'; '.join(lone)}. If another method knows such a buffer by "
            "another name, name it by method: "
            'shared_buffer_fqns={"kv": {"prefill": "model.kv", "decode": "lm.kv"}}.',
            stacklevel=4,
        )


def warn_of_lost_state(state: Mapping[str, Iterable[str]]) -> None:
    """Warn that methods overwrite each other's state; `state` has it by method."""
    having = [
        f"{method} ({', '.join(repr(fqn) for fqn in sorted(fqns))})"
        for method, fqns in state.items()
        if fqns
    ]
    warnings.warn(
        "Several methods, and mutable buffers that have no place of their own: "
        f"{'; '.join(having)}. Where methods run in the same arenas, as in Python's "
        "runtime and in C++ Module with share_memory_arenas=true, each call overwrites "
        "what the other methods keep. Plan with "
        "MemoryPlanningPass(share_mutable_buffers=True), which also makes buffers of "
        "one name one buffer, and with shared_buffer_fqns to choose which; or say "
        "methods_share_arenas=False if each method has arenas of its own.",
        stacklevel=4,
    )
