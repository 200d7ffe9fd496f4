"""The rows and lines of all processes -> `LoadResult`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfharness.analysis.load.latency import NEVER_NS as SLOWEST_NS
from perfharness.analysis.load.latency import load_times, percentile_of
from perfharness.load.findings import load_findings
from perfharness.load.profile import Phase, Profile
from perfharness.load.record import NEVER_NS
from perfharness.load.request import TIMEOUT, UNANSWERED
from perfharness.model.columns import Int64
from perfharness.model.findings import Finding
from perfharness.model.load import (
    TIMES,
    TOKEN_TIMES,
    ErrorKind,
    FirstError,
    LoadResult,
    LoadTimes,
    LoadWindow,
    PhaseResult,
    Status,
    TargetRecord,
)

Line = dict[str, Any]
NO_VALUES = {
    "latency": "no request was answered without error",
    "queueing": "only the target knows when service began",
    "service": "only the target knows when service began",
    "lateness": "no request was sent",
    "first_token": "no answer had a token",
    "between_tokens": "no answer had two tokens",
}
BEGIN_AND_END = {
    "latency": ("intended_ns", "done_ns"),
    "queueing": ("intended_ns", "begun_ns"),
    "service": ("begun_ns", "done_ns"),
    "first_token": ("intended_ns", "first_token_ns"),
}
WAS_KILLED = "a process was killed, so its open requests are unknown"
WORST: tuple[Status, ...] = ("killed", "stopped-by-errors", "interrupted", "ok")


@dataclass(frozen=True)
class Requests:
    """The requests of a phase as columns; an unknown time is `NEVER_NS`.

    Args:
        missing: number of open requests when a process was killed, and the time of the kill.
    """

    table: pa.Table
    missing: tuple[int, int] = (0, 0)

    def __getitem__(self, name: str) -> Int64:
        """A column of numbers."""
        column: Int64 = self.table[name].fill_null(NEVER_NS).to_numpy().astype(np.int64)
        return column

    @cached_property
    def error(self) -> npt.NDArray[Any]:
        """The error kind of each; empty: none."""
        return np.asarray(self.table["error"].fill_null("").to_numpy(zero_copy_only=False), object)

    @cached_property
    def is_well(self) -> npt.NDArray[np.bool_]:
        """Whether each was answered without error."""
        return np.asarray(self.error == "", bool)

    @cached_property
    def is_slower(self) -> npt.NDArray[np.bool_]:
        """Whether each had no answer before its timeout."""
        return np.asarray((self.error == UNANSWERED) | (self.error == TIMEOUT), bool)

    @cached_property
    def ended_ns(self) -> Int64:
        """When each was answered; given-up requests come after all others."""
        done: Int64 = np.where(self["done_ns"] == NEVER_NS, SLOWEST_NS, self["done_ns"])
        return done

    def values(self, name: str) -> tuple[Int64, Int64, Int64]:
        """One kind of time for the rows that have it: end, due time and value of each.

        Rows without an answer before the timeout are slower than all others; so are those that were open at a kill.
        """
        intended, well = self["intended_ns"], self.is_well
        if name == "lateness":
            known = (self["sent_ns"] != NEVER_NS) & (self.error != UNANSWERED)
            late = self["sent_ns"] - np.maximum(intended, self["ready_ns"])
            return self.ended_ns[known], intended[known], late[known]
        begin, end = (self[moment] for moment in BEGIN_AND_END[name])
        known = well & (begin != NEVER_NS) & (end != NEVER_NS)
        values = np.where(known, end - begin, SLOWEST_NS)
        if name not in ("latency", "queueing") or (name == "queueing" and not known.any() and well.any()):
            return self.ended_ns[known], intended[known], values[known]
        rows = known | self.is_slower
        count, at_ns = self.missing
        slowest = np.full(count, SLOWEST_NS)
        return (
            np.concatenate([self.ended_ns[rows], slowest]),
            np.concatenate([intended[rows], np.full(count, at_ns)]),
            np.concatenate([values[rows], slowest]),
        )

    def times(self, name: str) -> LoadTimes:
        """The statistics of one kind of time."""
        if name != "between_tokens":
            return load_times(*self.values(name)[1:], NO_VALUES[name])
        gaps = self.table.filter(pa.array(self.is_well))["token_gaps_ns"].combine_chunks()
        at = self["intended_ns"][self.is_well][pc.list_parent_indices(gaps).to_numpy()]
        return load_times(at, pc.list_flatten(gaps).to_numpy(zero_copy_only=False).astype(np.int64), NO_VALUES[name])


def of_phase(table: pa.Table, name: str) -> Requests:
    """The requests of the phase with this name."""
    return Requests(table.filter(pc.equal(table["phase"], name)))


def load_result(
    target: TargetRecord,
    profile: Profile,
    processes: Mapping[str, Sequence[Line]],
    tables: Sequence[pa.Table],
    tracer: str | None = None,
    findings: Sequence[Finding] = (),
) -> LoadResult:
    """The result from the lines and rows of each process; a process without lines had no window.

    Args:
        processes: lines by folder; `tables`: the rows in the same order.
        findings: other findings of the load.
    """
    lines = [line for found in processes.values() for line in found]

    def of(kind: str, phase: int | None = None) -> list[Line]:
        own = [line for line in lines if line["kind"] == kind]
        return [line for line in own if phase in (None, line.get("phase", line.get("index")))]

    ends = [next((line for line in found if line["kind"] == "end"), None) for found in processes.values()]
    statuses: list[Status] = [end["status"] if end else "killed" for end in ends]
    origin_ns = min((run["start_ns"] for run in of("run")), default=0)
    is_killed = "killed" in statuses
    phases, windows, table = [], list[LoadWindow](), pa.concat_tables(tables)
    levels_reason, alone = (WAS_KILLED if is_killed else None), list[str]()
    for index, phase in enumerate(profile.phases):
        begins, own = of("phase", index), of("window", index)
        if not begins:
            continue
        requests = of_phase(table, phase.name)
        if is_killed:
            last_ns = max((line["end_ns"] for line in own), default=begins[0]["start_ns"])
            missing = sum(line["arrivals"] for line in own) - requests.table.num_rows
            requests = Requests(requests.table, (max(missing, 0), last_ns))
        phases.append(_phase_result(profile, phase, requests, begins, own, of("phase-end", index), origin_ns))
        windows += _windows(phase.name, own, requests, origin_ns, len(windows), knows_open=not is_killed)
        if requests.table.num_rows and not (requests["begun_ns"] != NEVER_NS).any():
            levels_reason = levels_reason or NO_VALUES["queueing"]
        if _is_never_overlapped([of_phase(one, phase.name) for one in tables], begins):
            alone.append(phase.name)
    result = LoadResult(
        target=target,
        profile=profile.to_json(),
        status=min(statuses, key=WORST.index, default="killed"),
        status_reason=next((end["reason"] for end in ends if end and end["reason"]), None),
        objective=profile.objective,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        duration_s=(max((line["end_ns"] for line in of("window")), default=origin_ns) - origin_ns) / 1e9,
        phases=phases,
        windows=windows,
        levels_reason=levels_reason,
        errors=_errors(table, origin_ns),
        tracer=tracer,
    )
    found = [*load_findings(result, alone), *findings]
    limited = any(finding.code == "generator-limited" for finding in found)
    return result.model_copy(update={"generator_limited": limited, "findings": found})


def _phase_result(
    profile: Profile,
    phase: Phase,
    requests: Requests,
    begins: Sequence[Line],
    windows: Sequence[Line],
    ends: Sequence[Line],
    origin_ns: int,
) -> PhaseResult:
    start_ns, planned_ns = min(line["start_ns"] for line in begins), max(line["end_ns"] for line in begins)
    covered_ns = max((line["end_ns"] for line in windows), default=start_ns)
    end_ns = min(planned_ns, covered_ns)  # an interrupted run ends earlier
    stops = [int(line["stopped_ns"]) for line in ends if line["stopped_ns"] is not None]
    if stops and len(stops) == len(ends):  # nothing more was sent; open requests were awaited
        end_ns = min(end_ns, max(start_ns, *stops))
    duration_s = (end_ns - start_ns) / 1e9
    served_s = (max(int(requests["done_ns"].max(initial=0)), end_ns) - start_ns) / 1e9
    well, errors = requests.is_well, Counter(requests.error[requests.error != ""].tolist())
    completed = len(well) - errors[UNANSWERED]
    arrivals = sum(line["arrivals"] for line in windows)
    tokens = pc.sum(requests.table.filter(pa.array(well))["tokens"]).as_py()
    within = None
    if profile.objective is not None:
        within = int((requests.values("latency")[2] <= round(profile.objective.latency_ms * 1e6)).sum())
    items = int(requests["items"][well].sum())

    def per_second(count: float | None, seconds: float) -> float | None:
        return count / seconds if count is not None and seconds > 0 else None

    streamed = TOKEN_TIMES if (requests["first_token_ns"] != NEVER_NS).any() else ()
    return PhaseResult(
        name=phase.name,
        loop=phase.loop,
        is_warmup=phase.warmup,
        asked_rate=per_second(arrivals, duration_s) if phase.loop == "open" else None,
        achieved_rate=per_second(completed, served_s),
        concurrency=sum(line["concurrency"] for line in begins),
        start_s=(start_ns - origin_ns) / 1e9,
        duration_s=duration_s,
        arrivals=arrivals,
        sent=int((requests["sent_ns"] != NEVER_NS).sum()),
        completed=completed,
        ok=int(well.sum()),
        items=items,
        items_per_second=per_second(items, served_s),
        goodput=per_second(within, served_s),
        within_objective=within,
        **{name: requests.times(name) for name in (*TIMES, *streamed)},
        tokens=tokens,
        tokens_per_second=per_second(tokens, served_s),
        errors=dict(errors),
    )


def _windows(
    phase: str, lines: Sequence[Line], requests: Requests, origin_ns: int, first: int, *, knows_open: bool
) -> list[LoadWindow]:
    """The seconds of a phase; the n-th of all processes are merged."""
    groups = [list(group) for _, group in groupby(sorted(lines, key=itemgetter("index")), itemgetter("index"))]
    starts = np.array([min(line["start_ns"] for line in group) for group in groups], np.int64)
    stops = np.array([max(line["end_ns"] for line in group) for group in groups], np.int64)
    ended, _, values = requests.values("latency")
    place = np.maximum(np.searchsorted(starts, ended, side="right") - 1, 0)
    in_flight, queue = _levels(requests, starts, stops) if knows_open and groups else (None, None)
    found = []
    for number, group in enumerate(groups):
        memory = [line["rss_bytes"] for line in group]
        ordered = np.sort(values[place == number])
        p50, p99 = (percentile_of(ordered, percent) for percent in (50, 99))
        window = LoadWindow(
            index=first + number,
            phase=phase,
            start_s=(int(starts[number]) - origin_ns) / 1e9,
            end_s=(int(stops[number]) - origin_ns) / 1e9,
            **{name: sum(line[name] for line in group) for name in ("arrivals", "completed", "ok", "items")},
            errors=dict(sum((Counter(line["errors"]) for line in group), Counter())),
            in_flight_max=None if in_flight is None else int(in_flight[number]),
            queue_max=None if queue is None else int(queue[number]),
            rss_mb=None if None in memory else sum(memory) / 1e6,
            p50_ms=None if isinstance(p50, str) else p50,
            p99_ms=None if isinstance(p99, str) else p99,
        )
        found.append(window)
    return found


def _levels(requests: Requests, starts_ns: Int64, stops_ns: Int64) -> tuple[Int64, Int64 | None]:
    """By window the maximum number of requests in flight, and in the queue; None if unknown."""
    intended, begun, sent = requests["intended_ns"], requests["begun_ns"], requests["sent_ns"]
    done = np.minimum(requests.ended_ns, stops_ns[-1])
    in_flight = _most_at_a_time(intended, done, starts_ns, stops_ns)
    if len(begun) and not (begun != NEVER_NS).any():
        return in_flight, None
    served = np.where(begun != NEVER_NS, begun, np.where(sent != NEVER_NS, sent, done))
    return in_flight, _most_at_a_time(intended, np.maximum(served, intended), starts_ns, stops_ns)


def _most_at_a_time(begin_ns: Int64, end_ns: Int64, starts_ns: Int64, stops_ns: Int64) -> Int64:
    """The maximum number of requests that had begun and not ended, by window.

    Args:
        begin_ns, end_ns: times of each request; a request that ends when another begins is not counted with it.
        starts_ns, stops_ns: times of each window; a request that begins at the end of a window is not part of it.
    """
    moments = np.concatenate([begin_ns, end_ns])
    steps = np.concatenate([np.ones(len(begin_ns), np.int64), -np.ones(len(end_ns), np.int64)])
    order = np.lexsort((steps, moments))
    moments, level = moments[order], np.concatenate([[0], np.cumsum(steps[order])])
    firsts, lasts = np.searchsorted(moments, starts_ns), np.searchsorted(moments, stops_ns)
    found = [int(level[first : last + 1].max()) for first, last in zip(firsts, lasts, strict=True)]
    return np.array(found, np.int64)


LEAST_ALONE = 20
"""Minimum number of waiting requests: with fewer, service may fail to overlap by chance."""


def _is_never_overlapped(processes: Sequence[Requests], begins: Sequence[Line]) -> bool:
    """Whether requests waited although workers were free, and no two were ever in service in one process, as with a
    coroutine that never awaits.
    """
    waited = 0
    for requests in processes:
        known = requests.is_well & (requests["begun_ns"] != NEVER_NS)
        order = np.argsort(requests["begun_ns"][known], kind="stable")
        begun, done, due = (
            column[known][order] for column in (requests["begun_ns"], requests["done_ns"], requests["intended_ns"])
        )
        before = np.maximum.accumulate(done)[:-1]
        if (begun[1:] < before).any():
            return False
        waited += int((due[1:] < before).sum())
    return waited >= LEAST_ALONE and min(line["concurrency"] for line in begins) > 1


def _errors(table: pa.Table, origin_ns: int) -> list[ErrorKind]:
    """Errors by kind, the most frequent first; each with its first request."""
    rows = Requests(table.filter(pc.is_valid(table["error"])))
    at_ns = np.where(rows["done_ns"] == NEVER_NS, rows["intended_ns"], rows["done_ns"])
    messages, ids = rows.table["message"].to_pylist(), rows.table["id"].to_pylist()
    found = []
    for kind, count in Counter(rows.error.tolist()).most_common():
        own = np.flatnonzero(rows.error == kind)
        place = next((one for one in own[np.argsort(at_ns[own])] if messages[one] is not None), own[0])
        first = FirstError(request=ids[place], at_s=(int(at_ns[place]) - origin_ns) / 1e9, message=messages[place])
        found.append(ErrorKind(kind=kind, count=count, first=first))
    return found
