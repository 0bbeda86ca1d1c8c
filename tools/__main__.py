"""Command line of the tools: `python -m tools <command> --help`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tools import models, plan, versions
from tools.errors import UserError
from tools.patching import series
from tools.paths import DIST, ROOT
from tools.tables import table

DONE, DIFFERS, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    try:
        code = commands.main(
            None if arguments is None else list(arguments),
            prog_name="python -m tools",
            standalone_mode=False,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except (KeyboardInterrupt, click.Abort):
        print("interrupted; nothing is left half-written", file=sys.stderr)
        return INTERRUPTED
    return code if isinstance(code, int) else DONE


@click.group(epilog="Exit codes: 0 done, 1 something differs, 2 bad input (one line says what).")
def commands() -> None:
    """Build, check and export a patched ExecuTorch from this repository's overlay (exir/) and
    series (patches/)."""


_RELEASES = ", ".join(versions.SUPPORTED)
_of_release = click.option(
    "--upstream",
    metavar="VERSION",
    default=versions.DEFAULT,
    show_default=True,
    help=f"Release of ExecuTorch, one of {_RELEASES}.",
)
_onto = click.option(
    "--onto",
    metavar="VERSION|CHECKOUT",
    default=versions.DEFAULT,
    show_default=True,
    help="A release or a git checkout of ExecuTorch.",
)


def _numbers(context: object, parameter: object, text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.split(","))


@commands.command(short_help="Apply the series to an ExecuTorch tree in place.")
@click.argument("tree", type=click.Path(path_type=Path))
def apply(tree: Path) -> int:
    """Apply the series to TREE in place, all of it or nothing.

    TREE is a git checkout of ExecuTorch, or a directory that holds an executorch/ package.

    Example: python -m tools apply ~/src/executorch
    """
    from tools.patching.tree import apply as apply_to

    changed = apply_to(series.load(), tree)
    if not changed:
        print(f"{tree} carries the series already; nothing changed")
    for path in changed:
        print(f"changed {path}")
    return DONE


@commands.command(short_help="Build the custom wheel of a release.")
@_of_release
@click.option("--out", type=click.Path(path_type=Path), default=DIST, help="Default: dist.")
@click.option("--platform", help="pip's name of the platform (default: this one).")
@click.option("--python", help="Python version, such as 3.12 (default: this one).")
@click.option(
    "--all",
    "for_all",
    is_flag=True,
    help="Every platform and Python that the release has a wheel for, with SHA256SUMS and an "
    "index directory for pip.",
)
def wheel(
    upstream: str, out: Path, platform: str | None, python: str | None, *, for_all: bool
) -> int:
    """Build the custom wheel of a release, for this machine or another.

    Example: python -m tools wheel --platform macosx_14_0_arm64 --python 3.12
    """
    from tools.shipping.distribute import build_all
    from tools.shipping.upstream import Target
    from tools.shipping.wheel import build

    if for_all:
        if platform or python:
            raise UserError("--all builds for every platform; leave out --platform and --python")
        for built in build_all(series.load(), upstream, out):
            print(built)
        return DONE
    print(build(series.load(), upstream, out, Target(platform, python)))
    return DONE


@commands.command(short_help="Write the series as git format-patch files.")
@_onto
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A directory.")
@click.option(
    "--only",
    metavar="NNNN,...",
    callback=_numbers,
    help="These patches alone; what they require has to be among them.",
)
@click.option("--start-number", default=1, metavar="N", help="Number of the first file.")
@click.option("--cover", is_flag=True, help="Write a cover letter as well.")
@click.option("-v", "--reroll", type=int, metavar="N", help="Which re-roll of the series it is.")
def export(
    onto: str,
    out: Path,
    only: tuple[str, ...] | None,
    start_number: int,
    reroll: int | None,
    *,
    cover: bool,
) -> int:
    """Write the series as git format-patch files, for `git am` on ExecuTorch.

    Example: python -m tools export --onto ~/src/executorch --out /tmp/patches --only 0001,0004
    """
    from tools.patching.export import Options, base_of
    from tools.patching.export import export as export_to
    from tools.patching.render import check_claims

    check_claims(series.load())
    base = base_of(onto)
    chosen = base.fitting(series.load())
    if only is not None:
        chosen = chosen.only(only)
    if base.dirty:
        print(f"{onto} has uncommitted changes; the patches are made for its HEAD", file=sys.stderr)
    options = Options(start_number, has_cover=cover, reroll=reroll)
    for file in export_to(chosen, base, out, options):
        print(file)
    return DONE


@commands.command(short_help="List the patches and the lines that each adds and removes.")
@_onto
def patches(onto: str) -> int:
    """List the patches with the lines that each adds and removes.

    Example: python -m tools patches --onto 1.4.1
    """
    from tools.patching.export import base_of, changes

    rows = [
        (change.patch.name, f"+{change.added}", f"-{change.removed}")
        for change in changes(series.load(), base_of(onto))
    ]
    print(table(("patch", "added", "removed"), rows, right=1))
    return DONE


@commands.command("check-alone", short_help="Test each patch with just what it requires.")
@click.argument("numbers", nargs=-1, metavar="[NNNN]...")
@_of_release
def check_alone(numbers: tuple[str, ...], upstream: str) -> int:
    """Run the tests of each patch, or of the patches NNNN, on a tree that has the patch and
    what it requires, and nothing else.

    Example: python -m tools check-alone 0004 0005
    """
    from tools.patching.alone import HEAD, check

    results = list(check(series.load(), upstream, numbers))
    print(table(HEAD, [result.row() for result in results], right=2))
    return DONE if all(result.passed for result in results) else DIFFERS


@commands.command()
def readme() -> int:
    """Bring what the README says of the patches up to date."""
    from tools.patching.readme import update

    changed = update(ROOT / "README.md", series.load())
    print("README.md has changed" if changed else "nothing to change")
    return DONE


@commands.command(short_help="Unpack the untouched release, and print where it is.")
@_of_release
def stock(upstream: str) -> int:
    """Unpack the untouched release, and print where it is.

    Example: python -m tools stock --upstream 1.4.1
    """
    from tools.shipping.upstream import unpacked

    print(unpacked(upstream))
    return DONE


@commands.command()
def install() -> int:
    """Build the custom wheel and install it beside these tools, unless it is there."""
    from tools.shipping.installed import install as install_it

    done = install_it()
    print("installed" if done else "the custom wheel of this checkout is installed already")
    return DONE


@commands.command()
def refresh() -> int:
    """Put the edited overlay into the custom wheel that is installed beside these tools."""
    from tools.shipping.installed import refresh as refresh_it

    changed = refresh_it()
    for path in changed:
        print(f"changed {path}")
    print(f"{len(changed)} files changed" if changed else "nothing to change")
    return DONE


@commands.command()
def check() -> int:
    """Tell whether the installed executorch is what this checkout renders."""
    from tools.shipping.installed import differences

    different = differences()
    for path in different:
        print(f"differs: {path}")
    if different:
        print("run `make dev`")
    return DIFFERS if different else DONE


# Click fills each paragraph unless it begins like that.
_AS_IT_STANDS = "\b\n"
_PLAN_HELP = "\n\n".join(_AS_IT_STANDS + each for each in (plan.__doc__ or "").split("\n\n"))


@commands.command("plan", help=_PLAN_HELP, short_help="Draw a memory plan.")
@click.argument("model", metavar="FILE.py:FUNCTION")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("plan.html"), show_default=True
)
@click.option("--png", type=click.Path(path_type=Path), help="A picture as well.")
@click.option(
    "--stock",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the untouched release is unpacked (default: in the cache, fetched if need be).",
)
@click.option("--no-stock", is_flag=True, help="Draw the patched plan alone.")
@click.option(
    "--patched",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the patched tree is (default: the executorch that is installed).",
)
def draw_plan(
    model: str,
    out: Path,
    png: Path | None,
    stock: Path | None,
    patched: Path | None,
    no_stock: bool,
) -> int:
    from tools.plan.command import Trees, run

    if stock is not None and no_stock:
        raise UserError("--stock and --no-stock exclude each other")
    run(model, out, png, Trees(stock, patched, has_stock=not no_stock))
    return DONE


_MODELS_HELP = "\n\n".join(_AS_IT_STANDS + each for each in models.DESCRIPTION.split("\n\n"))


@commands.command("models", help=_MODELS_HELP, short_help="Run a model on stock and patched.")
@click.argument("model", metavar="FILE.py:FUNCTION")
@click.option(
    "--stock", type=click.Path(path_type=Path), metavar="DIR", help="The untouched release."
)
@click.option(
    "--patched", type=click.Path(path_type=Path), metavar="DIR", help="Another patched tree."
)
@click.option(
    "--packages", type=click.Path(path_type=Path), metavar="DIR", help="Packages that it imports."
)
def run_model(model: str, stock: Path | None, patched: Path | None, packages: Path | None) -> int:
    return models.run(model, stock, patched, packages)


if __name__ == "__main__":
    sys.exit(main())
