"""Sampled stacks as text, for flamegraph.pl, inferno and speedscope."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from perfharness.analysis.host_samples.stacks import Stack
from perfharness.files import write_text
from perfharness.render.places import place_text
from perfharness.render.text import safe_line


def write_stacks(stacks: Mapping[str, Iterable[Stack]], path: Path) -> None:
    """Write the stacks of each name (a process and a stage). Raises `ResultError`."""
    write_text(path, lambda file: file.writelines(f"{line}\n" for line in collapsed(stacks)))


def collapsed(stacks: Mapping[str, Iterable[Stack]]) -> Iterator[str]:
    """A line per stack, `name;outermost;…;innermost count`; the count is in microseconds per batch.

    Stacks of less than half a microsecond are left out.
    """
    for name, of_name in stacks.items():
        for frames, ms in of_name:
            if round(1000 * ms):
                yield f"{';'.join([_part(name), *(_part(place_text(frame)) for frame in frames)])} {round(1000 * ms)}"


def _part(text: str) -> str:
    """A name in a format whose only separators are semicolons."""
    return safe_line(text).replace(";", ":")
