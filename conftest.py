"""What is tested is the installed package: say at once if it isn't what this checkout renders.

Slow tests are left out unless `--all` asks for them, and what is left out is told at the end.
Without it, programs are decomposed quickly, too.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tools.errors import UserError
from tools.shipping.installed import differences

_LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests as well")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: left out unless --all is given")
    config.addinivalue_line("markers", "keeps_operators: a partitioner keeps composite ones")
    config.stash[_LEFT_OUT] = Counter()


def pytest_sessionstart(session: pytest.Session) -> None:
    try:
        different = differences()
    except UserError as error:
        pytest.exit(str(error), returncode=2)
    if different:
        pytest.exit(
            "the installed executorch is not what this checkout renders; run `make dev`. "
            f"It differs in {', '.join(different)}",
            returncode=2,
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # What is named on the command line is wanted, slow or not.
    if config.getoption("all") or any("::" in argument for argument in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    if slow:
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=slow)
        config.stash[_LEFT_OUT].update(item.nodeid.partition("[")[0] for item in slow)


@pytest.fixture(autouse=True)
def _quick_decompositions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Without `--all`, do once what PyTorch does for each program that it decomposes.

    That is three quarters of what it takes to lower a small one.
    """
    is_lowering = request.node.nodeid.startswith(("exir/tests/", "tests/passes/"))
    as_users_do = request.node.get_closest_marker("keeps_operators") is not None
    if request.config.getoption("all") or as_users_do or not is_lowering:
        yield
        return
    from tests.support.harness import quick_decompositions

    with quick_decompositions():
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Where tests are spread over processes, it is those that collect them.
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash[_LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # Each process has collected the same.
    node.config.stash[_LEFT_OUT] |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out = terminalreporter.config.stash[_LEFT_OUT]
    if left_out:
        terminalreporter.section("left out; `make test-all` runs them")
        for test, count in sorted(left_out.items()):
            terminalreporter.write_line(f"{test}{f' ({count} times)' if count > 1 else ''}")
