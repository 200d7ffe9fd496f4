"""A load test as sections of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfharness.load.reported import objective_figure, phase_verdict
from perfharness.model.load import (
    Drift,
    LoadFigure,
    LoadResult,
    LoadTimes,
    MemoryTrend,
    PhaseResult,
    StepVerdict,
    Sustained,
)
from perfharness.model.telemetry import SampleLog
from perfharness.render.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Details,
    Figure,
    Figures,
    Items,
    Paragraph,
    Section,
    Table,
)
from perfharness.render.charts.load import (
    bins_picture,
    over_time_picture,
    rate_text,
    rates_picture,
)
from perfharness.render.numbers import milliseconds, significant
from perfharness.render.terminal.load import FIGURES, MET, percentile_label, phase_name
from perfharness.runs.report.model import LoadReport

PARTS = {
    "latency": "latency", "queueing": "queueing", "service": "service", "first_token": "to the first token",
    "between_tokens": "between tokens", "lateness": "generator late",
}  # fmt: skip
VERDICTS: dict[StepVerdict, str] = {
    "meets": "which is within the objective of {}",
    "misses": "which is beyond the objective of {}",
    "undecided": "and whether that is within the objective of {} is undecided",
}
MOST_UNFOLDED = 8
"""Phases whose times are not folded."""

MAX_BINS = 12
"""Phases with a distribution."""

ABOUT = (
    "Latency counts from the moment at which a request is due, so waits in a queue are part of it. Warm-up phases are "
    "in the charts, and in no sentence. Intervals are 95 % intervals within this run."
)


def load_figures(load: LoadReport) -> Iterator[Figure]:
    """The numbers that a reader wants first."""
    result = load.result
    phase = _main(load)
    if phase is None:
        yield Figure("answered", "not measured", "no phase that counts has begun")
        return
    of = f"of {phase.name}, " if len(result.phases) > 1 else ""
    asked = "closed loop" if phase.asked_rate is None else f"{significant(phase.asked_rate)}/s asked"
    yield Figure("answered", _a_second(phase.achieved_rate), f"{of}{asked}")
    for name in ("p50", "p99"):
        figure: LoadFigure = getattr(phase.latency, name)
        if figure.value is None:
            yield Figure(f"latency, {name}", "not known", figure.reason or phase.latency.reason or "")
        else:
            yield Figure(f"latency, {name}", milliseconds(figure.value), _ends_text(figure) or figure.reason or "")
    if result.objective is not None:
        yield Figure("in time", _a_second(phase.goodput), f"within {milliseconds(result.objective.latency_ms)}")
    failed = sum(sum(one.errors.values()) for one in result.phases if not one.is_warmup)
    yield Figure("errors", f"{failed:,}", f"of {sum(one.arrivals for one in result.phases if not one.is_warmup):,}")


def _main(load: LoadReport) -> PhaseResult | None:
    return None if load.main is None else load.result.phases[load.main]


def _a_second(rate: float | None) -> str:
    return "not measured" if rate is None else f"{significant(rate)}/s"


def _ends_text(figure: LoadFigure) -> str | None:
    if figure.low is None or figure.high is None:
        return None
    return f"95 %: {milliseconds(figure.low)} to {milliseconds(figure.high)}"


def load_sentences(load: LoadReport) -> list[str]:
    """What limits it: whether the target keeps up and is in time, and where the time of a request goes."""
    phase = _main(load)
    if phase is None:
        return ["No phase that counts has begun."]
    return [_in_time(load, phase), _where(load, phase)]


def _in_time(load: LoadReport, phase: PhaseResult) -> str:
    result = load.result
    if phase.asked_rate is None:
        begin = f"{phase.name}: {phase.concurrency} at a time, {_a_second(phase.achieved_rate)} requests were answered"
    else:
        asked = _a_second(phase.asked_rate)
        begin = f"{phase.name}: {asked} requests were asked for, {_a_second(phase.achieved_rate)} answered"
    if result.objective is None:
        figure, name = phase.latency.p50, "p50"
        return f"{begin}; {name} of the latency is {_known(figure, phase.latency)}."
    limit = milliseconds(result.objective.latency_ms)
    name, failed = f"p{result.objective.percentile:g}", _too_many_failed(result, phase)
    percentile = objective_figure(result, phase)
    if percentile is None or percentile.value is None or load.objective is None:
        share = (
            phase.within_objective / phase.arrivals if phase.within_objective is not None and phase.arrivals else None
        )
        why = "" if percentile is None or percentile.reason is None else f"; {name} is not known: {percentile.reason}"
        if share is None:
            return f"{begin}; how many of them within {limit} is not known{why}."
        return f"{begin}; {share:.2%} of the requests were answered within {limit}{why}{failed}."
    verdict = VERDICTS[load.objective].format(limit)
    return f"{begin}; {name} of the latency is {_known(percentile, phase.latency)}, {verdict}{failed}."


def _too_many_failed(result: LoadResult, phase: PhaseResult) -> str:
    """Where the objective says how many may; the latency is of the others."""
    limit = None if result.objective is None else result.objective.max_error_rate
    failed = sum(phase.errors.values())
    ended = phase.ok + failed
    if limit is None or failed <= limit * ended:
        return ""
    return f"; {failed / ended:.2%} of the requests failed, and the objective allows {limit:.2%}"


def _known(figure: LoadFigure, times: LoadTimes) -> str:
    if figure.value is None:
        return f"not known ({figure.reason or times.reason})"
    ends = _ends_text(figure)
    return milliseconds(figure.value) + (
        f" ({ends})" if ends else f" (no interval: {figure.reason})" if figure.reason else ""
    )


def _where(load: LoadReport, phase: PhaseResult) -> str:
    """Queue or service."""
    service, queueing = phase.service.mean.value, phase.queueing.mean.value
    if service is None or queueing is None or load.queueing_share is None:
        reason = phase.queueing.mean.reason or phase.queueing.reason or phase.latency.reason or "nothing was answered"
        return f"How much of the latency is queueing and how much service is not known: {reason}."
    busy = (
        ""
        if load.workers_busy is None
        else f"; workers are busy {load.workers_busy:.0%} of the time (concurrency {phase.concurrency})"
    )
    most = "waiting for a worker" if load.queueing_share > 0.5 else "service"
    return (
        f"Most of a request's time is {most}: {milliseconds(queueing)} of queueing and {milliseconds(service)} of "
        f"service on average{busy}."
    )


def load_blocks(load: LoadReport) -> Iterator[Block]:
    """Numbers, sentences and tables, without what needs the files of the run: for a notebook."""
    yield Figures(list(load_figures(load)))
    yield Items(load_sentences(load), numbered=True)
    yield from (_phases(load.result), _times(load.result))
    errors = _errors(load.result)
    if errors is not None:
        yield errors


def load_sections(load: LoadReport, number: int, log: SampleLog | None) -> list[Section]:
    """Everything about the load.

    Args:
        number: of the run on the page.
        log: telemetry; None: not sampled.
    """
    result = load.result
    blocks: list[Block] = [Paragraph(ABOUT, "note"), _phases(result)]
    if result.status != "ok":
        reason = f" ({result.status_reason})" if result.status_reason else ""
        blocks.insert(0, Paragraph(f"The load ended early: {result.status}{reason}.", "warning"))
    if len(result.phases) > MOST_UNFOLDED:
        blocks.append(Details("Latency, queueing and service of each phase", [_times(result)]))
    else:
        blocks.append(_times(result))
    blocks.append(Details("Intervals of the latency, and why a figure is missing", [_intervals(result)]))
    errors = _errors(result)
    below = [
        Section("Load over time", [Chart(over_time_picture(f"load_{number}", load, log))]),
        *([Section("Errors", [errors])] if errors is not None else []),
        *_over_rates(result, number),
        *_distributions(load, number),
        *_sustained(result.sustained),
        _generator(result),
        Section("What was asked for", [_profile(result)]),
    ]
    return [Section("Under load", blocks, below)]


def _phases(result: LoadResult) -> Table:
    has_objective = result.objective is not None
    columns = [
        Column("phase"), Column("asks for"), Column("seconds", "number"),
        Column("asked/s", "number"), Column("answered/s", "number", "errors included"),
        Column("due", "count"), Column("sent", "count"), Column("answered", "count"), Column("without error", "count"),
        Column("items/s", "number"),
        *([Column("in time/s", "number", "answers without error within the objective"),
           Column("objective")] if has_objective else []),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            phase_name(one), rate_text(one), one.duration_s, one.asked_rate, one.achieved_rate, one.arrivals, one.sent,
            one.completed, one.ok, one.items_per_second,
            *([one.goodput, MET[phase_verdict(result, one)]] if has_objective else []),
        ]
        for one in result.phases
    ]  # fmt: skip
    return Table("load phases", columns, rows)


def _times(result: LoadResult) -> Table:
    columns = [
        Column("phase"), Column("time"), Column("answers", "count"),
        Column("no answer", "count", "requests without an answer in time, which count as slower than all others"),
        *(Column(percentile_label(name), "ms") for name in FIGURES),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for phase in result.phases:
        for part, label in PARTS.items():
            times: LoadTimes | None = getattr(phase, part)
            if times is None:
                continue
            values = [getattr(times, name).value for name in FIGURES]
            rows.append([phase_name(phase), label, times.count, times.slower, *values])
    reasons = dict.fromkeys(
        f"{PARTS[part].capitalize()} is not known: {times.reason}."
        for phase in result.phases
        for part in ("queueing", "service")
        if (times := getattr(phase, part)).reason is not None
    )
    note = "ms. Queueing is up to the begin of service; the generator's lateness is its own fault, not the target's."
    return Table("load times", columns, rows, " ".join([note, *reasons]))


def _intervals(result: LoadResult) -> Table:
    columns = [
        Column("phase"), Column("figure"), Column("latency", "ms"), Column("from", "ms"), Column("to", "ms"),
        Column("why not known"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for phase in result.phases:
        for name in FIGURES:
            figure: LoadFigure = getattr(phase.latency, name)
            reason = figure.reason or (phase.latency.reason if figure.value is None else None)
            rows.append(
                [phase_name(phase), percentile_label(name), figure.value, figure.low, figure.high, reason or ""]
            )
    return Table("load intervals", columns, rows, "ms; 95 % intervals that allow for slow requests in a row.")


def _errors(result: LoadResult) -> Table | None:
    if not result.errors:
        return None
    columns = [
        Column("kind"), Column("count", "count"), Column("first request", "count"), Column("at (s)", "number"),
        Column("its message"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            one.kind, one.count, *((one.first.request, one.first.at_s, one.first.message or "") if one.first else
                                   (None, None, "")),
        ]
        for one in result.errors
    ]  # fmt: skip
    return Table("load errors", columns, rows, "Warm-up included.")


def _over_rates(result: LoadResult, number: int) -> Iterator[Section]:
    picture = rates_picture(f"load_rates_{number}", result)
    if picture is not None:
        yield Section("Latency over rate", [Chart(picture)])


def _distributions(load: LoadReport, number: int) -> Iterator[Section]:
    warmups = {one.name for one in load.result.phases if one.is_warmup}
    shown = [one for one in load.bins if one.phase not in warmups]
    objective = None if load.result.objective is None else load.result.objective.latency_ms
    blocks: list[Block] = [
        Chart(bins_picture(f"load_bins_{number}_{place}", one, objective), small=True)
        for place, one in enumerate(shown[:MAX_BINS])
    ]
    if len(shown) > MAX_BINS:
        blocks.append(Paragraph(f"{len(shown) - MAX_BINS} more phases have no chart; the JSON has all.", "note"))
    if blocks:
        yield Section("Distribution of the latency", blocks)


def _sustained(sustained: Sustained | None) -> Iterator[Section]:
    if sustained is None:
        return
    columns = [
        Column("what"), Column("verdict"), Column("first", "number"), Column("last", "number"), Column("change"),
        Column("95 %"), Column("remark"),
    ]  # fmt: skip
    rows = [_memory_row(one) for one in sustained.memory]
    drifts = [*sustained.latency, *([sustained.throughput] if sustained.throughput else []), *sustained.errors]
    rows += [_drift_row(one) for one in drifts]
    for one in sustained.clocks:
        drop = None if one.drop_percent is None else f"{-one.drop_percent:+.1f} %"
        throttled = ", ".join(f"{reason} {seconds:.1f} s" for reason, seconds in (one.throttled_s or {}).items())
        remark = "; ".join(filter(None, (one.reason, f"throttled: {throttled}" if throttled else "")))
        rows.append([f"SM clock of {one.gpu} (MHz)", "", one.first_mhz, one.last_mhz, drop, None, remark])
        if one.temperature_first_c is not None or one.temperature_last_c is not None:
            ends = [one.temperature_first_c, one.temperature_last_c]
            rows.append([f"temperature of {one.gpu} (°C)", "", *ends, None, None, ""])
        means = [("power", one.power_w, "W"), ("busy", one.busy_percent, "% of the time")]
        known = ", ".join(f"{name} {value:.4g} {unit}" for name, value, unit in means if value is not None)
        if known:
            most = "" if one.power_max_w is None else f"; power at most {one.power_max_w:.4g} W"
            rows.append([f"{one.gpu}, means", "", None, None, None, None, f"{known}{most}"])
    queue = {True: "grows", False: "does not grow", None: "cannot tell"}[sustained.queue_grows]
    note = (
        f"Over {sustained.phase}, {sustained.duration_s:,.0f} s. Latency, throughput, errors: the last third against "
        f"the first; memory: after the first third. Queue of the requests: {queue}."
    )
    yield Section("What changed over the run", [Table("load changes", columns, rows, note)])


def _memory_row(one: MemoryTrend) -> list[Cell]:
    slope = one.slope_mb_per_s
    change = None if slope.value is None else f"{slope.value:+.3g} MB/s"
    ends = None if slope.low is None or slope.high is None else f"{slope.low:+.3g} to {slope.high:+.3g}"
    each = "" if one.per_request_bytes is None else f"{one.per_request_bytes:,.0f} bytes a request"
    remark = "; ".join(filter(None, (each, one.reason or slope.reason)))
    return [f"memory of {one.of} (MB)", one.verdict, one.first_mb, one.last_mb, change, ends, remark]


def _drift_row(one: Drift) -> list[Cell]:
    ratio = one.ratio
    change = None if ratio.value is None else f"{ratio.value - 1:+.1%}"
    ends = None if ratio.low is None or ratio.high is None else f"{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}"
    return [f"{one.of} ({one.unit})", one.verdict, one.first.value, one.last.value, change, ends, one.reason or ""]


def _generator(result: LoadResult) -> Section:
    limited = "It was a limit: a finding says of which phase." if result.generator_limited else "It was not the limit."
    return Section("The generator", [Paragraph(limited)])


def _profile(result: LoadResult) -> Table:
    rows: list[list[Cell]] = [
        ["target", f"{result.target.name} ({result.target.kind})"],
        ["processes", str(result.target.processes)],
    ]
    if result.objective is not None:
        of = f"p{result.objective.percentile:g} of the latency below {milliseconds(result.objective.latency_ms)}"
        rows.append(["objective", of])
    rows += [[name, _setting(value)] for name, value in result.profile.items() if name not in ("phases", "objective")]
    for place, phase in enumerate(result.profile.get("phases", []), 1):
        settings = ", ".join(f"{name} {_setting(value)}" for name, value in phase.items())
        rows.append([f"phase {place}", settings])
    if result.requests_kept is not None:
        rows.append(["requests.parquet has", result.requests_kept])
    return Table("load profile", [Column("what"), Column("value")], rows)


def _setting(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_setting(inside)}" for name, inside in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; ".join(map(_setting, value))
    return significant(value) if isinstance(value, float) else str(value)
