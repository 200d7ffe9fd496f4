"""The windows of all processes -> `LoadResult`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from perfharness.load.findings import GENERATOR_LIMITED, load_findings
from perfharness.load.histogram import Histogram
from perfharness.load.profile import Profile
from perfharness.load.request import TIMEOUT
from perfharness.model.load import (
    LEAST_BEYOND,
    PERCENTILES,
    TIMES,
    TOKEN_TIMES,
    ErrorKind,
    FirstError,
    LoadFigure,
    LoadResult,
    LoadTimes,
    LoadWindow,
    PhaseResult,
    Status,
    TargetRecord,
)

Line = dict[str, Any]
NO_GAPS = "no answer had two tokens"
NOT_KNOWN = "when service began is known to the target only"
NOT_ANSWERED = "no request was answered without error"
NOT_SENT = "no request was sent"
WORST: tuple[Status, ...] = ("killed", "stopped-by-errors", "interrupted", "ok")


@dataclass
class _Sum:
    """Windows added up."""

    lines: list[Line] = field(default_factory=list)
    times: dict[str, Histogram] = field(default_factory=lambda: {name: Histogram() for name in TIMES})
    """`TIMES`, and those of `TOKEN_TIMES` that there are."""

    errors: Counter[str] = field(default_factory=Counter)

    def add(self, line: Line) -> None:
        self.lines.append(line)
        self.errors.update(line["errors"])
        for name in (*TIMES, *TOKEN_TIMES):
            if name in line:
                self.times.setdefault(name, Histogram()).merge(Histogram.of_json(line[name]))

    def total(self, name: str) -> int:
        return sum(line.get(name) or 0 for line in self.lines)


def slower_in(line: Line) -> int:
    """Requests of a window that had no answer in time, which took longer than all that were answered."""
    return int(line["unanswered"] + line["errors"].get(TIMEOUT, 0))


def load_result(
    target: TargetRecord, profile: Profile, processes: Sequence[Sequence[Line]], tracer: str | None = None
) -> LoadResult:
    """The result of the lines of each process's file; a process without a line had no window."""
    runs = [lines[0] for lines in processes if lines]
    origin_ns = min((run["start_ns"] for run in runs), default=0)
    windows = [line for lines in processes for line in lines if line["kind"] == "window"]
    begun = [line for lines in processes for line in lines if line["kind"] == "phase"]
    ends = [next((line for line in lines if line["kind"] == "end"), None) for lines in processes]
    statuses: list[Status] = [end["status"] if end else "killed" for end in ends]
    phases = [
        _phase_result(
            profile,
            index,
            begins,
            [one for one in windows if one["phase"] == index],
            origin_ns,
            is_killed="killed" in statuses,
            ends=[
                line for lines in processes for line in lines if line["kind"] == "phase-end" and line["index"] == index
            ],
        )
        for index in range(len(profile.phases))
        if (begins := [line for line in begun if line["index"] == index])
    ]
    last_ns = max((line["end_ns"] for line in windows), default=origin_ns)
    result = LoadResult(
        target=target,
        profile=profile.to_json(),
        status=min(statuses, key=WORST.index, default="killed"),
        status_reason=next((end["reason"] for end in ends if end and end["reason"]), None),
        objective=profile.objective,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        duration_s=(last_ns - origin_ns) / 1e9,
        phases=phases,
        windows=_windows(profile, windows, origin_ns),
        errors=_errors(windows),
        tracer=tracer,
        requests_kept=next((end["requests_kept"] for end in ends if end and end.get("requests_kept")), None),
    )
    findings = load_findings(result)
    return result.model_copy(
        update={
            "generator_limited": any(finding.code == GENERATOR_LIMITED for finding in findings),
            "findings": findings,
        }
    )


def _phase_result(
    profile: Profile,
    index: int,
    begins: Sequence[Line],
    windows: Sequence[Line],
    origin_ns: int,
    *,
    is_killed: bool,
    ends: Sequence[Line] = (),
) -> PhaseResult:
    phase, added = profile.phases[index], _Sum()
    for line in windows:
        added.add(line)
    start_ns, planned_ns = min(line["start_ns"] for line in begins), max(line["end_ns"] for line in begins)
    covered_ns = max((line["end_ns"] for line in windows), default=start_ns)
    end_ns = min(planned_ns, covered_ns)  # of a run that was cut off, as far as it came
    stops = [int(line["stopped_ns"]) for line in ends if line.get("stopped_ns") is not None]
    if stops and len(stops) == len(ends):  # then nothing more was sent, and what was on its way was awaited
        end_ns = min(end_ns, max(start_ns, *stops))
    duration_s = (end_ns - start_ns) / 1e9
    last_ns = max((line["last_done_ns"] or 0 for line in windows), default=0)
    served_s = (max(last_ns, end_ns) - start_ns) / 1e9
    errors = dict(added.errors)
    open_ended = added.total("arrivals") - added.total("completed") - added.total("unanswered") if is_killed else 0
    slower = sum(map(slower_in, added.lines)) + max(open_ended, 0)
    tokens = added.total("tokens") if any("tokens" in line for line in added.lines) else None
    within = None if profile.objective is None else added.total("within_objective")

    knows_begin = bool(added.times["queueing"].count) or not added.times["latency"].count

    def per_second(count: float | None, seconds: float) -> float | None:
        return count / seconds if count is not None and seconds > 0 else None

    return PhaseResult(
        name=phase.name,
        loop=phase.loop,
        is_warmup=phase.warmup,
        asked_rate=per_second(added.total("arrivals"), duration_s) if phase.loop == "open" else None,
        achieved_rate=per_second(added.total("completed"), served_s),
        concurrency=sum(line["concurrency"] for line in begins),
        start_s=(start_ns - origin_ns) / 1e9,
        duration_s=duration_s,
        arrivals=added.total("arrivals"),
        sent=added.total("sent"),
        completed=added.total("completed"),
        ok=added.total("ok"),
        items=added.total("items"),
        items_per_second=per_second(added.total("items"), served_s),
        goodput=per_second(within, served_s),
        within_objective=within,
        latency=times_of(added.times["latency"], slower, NOT_ANSWERED),
        queueing=times_of(added.times["queueing"], slower if knows_begin else 0),
        service=times_of(added.times["service"]),
        lateness=times_of(added.times["lateness"], reason=NOT_SENT),
        **{name: times_of(added.times[name], reason=NO_GAPS) for name in TOKEN_TIMES if name in added.times},
        tokens=tokens,
        tokens_per_second=per_second(tokens, served_s),
        errors=errors,
    )


def times_of(histogram: Histogram, slower: int = 0, reason: str = NOT_KNOWN) -> LoadTimes:
    """Mean, percentiles and maximum of a histogram, and of further requests that took longer than all in it."""
    count = histogram.count
    total = count + slower
    why = f"{slower} of {total} requests ({slower / max(total, 1):.2g} of all) had no answer in time"
    if not count:
        return LoadTimes(reason=why if slower else reason, slower=slower)
    exact = {"mean": histogram.sum_ns / count / 1e6, "max": histogram.max_ns / 1e6}
    figures = {name: LoadFigure(reason=why) if slower else LoadFigure(value=exact[name]) for name in exact}
    figures |= {name: percentile_of(histogram, percent, total, why) for name, percent in PERCENTILES.items()}
    return LoadTimes.model_validate({**figures, "count": count, "slower": slower, "histogram": histogram.encode()})


def percentile_of(histogram: Histogram, percent: float, total: int, why: str) -> LoadFigure:
    """Of `total` values, of which those that the histogram does not hold are above all others."""
    rank = max(1, -(-total * round(percent * 10) // 1000))
    if percent > 50 and total - rank < LEAST_BEYOND:
        return LoadFigure(reason=f"fewer than {LEAST_BEYOND} of {total} values are beyond it")
    if rank > histogram.count:
        return LoadFigure(reason=why)
    return LoadFigure(value=histogram.value_at_rank(rank) / 1e6)


def _windows(profile: Profile, windows: Sequence[Line], origin_ns: int) -> list[LoadWindow]:
    """Those of all processes together: the n-th of each phase."""
    grouped: dict[tuple[int, int], _Sum] = {}
    for line in sorted(windows, key=lambda one: (one["phase"], one["index"])):
        grouped.setdefault((line["phase"], line["index"]), _Sum()).add(line)
    return [_window(number, profile, added, origin_ns) for number, added in enumerate(grouped.values())]


def _window(number: int, profile: Profile, added: _Sum, origin_ns: int) -> LoadWindow:
    lines = added.lines
    times = times_of(added.times["latency"], sum(map(slower_in, lines)))
    memory = [line["rss_bytes"] for line in lines]
    return LoadWindow(
        index=number,
        phase=profile.phases[lines[0]["phase"]].name,
        start_s=(min(line["start_ns"] for line in lines) - origin_ns) / 1e9,
        end_s=(max(line["end_ns"] for line in lines) - origin_ns) / 1e9,
        arrivals=added.total("arrivals"),
        completed=added.total("completed"),
        ok=added.total("ok"),
        items=added.total("items"),
        errors=dict(added.errors),
        in_flight_max=lines[0]["in_flight_max"] if len(lines) == 1 else None,
        rss_mb=None if None in memory else sum(memory) / 1e6,
        p50_ms=times.p50.value,
        p99_ms=times.p99.value,
    )


def _errors(windows: Sequence[Line]) -> list[ErrorKind]:
    """By kind, the most frequent first."""
    counts: Counter[str] = Counter()
    firsts: dict[str, Mapping[str, Any]] = {}
    for line in windows:
        counts.update(line["errors"])
        for one in line["first"]:
            if one["kind"] not in firsts or one["at_s"] < firsts[one["kind"]]["at_s"]:
                firsts[one["kind"]] = one
    return [
        ErrorKind(kind=kind, count=count, first=FirstError.model_validate(firsts[kind]) if kind in firsts else None)
        for kind, count in counts.most_common()
    ]
