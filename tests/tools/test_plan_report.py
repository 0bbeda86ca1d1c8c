"""The plan report: what is read out of a program, and what is drawn of it."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import executorch.exir
import pytest
import torch
from executorch.exir import memory, to_edge
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.tensor import TensorSpec
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from torch import fx, nn
from torch.export import export
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from tests.support.cases import SHARED_BUFFER, WRITE_BACK
from tests.support.harness import export_methods, lower
from tests.support.plan_checker import peak_live_bytes
from tools.__main__ import main
from tools.errors import UserError
from tools.liveness import Peak
from tools.plan import page, panels, report
from tools.plan.data import KINDS, Graph, Method, Plan, Tensor, with_shared
from tools.plan.extract import extract, read_method
from tools.plan.picture import COLOURS
from tools.plan.text import bytes_text, steps
from tools.plan.worker import plan_of

# The executorch that these tests import; it stands for stock where two are to be compared.
TREE = Path(executorch.exir.__file__).parents[2]


def tensor(name: str, size: int, offset: int, first: int, last: int, **other: Any) -> Tensor:
    fields = {"shape": (size // 4,), "dtype": "float32", "arena": 1, "kind": "activation"}
    fields |= {"operator": "aten.mul.out"} | other
    return Tensor(name=name, bytes=size, offset=offset, first=first, last=last, **fields)


def method(*tensors: Tensor, nodes: int = 10, size: int = 1024, name: str = "forward") -> Method:
    graph = Graph(name, tuple(f"node_{number}" for number in range(nodes)))
    return Method(name, (graph,), {1: size}, tensors)


def by_name(plan: Plan, name: str = "forward") -> dict[str, Tensor]:
    (found,) = [method for method in plan.methods if method.name == name]
    return {tensor.name: tensor for tensor in found.tensors}


# --- reading programs -----------------------------------------------------------------------


class Straight(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp().repeat(4).sum()


def test_straight_program_by_hand() -> None:
    """Placeholder 0, then an allocation and an operator for each result, output 7.

    x is read by exp at 2; exp's result, allocated at 1, by repeat at 4; and so on. Most is
    alive once the result of repeat is allocated, while its argument still is: 32 + 128 bytes.
    """
    plan = extract(to_edge(export(Straight(), (torch.zeros(8),))).to_executorch(), "here")

    (forward,) = plan.methods
    assert [(t.bytes, t.shape, t.first, t.last, t.kind) for t in forward.tensors] == [
        (32, (8,), 0, 2, "input"),
        (32, (8,), 1, 4, "activation"),
        (128, (32,), 3, 6, "activation"),
        (16, (), 5, 7, "output"),
    ]
    assert forward.peak(1) == Peak(bytes=160, node=3)
    assert forward.arenas == {1: 160}
    assert [t.operator for t in forward.tensors] == [
        "placeholder",
        "aten.exp.out",
        "aten.repeat.out",
        "aten.sum.IntList_out",
    ]
    assert plan.label.startswith("here 1.")
    assert forward.graphs[0].nodes[3] == forward.graphs[0].nodes[4] == forward.tensors[2].name


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(64))

    def forward(self, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        def left(a: torch.Tensor) -> torch.Tensor:
            return (a.sin() + 1).repeat(2)

        def right(a: torch.Tensor) -> torch.Tensor:
            return a.repeat(2)

        y = torch.cond(p.sum() > 0, left, right, [x])
        self.state.add_(y[:64])
        return self.state * 2


def test_branches_lie_within_their_call() -> None:
    inputs = (torch.zeros(64), torch.ones(2))
    plan = extract(to_edge(export(Branching(), inputs)).to_executorch())

    (forward,) = plan.methods
    main, *branches = forward.graphs
    assert [(graph.parent, graph.part, graph.parts) for graph in branches] == [(0, 0, 2), (0, 1, 2)]
    (call,) = {graph.call for graph in branches}
    assert main.nodes[call].startswith("cond")
    inside = {t.operator: t for t in forward.tensors if t.kind == "branch"}
    assert inside["aten.sin.out"].graph == 1
    assert {t.graph for t in forward.tensors if t.kind != "branch"} == {0}
    assert by_name(plan)["b_state"].kind == "mutable buffer"
    assert (by_name(plan)["b_state"].first, by_name(plan)["b_state"].last) == (
        0,
        len(main.nodes) - 1,
    )

    (row,) = panels.rows([plan])
    (panel,) = row.panels
    assert panel is not None
    for box in panel.boxes:
        if box.tensor.graph:
            middle = call + 0.5
            left, right = (call, middle) if box.tensor.graph == 1 else (middle, call + 1)
            assert left <= box.start < box.end <= right + 1e-9


def planned(spec: TensorSpec, offset: int, lifetime: list[int]) -> TensorSpec:
    spec.mem_id, spec.mem_offset, spec.lifetime = 1, offset, lifetime
    return spec


def float_spec(*shape: int) -> TensorSpec:
    return TensorSpec(torch.float32, torch.Size(shape))


def test_one_storage_is_one_tensor() -> None:
    """A graph by hand, as stock leaves it: a view, a write in place, and a result with memory
    of its own that is only the buffer again."""
    state = planned(float_spec(2, 4), 0, [0, 6])
    product = planned(float_spec(2, 4), 32, [1, 5])
    inside = planned(float_spec(4), 32, [3, 4])
    vars(inside)["storage_base"] = product
    graph = fx.Graph()
    buffer = graph.placeholder("b_state")
    alloc = graph.call_function(memory.alloc, (((2, 4), torch.float32),))
    mul = graph.call_function(torch.ops.aten.mul.out, (buffer, buffer), {"out": alloc})
    view = graph.call_function(memory.view, (mul, [8]))
    sin = graph.call_function(torch.ops.aten.sin.default, (view,))
    graph.call_function(memory.free, (None,))
    copy = graph.call_function(torch.ops.aten.copy_.default, (buffer, mul))
    output = graph.output((sin,))
    buffer.meta["spec"] = copy.meta["spec"] = state
    alloc.meta["spec"] = mul.meta["spec"] = product
    view.meta["spec"] = _ViewSpec(product, [8])
    sin.meta["spec"] = inside
    output.meta["spec"] = [planned(float_spec(2, 4), 64, [6, 6]), inside]
    module = fx.GraphModule({}, graph)
    module.meta["non_const_buffer_sizes"] = [0, 96]
    signature = ExportGraphSignature(
        [InputSpec(InputKind.BUFFER, TensorArgument("b_state"), "state", persistent=True)],
        [
            OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument("copy"), "state"),
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument("sin"), None),
        ],
    )

    read = read_method("forward", module, signature)

    assert [
        (t.name, t.kind, t.offset, t.bytes, t.first, t.last, t.aliases) for t in read.tensors
    ] == [
        ("b_state", "mutable buffer", 0, 32, 0, 6, (copy.name,)),
        (mul.name, "output", 32, 32, 1, 5, (view.name, sin.name)),
        ("write-back of state", "output", 64, 32, 6, 6, ()),
    ]
    assert read.tensors[0].buffer == "state"
    # Planning numbers the nodes before it adds the calls to free.
    assert len(read.graphs[0].nodes) == 7


def test_unplaced_tensors_are_left_out() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["spec"] = float_spec(4)
    graph.output((x,)).meta["spec"] = (x.meta["spec"],)
    module = fx.GraphModule({}, graph)
    module.meta["non_const_buffer_sizes"] = [0, 0]
    read = read_method("forward", module, ExportGraphSignature([], []))
    assert read.tensors == ()
    assert panels.rows([Plan("here", (read,))]) == []


@pytest.mark.parametrize("name", [*WRITE_BACK, *SHARED_BUFFER])
def test_peak_lies_between_what_is_needed_and_what_is_planned(name: str) -> None:
    """The plan checker finds what is alive by itself, and counts no alignment."""
    case = {**WRITE_BACK, **SHARED_BUFFER}[name]
    planning = {"share_mutable_buffers": True} if case.shared else None
    exported = export_methods(case.module(), case.methods)
    manager = lower(exported, planning=planning, **case.options)
    for method in extract(manager).methods:
        program = manager.exported_program(method.name)
        needed = peak_live_bytes(program.graph_module, program.graph_signature)
        assert set(needed) <= set(method.arenas)
        for arena, size in method.arenas.items():
            at_least = needed[arena].bytes if arena in needed else 0
            assert at_least <= method.peak(arena).bytes <= size


def test_json_both_ways() -> None:
    child = Graph("forward.left", ("a", "b"), parent=0, call=3, part=1, parts=2)
    one = method(tensor("x", 16, 0, 0, 3, aliases=("view", "copy_")))
    whole = Method("forward", (*one.graphs, child), {1: 64, 3: 128}, one.tensors)
    plan = Plan("stock 1.5.1", (whole, method(name="reset")))
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("text", ["", "[]", '{"label": "x"}', '{"label": "x", "methods": [{}]}'])
def test_not_a_plan(text: str) -> None:
    with pytest.raises(ValueError):
        Plan.from_json(text)


def test_shared_is_what_several_methods_hold_in_one_place() -> None:
    def holds(name: str, *buffers: tuple[str, int]) -> Method:
        kept = [
            tensor(fqn, 16, offset, 0, 9, kind="mutable buffer", buffer=fqn)
            for fqn, offset in buffers
        ]
        return method(*kept, name=name)

    forward, reset = with_shared(
        [holds("forward", ("a", 0), ("b", 16), ("c", 32)), holds("reset", ("a", 0), ("b", 48))]
    )
    assert [t.kind for t in forward.tensors] == [
        "shared buffer",
        "mutable buffer",
        "mutable buffer",
    ]
    assert [t.kind for t in reset.tensors] == ["shared buffer", "mutable buffer"]


def test_peak_counts_the_hungriest_branch() -> None:
    branches = (
        Graph("forward.left", ("a", "b"), parent=0, call=4, part=0, parts=2),
        Graph("forward.right", ("a", "b"), parent=0, call=4, part=1, parts=2),
        Graph("forward.right.inner", ("a",), parent=2, call=1),
    )
    whole = method(
        tensor("x", 100, 0, 0, 4),
        tensor("y", 150, 100, 5, 9),
        tensor("l", 16, 100, 0, 1, graph=1, kind="branch"),
        tensor("r", 20, 100, 0, 1, graph=2, kind="branch"),
        tensor("i", 40, 120, 0, 0, graph=3, kind="branch"),
    )
    nested = Method("forward", whole.graphs + branches, {1: 250}, whole.tensors)
    assert nested.peak(1) == Peak(bytes=160, node=4)


def test_a_branch_result_in_the_callers_place_counts_once() -> None:
    branches = (
        Graph("forward.left", ("a", "b"), parent=0, call=4, part=0, parts=2),
        Graph("forward.right", ("a", "b"), parent=0, call=4, part=1, parts=2),
        Graph("forward.right.inner", ("a",), parent=2, call=1),
    )
    tensors = (
        tensor("x", 100, 0, 0, 4),
        tensor("cond", 64, 100, 4, 9),
        tensor("l", 64, 100, 0, 1, graph=1, kind="branch"),
        tensor("t", 32, 164, 0, 1, graph=1, kind="branch"),
        tensor("r", 64, 100, 0, 1, graph=2, kind="branch"),
        tensor("i", 64, 100, 0, 0, graph=3, kind="branch"),
    )
    graphs = (*method().graphs, *branches)
    assert Method("forward", graphs, {1: 196}, tensors).peak(1) == Peak(bytes=196, node=4)


# --- panels ---------------------------------------------------------------------------------


def test_rows_pair_arenas_on_one_scale() -> None:
    left = Plan("stock", (method(tensor("x", 64, 64, 0, 3), nodes=12, size=128),))
    other = Method("forward", method(nodes=10).graphs, {1: 64, 2: 32}, (tensor("x", 64, 0, 0, 3),))
    first, second = panels.rows([left, Plan("patched", (other,))])

    assert (first.arena, first.nodes, first.bytes) == (1, 12, 128)
    assert [panel and panel.over_peak for panel in first.panels] == [2.0, 1.0]
    assert (second.arena, second.panels[0]) == (2, None)
    assert second.panels[1] is not None
    assert second.panels[1].over_peak is None


def test_a_tensor_beyond_its_arena_is_seen() -> None:
    (row,) = panels.rows([Plan("broken", (method(tensor("x", 64, 64, 0, 3), size=100),))])
    assert row.bytes == 128


def test_largest_names_a_shared_buffer_once() -> None:
    shared = tensor("b_state", 512, 0, 0, 9, kind="shared buffer", buffer="state")
    small = [tensor(f"x{size}", size, 512, 0, 3) for size in range(16, 32)]
    plan = Plan("here", (method(shared, *small), method(shared, name="reset")))
    found = panels.largest(plan)
    assert [t.bytes for _, t in found] == [512, *range(31, 22, -1)]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (2361168, "2.25 MiB"),
        (1047552, "1023 KiB"),
        (5 * 1024**4, "5120 GiB"),
    ],
)
def test_bytes_text(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_steps_are_round() -> None:
    assert steps(7, most=8, base=10) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert steps(99, most=8, base=10) == [0, 20, 40, 60, 80]
    assert steps(3000, most=8, base=10) == [0, 500, 1000, 1500, 2000, 2500, 3000]
    assert steps(4096, most=4, base=2) == [0, 1024, 2048, 3072, 4096]
    assert steps(0, most=1, base=2) == [0]


# --- the page -------------------------------------------------------------------------------


class Page(HTMLParser):
    """Elements still open, what each one with an id holds, and every attribute."""

    VOID = frozenset({"meta", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[self.attributes[-1][1].get("id") or ""] = data
        elif data.strip():
            self.text.append(data.strip())

    def boxes(self) -> list[dict[str, str | None]]:
        return [a for tag, a in self.attributes if tag == "rect" and "data-t" in a]


def big_plan(label: str, count: int = 3000) -> Plan:
    """Towers of eight tensors, each five nodes wide: no two overlap."""
    tensors = [
        tensor(f"aten_op_default_{i}", 4096, 4096 * (i % 8), i // 8 * 5, i // 8 * 5 + 4)
        for i in range(count)
    ]
    return Plan(label, (method(*tensors, nodes=count // 8 * 5 + 5, size=8 * 4096),))


def mixed_plan(label: str) -> Plan:
    """Every kind once."""
    tensors = [
        tensor(f"{kind.replace(' ', '_')}_1", 4096, 4096 * i, i, i + 4, kind=kind)
        for i, kind in enumerate(KINDS)
    ]
    return Plan(label, (method(*tensors, size=4096 * len(KINDS)),))


def test_page_has_one_rectangle_a_tensor() -> None:
    parsed = Page(page.render([big_plan("stock"), mixed_plan("patched")]))
    assert parsed.open == []
    hovers = json.loads(parsed.scripts["tensors"])
    assert [int(box["data-t"] or "") for box in parsed.boxes()] == list(range(3000 + len(KINDS)))
    assert len(hovers) == 3000 + len(KINDS)
    assert hovers[0] == {
        "name": "aten_op_default_0",
        "kind": "activation",
        "shape": "[1024] float32",
        "bytes": "4,096 at 0 in arena 1",
        "live": "nodes 0 to 4",
        "made by": "aten.mul.out",
        "plan": "stock, forward",
    }


def test_page_draws_time_across_and_offset_up() -> None:
    """Two panels of ten nodes and 400 bytes: 62 units a node, 1.1 a byte, floor at 458."""
    left = Plan("stock", (method(tensor("x", 100, 300, 2, 4), size=400),))
    right = Plan("patched", (method(tensor("x", 100, 0, 0, 9), size=100),))
    parsed = Page(page.render([left, right]))
    sizes = [[float(box[k] or "") for k in ("x", "y", "width", "height")] for box in parsed.boxes()]
    assert sizes == [[64 + 124, 18, 186, 110], [64, 18 + 330, 620, 110]]
    assert "4.000" in parsed.text
    assert "1.000" in parsed.text


def test_page_svg_is_well_formed() -> None:
    text = page.render([mixed_plan("stock"), big_plan("patched", 64)])
    drawings = re.findall(r"<svg\b.*?</svg>", text, re.DOTALL)
    plots = [drawing for drawing in drawings if 'class="plot"' in drawing]
    assert len(plots) == 2
    for drawing in drawings:
        ElementTree.fromstring(drawing)


def test_page_fetches_nothing() -> None:
    text = page.render([mixed_plan("stock"), mixed_plan("patched")])
    assert not re.search(r"https?:|url\(|@import|\bsrc\s*=|\bhref\s*=|<link|fetch\(|import\(", text)


def test_page_survives_any_name() -> None:
    name = '</script><b title="&">'
    odd = Plan("<i>", (method(tensor(name, 1 << 20, 0, 0, 9, operator=name), size=1 << 20),))
    parsed = Page(page.render([odd]))
    assert parsed.open == []
    assert json.loads(parsed.scripts["tensors"])[0]["name"] == name
    assert "b" not in {tag for tag, attributes in parsed.attributes if "title" in attributes}
    assert name in parsed.text


def drawn_names(text: str) -> list[str]:
    (drawing,) = re.findall(r'<svg class="plot".*?</svg>', text, re.DOTALL)
    labels = ElementTree.fromstring(drawing).iter("text")
    return [label.text or "" for label in labels if label.attrib["class"].startswith("name")]


def test_only_names_that_fit_are_written() -> None:
    """Two of ten nodes are 124 units wide: 19 characters of 6.1 and a little room. A name is
    12 units high, of the 440 that 1,024 bytes are."""
    names = ["n" * length for length in range(15, 25)]
    wide = [tensor(name, 64, 64 * i, 4, 5) for i, name in enumerate(names)]
    flat = [tensor("flat", 27, 640, 0, 9), tensor("high", 28, 667, 0, 9)]
    text = page.render([Plan("here", (method(*wide, *flat),))])
    assert sorted(drawn_names(text)) == ["high", *names[:5]]


def test_page_of_nothing() -> None:
    assert Page(page.render([Plan("empty", ())])).boxes() == []


# --- the picture ----------------------------------------------------------------------------


def test_picture_shows_every_kind(tmp_path: Path) -> None:
    report(mixed_plan("stock"), mixed_plan("patched"), png=tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(tmp_path / "plan.png")[..., :3]
    assert pixels.shape[1] > 1000
    left, right = pixels[:, : pixels.shape[1] // 2], pixels[:, pixels.shape[1] // 2 :]
    for kind in KINDS:
        for half in (left, right):
            assert (abs(half - to_rgb(COLOURS[kind])).max(axis=-1) < 0.01).sum() > 500, kind


def test_both_draw_in_the_same_colours() -> None:
    style = (Path(page.__file__).parent / "page.css").read_text(encoding="utf-8")
    for number, kind in enumerate(KINDS):
        assert f".k{number} {{ fill: {COLOURS[kind]}; }}" in style


# --- the command ----------------------------------------------------------------------------

MODEL = """
import torch
from executorch.exir import to_edge
from torch import nn


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(16))

    def forward(self, x):
        self.state.add_(x)
        return self.state * 2

    def reset(self, x):
        self.state.copy_(x)
        return x + 1


def one():
    return Counter(), (torch.zeros(16),)


def several():
    return Counter(), {"forward": (torch.zeros(16),), "reset": (torch.zeros(16),)}


def manager():
    print("a line of its own")
    exported = torch.export.export(Counter(), (torch.zeros(16),))
    return to_edge(exported).to_executorch()


def number():
    return 3


def fails():
    raise RuntimeError("no weights here\\nand a second line")


def no_tuple():
    return Counter(), {"forward": torch.zeros(16)}


def no_method():
    return Counter(), {"decode": (torch.zeros(16),)}


def branches_on_data():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    return Branches(), (torch.zeros(3),)


constant = 3
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my_model.py"
    path.write_text(MODEL)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return path


def test_command_end_to_end(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "my_model.py:several", "--stock", str(TREE), "--patched", str(TREE)]
    assert main([*words, "--png", "plan.png"]) == 0

    told = capsys.readouterr().out
    assert told.splitlines()[0].split() == [
        "method",
        "arena",
        "plan",
        "arena",
        "bytes",
        "peak",
        "live",
        "ratio",
    ]
    assert told.endswith("wrote plan.html\nwrote plan.png\n")
    parsed = Page((model.parent / "plan.html").read_text(encoding="utf-8"))
    hovers = json.loads(parsed.scripts["tensors"])
    shared = [hover for hover in hovers if hover["kind"] == "shared buffer"]
    assert {hover["buffer"] for hover in shared} == {"state"}
    assert len(shared) == 4  # two methods, stock and patched
    assert (model.parent / "plan.png").stat().st_size > 1000


def test_a_module_or_a_lowered_program(model: Path) -> None:
    from_module = Plan.from_json(plan_of(model, "one", "here"))
    from_manager = Plan.from_json(plan_of(model, "manager", "here"))
    assert from_module == from_manager
    assert by_name(from_module)["b_state"].bytes == 64


def test_a_model_inside_a_package(model: Path) -> None:
    package = model.parent / "models"
    package.mkdir()
    (package / "__init__.py").touch()
    (model.parent / "beside.py").write_text("from my_model import one\n")
    (package / "inside.py").write_text("from beside import one\n")
    plan = Plan.from_json(plan_of(package / "inside.py", "one", "here"))
    assert by_name(plan)["b_state"].bytes == 64


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("missing", "has no function 'missing'"),
        ("constant", "has no function 'constant'"),
        ("number", r"must return .*, not int"),
        ("fails", r"failed \(line \d+\): RuntimeError: no weights here$"),
        ("no_tuple", "the inputs of 'forward' must be a tuple"),
        ("no_method", "Counter has no method 'decode'"),
        ("branches_on_data", r"can't be lowered \(line \d+\): GuardOnDataDependentSymNode: "),
    ],
)
def test_bad_model(model: Path, function: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        plan_of(model, function, "here")
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_python(model: Path) -> None:
    model.write_text("import torch\nimport nothing_of_that_name\n")
    with pytest.raises(UserError, match=r"can't be imported \(line 2\): ModuleNotFoundError"):
        plan_of(model, "make", "here")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["my_model.py"], "expected FILE.py:FUNCTION"),
        (["my_model.py:"], "expected FILE.py:FUNCTION"),
        (["other.py:one"], "other.py: no such file"),
        (["my_model.py:one", "--stock", "nowhere"], "nowhere: holds no ExecuTorch"),
        (["my_model.py:one", "--patched", "."], "holds no ExecuTorch"),
        (["my_model.py:one", "--stock", ".", "--no-stock"], "exclude each other"),
        (["my_model.py:one", "--out", "nowhere/plan.html"], "no such directory to write to"),
        (["my_model.py:one", "--png", "nowhere/plan.png"], "no such directory to write to"),
    ],
)
def test_bad_arguments(
    model: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    assert message in capsys.readouterr().err


def test_bad_model_is_told_in_one_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "my_model.py:fails", "--no-stock", "--patched", str(TREE)]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert re.fullmatch(r"error: patched: \S+my_model.py:fails failed \(line \d+\): .*\n", told)
    assert not Path("plan.html").exists()
