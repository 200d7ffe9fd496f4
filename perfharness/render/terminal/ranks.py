"""Ranks that work together, for people: communication, waiting, and who comes last."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from perfharness.model.result import Tree
from perfharness.render.terminal.console import Column, fixed, print_table, say
from perfharness.render.text import NOT_MEASURED

MAX_RANKS = 64
"""Rows; all are in the JSON files."""

PARALLEL = {
    "model": "their items count once: they work on the same ones",
    "data": "their items add up",
    None: "whether they share their items is not known",
}
BASIS = {
    "option": "--parallel",
    "annotation": "perf.batch(shared=True)",
    "recognized": "equal batches with collectives in them",
    "different_batches": "they have different batches",
    "no_collectives": "no collectives in their batches",
}


def print_ranks(console: Console, tree: Tree) -> None:
    """A table of each group of ranks: `ranks` of a mean tree; nothing where there is none."""
    for group in tree.get("ranks", {}).get("groups", ()):
        about = group_text(group["processes"], group["world_size"], group["parallel"], group["parallel_basis"])
        say(console, f"{about}; ms per batch")
        if not group["ranks"]:
            say(console, f"Their communication is not known: {group['reason']}")
            continue
        _print_group(console, group)
        skew = group["skew"]
        if skew is not None:
            say(
                console,
                f"Arrival at a collective, first to last: {skew['p50_ms']:.3f} ms (median), at most "
                f"{skew['max_ms']:.3f} ms; clocks to {1000 * skew['clock_error_ms']:.1f} µs",
            )


def group_text(processes: Sequence[str], world_size: int | None, parallel: str | None, basis: str | None) -> str:
    """How many ranks, and whether they share their items."""
    why = "" if basis is None else f" ({BASIS[basis]})"
    return f"{len(processes)} of {world_size or len(processes)} ranks; {PARALLEL[parallel]}{why}"


def _print_group(console: Console, group: Tree) -> None:
    columns = [
        Column("rank"), Column("batch", drop=3), Column("communication"), Column("share", drop=1),
        Column("waiting"), Column("came last", drop=2), Column("later by", drop=4),
    ]  # fmt: skip
    rows = [
        [
            str(one["rank"]), fixed(one["batch_ms"]), fixed(one["communication_ms"]),
            _share(one["communication_share"]), fixed(one["waiting_ms"]), _share(one["last_share"]),
            fixed(one["lag_ms"]),
        ]
        for one in group["ranks"][:MAX_RANKS]
    ]  # fmt: skip
    print_table(console, columns, rows)
    if len(group["ranks"]) > MAX_RANKS:
        say(console, f"and {len(group['ranks']) - MAX_RANKS} more ranks; all are in the JSON files")


def _share(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{100 * value:.0f} %"
