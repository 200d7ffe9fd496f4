"""Collapsed stacks for flamegraph.pl, inferno and speedscope."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from perfharness.analysis.host_samples.stacks import Stack
from perfharness.files import write_text
from perfharness.render.places import place_text
from perfharness.render.text import safe_line


def write_stacks(stacks: Mapping[str, Iterable[Stack]], path: Path) -> None:
    """Write the stacks of each process and stage. Raises `ResultError`."""
    write_text(path, lambda file: file.writelines(f"{line}\n" for line in collapsed(stacks)))


def collapsed(stacks: Mapping[str, Iterable[Stack]]) -> Iterator[str]:
    """Yield `name;outermost;…;innermost count` per stack, the count in µs per batch; skip counts that round to 0."""
    for name, of_name in stacks.items():
        for frames, ms in of_name:
            if round(1000 * ms):
                yield f"{';'.join([_part(name), *(_part(place_text(frame)) for frame in frames)])} {round(1000 * ms)}"


def _part(text: str) -> str:
    """Frame name without semicolons, which separate frames."""
    return safe_line(text).replace(";", ":")
