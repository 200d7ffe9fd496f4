"""The command scripts/snapshots."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support import recorded_runs, snapshots
from tests.support.snapshots import ABSENT, Difference


def main() -> int:
    arguments = parsed()
    if arguments.add:
        paths = dict(pair.split("=", 1) for pair in arguments.replace)
        recorded_runs.add_run(arguments.add, snapshots.GOLDEN / "runs" / arguments.add.name, paths)
        return 0
    if arguments.against:
        return print_differences(against(arguments.against))
    names = arguments.names or snapshots.names()
    if arguments.check:
        return print_differences(check(names))
    for name in names:
        snapshots.write(name, snapshots.make(name))
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/snapshots", description="Write the snapshots of tests/golden.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="snapshots to write or check; default: all")
    parser.add_argument("--check", action="store_true", help="compare instead of writing; exit with 1 on a difference")
    parser.add_argument(
        "--against",
        metavar="REVISION",
        help="list what differs from the snapshots of a git revision, with the letter of the wrong number that it "
        "mends; exit with 1 where one has no letter",
    )
    parser.add_argument("--add", type=Path, metavar="RUN", help="copy a run folder into tests/golden/runs, cleaned")
    parser.add_argument(
        "--replace", nargs="*", default=[], metavar="OLD=NEW", help="of --add: paths and what they become, equally long"
    )
    return parser.parse_args()


def check(names: list[str]) -> Iterator[Difference]:
    for name in names:
        yield from snapshots.differences(name, snapshots.read(name), snapshots.round_trip(snapshots.make(name)))


def against(revision: str) -> Iterator[Difference]:
    """Compare the written snapshots with those of a git revision."""
    old = dict(committed(revision))
    new = {name: snapshots.read(name) for name in snapshots.names()}
    for name in sorted(old | new):
        yield from snapshots.differences(name, old.get(name, ABSENT), new.get(name, ABSENT))


def committed(revision: str) -> Iterator[tuple[str, object]]:
    folder = snapshots.SNAPSHOTS
    for file_name in git("ls-tree", "--name-only", revision, "./").decode().split():
        if file_name != snapshots.MARKS:
            name = file_name.split(".")[0]
            yield name, snapshots.parse(folder / file_name, git("show", f"{revision}:./{file_name}"))


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=snapshots.SNAPSHOTS, check=True, stdout=subprocess.PIPE).stdout


def print_differences(found: Iterator[Difference]) -> int:
    """Print a line for each difference, with its letter; return the exit code."""
    marks = snapshots.marks()
    unmarked = count = 0
    for difference in found:
        letter = next((mark.letter for mark in marks if mark.covers(difference.name, difference.path)), None)
        print(f"{letter or '-':<3} {difference.kind:<8} {difference}")
        count += 1
        unmarked += letter is None
    print(f"{count} differences, {unmarked} without a letter", file=sys.stderr)
    return int(unmarked > 0)


if __name__ == "__main__":
    sys.exit(main())
