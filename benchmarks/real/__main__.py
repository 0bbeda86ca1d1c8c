# Copyright (c) 2026, the executorch-mutbuf authors.
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.
"""Real models through stock and patched ExecuTorch: benchmarks/MODELS.md and its picture.

Each side is a process of its own. What is known of a row is kept until the ExecuTorch or its
sources change, so that a run that was interrupted goes on where it stopped. The exit code is 0 if
nothing is lost, 1 if a row that was right in the last table or is right on stock isn't right
patched, 2 if it can't be run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.real.page import headline, page, table, unseen
from benchmarks.real.picture import draw
from benchmarks.real.run import Workers, in_chunks
from benchmarks.real.store import (
    Described,
    Kept,
    Result,
    load_table,
    lost,
    package_digest,
    row_key,
    save_table,
)
from benchmarks.sides import Failure, Side, add_side_options, timed_progress
from tools.paths import CACHE, ROOT
from tools.shipping import installed

DATA = ROOT / "benchmarks" / "models.json"
PAGE = ROOT / "benchmarks" / "MODELS.md"
PICTURE = ROOT / "benchmarks" / "models.png"
CHUNK = 5
"""Rows that a process does before another takes over."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_side_options(parser)
    parser.add_argument(
        "--packages", type=Path, metavar="DIR", help="where the models' packages are"
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help="only rows whose name or family has this in it; may be repeated. Prints the tables "
        "and writes no page",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="pairs of processes at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--known", action="store_true", help="measure nothing; write the page of what is known"
    )
    parser.add_argument("--again", action="store_true", help="measure what is known already, too")
    parser.add_argument("--list", action="store_true", help="list the rows, run nothing")
    return parser.parse_args(arguments)


def package(side: Side) -> Path:
    """Where a side's `executorch` is."""
    if side.directory is not None:
        return side.directory / "executorch"
    found = installed.find()
    if found is None:
        raise Failure("executorch is not installed here; run `make setup`", exit_code=2)
    return found.package


def chosen(rows: Sequence[Described], only: Sequence[str] | None) -> list[Described]:
    """The rows that the command line asks for."""
    if not only:
        return list(rows)
    texts = [text.lower() for text in only]
    return [row for row in rows if any(t in f"{row.name}\n{row.family}".lower() for t in texts)]


def measured(
    workers: Workers, rows: Sequence[Described], options: argparse.Namespace
) -> list[Result]:
    """All results of the rows, what is known from before and what is new."""
    packages = [package_digest(package(side)) for side in (workers.stock, workers.patched)]
    kept = Kept(CACHE / "models")
    keys = {row.name: row_key(row, packages) for row in rows}
    found: dict[str, list[Result]] = {}
    if not options.again:
        for row in rows:
            if (known := kept.load(keys[row.name])) is not None:
                found[row.name] = known
    left = [] if options.known else [row for row in rows if row.name not in found]
    workers.progress("models", f"{len(found)} rows are known, {len(left)} to do")

    def done(chunk: Sequence[Described], results: list[Result]) -> None:
        for row in chunk:
            own = [result for result in results if result.row == row.name]
            kept.save(keys[row.name], own)
            found[row.name] = own
        workers.progress("models", f"{len(found)} of {len(rows)} rows")

    in_chunks(workers, left, CHUNK, options.jobs, done)
    return [result for row in rows for result in found.get(row.name, ())]


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(arguments)
    workers = Workers(
        Side("stock", options.stock),
        Side("patched", options.patched),
        options.packages,
        timed_progress(),
    )
    try:
        rows = chosen(workers.listed(), options.only)
        if options.list:
            print("\n".join(f"{row.family}: {row.name}" for row in rows))
            return 0
        results = measured(workers, rows, options)
        workers.ask_versions()
    except Failure as failure:
        print(f"models: {failure}", file=sys.stderr)
        return failure.exit_code
    faults = lost(load_table(DATA), results)
    faults += [f"{row}: no result depends on its state" for row in unseen(results)]
    if options.only:
        print(table(results))
        print(headline(results))
    else:
        draw(results, PICTURE)
        PAGE.write_text(page(results, workers.versions.known, PICTURE.name), encoding="utf-8")
        print(headline(results))
        print(f"wrote {PAGE} and {PICTURE}")
        if not faults:
            save_table(DATA, workers.versions.known, results)
    print("\n".join(f"WRONG: {text}" for text in faults) or "nothing is lost")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
