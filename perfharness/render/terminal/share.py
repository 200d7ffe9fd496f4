"""What was removed from a run before it was shared."""

from __future__ import annotations

from rich.console import Console

from perfharness.render.terminal.console import Column, print_table, say
from perfharness.runs.share.share import Shared

LABELS = {
    "environment": "values of environment variables",
    "user": "names of users",
    "host": "names of machines",
    "program": "names of other programs",
    "path": "paths",
    "argument": "arguments of the script",
    "asked": "texts of --remove",
    "output": "output that findings quote",
    "secret": "what looks like a secret",
}


def print_shared(console: Console, shared: Shared) -> None:
    """Print the file, what was replaced, dropped and left out, and what could not be searched for."""
    record = shared.record
    say(console, f"{shared.path}: {shared.files} files, {shared.bytes / 1e6:.1f} MB")
    rows = [[LABELS.get(kind, kind), str(count)] for kind, count in record.replaced.items()]
    rows += [[f"rows of {table}", str(count)] for table, count in sorted(record.rows.items()) if count]
    print_table(console, [Column("removed", is_text=True, is_whole=True), Column("places")], rows)
    if record.tables:
        say(console, f"tables dropped: {', '.join(record.tables)}")
    for one in record.left_out:
        say(console, f"left out: {one.file} ({one.reason})")
    if record.not_searched:
        say(console, f"too short or too common to be searched for: {', '.join(record.not_searched)}")
    say(console, "Names of stages, files and functions are still in it: look at it before you pass it on.")
