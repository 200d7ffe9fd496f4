"""The collectives of ranks below each other, and what each waits for: a process of the timeline of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from perfharness.analysis.ranks import RankCalls
from perfharness.model.trace import Int64
from perfharness.render.timeline.events import SLICE, ProcessEvents, Source, values_of
from perfharness.render.timeline.tracks import Ids, make_tracks, name_process, rows_that_nest

NAME = "ranks: collectives, and waiting for the last rank"


def rank_events(ranks: Sequence[RankCalls], offsets_ns: Mapping[str, int], ids: Ids, place: int) -> ProcessEvents:
    """A row for each rank: its collectives, and in each what it waited until the last rank had come.

    Args:
        ranks: in their order.
        offsets_ns: by process, what is added to the times of its trace.
        ids: gives out process and thread ids.
        place: where it is drawn.
    """
    shown = [one for one in ranks if one.clock_of in offsets_ns and len(one.start_ns)]
    if not shown:
        return ProcessEvents([], [], 0)
    parts = [
        part
        for number, one in enumerate(shown)
        for part in (_calls(one, number, offsets_ns[one.clock_of]), _waits(one, number, offsets_ns[one.clock_of]))
    ]
    line, start, end = (np.concatenate([part.columns[at] for part in parts]) for at in range(3))
    names, arguments, category = (
        np.asarray([text for part in parts for text in part.texts[at]], dtype=object) for at in range(3)
    )
    pid = ids.pid()
    nothing_wanted = np.full(len(start), -1, dtype=np.int64)
    tracks = make_tracks(
        ids, np.full(len(start), pid, dtype=np.int64), nothing_wanted, line, rows_that_nest(start, end, line),
        [(f"rank {one.rank}", "row") for one in shown],
    )  # fmt: skip
    columns = (names, category, tracks.pid, tracks.tid, start / 1000, (end - start) / 1000, arguments)
    source = Source(start, end - start, SLICE, tuple(values_of(column) for column in columns))
    return ProcessEvents([*name_process(pid, NAME, place), *tracks.metadata], [source], 0)


class _Slices:
    """Slices of one rank: its number, starts and ends; names, arguments and categories, as they stand in the file."""

    def __init__(self, number: int, start: Int64, length: Int64, names: list[str], more: list[str], kind: str) -> None:
        self.columns = (np.full(len(start), number, dtype=np.int64), start, start + length)
        self.texts = ([json.dumps(name) for name in names], more, [kind] * len(names))


def _calls(one: RankCalls, number: int, offset_ns: int) -> _Slices:
    waited = zip(one.waiting_ns.tolist(), one.last_rank.tolist(), strict=True)
    more = ["" if ns < 0 else f'"waiting_ms":{ns / 1e6:.6f},"last_rank":{last}' for ns, last in waited]
    start = one.start_ns + offset_ns
    return _Slices(number, start, one.end_ns - one.start_ns, one.operation, more, "communication")


def _waits(one: RankCalls, number: int, offset_ns: int) -> _Slices:
    has = one.waiting_ns > 0
    names = [f"waits for rank {last}" for last in one.last_rank[has].tolist()]
    return _Slices(number, one.start_ns[has] + offset_ns, one.waiting_ns[has], names, [""] * len(names), "waiting")
