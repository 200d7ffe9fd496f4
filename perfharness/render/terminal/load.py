"""A load test on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from perfharness.load.progress import LoadStatus
from perfharness.load.reported import phase_verdict
from perfharness.model.load import (
    TOKEN_TIMES,
    UNANSWERED,
    ClockChange,
    ErrorKind,
    LoadFigure,
    LoadResult,
    LoadTimes,
    PhaseResult,
    StepVerdict,
    Sustained,
)
from perfharness.render.terminal.console import Column, Console, print_table, say
from perfharness.render.text import NOT_MEASURED

MET: dict[StepVerdict | None, str] = {"meets": "met", "misses": "not met", "undecided": "undecided", None: ""}
FIGURES = ("mean", "p50", "p90", "p95", "p99", "p99_9", "max")


def percentile_label(name: str) -> str:
    """`p99_9` -> `p99.9`."""
    return name.replace("_", ".")


def phase_name(phase: PhaseResult) -> str:
    """With the remark that it does not count."""
    return f"{phase.name} (excluded)" if phase.is_warmup else phase.name


def print_load(console: Console, result: LoadResult) -> None:
    """Phases with their rates and latencies, where the time of a request went, and the errors."""
    say(console, f"{result.target.name}: {_status(result)}")
    optional = [("unanswered", any(phase.unanswered for phase in result.phases)), ("in time/s", bool(result.objective))]
    names = [name for name, is_shown in optional if is_shown]
    columns = [Column(name) for name in ("asked/s", "achieved/s", "requests", "errors", *names)]
    latency = [Column(f"{percentile_label(name)} ms") for name in FIGURES]
    objective = [Column("objective", is_text=True)] if result.objective else []
    print_table(
        console,
        [Column("phase", is_text=True, is_whole=True), *columns, *latency, *objective],
        [_phase_row(result, phase, names) for phase in result.phases],
    )
    if (rate := _highest_rate(result)) is not None:
        say(console, f" highest rate that met the objective: {rate}")
    rows = [
        [name, str(times.count), *_figures(times)]
        for phase in result.phases
        if not phase.is_warmup
        for name, times in _parts(phase, several=len(result.phases) > 1)
        if times.count
    ]
    if rows:
        print_table(console, [Column("of which", is_text=True, is_whole=True), Column("requests"), *latency], rows)
    for phase in result.phases:
        if phase.tokens_per_second is not None and not phase.is_warmup:
            say(console, f"{phase.name}: {phase.tokens} tokens, {_number(phase.tokens_per_second)}/s")
        if not phase.is_warmup and (intervals := _intervals(phase.latency)):
            of = f" of {phase.name}" if len(result.phases) > 1 else ""
            say(console, f" 95 % intervals of the latency{of}, ms: {intervals}")
        if not phase.is_warmup:
            name = f"{phase.name}: " if len(result.phases) > 1 else ""
            for (what, reason), missing in _missing(phase.latency).items():
                say(console, f" {name}no {what}{', '.join(missing)} of the latency: {reason}")
    if result.tracer in ("nsys", "embedded"):
        say(console, f" traced by {result.tracer}, whose cost is in these times; --tracer none measures without it")
    if result.sustained is not None:
        print_sustained(console, result.sustained)
    for error in result.errors:
        say(console, f" {error.count} {error.kind}{_in_warmup(result, error.kind)}{_what_happened(result, error)}")


def status_text(status: LoadStatus) -> str:
    """The last second of a load that goes on, in a line."""
    asked = "" if status.asked_rate is None else f"{_number(status.asked_rate)} asked, "
    times = [f"{name} {_number(value)} ms" for name, value in (("p50", status.p50_ms), ("p99", status.p99_ms)) if value]
    lost = [f"{status.unanswered} unanswered"] if status.unanswered else []
    waiting = [] if status.waiting is None else [f"{status.waiting} open"]
    parts = [
        f"{asked}{_number(status.achieved_rate)} answered a second", *times, *waiting, f"{status.failed} errors", *lost
    ]  # fmt: skip
    if status.grace_left_s is not None:
        parts.append(f"late answers are awaited for {status.grace_left_s:.0f} s")
    return f"{status.phase}: {', '.join(parts)}; {status.left_s:.0f} s left"


def print_sustained(console: Console, sustained: Sustained) -> None:
    """What changed over the run, one row a thing."""
    drifts = [*sustained.latency, *([sustained.throughput] if sustained.throughput else []), *sustained.errors]
    rows = [
        [
            f"memory, {one.of}", one.verdict, _number(one.first_mb), _number(one.last_mb), "MB",
            _slope(one.slope_mb_per_s, "MB/s"), one.reason or "",
        ]
        for one in sustained.memory
    ]  # fmt: skip
    rows += [
        [one.of, one.verdict, _ends(one.first, one.unit), _ends(one.last, one.unit), one.unit, _change(one.ratio),
         one.reason or ""]
        for one in drifts
    ]  # fmt: skip
    if sustained.queue_grows is not None:
        rows.append(["queue", "grows" if sustained.queue_grows else "does not grow", "", "", "", "", ""])
    for clock in sustained.clocks:
        rows += _gpu_rows(clock)
    columns = [Column(f"over {sustained.phase}", is_text=True, is_whole=True), Column("verdict", is_text=True)]
    columns += [Column("first"), Column("last"), Column("", is_text=True)]
    more = [Column("change", is_text=True), Column("because", is_text=True)]
    print_table(console, [*columns, *more], rows)


def _gpu_rows(one: ClockChange) -> list[list[str]]:
    """Clock, throttling, power, temperature and use of a GPU."""
    drop = "" if one.drop_percent is None else f"{-one.drop_percent:+.1f} %"
    throttled = ", ".join(f"{reason} {seconds:.1f} s" for reason, seconds in (one.throttled_s or {}).items() if seconds)
    verdict = "not reported" if one.throttled_s is None else f"throttled: {throttled}" if throttled else "not throttled"
    of, first, last = f"of {one.gpu}", _number(one.first_mhz), _number(one.last_mhz)
    rows = [[f"SM clock {of}", verdict, first, last, "MHz", drop, one.reason or ""]]
    if one.temperature_first_c is not None or one.temperature_last_c is not None:
        degrees = [_number(one.temperature_first_c), _number(one.temperature_last_c)]
        rows.append([f"temperature {of}", "", *degrees, "°C", "", ""])
    if one.power_w is not None:
        most = f"mean {_number(one.power_w)} W, at most {_number(one.power_max_w)} W"
        rows.append([f"power {of}", most, "", "", "", "", ""])
    if one.busy_percent is not None:
        rows.append([f"busy {of}", f"{one.busy_percent:.0f} % of the time", "", "", "", "", ""])
    return rows


def _ends(figure: LoadFigure, unit: str) -> str:
    """Of a share in percent."""
    if figure.value is None:
        return NOT_MEASURED
    return f"{figure.value:.2%}" if unit.startswith("of ") else _number(figure.value)


def _slope(figure: LoadFigure, unit: str) -> str:
    if figure.value is None or figure.low is None or figure.high is None:
        return NOT_MEASURED
    return f"{figure.value:+.3g} {unit} ({figure.low:+.3g} … {figure.high:+.3g})"


def _change(ratio: LoadFigure) -> str:
    if ratio.value is None:
        return NOT_MEASURED
    ends = "" if ratio.low is None or ratio.high is None else f" ({ratio.low - 1:+.1%} … {ratio.high - 1:+.1%})"
    return f"{ratio.value - 1:+.1%}{ends}"


def _intervals(times: LoadTimes) -> str:
    known = [(name, getattr(times, name)) for name in FIGURES if name != "max"]
    return ", ".join(
        f"{percentile_label(name)} {_number(one.low)} … {_number(one.high)}"
        for name, one in known
        if one.low is not None and one.high is not None
    )


def _status(result: LoadResult) -> str:
    reason = f" ({result.status_reason})" if result.status_reason else ""
    ended = "all of it was sent" if result.status == "ok" else result.status  # `ok` says nothing of the answers
    return f"{ended}{reason}, {result.duration_s:.1f} s"


def _in_warmup(result: LoadResult, kind: str) -> str:
    count = result.in_warmup(kind)
    return f" ({count} of them in the warm-up, which does not count)" if count else ""


def _what_happened(result: LoadResult, error: ErrorKind) -> str:
    if error.kind == UNANSWERED:
        never = sum(phase.never_sent for phase in result.phases)
        grace = result.profile.get("grace")
        when = (
            "their phase and its grace period were" if grace is None else f"their phase and {grace:g} s of grace were"
        )
        over = f"{when} over" if result.status == "ok" else "the run was ended"
        return f": open when {over}; {never} were never sent, for no worker was free"
    return f": {error.first.message}" if error.first and error.first.message else ""


def _missing(times: LoadTimes) -> dict[tuple[str, str], list[str]]:
    """Figures that there are not, and figures without an interval, by the reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in FIGURES:
        figure = getattr(times, name)
        if figure.reason is not None and figure.low is None:
            what = "" if figure.value is None else "interval of "
            found.setdefault((what, figure.reason), []).append(percentile_label(name))
    return found


def _highest_rate(result: LoadResult) -> str | None:
    """Of several rates; None: there is one at most, or no objective."""
    rates = {phase.asked_rate for phase in result.phases if phase.asked_rate is not None and not phase.is_warmup}
    if result.objective is None or len(rates) < 2:
        return None
    met = [phase.asked_rate for phase in result.phases if phase_verdict(result, phase) == "meets" and phase.asked_rate]
    return f"{_number(max(met))}/s" if met else "none"


def _phase_row(result: LoadResult, phase: PhaseResult, optional: Sequence[str]) -> list[str]:
    asked = "closed" if phase.asked_rate is None else _number(phase.asked_rate)
    errors = str(sum(phase.errors.values()) - phase.unanswered)
    values = {"unanswered": str(phase.unanswered), "in time/s": _number(phase.goodput)}
    more = [values[name] for name in optional]
    return [
        phase_name(phase),
        asked,
        _number(phase.achieved_rate),
        str(phase.arrivals),
        errors,
        *more,
        *_figures(phase.latency),
        *([MET[phase_verdict(result, phase)]] if result.objective else []),
    ]


def _parts(phase: PhaseResult, *, several: bool) -> list[tuple[str, LoadTimes]]:
    prefix = f"{phase.name}: " if several else ""
    return [
        (f"{prefix}queueing", phase.queueing),
        (f"{prefix}service", phase.service),
        *((f"{prefix}{name.replace('_', ' ')}", times) for name in TOKEN_TIMES if (times := getattr(phase, name))),
        (f"{prefix}generator late", phase.lateness),
    ]


def _figures(times: LoadTimes) -> list[str]:
    return [_number(getattr(times, name).value) for name in FIGURES]


def _number(value: float | None) -> str:
    """Four digits, or all before the point."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
