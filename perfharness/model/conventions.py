"""The conventions of a recorder's trace (in full: docs/internals/trace-conventions.md).

Standard library only: the recorder writes by these rules and the analysis reads by them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

DEFAULT_DOMAIN = "perfharness"
STARTUP_DOMAIN = "perfharness.startup"  # ranges before the first batch (`startup_range`): in no result
CAPTURE_RANGE = "perfharness.capture"  # range and domain: while it is open, nsys records (`--capture-batches`)

# Marks; payloads are int64, times nanoseconds.
MARK_RECORDER = "perfharness.recorder"  # once per recorder and domain; the mark's category is the recorder's name
MARK_ITEMS = "perfharness.items"  # in a batch, just before it is popped; payload: items
MARK_DELETE = "perfharness.delete"  # in a range, just before it is popped: leave it and all below out of the results
MARK_SHARED = "perfharness.shared"  # in a batch, just before it is popped: other ranks work on the same items
MARK_BARRIER = "perfharness.start_barrier"  # when the start barrier opens for a thread; payload: its wait
MARK_READY_TIME = "perfharness.ready_time"
"""Before a batch and after it or one of its direct stages, at most once in `READY_TIME_EVERY_NS` per thread; Linux.

Payload: for how long the thread has run or been ready to run so far. Otherwise it waited for something else.
"""

MARK_QUEUED = "perfharness.queued"  # with `MARK_READY_TIME`; payload: for how long the thread waited for a CPU so far
MARK_COMPILING = "perfharness.compiling"  # with `MARK_READY_TIME`; payload: time in torch.compile on the thread so far
READY_TIME_EVERY_NS = 5_000_000  # a reading takes 5 to 10 us, after a sleep up to 170 us
MARK_CLOCK = "perfharness.clock"
"""Several when a recorder is made and finalized; payload: CLOCK_MONOTONIC just before, which ties the trace's clock."""

MARK_END = "perfharness.end"
"""In the default domain, with a pid and a number, before `os._exit`: makes nsys write what it still holds."""

COMMUNICATION = "communication"
"""User category of a range around a collective call, in which ranks wait for each other; named by `collective_name`."""

CATEGORY_SEPARATOR = "/"
LANE_SEPARATOR = "#"


def printable(text: str) -> str:
    """The text as UTF-8 and NVTX can carry it: lone surrogates (of bytes that are no UTF-8) and NUL are escaped."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def category_name(recorder: str, user_category: str | None = None, lane: int = 0) -> str:
    """`recorder[/user category][#lane]`; lane 0 is the thread's own push/pop stack, others are start/end lanes."""
    name = recorder if user_category is None else f"{recorder}{CATEGORY_SEPARATOR}{user_category}"
    return name if lane == 0 else f"{name}{LANE_SEPARATOR}{lane}"


def parse_category(category: str, recorders: frozenset[str]) -> tuple[str, str | None, int] | None:
    """`(recorder, user category, lane)` of a category name, or None where no known recorder owns it."""
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
    """`all_reduce`, of some ranks only `all_reduce (ranks 0,1)`; with ` (async)` where the call does not wait."""
    members = "" if ranks is None else f" (ranks {','.join(str(rank) for rank in sorted(ranks))})"
    return f"{operation}{members}{' (async)' if is_async else ''}"


def parse_collective(name: str) -> tuple[str, tuple[int, ...] | None, bool]:
    """Operation, ranks that take part (None: all) and whether the call does not wait: what `collective_name` wrote."""
    found = _RANKS_OF_NAME.fullmatch(name)
    assert found is not None, "the first group takes anything"
    members = None if found[2] is None else tuple(int(rank) for rank in found[2].split(","))
    return found[1], members, found[3] is not None
