"""Flame graphs into files, by the ending of the name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from perfharness.analysis.host_samples.flame import Stack, flame
from perfharness.errors import UsageError
from perfharness.files import replacing
from perfharness.model.text import safe_line
from perfharness.render.flame.drawing import page, svg
from perfharness.render.places import place_text

ENDINGS = (".svg", ".html", ".txt")
PAGE_TITLE = "perfharness: flame graphs"


def check_ending(path: Path) -> None:
    """Raise `UsageError` where nothing is written to a file of that name."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"--flame {path}: the name must end in {', '.join(ENDINGS)} (.txt: collapsed stacks)")


def write_flames(stacks: Mapping[str, Sequence[Stack]], path: Path) -> None:
    """Write the stacks of each name (a process and a stage) as a graph of their own.

    Raises `UsageError` for an unknown ending, `OSError`.
    """
    check_ending(path)
    if path.suffix.lower() == ".txt":
        text = "".join(f"{line}\n" for line in collapsed(stacks))
    else:
        graphs = [(name, flame(of_name, name)) for name, of_name in stacks.items()]
        text = page(graphs, PAGE_TITLE) if path.suffix.lower() == ".html" else svg(graphs)
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


def collapsed(stacks: Mapping[str, Iterable[Stack]]) -> Iterator[str]:
    """A line a stack, `name;outermost;…;innermost count`, as flamegraph.pl, inferno and speedscope read it; the count
    is in microseconds a batch. Stacks of less than half of one are left out.
    """
    for name, of_name in stacks.items():
        for frames, ms in of_name:
            if round(1000 * ms):
                yield f"{';'.join([_part(name), *(_part(place_text(frame)) for frame in frames)])} {round(1000 * ms)}"


def _part(text: str) -> str:
    """A name in a format whose only separators are semicolons."""
    return safe_line(text).replace(";", ":")
