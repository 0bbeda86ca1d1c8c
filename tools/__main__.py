"""Command line of the tools: `python -m tools <command> --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tools import models, plan, series, versions
from tools.errors import UserError
from tools.paths import DIST

DONE, DIFFERS, BAD_INPUT = 0, 1, 2
_EXIT_CODES = "exit codes: 0 done, 1 something differs, 2 bad input (one line says what)"


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.command
    try:
        return command(parsed)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted; nothing is left half-written", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools",
        description="Build, check and export a patched ExecuTorch from this repository's "
        "overlay (exir/) and series (patches/).",
        epilog=_EXIT_CODES,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    _add_apply(commands)
    _add_wheel(commands)
    _add_export(commands)
    _add_patches(commands)
    _add_stock(commands)
    _add_install(commands)
    _add_refresh(commands)
    _add_check(commands)
    _add_matrix(commands)
    _add_plan(commands)
    _add_models(commands)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    help: str,
    example: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=f"example: python -m tools {example}\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=run)
    return parser


def _version_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--upstream",
        metavar="VERSION",
        default=versions.DEFAULT,
        help=f"release of ExecuTorch, one of {', '.join(versions.SUPPORTED)} "
        "(default: %(default)s)",
    )


def _add_apply(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands,
        "apply",
        _apply,
        "apply the series to an ExecuTorch tree in place, all of it or nothing",
        "apply ~/src/executorch",
    )
    parser.add_argument(
        "tree",
        metavar="TREE",
        type=Path,
        help="a git checkout of ExecuTorch, or a directory that holds an executorch/ package",
    )


def _apply(parsed: argparse.Namespace) -> int:
    from tools.tree import apply

    changed = apply(series.load(), parsed.tree)
    if not changed:
        print(f"{parsed.tree} carries the series already; nothing changed")
    for path in changed:
        print(f"changed {path}")
    return DONE


def _add_wheel(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands,
        "wheel",
        _wheel,
        "build the custom wheel of a release, for this machine or another",
        "wheel --platform macosx_14_0_arm64 --python 3.12",
    )
    _version_option(parser)
    parser.add_argument("--out", type=Path, default=DIST, help="directory (default: dist)")
    parser.add_argument("--platform", help="pip's name of the platform (default: this one)")
    parser.add_argument("--python", help="Python version, such as 3.12 (default: this one)")
    parser.add_argument(
        "--all",
        action="store_true",
        help="every platform and Python that the release has a wheel for, with SHA256SUMS and "
        "an index directory for pip",
    )


def _wheel(parsed: argparse.Namespace) -> int:
    from tools.distribute import build_all
    from tools.upstream import Target
    from tools.wheel import build

    if parsed.all:
        if parsed.platform or parsed.python:
            raise UserError("--all builds for every platform; leave out --platform and --python")
        for wheel in build_all(series.load(), parsed.upstream, parsed.out):
            print(wheel)
        return DONE
    target = Target(parsed.platform, parsed.python)
    print(build(series.load(), parsed.upstream, parsed.out, target))
    return DONE


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands,
        "export",
        _export,
        "write the series as git format-patch files, for `git am` on ExecuTorch",
        "export --onto ~/src/executorch --out /tmp/patches --only 0001,0004",
    )
    parser.add_argument(
        "--onto",
        metavar="VERSION|CHECKOUT",
        default=versions.DEFAULT,
        help="a release or a git checkout of ExecuTorch (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for the files")
    parser.add_argument(
        "--only",
        metavar="NNNN,...",
        type=lambda text: tuple(text.split(",")),
        help="these patches alone; what they require has to be among them",
    )
    parser.add_argument(
        "--start-number", type=int, default=1, metavar="N", help="number of the first file"
    )


def _export(parsed: argparse.Namespace) -> int:
    from tools.export import base_of, export
    from tools.render import check_claims

    chosen = series.load()
    check_claims(chosen)
    if parsed.only is not None:
        chosen = chosen.only(parsed.only)
    base = base_of(parsed.onto)
    if base.dirty:
        print(
            f"{parsed.onto} has uncommitted changes; the patches are made for its HEAD",
            file=sys.stderr,
        )
    for file in export(chosen, base, parsed.out, parsed.start_number):
        print(file)
    return DONE


def _add_patches(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands,
        "patches",
        _patches,
        "list the patches with the lines that each adds and removes",
        "patches --onto 1.4.1",
    )
    parser.add_argument("--onto", metavar="VERSION|CHECKOUT", default=versions.DEFAULT)


def _patches(parsed: argparse.Namespace) -> int:
    from tools.export import base_of, changes

    for change in changes(series.load(), base_of(parsed.onto)):
        print(f"{change.added:+6} {-change.removed:+6}  {change.patch.name}")
    return DONE


def _add_stock(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands,
        "stock",
        _stock,
        "unpack the untouched release, and print where it is",
        "stock --upstream 1.4.1",
    )
    _version_option(parser)


def _stock(parsed: argparse.Namespace) -> int:
    from tools.upstream import unpacked

    print(unpacked(parsed.upstream))
    return DONE


def _add_install(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _command(
        commands,
        "install",
        _install,
        "build the custom wheel and install it beside these tools, unless it is there",
        "install",
    )


def _install(parsed: argparse.Namespace) -> int:
    from tools.installed import install

    print("installed" if install() else "the custom wheel of this checkout is installed already")
    return DONE


def _add_refresh(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _command(
        commands,
        "refresh",
        _refresh,
        "put the edited overlay into the custom wheel that is installed beside these tools",
        "refresh",
    )


def _refresh(parsed: argparse.Namespace) -> int:
    from tools.installed import refresh

    changed = refresh()
    for path in changed:
        print(f"changed {path}")
    print(f"{len(changed)} files changed" if changed else "nothing to change")
    return DONE


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _command(
        commands,
        "check",
        _check,
        "tell whether the installed executorch is what this checkout renders",
        "check",
    )


def _check(parsed: argparse.Namespace) -> int:
    from tools.installed import differences

    different = differences()
    for path in different:
        print(f"differs: {path}")
    if different:
        print("run `make dev`")
    return DIFFERS if different else DONE


def _add_matrix(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands,
        "matrix",
        _matrix,
        "build, install and test the wheel of every supported release",
        "matrix 1.4.0 1.4.1",
    )
    parser.add_argument(
        "versions", metavar="VERSION", nargs="*", help="releases (default: all supported)"
    )


def _matrix(parsed: argparse.Namespace) -> int:
    from tools.matrix import run, table

    rows = run(series.load(), tuple(parsed.versions) or versions.SUPPORTED)
    print(table(rows))
    return DONE if all(row.passed for row in rows) else DIFFERS


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands,
        "plan",
        plan.run,
        "draw the memory plan of a model, stock and patched side by side",
        "plan my_model.py:make --png plan.png",
    )
    plan.add_arguments(parser)


def _add_models(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands,
        "models",
        models.run,
        "lower and run a model of one's own, stock beside patched",
        "models my_model.py:make",
    )
    models.add_arguments(parser)


if __name__ == "__main__":
    sys.exit(main())
