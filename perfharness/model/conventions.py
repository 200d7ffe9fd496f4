"""Conventions of a recorder's trace (in full: docs/internals/trace-conventions.md).

Standard library only, because recorder and analysis share this module.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

DEFAULT_DOMAIN = "perfharness"
STARTUP_DOMAIN = "perfharness.startup"  # ranges before the first batch (`startup_range`), not in results
CAPTURE_RANGE = "perfharness.capture"  # range and domain that makes nsys record (`--capture-batches`)

# Marks; payloads are int64, times nanoseconds.
MARK_RECORDER = "perfharness.recorder"  # once per recorder and domain; the mark's category is the recorder's name
MARK_ITEMS = "perfharness.items"  # in a batch, just before its end; payload: items
MARK_DELETE = "perfharness.delete"  # in a range, just before its end: exclude it and all inside from results
MARK_SHARED = "perfharness.shared"  # in a batch, just before its end: other ranks process the same items
MARK_BARRIER = "perfharness.start_barrier"  # when the start barrier opens for a thread; payload: its wait
MARK_READY_TIME = "perfharness.ready_time"
"""Before a batch, and after it or a direct stage, at most every `READY_TIME_EVERY_NS` per thread; Linux only.

Payload: time that the thread has been running or ready so far; otherwise it waited for something else.
"""

MARK_QUEUED = "perfharness.queued"  # with `MARK_READY_TIME`; payload: the thread's wait for a CPU so far
MARK_COMPILING = "perfharness.compiling"  # with `MARK_READY_TIME`; payload: the thread's time in torch.compile so far
READY_TIME_EVERY_NS = 5_000_000  # a reading takes 5 to 10 us, after a sleep up to 170 us
MARK_CLOCK = "perfharness.clock"
"""Several at creation and finalization of a recorder; payload: CLOCK_MONOTONIC just before, to tie the clocks."""

MARK_END = "perfharness.end"
"""In the default domain, with pid and number, before `os._exit`: makes nsys write its buffers."""

COMMUNICATION = "communication"
"""User category of a range around a collective call (a wait for other ranks), named by `collective_name`."""

CATEGORY_SEPARATOR = "/"
LANE_SEPARATOR = "#"


def printable(text: str) -> str:
    """Escape lone surrogates (from invalid UTF-8) and NUL, which UTF-8 and NVTX cannot represent."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def category_name(recorder: str, user_category: str | None = None, lane: int = 0) -> str:
    """`recorder[/user category][#lane]`; lane 0 is the thread's push/pop stack, others are start/end lanes."""
    name = recorder if user_category is None else f"{recorder}{CATEGORY_SEPARATOR}{user_category}"
    return name if lane == 0 else f"{name}{LANE_SEPARATOR}{lane}"


def parse_category(category: str, recorders: frozenset[str]) -> tuple[str, str | None, int] | None:
    """`(recorder, user category, lane)` of a category name; None if no known recorder owns it."""
    base, separator, tail = category.rpartition(LANE_SEPARATOR)
    lane = 0
    if category not in recorders and separator and tail.isdigit():
        category, lane = base, int(tail)
    if category in recorders:
        return category, None, lane
    position = len(category)
    while (position := category.rfind(CATEGORY_SEPARATOR, 0, position)) > 0:
        if category[:position] in recorders:
            return category[:position], category[position + 1 :], lane
    return None


_RANKS_OF_NAME = re.compile(r"(.*?)(?: \(ranks ([0-9]+(?:,[0-9]+)*)\))?( \(async\))?", re.DOTALL)


def collective_name(operation: str, ranks: Sequence[int] | None = None, *, is_async: bool = False) -> str:
    """`all_reduce`; for some ranks `all_reduce (ranks 0,1)`; with ` (async)` if the call does not wait."""
    members = "" if ranks is None else f" (ranks {','.join(str(rank) for rank in sorted(ranks))})"
    return f"{operation}{members}{' (async)' if is_async else ''}"


def parse_collective(name: str) -> tuple[str, tuple[int, ...] | None, bool]:
    """Parse `collective_name`: operation, participating ranks (None for all), and whether the call does not wait."""
    found = _RANKS_OF_NAME.fullmatch(name)
    assert found is not None, "the first group takes anything"
    members = None if found[2] is None else tuple(int(rank) for rank in found[2].split(","))
    return found[1], members, found[3] is not None
