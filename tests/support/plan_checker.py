# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Check a memory plan without asking the planner.

    findings = check_plan(graph_module, signature)
    assert not findings, report(findings)

Nothing here reads the lifetimes that the planner noted. The graph is walked as the emitter walks
it, control-flow branches included, into a list of steps with what each one writes and needs; live
ranges then follow by the textbook analysis (a tensor is alive from where it is written to the
last step that needs it). What the emitter does, and a plan has to survive:

- the branches of a `cond` see the operands themselves; a result that a branch didn't make at the
  place of the cond's is copied there, and only what can't be copied is handed on by pointer;
- the bodies of `map` and `scan` run many times, so what they take from outside stays alive until
  the last round; their results are copied out;
- a view that is static and planned is not executed: it reads the place of its base;
- mutable buffers hold their values from one call to the next;
- all inputs are there before the first operator runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.exir import memory
from executorch.exir.control_flow import while_loop as exir_while
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.schema import TensorShapeDynamism
from executorch.exir.tensor import TensorSpec
from torch.export.graph_signature import ExportGraphSignature, OutputKind
from torch.utils import _pytree as pytree

# --- what is said about a plan ---------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Bytes of an arena."""

    arena: int
    offset: int
    bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.bytes

    def overlaps(self, other: Place) -> bool:
        return (
            self.arena == other.arena
            and self.bytes > 0
            and other.bytes > 0
            and self.offset < other.end
            and other.offset < self.end
        )


@dataclass(frozen=True)
class Placed:
    """A tensor, named for the node that writes it, and where the plan puts it."""

    name: str
    place: Place

    def __str__(self) -> str:
        place = self.place
        return f"{self.name} [arena {place.arena}, bytes {place.offset}..{place.end})"


@dataclass(frozen=True)
class Overlap:
    """Two tensors that are alive at the same step and have bytes in common."""

    first: Placed
    second: Placed
    step: str

    def __str__(self) -> str:
        return f"{self.first} and {self.second} are both alive at {self.step}"


@dataclass(frozen=True)
class Misaligned:
    """A tensor whose offset isn't a multiple of the plan's alignment."""

    tensor: Placed
    alignment: int

    def __str__(self) -> str:
        return f"{self.tensor} is not aligned to {self.alignment}"


@dataclass(frozen=True)
class OutsideArena:
    """A tensor that ends behind the arena's recorded size (bytes; None: no such arena)."""

    tensor: Placed
    size: int | None

    def __str__(self) -> str:
        return f"{self.tensor} is outside of its arena, recorded as {self.size} bytes"


@dataclass(frozen=True)
class OutsideBase:
    """A tensor that should lie within another's storage, at an offset, and does not."""

    tensor: Placed
    base: Placed
    offset: int

    def __str__(self) -> str:
        return f"{self.tensor} should lie {self.offset} bytes into {self.base}"


@dataclass(frozen=True)
class Unplaced:
    """A tensor that the program computes and the plan has no place for."""

    name: str
    step: str

    def __str__(self) -> str:
        return f"{self.name} has no place, but {self.step} writes it"


@dataclass(frozen=True)
class NeverWritten:
    """A place that is read before anything has been written there."""

    tensor: Placed
    step: str

    def __str__(self) -> str:
        return f"{self.step} reads {self.tensor}, which may not have been written"


@dataclass(frozen=True)
class OnSharedBuffer:
    """A tensor of some method that lies on a shared buffer's place."""

    method: str
    tensor: Placed
    fqn: str
    shared: Place

    def __str__(self) -> str:
        return f"{self.tensor} of {self.method} lies on shared buffer {self.fqn}, {self.shared}"


@dataclass(frozen=True)
class SharedApart:
    """A shared buffer that has another place in one method than in another."""

    fqn: str
    places: tuple[tuple[str, Place | None], ...]

    def __str__(self) -> str:
        return f"shared buffer {self.fqn} has several places: {self.places}"


Finding = (
    Overlap
    | Misaligned
    | OutsideArena
    | OutsideBase
    | Unplaced
    | NeverWritten
    | OnSharedBuffer
    | SharedApart
)


def report(findings: Iterable[Finding]) -> str:
    return "\n".join(f"{type(finding).__name__}: {finding}" for finding in findings)


# --- storages --------------------------------------------------------------------------------


class Value(tuple[TensorSpec, ...]):
    """Where a tensor may be stored: one storage, or after a `cond` one for each branch.

    Storages are told apart by their spec, views aside. (A class of its own is a leaf to pytree.)
    """


def _storage(spec: TensorSpec) -> TensorSpec:
    """The spec that holds the memory fields of `spec`: a view keeps them in its base."""
    while isinstance(spec, _ViewSpec):
        spec = spec._base
    return spec


def _base(spec: TensorSpec) -> tuple[TensorSpec, int] | None:
    """What `spec` lies in, and the offset there (1.4 knows offset 0 only)."""
    if hasattr(spec, "storage_base"):
        base, offset = spec.storage_base, spec.storage_base_offset
    else:
        base, offset = spec.inplace_base, 0
    return None if base is None else (_storage(base), offset)


def place_of(spec: TensorSpec) -> Place | None:
    """Where the emitter will say that a tensor with this spec is."""
    if spec.mem_id is None or spec.mem_offset is None:
        return None
    return Place(spec.mem_id, spec.mem_offset, spec.nbytes())


def _specs(tree: Any) -> list[TensorSpec]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, TensorSpec)]


# --- the graph as steps ----------------------------------------------------------------------


# Where in the nest of branches something is: for each `cond` around it, its name and the branch's.
Path = tuple[tuple[str, str], ...]


def _exclude(first: Path, second: Path) -> bool:
    """Do the paths go apart at a cond, so that no run sees both?"""
    for (cond, branch), (other_cond, other_branch) in zip(first, second, strict=False):
        if cond != other_cond:
            return False
        if branch != other_branch:
            return True
    return False


@dataclass
class _Step:
    """Something that runs: what it writes from scratch, what it needs, what may run next."""

    name: str
    writes: set[TensorSpec]
    needs: set[TensorSpec]
    forgets: set[TensorSpec] = field(default_factory=set)
    """What no later step needs, on the ways that lead through this one."""
    next: list[int] = field(default_factory=list)


@dataclass
class _Flow:
    """The steps of a method, in an order in which every step follows one that leads to it."""

    steps: list[_Step] = field(default_factory=list)
    tails: list[int] = field(default_factory=list)
    names: dict[TensorSpec, str] = field(default_factory=dict)
    paths: dict[TensorSpec, Path] = field(default_factory=dict)
    path: Path = ()
    """The branches that the step to come is in."""
    persistent: set[TensorSpec] = field(default_factory=set)
    given: set[TensorSpec] = field(default_factory=set)
    returned: set[TensorSpec] = field(default_factory=set)

    def step(
        self,
        name: str,
        *,
        writes: Iterable[TensorSpec] = (),
        needs: Iterable[TensorSpec] = (),
    ) -> int:
        index = len(self.steps)
        written = set(writes)
        self.name(written, name)
        self.steps.append(_Step(name, written, set(needs)))
        for tail in self.tails:
            self.steps[tail].next.append(index)
        self.tails = [index]
        return index

    def name(self, specs: Iterable[TensorSpec], name: str) -> None:
        for spec in specs:
            self.names.setdefault(spec, name)
            self.paths.setdefault(spec, self.path)

    def written(self, first: int, last: int) -> set[TensorSpec]:
        """What the steps from `first` to `last` write."""
        return set().union(*(step.writes for step in self.steps[first : last + 1]))

    def merge(self, first: int, last: int, specs: set[TensorSpec], into: TensorSpec) -> None:
        """From step `first` to `last`, take `specs` for the storage `into`."""
        for step in self.steps[first : last + 1]:
            for mentioned in (step.writes, step.needs, step.forgets):
                if mentioned & specs:
                    mentioned.difference_update(specs)
                    mentioned.add(into)


def _values(specs: Any) -> Any:
    """The values of a node whose result has these specs, each in its own storage."""
    return pytree.tree_map(
        lambda spec: Value((_storage(spec),)) if isinstance(spec, TensorSpec) else None, specs
    )


def _is_node(x: Any) -> bool:
    return isinstance(x, torch.fx.Node)


def _storages_of(values: Any) -> set[TensorSpec]:
    if isinstance(values, Value):
        return set(values)
    if isinstance(values, (list, tuple)):
        return set().union(*(_storages_of(value) for value in values))
    return set()


@dataclass(frozen=True)
class _Loop:
    """What a loop does around its body, as storages."""

    sliced: set[TensorSpec]
    """Each round reads a part of these,"""
    slices: set[TensorSpec]
    """writes these, which are inputs of the body,"""
    results: set[TensorSpec]
    """and in the end updates these."""


@dataclass(frozen=True)
class _Alternative:
    """A walked branch: the values of its outputs, its first and last step."""

    outputs: list[Any]
    first: int
    last: int


def _same_place(value: Value, result: Value) -> bool:
    place = place_of(result[0])
    return place is not None and all(place_of(spec) == place for spec in value)


def _by_pointer(value: Value, result: Value) -> bool:
    """Has the result no place that is known, or another order than what would be copied?"""
    unbound = result[0].shape_dynamism == TensorShapeDynamism.DYNAMIC_UNBOUND
    return unbound or any(spec.dim_order != result[0].dim_order for spec in value)


class _Walk:
    """Walks one graph, the emitter's way, and appends its steps to a flow."""

    def __init__(self, flow: _Flow, graph_module: torch.fx.GraphModule, prefix: str = "") -> None:
        self.flow = flow
        self.graph_module = graph_module
        self.prefix = prefix
        self.env: dict[torch.fx.Node, Any] = {}
        self.outputs: list[Any] = []

    def run(self, inputs: list[Any]) -> list[Any]:
        """Walk with the values `inputs` for the placeholders; return those of the outputs."""
        remaining = iter(inputs)
        for node in self.graph_module.graph.nodes:
            if node.op == "placeholder":
                self.env[node] = next(remaining)
            elif node.op == "output":
                self.outputs = [
                    self._lookup(x) for x in pytree.tree_leaves(node.args[0], is_leaf=_is_node)
                ]
            elif node.op == "call_function":
                self.env[node] = self._call(node)
        return self.outputs

    def _lookup(self, argument: Any) -> Any:
        return self.env.get(argument) if isinstance(argument, torch.fx.Node) else None

    def _reads(self, arguments: Any) -> set[TensorSpec]:
        nodes = [x for x in pytree.tree_leaves(arguments) if isinstance(x, torch.fx.Node)]
        found: set[TensorSpec] = set()
        for node in nodes:
            found |= _storages_of(self.env.get(node))
        return found

    def _call(self, node: torch.fx.Node) -> Any:
        special: dict[Any, Callable[[torch.fx.Node], Any]] = {
            operator.getitem: self._item,
            memory.alloc: lambda node: _values(node.meta["spec"]),
            memory.view: self._view,
            memory.free: lambda node: None,
            torch.ops.higher_order.cond: self._cond,
            torch.ops.higher_order.map_impl: self._map,
            torch.ops.higher_order.scan: self._scan,
            torch.ops.higher_order.while_loop: self._while,
            exir_while: self._while,
        }
        return special.get(node.target, self._operator)(node)

    def _item(self, node: torch.fx.Node) -> Any:
        values = self._lookup(node.args[0])
        return None if values is None else values[node.args[1]]

    def _name(self, node: torch.fx.Node) -> str:
        return self.prefix + node.name

    def _operator(self, node: torch.fx.Node) -> Any:
        schema = getattr(node.target, "_schema", None)
        out_names = [a.name for a in schema.arguments if a.is_out] if schema else []
        outs = [self._lookup(node.kwargs.get(name)) for name in out_names]
        inputs = {key: value for key, value in node.kwargs.items() if key not in out_names}
        needs = self._reads((node.args, inputs))
        if out_names:
            results = outs[0] if len(outs) == 1 else outs
            writes = set().union(*(_storages_of(out) for out in outs))
        else:
            results = _values(node.meta.get("spec"))
            # What a node names as its result and also takes is changed in place.
            writes = _storages_of(results) - needs
        self.flow.step(self._name(node), writes=writes, needs=needs)
        return results

    def _view(self, node: torch.fx.Node) -> Any:
        spec = node.meta["spec"]
        elided = spec.is_static_shape_tensor and (spec.const or place_of(spec) is not None)
        return _values(spec) if elided else self._lookup(node.args[0])

    def _submodule(self, node: Any) -> torch.fx.GraphModule:
        module = self.graph_module.get_submodule(node.target)
        assert isinstance(module, torch.fx.GraphModule)
        return module

    def _branch(self, graph: Any, name: str, inputs: list[Any]) -> list[Any]:
        return _Walk(self.flow, self._submodule(graph), f"{name}/").run(inputs)

    def _cond(self, node: torch.fx.Node) -> Any:
        predicate, *graphs, operands = _arguments(node)
        name = self._name(node)
        results = _values(node.meta["spec"])
        self.flow.name(_storages_of(results), name)
        inputs = [self._lookup(x) for x in operands]
        self.flow.step(name, needs=_storages_of(self._lookup(predicate)))
        before, after = self.flow.tails, list[int]()
        path = self.flow.path
        branches = []
        for graph in graphs:
            label = f"{name}.{graph.target}"
            self.flow.tails, self.flow.path = before, (*path, (name, label))
            branches.append(self._alternative(graph, label, inputs, results))
            after += self.flow.tails
        self.flow.tails, self.flow.path = after, path
        self._part(branches, _storages_of(results))
        return [
            Value(dict.fromkeys(spec for value in values for spec in value or ()))
            for values in zip(*(branch.outputs for branch in branches), strict=True)
        ]

    def _alternative(
        self, graph: Any, label: str, inputs: list[Any], results: list[Any]
    ) -> _Alternative:
        """Walk a branch; the cond's results are its outputs, unless they go by pointer."""
        first = len(self.flow.steps)
        outputs = self._branch(graph, label, inputs)
        written = self.flow.written(first, len(self.flow.steps))
        pairs = [(v, r) for v, r in zip(outputs, results, strict=True) if v and r]
        made = [(v, r) for v, r in pairs if written.issuperset(v) and _same_place(v, r)]
        copied = [pair for pair in pairs if pair not in made and not _by_pointer(*pair)]
        last = self.flow.step(
            f"{label}/output",
            needs=_storages_of([value for value, _ in copied]),
            writes=_storages_of([result for _, result in copied]),
        )
        for value, result in made:
            self.flow.merge(first, last, set(value), result[0])
        there = [
            result if (value, result) in made or (value, result) in copied else value
            for value, result in zip(outputs, results, strict=True)
        ]
        return _Alternative(there, first, last)

    def _part(self, branches: list[_Alternative], results: set[TensorSpec]) -> None:
        """On the way out of one branch, nothing is needed of what another one would return."""
        born = [self.flow.written(branch.first, branch.last) - results for branch in branches]
        for branch, own in zip(branches, born, strict=True):
            for other in born:
                if other is not own:
                    self.flow.steps[branch.last].forgets.update(other)

    def _repeat(self, node: torch.fx.Node, inputs: list[Any], loop: _Loop) -> None:
        name = self._name(node)
        first = self.flow.step(f"{name}/slice", needs=loop.sliced, writes=loop.slices)
        outputs = self._branch(node.args[0], name, inputs)
        last = self.flow.step(f"{name}/copy", needs=_storages_of(outputs) | loop.results)
        self.flow.steps[last].next.append(first)

    def _map(self, node: torch.fx.Node) -> Any:
        graph, mapped, extra = _arguments(node)
        results = _values(node.meta["spec"])
        slices = self._own_inputs(graph, 0, len(mapped))
        self.flow.step(self._name(node), writes=_storages_of(results))
        inputs = [*slices, *map(self._lookup, extra)]
        loop = _Loop(self._reads(mapped), _storages_of(slices), _storages_of(results))
        self._repeat(node, inputs, loop)
        return results

    def _scan(self, node: torch.fx.Node) -> Any:
        graph, initial, scanned, extra = _arguments(node)
        results = _values(node.meta["spec"])
        slices = self._own_inputs(graph, len(initial), len(scanned))
        needs = self._reads(initial)
        self.flow.step(self._name(node), needs=needs, writes=_storages_of(results))
        inputs = [*results[: len(initial)], *slices, *map(self._lookup, extra)]
        loop = _Loop(self._reads(scanned), _storages_of(slices), _storages_of(results))
        self._repeat(node, inputs, loop)
        return results

    def _while(self, node: torch.fx.Node) -> Any:
        """The emitter has no while loop yet; so nothing that it touches may be given up early."""
        condition, body, *operands = _arguments(node)
        name = self._name(node)
        inputs = [self._lookup(x) for x in pytree.tree_leaves(operands, is_leaf=_is_node)]
        results = _values(node.meta["spec"])
        held = _storages_of(inputs) | _storages_of(results)
        first = self.flow.step(name, needs=_storages_of(inputs), writes=_storages_of(results))
        outputs = self._branch(condition, f"{name}.condition", inputs)
        outputs += self._branch(body, f"{name}.body", inputs)
        last = self.flow.step(f"{name}/next", needs=held | _storages_of(outputs))
        self.flow.steps[last].next.append(first + 1)
        return results

    def _own_inputs(self, graph: Any, first: int, count: int) -> list[Any]:
        nodes = [n for n in self._submodule(graph).graph.nodes if n.op == "placeholder"]
        return [_values(node.meta["spec"]) for node in nodes[first : first + count]]


def _arguments(node: torch.fx.Node) -> Any:
    return node.args


def _buffers(signature: ExportGraphSignature | None) -> dict[str, str]:
    return dict(signature.inputs_to_buffers) if signature is not None else {}


def _flow_of(graph_module: torch.fx.GraphModule, signature: ExportGraphSignature | None) -> _Flow:
    flow = _Flow()
    buffers = _buffers(signature)
    inputs = []
    for node in graph_module.graph.nodes:
        if node.op != "placeholder":
            continue
        value = _values(node.meta.get("spec"))
        inputs.append(value)
        for spec in _storages_of(value):
            flow.names.setdefault(spec, node.name)
            # A constant with a place is a weight that is trained: loaded once, kept.
            if node.target in buffers or spec.const:
                flow.persistent.add(spec)
            flow.given.add(spec)
    flow.step("inputs", writes=flow.given)
    outputs = _Walk(flow, graph_module).run(inputs)
    flow.returned = _storages_of(_program_outputs(outputs, signature))
    flow.step("outputs", needs=flow.returned | flow.persistent)
    return flow


def _program_outputs(outputs: list[Any], signature: ExportGraphSignature | None) -> list[Any]:
    """Without the results that are buffers' mutations: the emitter drops them.

    Once it has, the graph has fewer outputs than the signature.
    """
    if signature is None or len(outputs) != len(signature.output_specs):
        return outputs
    kinds = [spec.kind for spec in signature.output_specs]
    return [
        value
        for value, kind in zip(outputs, kinds, strict=True)
        if kind is not OutputKind.BUFFER_MUTATION
    ]


# --- live ranges -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Liveness:
    flow: _Flow
    alive: list[set[TensorSpec]]
    """What is alive at each step."""
    needed_at_entry: set[TensorSpec]

    def placed(self, spec: TensorSpec) -> Placed | None:
        place = place_of(spec)
        return None if place is None else Placed(self.flow.names.get(spec, "?"), place)


def _liveness(flow: _Flow) -> _Liveness:
    """Backward analysis to a fixed point; loops need more than one pass."""
    before: list[set[TensorSpec]] = [set() for _ in flow.steps]
    after: list[set[TensorSpec]] = [set() for _ in flow.steps]
    changed = True
    while changed:
        changed = False
        for index in range(len(flow.steps) - 1, -1, -1):
            step = flow.steps[index]
            out = set().union(*(before[following] for following in step.next))
            into = step.needs | (out - step.writes - step.forgets)
            if into != before[index] or out != after[index]:
                before[index], after[index], changed = into, out, True
    alive = [
        before[index] | after[index] | step.writes | flow.persistent
        for index, step in enumerate(flow.steps)
    ]
    return _Liveness(flow, alive, before[0])


# --- checks ----------------------------------------------------------------------------------


def check_plan(
    graph_module: torch.fx.GraphModule,
    signature: ExportGraphSignature | None = None,
    *,
    alignment: int = 16,
) -> list[Finding]:
    """Everything that is wrong with the plan of one method, in a stable order.

    Args:
        graph_module: A planned graph: specs have their places, `non_const_buffer_sizes` is set.
        signature: The graph's signature; without one there are no buffers.
        alignment: What every offset must be a multiple of, in bytes.
    """
    live = _liveness(_flow_of(graph_module, signature))
    specs = list(live.flow.names)
    sizes = graph_module.meta["non_const_buffer_sizes"]
    findings: list[Finding] = [
        *_check_places(live, specs, sizes, alignment),
        *_check_bases(live, specs),
        *_check_written(live),
        *_check_overlaps(live),
    ]
    return sorted(findings, key=str)


def _check_places(
    live: _Liveness, specs: list[TensorSpec], sizes: list[int], alignment: int
) -> Iterator[Finding]:
    written = live.flow.written(0, len(live.flow.steps))
    for spec in specs:
        tensor = live.placed(spec)
        if tensor is None:
            if spec in written and _must_be_placed(live.flow, spec):
                name = live.flow.names[spec]
                yield Unplaced(name, name)
            continue
        if tensor.place.offset % alignment:
            yield Misaligned(tensor, alignment)
        arena = tensor.place.arena
        size = sizes[arena] if 0 < arena < len(sizes) else None
        if size is None or tensor.place.end > size:
            yield OutsideArena(tensor, size)


def _must_be_placed(flow: _Flow, spec: TensorSpec) -> bool:
    """Inputs, buffers and results may be the caller's; and the runtime finds room for some."""
    if spec in flow.given or spec in flow.returned or spec.const:
        return False
    return spec.shape_dynamism != TensorShapeDynamism.DYNAMIC_UNBOUND


def _check_bases(live: _Liveness, specs: list[TensorSpec]) -> Iterator[Finding]:
    for spec in specs:
        tensor, based = live.placed(spec), _base(spec)
        if tensor is None or based is None:
            continue
        base = live.placed(based[0])
        if base is None:
            continue
        inside = (
            tensor.place.arena == base.place.arena
            and tensor.place.offset == base.place.offset + based[1]
            and tensor.place.end <= base.place.end
        )
        if not inside:
            yield OutsideBase(tensor, base, based[1])


def _check_written(live: _Liveness) -> Iterator[Finding]:
    for step in live.flow.steps:
        for spec in step.needs & live.needed_at_entry:
            tensor = live.placed(spec)
            if tensor is not None:
                yield NeverWritten(tensor, step.name)


def _chain(spec: TensorSpec) -> set[TensorSpec]:
    """`spec` and all that it lies in."""
    chain = {spec}
    based = _base(spec)
    while based is not None and based[0] not in chain:
        chain.add(based[0])
        based = _base(based[0])
    return chain


def _may_overlap(flow: _Flow, first: TensorSpec, second: TensorSpec) -> bool:
    """One lies in the other by design, or no run has both."""
    within = first in _chain(second) or second in _chain(first)
    return within or _exclude(flow.paths[first], flow.paths[second])


def _check_overlaps(live: _Liveness) -> Iterator[Finding]:
    """Sweep the offsets of what is alive at each step; name each pair once."""
    seen: set[tuple[TensorSpec, TensorSpec]] = set()
    for step, alive in zip(live.flow.steps, live.alive, strict=True):
        placed = [(spec, tensor) for spec in alive if (tensor := live.placed(spec)) is not None]
        placed.sort(key=lambda item: (item[1].place.arena, item[1].place.offset, item[1].name))
        open_: list[tuple[TensorSpec, Placed]] = []
        for spec, tensor in placed:
            open_ = [item for item in open_ if item[1].place.overlaps(tensor.place)]
            for other_spec, other in open_:
                pair = (other_spec, spec)
                if pair not in seen and not _may_overlap(live.flow, *pair):
                    seen.add(pair)
                    yield Overlap(other, tensor, step.name)
            open_.append((spec, tensor))


# --- several methods -------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A planned method: its graph and the graph's signature."""

    graph_module: torch.fx.GraphModule
    signature: ExportGraphSignature | None


def check_methods(
    methods: Mapping[str, Method], shared: Iterable[str] = (), *, alignment: int = 16
) -> dict[str, list[Finding]]:
    """Check each method, and that the `shared` buffers (FQNs) have their places to themselves.

    A shared buffer has one place in all methods that have the buffer. In a method that doesn't,
    nothing may lie there either, at any time: the value has to survive the call.
    """
    findings = {
        name: check_plan(method.graph_module, method.signature, alignment=alignment)
        for name, method in methods.items()
    }
    for fqn in sorted(shared):
        places = {
            name: place_of(spec)
            for name, method in methods.items()
            for spec in _buffer_specs(method, fqn)
        }
        if len(set(places.values())) != 1:
            for name in places:
                findings[name].append(SharedApart(fqn, tuple(sorted(places.items()))))
        place = next((place for place in places.values() if place is not None), None)
        if place is not None:
            for name, method in methods.items():
                findings[name].extend(_check_shared(name, method, fqn, place))
    return findings


def _buffer_specs(method: Method, fqn: str) -> list[TensorSpec]:
    buffers = _buffers(method.signature)
    return [
        _storage(spec)
        for node in method.graph_module.graph.nodes
        if node.op == "placeholder" and buffers.get(node.target) == fqn
        for spec in _specs(node.meta.get("spec"))
    ]


def _check_shared(name: str, method: Method, fqn: str, shared: Place) -> Iterator[Finding]:
    own = set(_buffer_specs(method, fqn))
    flow = _flow_of(method.graph_module, method.signature)
    for spec, tensor_name in flow.names.items():
        place = place_of(spec)
        if place is None or _chain(spec) & own:
            continue
        if place.overlaps(shared):
            yield OnSharedBuffer(name, Placed(tensor_name, place), fqn, shared)


# --- waste -----------------------------------------------------------------------------------


def unused_places(
    graph_module: torch.fx.GraphModule, signature: ExportGraphSignature | None = None
) -> list[Placed]:
    """Tensors that have memory although no step of the program writes or reads them."""
    used = _flow_of(graph_module, signature).names
    unused: dict[TensorSpec, Placed] = {}
    for prefix, graph in _graphs(graph_module):
        for node in graph.graph.nodes:
            for spec in map(_storage, _specs(node.meta.get("spec"))):
                place = place_of(spec)
                if place is not None and spec not in used:
                    unused.setdefault(spec, Placed(prefix + node.name, place))
    return list(unused.values())


def _graphs(
    graph_module: torch.fx.GraphModule, prefix: str = ""
) -> Iterator[tuple[str, torch.fx.GraphModule]]:
    """The graph and the graphs of its branches, with a prefix for their nodes' names."""
    yield prefix, graph_module
    for node in graph_module.graph.nodes:
        inner = getattr(graph_module, node.target, None) if node.op == "get_attr" else None
        if isinstance(inner, torch.fx.GraphModule):
            yield from _graphs(inner, f"{prefix}{node.target}/")


# --- peak ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeakStep:
    """The most bytes of an arena that are alive at one step."""

    bytes: int
    step: str


def peak_live_bytes(
    graph_module: torch.fx.GraphModule, signature: ExportGraphSignature | None = None
) -> dict[int, PeakStep]:
    """Per arena, the most bytes alive at any step, without alignment.

    A lower bound for every plan of this order of nodes that uses the same arenas.
    """
    live = _liveness(_flow_of(graph_module, signature))
    peaks: dict[int, PeakStep] = {}
    for step, alive in zip(live.flow.steps, live.alive, strict=True):
        now: dict[int, list[tuple[Path, int]]] = {}
        for spec in alive:
            place = place_of(spec)
            # What lies in something else that is alive takes no bytes of its own.
            if place is not None and not (_chain(spec) - {spec}) & alive:
                now.setdefault(place.arena, []).append((live.flow.paths[spec], place.bytes))
        for arena, sizes in now.items():
            count = _most_bytes(sizes)
            if count > peaks.get(arena, PeakStep(0, "")).bytes:
                peaks[arena] = PeakStep(count, step.name)
    return dict(sorted(peaks.items()))


def _most_bytes(sizes: list[tuple[Path, int]]) -> int:
    """The bytes that one run can have alive: of each cond, what one branch has."""
    total = 0
    conds: dict[str, dict[str, list[tuple[Path, int]]]] = {}
    for path, size in sizes:
        if not path:
            total += size
            continue
        (cond, branch), *inner = path
        conds.setdefault(cond, {}).setdefault(branch, []).append((tuple(inner), size))
    return total + sum(max(map(_most_bytes, branches.values())) for branches in conds.values())


def peak_at_nodes(
    graph_module: torch.fx.GraphModule, signature: ExportGraphSignature | None = None
) -> dict[int, int]:
    """Per arena, the most bytes alive at any node, each body counted at its node with its peak.

    That is what a planner can reach that plans a body as one tensor, alive at its node: what a
    node takes or gives is alive for as long as its bodies run, though they may need it for less.
    """
    peaks = _peaks_at_nodes(graph_module, set(_buffers(signature)), set())
    return dict(sorted(peaks.items()))


def _peaks_at_nodes(
    graph_module: torch.fx.GraphModule, kept: set[str], elsewhere: set[TensorSpec]
) -> dict[int, int]:
    """The peaks of one graph, without the bytes of the specs that are `elsewhere`."""
    nodes = list(graph_module.graph.nodes)
    lives: dict[TensorSpec, tuple[int, int]] = {}
    for index, node in enumerate(nodes):
        first = 0 if node.op == "placeholder" else index
        last = len(nodes) - 1 if node.op == "placeholder" and node.target in kept else index
        mentioned = [node, *node.all_input_nodes]
        for spec in _specs([each.meta.get("spec") for each in mentioned]):
            for each in _chain(_storage(spec)):
                begins, ends = lives.get(each, (first, last))
                lives[each] = (min(begins, first), max(ends, last))
    peaks: dict[int, int] = {}
    for index, node in enumerate(nodes):
        now = _peaks_of_bodies(graph_module, node)
        for spec, (first, last) in lives.items():
            place = place_of(spec)
            if place and _base(spec) is None and first <= index <= last and spec not in elsewhere:
                now[place.arena] = now.get(place.arena, 0) + place.bytes
        peaks = {arena: max(peaks.get(arena, 0), now.get(arena, 0)) for arena in peaks | now}
    return peaks


def _peaks_of_bodies(graph_module: torch.fx.GraphModule, node: torch.fx.Node) -> dict[int, int]:
    """Per arena, the most bytes that one of the node's bodies has for itself at any time."""
    peaks: dict[int, int] = {}
    for attribute in node.all_input_nodes:
        body = getattr(graph_module, attribute.target) if attribute.op == "get_attr" else None
        if not isinstance(body, torch.fx.GraphModule):
            continue
        made = pytree.tree_leaves(body.graph.output_node().meta["spec"])
        wanted = pytree.tree_leaves(node.meta["spec"])
        there = {
            _storage(spec)
            for spec, result in zip(made, wanted, strict=False)
            if isinstance(spec, TensorSpec)
            and isinstance(result, TensorSpec)
            and place_of(spec) is not None
            and place_of(spec) == place_of(result)
        }
        own = _peaks_at_nodes(body, set(), there)
        peaks = {arena: max(peaks.get(arena, 0), own.get(arena, 0)) for arena in peaks | own}
    return peaks
