"""Load test: rates, latencies and their parts, changes over the run, errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from perfharness.load.findings import NEVER_OVERLAPS
from perfharness.load.report import objective_figure, objective_verdict, phase_verdict
from perfharness.model.load import (
    UNANSWERED,
    ClockChange,
    Drift,
    ErrorKind,
    LoadFigure,
    LoadResult,
    LoadTimes,
    MemoryTrend,
    PhaseResult,
    StepVerdict,
)
from perfharness.model.telemetry import SampleLog
from perfharness.render.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Columns,
    Details,
    Entry,
    Figure,
    Items,
    Paragraph,
    Section,
    Table,
    facts,
    filled,
    omitted,
    table_of,
)
from perfharness.render.charts.load import bins_picture, over_time_picture, rate_text, rates_picture
from perfharness.render.numbers import change, interval, milliseconds, percent, significant
from perfharness.render.text import percentile_label
from perfharness.runs.report.model import LoadReport

STATISTICS = {"p50": 0, "p95": 2, "p99": 0, "max": 3, "mean": 4, "p90": 5, "p99_9": 6}
"""Statistic -> `Column.drop`."""

PERCENTILES = ("mean", "p50", "p90", "p95", "p99", "p99_9", "max")
Part = tuple[PhaseResult, str, LoadTimes]
PARTS = {
    "queueing": "queueing",
    "lateness": "  sent late",
    "service": "service",
    "first_token": "to the first token",
    "between_tokens": "between tokens",
}
MET: dict[StepVerdict | None, str] = {"meets": "met", "misses": "not met", "undecided": "undecided", None: ""}
VERDICTS: dict[StepVerdict, str] = {
    "meets": "within the objective of {}",
    "misses": "above the objective of {}",
    "undecided": "not proven to be within the objective of {}",
}
MAX_UNFOLDED = 8
"""Fold the times of more phases."""

MAX_BINS = 12
"""Phases that get a histogram."""

ABOUT = (
    "Latency counts from when a request is due, so it includes queueing. Intervals are 95 % intervals within this run."
)


def load_view(load: LoadReport) -> list[Block]:
    """Summary, tables and errors."""
    result = load.result
    return [
        Paragraph(f"{result.target.name}: {_status(result)}"),
        Items(load_sentences(load), numbered=True),
        *_tables(result),
        *_changes(result),
        *_errors(result),
    ]


def load_sections(load: LoadReport, number: int, log: SampleLog | None) -> list[Section]:
    """Sections of a report.

    Args:
        number: index of the run on the page.
        log: telemetry, or None if not sampled.
    """
    result = load.result
    picture = rates_picture(f"load_rates_{number}", result)
    blocks: list[Block] = [
        *([] if result.status == "ok" else [Paragraph(f"The load ended early: {_status(result)}.", "warning")]),
        Paragraph(ABOUT, "note"),
        *_tables(result, full=True),
    ]
    below = [
        Section("Load over time", [Chart(over_time_picture(f"load_{number}", load, log))]),
        Section("Errors", list(_errors(result))),
        Section("Latency over rate", [] if picture is None else [Chart(picture)]),
        Section("Distribution of the latency", _distributions(load, number)),
        Section("Changes over the run", list(_changes(result))),
        Section("Load profile", [_profile(result)]),
    ]
    return [Section("Under load", blocks, filled(below))]


# ---- summary ----


def load_figures(load: LoadReport) -> Iterator[Figure]:
    """Key figures of the main phase."""
    result, phase = load.result, _main(load)
    if phase is None:
        yield Figure("answered", "not measured", "no measured phase began")
        return
    of = f"of {phase.name}, " if len(result.phases) > 1 else ""
    asked = "closed loop" if phase.asked_rate is None else f"{significant(phase.asked_rate)}/s asked"
    yield Figure("answered", _per_second(phase.achieved_rate), f"{of}{asked}")
    for name in ("p50", "p99"):
        figure: LoadFigure = getattr(phase.latency, name)
        if figure.value is None:
            yield Figure(f"latency, {name}", "not known", figure.reason or phase.latency.reason or "")
        else:
            yield Figure(f"latency, {name}", milliseconds(figure.value), _ends(figure) or figure.reason or "")
    if result.objective is not None:
        limit = milliseconds(result.objective.latency_ms)
        yield Figure("met the objective", _per_second(phase.goodput), f"within {limit}")
    counted = [one for one in result.phases if not one.is_warmup]
    failed = sum(sum(one.errors.values()) for one in counted)
    yield Figure("errors", f"{failed:,}", f"of {sum(one.arrivals for one in counted):,}")


def load_sentences(load: LoadReport) -> list[str]:
    """Sentences on the objective, the highest rate that meets it, and the parts of the latency."""
    phase = _main(load)
    if phase is None:
        return ["Nothing was measured: the load ended before a measured phase began."]
    return [*_highest_rate(load.result), _against_objective(load.result, phase), _where(load, phase)]


def _main(load: LoadReport) -> PhaseResult | None:
    return None if load.main is None else load.result.phases[load.main]


def _against_objective(result: LoadResult, phase: PhaseResult) -> str:
    objective = result.objective
    asked = f"{phase.concurrency} at a time" if phase.asked_rate is None else f"{_per_second(phase.asked_rate)} asked"
    begin = f"{phase.name}: {asked}, {_per_second(phase.achieved_rate)} answered"
    if objective is None:
        return f"{begin}; p50 latency is {_known(phase.latency.p50, phase.latency)}."
    limit, failed = milliseconds(objective.latency_ms), _too_many_failed(result, phase)
    found, verdict = objective_figure(result, phase), objective_verdict(result, phase)
    if found is not None and found.value is not None and verdict is not None:
        text = f"p{objective.percentile:g} latency is {_known(found, phase.latency)}"
        return f"{begin}; {text}, {VERDICTS[verdict].format(limit)}{failed}."
    within = phase.within_objective
    share = "an unknown share" if within is None or not phase.arrivals else percent(within / phase.arrivals, 2)
    return f"{begin}; {share} of the requests were answered within {limit}{failed}."


def _too_many_failed(result: LoadResult, phase: PhaseResult) -> str:
    """Clause for errors above the objective's limit; latencies are of the other requests."""
    limit = None if result.objective is None else result.objective.max_error_rate
    failed = sum(phase.errors.values())
    if limit is None or failed <= limit * (phase.ok + failed):
        return ""
    return f"; {percent(failed / (phase.ok + failed), 2)} of the requests failed (limit: {percent(limit, 2)})"


def _where(load: LoadReport, phase: PhaseResult) -> str:
    service, queueing = phase.service.mean.value, phase.queueing.mean.value
    if service is None or queueing is None or load.queueing_share is None:
        reason = phase.queueing.mean.reason or phase.queueing.reason or phase.latency.reason or "nothing was answered"
        return f"Shares of queueing and service not known: {reason}."
    is_blocked = any(one.code == NEVER_OVERLAPS for one in load.result.findings)
    waiting = "waiting for the event loop" if is_blocked else "waiting for a worker"
    most = waiting if load.queueing_share > 0.5 else "service"
    busy = f"; workers are {percent(load.workers_busy)} busy (concurrency {phase.concurrency})"
    return (
        f"Most of a request's time is {most}: {milliseconds(queueing)} queueing and {milliseconds(service)} service on "
        f"average{'' if load.workers_busy is None else busy}."
    )


def _known(figure: LoadFigure, times: LoadTimes) -> str:
    if figure.value is None:
        return f"not known ({figure.reason or times.reason})"
    ends = _ends(figure) or (f"no interval: {figure.reason}" if figure.reason else None)
    return milliseconds(figure.value) + (f" ({ends})" if ends else "")


def _ends(figure: LoadFigure) -> str | None:
    if figure.low is None or figure.high is None:
        return None
    return f"95 %: {milliseconds(figure.low)} to {milliseconds(figure.high)}"


def _per_second(rate: float | None) -> str:
    return "not measured" if rate is None else f"{significant(rate)}/s"


def _status(result: LoadResult) -> str:
    ended = "all requests were sent" if result.status == "ok" else result.status
    return f"{ended}{f' ({result.status_reason})' if result.status_reason else ''}, {result.duration_s:.1f} s"


# ---- phases and times ----


def _tables(result: LoadResult, *, full: bool = False) -> Iterator[Block]:
    """Phases, and the times of their requests; a page shows more counts and folds long tables."""
    yield _phases(result)
    if full:
        yield _requests(result)
    more = [_times(result), *_intervals(result)]
    if full and len(result.phases) > MAX_UNFOLDED:
        yield Details("Queueing, service and intervals of each phase", more)
    else:
        yield from more
    if result.tracer in ("nsys", "embedded"):
        text = f"Times include the overhead of the tracer ({result.tracer}); --tracer none avoids it."
        yield Paragraph(text, "note")


def _phases(result: LoadResult) -> Table:
    has_objective = result.objective is not None
    columns: list[tuple[Column, Callable[[PhaseResult], Cell]]] = [
        (Column("phase"), _name),
        (Column("asked/s", "number"), lambda one: "closed" if one.asked_rate is None else one.asked_rate),
        (Column("answered/s", "number", "errors included"), lambda one: one.achieved_rate),
        (Column("requests", "count", "that were due", drop=1), lambda one: one.arrivals),
        (Column("errors", "count"), lambda one: sum(one.errors.values()) - one.unanswered),
    ]
    if any(phase.unanswered for phase in result.phases):
        meaning = "given up when the grace period or the run ended"
        columns.append((Column("unanswered", "count", meaning), lambda one: one.unanswered))
    if has_objective:
        columns.append((Column("met/s", "number"), lambda one: one.goodput))
    columns += _statistics(lambda one: one.latency)
    if any(phase.tokens is not None for phase in result.phases):
        columns.append((Column("tokens", "count", drop=7), lambda one: one.tokens))
        columns.append((Column("tokens/s", "number", drop=1), lambda one: one.tokens_per_second))
    if has_objective:
        columns.append((Column("objective"), lambda one: MET[phase_verdict(result, one)]))
    note = "Latency of a request, ms." + " met/s: answers per second within the objective." * has_objective
    return table_of("load phases", columns, result.phases, note)


def _requests(result: LoadResult) -> Table:
    no_answer = "timed out or unanswered; counted as slower than all others"
    columns: Columns[PhaseResult] = [
        (Column("phase"), _name),
        (Column("load"), rate_text),
        (Column("seconds", "number"), lambda one: one.duration_s),
        (Column("sent", "count"), lambda one: one.sent),
        (Column("answered", "count"), lambda one: one.completed),
        (Column("without error", "count"), lambda one: one.ok),
        (Column("no answer", "count", no_answer), lambda one: one.latency.slower),
        (Column("items/s", "number"), lambda one: one.items_per_second),
    ]
    return table_of("load requests", columns, result.phases)


def _times(result: LoadResult) -> Table:
    known: list[Part] = [
        (phase, label, times)
        for phase in result.phases
        for part, label in PARTS.items()
        if (times := getattr(phase, part)) is not None and times.count
    ]
    columns: list[tuple[Column, Callable[[Part], Cell]]] = [
        (Column("phase"), lambda one: _name(one[0])),
        (Column("part"), lambda one: one[1]),
        (Column("requests", "count", drop=1), lambda one: one[2].count),
    ]
    columns += _statistics(lambda one: one[2])
    note = "Parts of the latency, ms. Queueing lasts until service begins and includes sending late."
    return table_of("load times", columns, known, note)


def _intervals(result: LoadResult) -> Iterator[Block]:
    rows: list[list[Cell]] = []
    missing: dict[str, list[str]] = {}
    lacks_intervals = False
    for phase in result.phases:
        figures: dict[str, LoadFigure] = {name: getattr(phase.latency, name) for name in PERCENTILES}
        rows.append([_name(phase), *(interval(one.low, one.high) for name, one in figures.items() if name != "max")])
        lacks_intervals |= any(one.value is not None and one.low is None and one.reason for one in figures.values())
        is_few = phase.latency.count > 0 and not phase.latency.slower
        lacking: dict[str, list[str]] = {}
        for name, one in figures.items():
            if one.value is None and (reason := one.reason or phase.latency.reason):
                lacking.setdefault("too few requests" if is_few else reason, []).append(percentile_label(name))
        for reason, own in lacking.items():
            missing.setdefault(f"no {', '.join(own)}: {reason}", []).append(_name(phase))
        for part in ("queueing", "service"):
            if (reason := getattr(phase, part).reason) is not None:
                missing.setdefault(f"no {part}: {reason}", []).append(_name(phase))
    if any(any(row[1:]) for row in rows):
        columns = [Column(percentile_label(name), drop=STATISTICS[name]) for name in PERCENTILES if name != "max"]
        note = "95 % intervals of the latency, ms; they take clusters of slow requests into account."
        yield Table("load intervals", [Column("phase"), *columns], rows, note)
    notes = [f"{', '.join(phases)}: {what}" for what, phases in missing.items()]
    if lacks_intervals:
        notes.append("Some intervals are missing: too few independent requests; measure longer (--duration).")
    if notes:
        yield Items(notes)


def _statistics(times: Callable[[Entry], LoadTimes]) -> list[tuple[Column, Callable[[Entry], Cell]]]:

    def cell(name: str) -> Callable[[Entry], Cell]:
        return lambda entry: getattr(times(entry), name).value

    return [(Column(percentile_label(name), "ms", drop=STATISTICS[name]), cell(name)) for name in PERCENTILES]


def _name(phase: PhaseResult) -> str:
    return f"{phase.name} (excluded)" if phase.is_warmup else phase.name


def _highest_rate(result: LoadResult) -> Iterator[str]:
    """Sentence on the highest rate that met the objective, and the first that did not; of several rates only."""
    rates = {phase.asked_rate for phase in result.phases if phase.asked_rate is not None and not phase.is_warmup}
    if result.objective is None or len(rates) < 2:
        return
    judged = [(phase, phase_verdict(result, phase)) for phase in result.phases]
    met = [phase.asked_rate for phase, verdict in judged if phase.asked_rate and verdict == "meets"]
    but = [
        f"; not met at {_per_second(phase.asked_rate)} ({_per_second(phase.achieved_rate)} answered)"
        for phase, verdict in judged
        if verdict == "misses"
    ]
    yield f"Highest rate that met the objective: {_per_second(max(met)) if met else 'none'}{''.join(but[:1])}."


# ---- errors, changes, profile ----


def _errors(result: LoadResult) -> Iterator[Table]:
    columns: Columns[ErrorKind] = [
        (Column("error"), lambda one: one.kind),
        (Column("count", "count"), lambda one: one.count),
        (Column("in warm-up", "count", drop=1), lambda one: result.in_warmup(one.kind)),
        (Column("first request", "count", drop=3), lambda one: None if one.first is None else one.first.request),
        (Column("at s", "number", drop=2), lambda one: None if one.first is None else one.first.at_s),
        (Column("message"), lambda one: _message(result, one)),
    ]
    if result.errors:
        yield table_of("load errors", columns, result.errors)


def _message(result: LoadResult, error: ErrorKind) -> str:
    if error.kind != UNANSWERED:
        return (error.first and error.first.message) or ""
    never = sum(phase.never_sent for phase in result.phases)
    grace = result.profile.get("grace")
    when = "the run" if result.status != "ok" else f"{'the' if grace is None else f'{grace:g} s of'} grace period"
    return f"still open when {when} ended; {never} not sent because no worker was free"


def _changes(result: LoadResult) -> Iterator[Table]:
    """Changes of memory, latency, throughput, errors, queue and GPUs over the longest phase."""
    if (found := result.sustained) is None:
        return
    number = [Column(one, "number") for one in ("first", "last")]
    columns = [Column("what"), Column("verdict"), *number, Column("change"), Column("95 %", drop=1), Column("remark")]
    throughput = [] if found.throughput is None else [found.throughput]
    queue = {True: "grows", False: "does not grow", None: "cannot-tell"}[found.queue_grows]
    rows: list[list[Cell]] = [
        *map(_memory_row, found.memory),
        *map(_drift_row, [*found.latency, *throughput, *found.errors]),
        ["queue of the requests", queue, "", "", "", "", ""],
        *(row for clock in found.clocks for row in _gpu_rows(clock)),
    ]
    of = f"Last third of {found.phase} ({found.duration_s:,.0f} s) compared with the first"
    yield Table("load changes", columns, rows, f"{of}; memory: after the first third.")


def _memory_row(one: MemoryTrend) -> list[Cell]:
    slope = one.slope_mb_per_s
    growth = None if slope.value is None else f"{slope.value:+.3g} MB/s"
    ends = None if slope.low is None or slope.high is None else f"{slope.low:+.3g} to {slope.high:+.3g}"
    per_request = "" if one.per_request_bytes is None else f"{one.per_request_bytes:,.0f} bytes per request"
    remark = "; ".join(filter(None, (per_request, one.reason or slope.reason)))
    return [f"memory of {one.of} (MB)", one.verdict, one.first_mb, one.last_mb, growth, ends, remark]


def _drift_row(one: Drift) -> list[Cell]:
    low, high = one.ratio.low, one.ratio.high
    ends = None if low is None or high is None else f"{change(low)} to {change(high)}"
    values = [one.first.value, one.last.value, change(one.ratio.value)]
    return [f"{one.of} ({one.unit})", one.verdict, *values, ends, one.reason or ""]


def _gpu_rows(one: ClockChange) -> Iterator[list[Cell]]:
    drop = None if one.drop_percent is None else f"{-one.drop_percent:+.1f} %"
    throttled = ", ".join(f"{reason} {seconds:.1f} s" for reason, seconds in (one.throttled_s or {}).items() if seconds)
    verdict = f"throttled: {throttled}" if throttled else "not throttled"
    verdict = "not reported" if one.throttled_s is None else verdict
    yield [f"SM clock of {one.gpu} (MHz)", verdict, one.first_mhz, one.last_mhz, drop, None, one.reason or ""]
    degrees = (one.temperature_first_c, one.temperature_last_c)
    if degrees != (None, None):
        yield [f"temperature of {one.gpu} (°C)", "", *degrees, "", "", ""]
    known = [f"power {significant(one.power_w)} W"] if one.power_w is not None else []
    known += [f"at most {significant(one.power_max_w)} W"] if one.power_max_w is not None else []
    known += [f"busy {one.busy_percent:.0f} % of the time"] if one.busy_percent is not None else []
    if known:
        yield [f"{one.gpu}, means", "", "", "", "", "", ", ".join(known)]


def _distributions(load: LoadReport, number: int) -> list[Block]:
    warmups = {one.name for one in load.result.phases if one.is_warmup}
    shown = [one for one in load.bins if one.phase not in warmups]
    objective = None if load.result.objective is None else load.result.objective.latency_ms
    pictures = [
        bins_picture(f"load_bins_{number}_{place}", one, objective) for place, one in enumerate(shown[:MAX_BINS])
    ]
    charts = [Chart(picture, small=True) for picture in pictures]
    return [*charts, *omitted(len(shown) - MAX_BINS, "more phases have no chart.")]


def _profile(result: LoadResult) -> Table:
    objective, phases = result.objective, result.profile.get("phases", [])
    settings = {name: value for name, value in result.profile.items() if name not in ("phases", "objective")}
    settings |= {f"phase {place}": phase for place, phase in enumerate(phases, 1)}
    rows = {
        "target": f"{result.target.name} ({result.target.kind})",
        "processes": str(result.target.processes),
        "objective": objective and f"p{objective.percentile:g} below {milliseconds(objective.latency_ms)}",
        **{name: json.dumps(value, ensure_ascii=False) for name, value in settings.items()},
    }
    return facts("load profile", [[name, text] for name, text in rows.items() if text], "setting")
