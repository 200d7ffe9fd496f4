"""What the profiling pass and the GPU's counters show of the stages, in tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console

from perfharness.model.diagnosis import (
    FunctionTime,
    GpuCounters,
    HostProfile,
    Path,
    StageDiagnosis,
)
from perfharness.model.host_samples import HostState
from perfharness.model.text import NOT_MEASURED
from perfharness.render.places import file_and_line
from perfharness.render.terminal.advice import stage_names
from perfharness.render.terminal.console import Column, Row, fixed, print_table, say, styled

TOP, ALL = 3, 20
"""Functions of a stage: by default, and where details were requested."""
SHOWN_SHARE = 0.02
"""Of a stage's host time: functions and states that take less of every stage are not printed by default."""


def print_evidence(console: Console, stages: Sequence[StageDiagnosis], *, details: bool) -> None:
    """Functions, what the host's threads did, counters, and how far the profiling pass can be trusted; nothing of what
    there is nothing of.

    Args:
        details: all functions and states, and what could not be recorded, which is printed without samples, too.
    """
    names = stage_names(stage.path for stage in stages)
    _print_functions(console, names, stages, details=details)
    _print_states(console, names, stages, details=details)
    _print_holders(console, names, stages, details=details)
    _print_counters(console, names, stages)
    _print_rooflines(console, names, stages, details=details)
    _print_trust(console, names, stages)
    samples = [stage.profile.samples for stage in stages if stage.profile is not None]
    if details or (samples and not any(samples)):
        for missing in dict.fromkeys(_missing(stages)):
            say(console, styled("not known", "dim"), f": {missing}")


def _profiled(stages: Sequence[StageDiagnosis]) -> Iterator[tuple[StageDiagnosis, HostProfile]]:
    yield from ((stage, stage.profile) for stage in stages if stage.profile is not None and stage.profile.samples)


def _print_functions(console: Console, names: Names, stages: Sequence[StageDiagnosis], *, details: bool) -> None:
    """Each stage's top functions by their own time; by default without those that a stage inside it has most of."""
    listed = {
        stage.path: _functions_of(stage, profile.top_functions, stages, details=details)
        for stage, profile in _profiled(stages)
    }
    columns = [
        Column("function", is_text=True), Column("line", is_text=True, is_whole=True), Column("own"),
        Column("±", drop=2), Column("with\ncallees", drop=1), Column("own of\nstage", drop=3),
    ]  # fmt: skip
    rows: Rows = [
        (stage.path, (one.function, _line(one), fixed(one.self_ms), fixed(one.error_ms), fixed(one.cumulative_ms),
                      _share(one.self_ms, stage.cpu_ms)))
        for stage in stages for one in listed.get(stage.path, ())
    ]  # fmt: skip
    _print_rows(console, names, "Functions: ms of host time per batch (±: half the 95 % interval)", columns, rows)


def _functions_of(
    stage: StageDiagnosis, functions: Sequence[FunctionTime], stages: Sequence[StageDiagnosis], *, details: bool
) -> list[FunctionTime]:
    if details:
        return list(functions[:ALL])
    inside: dict[tuple[str, str], float] = {}
    for below, profile in _profiled(stages):
        if len(below.path) > len(stage.path) and below.path[: len(stage.path)] == stage.path:
            for one in profile.top_functions:
                key = (one.file, one.function)
                inside[key] = max(inside.get(key, 0.0), one.self_ms)
    least = SHOWN_SHARE * (stage.cpu_ms or 0.0)
    own = [one for one in functions if inside.get((one.file, one.function), 0.0) < one.self_ms / 2]
    return [one for one in own if one.self_ms > least][:TOP]


def _line(function: FunctionTime) -> str:
    """The file, its folder with it, and the line."""
    return "/".join(file_and_line(function).split("/")[-2:])


HEADINGS = {"gil": "GIL"}
STATES = tuple(state.name.lower() for state in HostState)


def _print_states(console: Console, names: Names, stages: Sequence[StageDiagnosis], *, details: bool) -> None:
    """What the stages' threads did; without states that no stage was in."""
    profiled = list(_profiled(stages))
    least = 0.0 if details else SHOWN_SHARE
    shown = [
        state
        for state in STATES
        if any((profile.state_ms.get(state) or 0.0) > least * (stage.cpu_ms or 0.0) for stage, profile in profiled)
    ]
    figures: list[tuple[str, Callable[[HostProfile], str]]] = [
        ("on CPU", lambda profile: fixed(profile.on_cpu_ms)),
        *(
            (HEADINGS.get(state, state), lambda profile, state=state: fixed(profile.state_ms.get(state)))
            for state in shown
        ),
    ]
    if any(profile.collections for _, profile in profiled):
        figures += [
            ("garbage\ncollection", lambda profile: fixed(profile.collection_ms)),
            ("runs\nof it", lambda profile: fixed(profile.collections, 1)),
        ]
    if any((profile.recorder_ms or 0.0) > least * (stage.cpu_ms or 0.0) for stage, profile in profiled):
        figures.append(("recorder\nitself", lambda profile: fixed(profile.recorder_ms)))
    if any(profile.cpus_used is not None for _, profile in profiled):
        figures.append(("CPUs\nused", _cpus))
    columns = [*(Column(heading) for heading, _ in figures), Column("samples", drop=1)]
    rows: Rows = [
        (stage.path, (*(figure(profile) for _, figure in figures), str(profile.samples))) for stage, profile in profiled
    ]
    _print_rows(console, names, "Threads: ms of host time per batch in each state", columns, rows)


def _cpus(profile: HostProfile) -> str:
    if profile.cpus_used is None:
        return NOT_MEASURED
    return f"{profile.cpus_used:.1f}" if profile.cpus is None else f"{profile.cpus_used:.1f} of {profile.cpus}"


def _print_holders(console: Console, names: Names, stages: Sequence[StageDiagnosis], *, details: bool) -> None:
    columns = [Column("held by", is_text=True), Column("line", is_text=True, is_whole=True), Column("waited")]
    rows: Rows = [
        (
            stage.path,
            (
                one.function if one.callee is None else f"{one.function}, in {one.callee}",
                _line(one),
                fixed(one.self_ms),
            ),
        )
        for stage, profile in _profiled(stages)
        for one in profile.gil_holders[: ALL if details else TOP]
        if details or one.self_ms > SHOWN_SHARE * (stage.cpu_ms or 0.0)
    ]
    title = "Interpreter lock: ms per batch that the stage waited for it, by what the thread that held it did"
    _print_rows(console, names, title, columns, rows)


COUNTERS: Mapping[str, Callable[[GpuCounters], float | None]] = {
    "SMs": lambda one: one.sm_active,
    "occupancy": lambda one: one.occupancy,
    "tensor": lambda one: one.tensor,
    "DRAM": lambda one: one.dram,
}


def _print_counters(console: Console, names: Names, stages: Sequence[StageDiagnosis]) -> None:
    """Counters of the GPUs, a row for each stage and GPU; without counters that no row has."""
    found = [(stage.path, one) for stage in stages for one in stage.counters]
    shown = {name: value for name, value in COUNTERS.items() if any(value(row) is not None for _, row in found)}
    columns = [Column("GPU", is_text=True), *(Column(f"{name}\n%") for name in shown), Column("seconds", drop=2)]
    rows: Rows = [
        (path, (str(one.gpu), *(_counter(value(one)) for value in shown.values()), f"{one.seconds:.3f}"))
        for path, one in found
    ]
    _print_rows(console, names, "GPU counters: while the stage's operations ran, of the peak", columns, rows)


def _print_rooflines(console: Console, names: Names, stages: Sequence[StageDiagnosis], *, details: bool) -> None:
    """What the kernels of each stage reached of the tensor cores' and the memory's peak; in detail each top kernel."""
    points = [
        (stage.path, what, point)
        for stage in stages if stage.gpu is not None
        for what, point in [
            *(("all", point) for point in stage.gpu.limits.roofline),
            *((kernel.name, kernel.roofline) for kernel in stage.gpu.top_kernels if details and kernel.roofline),
        ]
    ]  # fmt: skip
    columns = [
        Column("kernels", is_text=True), Column("GPU", drop=4), Column("tensor\nTFLOP/s"),
        Column("of its\npeak %"), Column("DRAM\nGB/s"), Column("of its\npeak %"), Column("FLOP\nper byte", drop=2),
        Column("of the\nroof %", drop=1),
    ]  # fmt: skip
    rows: Rows = [
        (path, (what, str(one.gpu), f"{one.flop_per_s / 1e12:.3g}", f"{100 * one.tensor_share:.0f}",
                f"{one.bytes_per_s / 1e9:.0f}", _percent(one.bytes_per_s, one.peak_bytes_per_s),
                NOT_MEASURED if one.flop_per_byte is None else f"{one.flop_per_byte:.3g}",
                _percent(one.flop_per_s, one.ceiling_flop_per_s)))
        for path, what, one in points
    ]  # fmt: skip
    title = "Roofline: by counters; the roof is the peak of the tensor cores, or of the memory at as many FLOP per byte"
    _print_rows(console, names, title, columns, rows)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}" if whole else NOT_MEASURED


def _counter(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{100 * value:.1f}"


def _print_trust(console: Console, names: Names, stages: Sequence[StageDiagnosis]) -> None:
    """How much slower the profiling pass was, and the stages whose proportions changed too much."""
    explained = [(names[stage.path], stage.explained) for stage in stages if stage.explained is not None]
    slowdowns = [one.slowdown for _, one in explained if one.slowdown is not None]
    if slowdowns:
        low, high = (f"{bound:.2f}" for bound in (min(slowdowns), max(slowdowns)))
        factor = low if low == high else f"{low} to {high}"
        say(
            console,
            styled("Profiling pass", "bold"),
            f": the stages took {factor} times as long as in the measured one",
        )
    for name, one in explained:
        if not one.trusted:
            say(console, styled("not trusted", "yellow"), f": {name}: {one.reason}")


def _missing(stages: Sequence[StageDiagnosis]) -> Iterator[str]:
    for stage in stages:
        yield from stage.profile.missing if stage.profile is not None else ()
        for one in stage.counters:
            yield from one.missing


Names = Mapping[Path, str]
"""Of stages."""
Rows = Sequence[tuple[Path, tuple[str, ...]]]
"""The rows of stages, those of a stage together."""


def _print_rows(console: Console, names: Names, title: str, columns: Sequence[Column], rows: Rows) -> None:
    """A table, if it has rows; a stage is named in the first of its rows, in Markdown in each."""
    if not rows:
        return
    is_markdown, before, printed = getattr(console, "markdown", False), None, list[Row]()
    for path, cells in rows:
        printed.append([names[path] if is_markdown or path != before else "", *cells])
        before = path
    heading, _, about = title.partition(": ")
    say(console, styled(heading, "bold"), f": {about}")
    print_table(console, [Column("stage", is_text=True), *columns], printed)


def _share(part: float, whole: float | None) -> str:
    return NOT_MEASURED if not whole else f"{100 * part / whole:.0f} %"
