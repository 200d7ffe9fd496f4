"""What a load test's files come to beyond sums: intervals of percentiles, what changed over the run, findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from perfharness.analysis.load.latency import NEVER_NS, Latencies, WindowedCounts
from perfharness.analysis.load.trend import LEAST_READINGS, MB, grows, latency_drift, memory_trend, rate_drift
from perfharness.analysis.metrics.clocks import (
    LOW_CLOCK,
    RequestedClocks,
    clock_events,
    clock_hold,
    throttling_of,
)
from perfharness.analysis.metrics.findings import NSYS_HOLDS
from perfharness.errors import ResultError
from perfharness.load.findings import has_own_shape, keeps_up
from perfharness.load.histogram import Histogram
from perfharness.load.request import TIMEOUT, UNANSWERED
from perfharness.load.result import slower_in
from perfharness.model.columns import Float64, Int64
from perfharness.model.findings import Finding, Severity
from perfharness.model.load import (
    PERCENTILES,
    REQUESTS_NAME,
    TIMES,
    ClockChange,
    Drift,
    LoadFigure,
    LoadResult,
    LoadTimes,
    MemoryTrend,
    PhaseResult,
    Sustained,
)
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness.model.telemetry import TELEMETRY_NAME, SampleLog, process_subject
from perfharness.telemetry.store import read_sample_log

Line = dict[str, Any]
BEGIN_AND_END = {"latency": ("intended_ns", "done_ns"), "queueing": ("intended_ns", "begun_ns"),
                 "service": ("begun_ns", "done_ns")}  # fmt: skip
DRIFTING = (50.0, 95.0, 99.0)
OWN_SHAPE = "the profile changes the rate itself"
QUEUE_GROWS = "the queue grew all the time, and latency with it"


@dataclass(frozen=True)
class LoadFiles:
    """The files of a load test.

    Args:
        lines: of the windows of each process, by its folder.
        requests: the tables of requests, of all processes; None where they do not have all of them.
        log: telemetry; None: not sampled.
        nsys_bytes: sizes of the traces of processes that ran under nsys, by folder.
    """

    lines: Mapping[str, Sequence[Line]]
    requests: pa.Table | None
    log: SampleLog | None
    nsys_bytes: Mapping[str, int]

    @staticmethod
    def read(folder: Path, lines: Mapping[str, Sequence[Line]], tracer: str | None, *, has_all: bool) -> LoadFiles:
        """Of a run folder; what cannot be read is left out."""
        tables = [folder / process / REQUESTS_NAME for process, found in lines.items() if found]
        requests, log = None, None
        if has_all and all(map(Path.is_file, tables)):
            try:
                requests = pa.concat_tables([pq.read_table(table) for table in tables])
            except (OSError, pa.ArrowException):
                requests = None
        if (folder / TELEMETRY_NAME).is_file():
            try:
                log = read_sample_log(folder / TELEMETRY_NAME)
            except ResultError:  # the analysis of the run says so
                log = None
        traces = [(process, folder / process / TRACE_NAME) for process in lines] if tracer == "nsys" else []
        return LoadFiles(
            lines, requests, log, {process: path.stat().st_size for process, path in traces if path.is_file()}
        )

    def windows(self, phase: int) -> list[list[Line]]:
        """The windows of a phase: the n-th of each process."""
        found: dict[int, list[Line]] = {}
        for lines in self.lines.values():
            for line in lines:
                if line["kind"] == "window" and line["phase"] == phase:
                    found.setdefault(line["index"], []).append(line)
        return [found[index] for index in sorted(found)]


@dataclass(frozen=True)
class PhaseFiles:
    """What the files hold of one phase."""

    files: LoadFiles
    index: int
    result: PhaseResult

    @cached_property
    def windows(self) -> list[list[Line]]:
        """The n-th of each process."""
        return self.files.windows(self.index)

    @cached_property
    def rows(self) -> dict[str, Any] | None:
        """The phase's requests as columns; a time that is not known is `NEVER_NS`. None: not all of them are kept."""
        if self.files.requests is None:
            return None
        import pyarrow.compute as pc

        table = self.files.requests.filter(pc.equal(self.files.requests["phase"], self.result.name))
        times = {name for ends in BEGIN_AND_END.values() for name in ends} | {"sent_ns", "ready_ns"}
        columns = {name: table[name].fill_null(NEVER_NS).to_numpy().astype(np.int64) for name in sorted(times)}
        error = table["error"].fill_null("").to_numpy(zero_copy_only=False)
        unanswered = error == UNANSWERED
        return {**columns, "ok": error == "", "unanswered": unanswered, "slower": unanswered | (error == TIMEOUT)}

    @cached_property
    def during(self) -> list[list[Line]]:
        """Of the windows, those before the time in which late answers were awaited."""
        end_ns = self.span_ns[0] + round(self.result.duration_s * 1e9) - 1_000_000 if self.windows else 0
        return [lines for lines in self.windows if min(line["start_ns"] for line in lines) < end_ns]

    def counts(self, name: str) -> WindowedCounts:
        """One kind of time by window; requests without an answer in time are the slowest, as in `times_of`."""
        rows = self.rows
        if rows is None:
            return self._bucketed(name)
        intended, unanswered = rows["intended_ns"], rows["unanswered"]
        if name == "lateness":
            known = rows["sent_ns"] != NEVER_NS
            free = np.where(rows["ready_ns"] == NEVER_NS, intended, rows["ready_ns"])
            values = rows["sent_ns"] - np.maximum(intended, free)
            return WindowedCounts.of_values(intended[known & ~unanswered], values[known & ~unanswered])
        begin, end = (rows[column] for column in BEGIN_AND_END[name])
        known = rows["ok"] & (begin != NEVER_NS) & (end != NEVER_NS)
        values = np.where(known, end - np.where(known, begin, 0), NEVER_NS)
        counted = known | (rows["slower"] & (name != "service"))
        return WindowedCounts.of_values(intended[counted], values[counted])

    def _bucketed(self, name: str) -> WindowedCounts:
        """Of the histograms of the windows."""
        parts: list[tuple[Int64, Int64, Int64, Int64]] = []
        for number, lines in enumerate(self.windows):
            for line in lines:
                low, high, count = Histogram.of_json(line[name]).buckets()
                if len(low):  # a window may have no answer, as in a stall
                    parts.append((np.full(len(low), number, np.int64), low, high, count))
                if (slower := slower_in(line)) and name in ("latency", "queueing"):
                    parts.append(_never(number, slower))
        beyond = int(sum(part[3].sum() for part in parts if part[1][:1] == NEVER_NS))
        if (cut_off := getattr(self.result, name).slower - beyond) > 0:  # open when the process was killed
            parts.append(_never(len(self.windows) - 1, cut_off))
        if not parts:
            return WindowedCounts.of_values(np.empty(0, np.int64), np.empty(0, np.int64))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return WindowedCounts.of_buckets(len(self.windows), columns[0], columns[1], columns[2], columns[3])

    def column(self, name: str) -> Float64:
        """A figure of the windows before the grace period, all processes together."""
        return np.array([sum(line[name] or 0 for line in lines) for lines in self.during], np.float64)

    def levels(self) -> tuple[Int64 | None, Int64 | None, str | None]:
        """By window the most requests in flight and in the queue, at a time; None with the reason."""
        rows = self.rows
        if rows is None or not self.windows:
            return None, None, NO_ROWS if self.windows else None
        starts = np.array([min(line["start_ns"] for line in lines) for lines in self.windows], np.int64)
        stops = np.array([max(line["end_ns"] for line in lines) for lines in self.windows], np.int64)
        intended, last = rows["intended_ns"], self.span_ns[1]
        done = np.where(rows["unanswered"] | (rows["done_ns"] == NEVER_NS), last, rows["done_ns"])
        in_flight = _most_at_a_time(intended, done, starts, stops)
        begun, sent = rows["begun_ns"], rows["sent_ns"]
        if len(intended) and (begun == NEVER_NS).all():
            return in_flight, None, NO_BEGIN
        served = np.where(begun != NEVER_NS, begun, np.where(sent != NEVER_NS, sent, done))
        return in_flight, _most_at_a_time(intended, np.maximum(served, intended), starts, stops), None

    def errors(self, kind: str) -> Float64:
        """Of a kind, by window before the grace period."""
        return np.array([sum(line["errors"].get(kind, 0) for line in lines) for lines in self.during], np.float64)

    @property
    def span_ns(self) -> tuple[int, int]:
        """From the begin of the first window to the end of the last, monotonic."""
        lines = [line for lines in self.windows for line in lines]
        return min(line["start_ns"] for line in lines), max(line["end_ns"] for line in lines)


def _most_at_a_time(begin_ns: Int64, end_ns: Int64, starts_ns: Int64, stops_ns: Int64) -> Int64:
    """The most requests that had begun and not ended, in each window.

    Args:
        begin_ns, end_ns: of each request; one that ends as another begins is gone by then.
        starts_ns, stops_ns: of each window; what begins as a window stops is not part of it.
    """
    moments = np.concatenate([begin_ns, end_ns])
    steps = np.concatenate([np.ones(len(begin_ns), np.int64), -np.ones(len(end_ns), np.int64)])
    order = np.lexsort((steps, moments))
    moments, level = moments[order], np.concatenate([[0], np.cumsum(steps[order])])
    firsts, lasts = np.searchsorted(moments, starts_ns), np.searchsorted(moments, stops_ns)
    found = [int(level[first : last + 1].max()) for first, last in zip(firsts, lasts, strict=True)]
    return np.array(found, np.int64)


def _never(window: int, count: int) -> tuple[Int64, Int64, Int64, Int64]:
    """So many requests of a window that are slower than all others."""
    never = np.array([NEVER_NS], np.int64)
    return np.array([window], np.int64), never, never, np.array([count], np.int64)


def judge_load(result: LoadResult, folder: Path, lines: Mapping[str, Sequence[Line]]) -> LoadResult:
    """The result with intervals, `sustained` and findings."""
    files = LoadFiles.read(folder, lines, result.tracer, has_all=result.requests_kept is None)
    parts = [PhaseFiles(files, index, phase) for index, phase in enumerate(result.phases)]
    phases = [_with_intervals(part) for part in parts]
    longest = max((part for part in parts if not part.result.is_warmup), default=None, key=_length_s)
    sustained, found = None, []
    if longest is not None and len(longest.during) >= LEAST_READINGS:
        phase = result.phases[longest.index]
        sustained = sustained_of(longest, has_own_shape(phase, result))
        found = list(sustained_findings(sustained, longest, is_saturated=not keeps_up(phase, result)))
    return _with_levels(result, parts).model_copy(
        update={
            "phases": phases,
            "sustained": sustained,
            "findings": [*result.findings, *found],
        }
    )


NO_ROWS = "requests.parquet does not have all requests of all processes"
NO_BEGIN = "when service began is known to the target only"


def _with_levels(result: LoadResult, parts: Sequence[PhaseFiles]) -> LoadResult:
    """The windows with how many requests were in flight and in the queue, all processes together, or why not."""
    several = len(parts[0].files.lines) > 1 if parts else False
    windows, reason = list(result.windows), None
    places = iter(range(len(windows)))
    for part in parts:
        own = [next(places) for _ in part.windows]
        in_flight, queue, unknown = part.levels()
        reason = reason or unknown
        for number, place in enumerate(own):
            found = {"queue_max": None if queue is None else int(queue[number])}
            if several or part.result.loop == "closed":
                found["in_flight_max"] = None if in_flight is None else int(in_flight[number])
            windows[place] = windows[place].model_copy(update=found)
    return result.model_copy(update={"windows": windows, "levels_reason": reason})


def _length_s(part: PhaseFiles) -> float:
    return part.result.duration_s


def _with_intervals(part: PhaseFiles) -> PhaseResult:
    times = {name: getattr(part.result, name) for name in TIMES}
    return part.result.model_copy(
        update={name: _interval_of(one, Latencies(part.counts(name))) for name, one in times.items() if one.count}
    )


def _interval_of(times: LoadTimes, latencies: Latencies) -> LoadTimes:
    """The figures stay; percentiles and mean get their intervals, or why they have none."""
    found = {
        name: _joined(getattr(times, name), latencies.percentile(percent)) for name, percent in PERCENTILES.items()
    }
    return times.model_copy(update={**found, "mean": _joined(times.mean, latencies.mean())})


def _joined(figure: LoadFigure, estimate: LoadFigure) -> LoadFigure:
    if figure.value is None:
        return figure
    low = None if estimate.low is None else min(estimate.low, figure.value)
    high = None if estimate.high is None else max(estimate.high, figure.value)
    return LoadFigure(value=figure.value, low=low, high=high, reason=estimate.reason)


def sustained_of(part: PhaseFiles, has_own_shape: bool = False) -> Sustained:
    """What changed over a phase."""
    phase, counts = part.result, part.counts("latency")
    latency = [latency_drift(counts, percent) for percent in DRIFTING]
    if has_own_shape:
        latency = [one.model_copy(update={"verdict": "cannot-tell", "reason": OWN_SHAPE}) for one in latency]
    is_open = phase.loop == "open"
    queue_grows = grows(part.column("in_flight_max")) if is_open else None
    if queue_grows:
        latency = [one.model_copy(update={"reason": one.reason and QUEUE_GROWS}) for one in latency]
    served = part.column("ok")
    seconds = np.array([(lines[0]["end_ns"] - lines[0]["start_ns"]) / 1e9 for lines in part.during])
    over, unit = (part.column("arrivals"), "of the arrivals") if is_open else (seconds, "a second")
    # What has no answer is counted when the phase and its grace period are over, and says nothing about time.
    answers, kinds = (
        part.column("completed"),
        [kind for kind in phase.errors if kind != UNANSWERED and part.errors(kind).any()],
    )
    return Sustained(
        phase=phase.name,
        duration_s=phase.duration_s,
        memory=list(_memory(part)),
        latency=latency,
        throughput=rate_drift("throughput", unit, served, over),
        errors=[rate_drift(f"errors.{kind}", "of the answers", part.errors(kind), answers) for kind in kinds],
        clocks=list(_clocks(part)),
        queue_grows=queue_grows,
    )


def _memory(part: PhaseFiles) -> Iterator[MemoryTrend]:
    """Of each process: its own, and on the GPU."""
    several = len(part.files.lines) > 1
    rate = part.result.achieved_rate
    each = None if rate is None else rate / max(len(part.files.lines), 1)
    for folder, lines in part.files.lines.items():
        mine = [line for line in lines if line["kind"] == "window" and line["phase"] == part.index]
        name = f"process {folder}" if several else "process"
        at = np.array([line["start_ns"] / 1e9 for line in mine])
        used = np.array([line["rss_bytes"] if line["rss_bytes"] is not None else np.nan for line in mine], np.float64)
        trend = memory_trend(name, at, used, each)
        yield _less_nsys_own(trend, at, part.files.nsys_bytes.get(folder, 0))
        series = None if part.files.log is None else part.files.log.get(process_subject(folder), "process_memory_bytes")
        if series is not None and series.is_read.any():
            begin, end = part.span_ns
            inside = (series.time_monotonic_ns >= begin) & (series.time_monotonic_ns <= end)
            read = series.select(inside)
            yield memory_trend(f"gpu memory of {name}", read.time_monotonic_ns / 1e9, read.value, each)


def _less_nsys_own(trend: MemoryTrend, at_s: Float64, trace_bytes: int) -> MemoryTrend:
    """What nsys itself may hold in the process is no leak of the target."""
    high = trend.slope_mb_per_s.high
    if trend.verdict != "leaks" or high is None or high * MB * float(np.ptp(at_s)) > NSYS_HOLDS * trace_bytes:
        return trend
    reason = (
        "nsys holds what it records in the process, and that may be all of this; --tracer none tells the target's own"
    )
    return trend.model_copy(update={"verdict": "cannot-tell", "reason": reason, "per_request_bytes": None})


def _clocks(part: PhaseFiles) -> Iterator[ClockChange]:
    log = part.files.log
    if log is None:
        return
    begin, end = part.span_ns
    for record in log.subjects("gpu"):
        clock = log.get(record.subject, "sm_clock_mhz")
        if clock is None or not len(clock):
            yield ClockChange(gpu=record.subject, reason="the clock was not sampled")
            continue
        offset = int(clock.time_unix_ns[0] - clock.time_monotonic_ns[0])
        window = begin + offset, end + offset
        throttling = throttling_of(log, record.subject, RequestedClocks(), window)
        hold = clock_hold(clock, window, throttling.within(window).get(LOW_CLOCK, 0.0), None, window)
        events = clock_events(log.get(record.subject, "clock_event_reasons"), window)
        yield ClockChange(
            gpu=record.subject,
            first_mhz=hold.before_mhz,
            last_mhz=hold.after_mhz,
            drop_percent=hold.drop_percent,
            **_conditions(log, record.subject, begin, end),
            throttled_s=None if events is None else {one.reason: one.seconds for one in events if one.throttles},
            reason=hold.reason,
        )


def _conditions(log: SampleLog, gpu: str, begin_ns: int, end_ns: int) -> dict[str, float | None]:
    """Power, temperature and utilization over a time."""

    def read(metric: str, first: float = 0.0, last: float = 1.0) -> Float64:
        series = log.get(gpu, metric)
        if series is None:
            return np.empty(0)
        at = (series.time_monotonic_ns - begin_ns) / (end_ns - begin_ns)
        return series.value[series.is_read & (at >= first) & (at <= last)]

    def mean(values: Float64) -> float | None:
        return float(values.mean()) if len(values) else None

    power = read("power_instant_mw") / 1e3
    if not len(power):
        power = read("power_average_mw") / 1e3
    return {
        "power_w": mean(power),
        "power_max_w": float(power.max()) if len(power) else None,
        "temperature_first_c": mean(read("temperature_c", last=0.1)),
        "temperature_last_c": mean(read("temperature_c", first=0.9)),
        "busy_percent": mean(read("gpu_utilization_percent")),
    }


def sustained_findings(sustained: Sustained, part: PhaseFiles, *, is_saturated: bool) -> Iterator[Finding]:
    """What a reader has to know of a sustained run.

    Args:
        is_saturated: the target did not keep up; that has a finding, and all that follows is of the same cause.
    """
    for trend in sustained.memory:
        slope = trend.slope_mb_per_s
        if trend.verdict == "leaks" and slope.value is not None:
            each = "" if trend.per_request_bytes is None else f", {trend.per_request_bytes:,.0f} bytes a request"
            yield Finding(
                "load-memory-leaks",
                Severity.WARNING,
                f"Memory leaks ({trend.of}): it grew by {slope.value:.3g} MB/s ({slope.low:.3g} to {slope.high:.3g}) "
                f"after the first third of {sustained.phase}{each}.",
                "Look for what is kept for each request: caches without a limit, lists, tensors with gradients.",
            )
    rises = next((drift for drift in sustained.latency if drift.verdict == "rises"), None)
    if rises is not None and not is_saturated and not sustained.queue_grows:
        yield Finding(
            "load-latency-rises",
            Severity.WARNING,
            f"The latency rose during {sustained.phase}: its {rises.of.removeprefix('latency.')} {_change(rises)}.",
            "Look at memory and clocks over the same time, and at what the slowest requests did.",
        )
    if sustained.throughput is not None and sustained.throughput.verdict == "falls" and not is_saturated:
        yield Finding(
            "load-throughput-falls",
            Severity.WARNING,
            f"Fewer requests were answered well as {sustained.phase} went on: {_change(sustained.throughput)}.",
            "Look at errors, memory and clocks over the same time.",
        )
    for drift in sustained.errors:
        if drift.verdict == "rises" and drift.first.value is not None and drift.last.value is not None:
            yield Finding(
                "load-errors-rise",
                Severity.WARNING,
                f"Errors of the kind {drift.of.removeprefix('errors.')} rose from {drift.first.value:.2%} of the "
                f"answers in the first third of {sustained.phase} to {drift.last.value:.2%} in the last.",
            )
    if sustained.queue_grows and not is_saturated:
        rate = part.result.asked_rate
        asked = "" if rate is None else f" of {rate:.4g} requests/s"
        yield Finding(
            "load-queue-grows",
            Severity.WARNING,
            f"The queue grew all through {sustained.phase}: the target does not keep up with the rate{asked}, so its "
            "latencies depend on the duration.",
            "Ask for a lower rate.",
        )


def _change(drift: Drift) -> str:
    """Of a drift whose ratio has an interval."""
    first, last, ratio = (one.value or 0.0 for one in (drift.first, drift.last, drift.ratio))
    low, high = (drift.ratio.low or 0.0) - 1, (drift.ratio.high or 0.0) - 1
    return (
        f"{first:.4g} {drift.unit} in the first third, {last:.4g} in the last ({ratio - 1:+.1%}, {low:+.1%} to "
        f"{high:+.1%})"
    )
