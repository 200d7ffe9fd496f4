"""The diagnosis for people: tables of all stages, or one stage with all its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import Console

from perfharness.analysis.diagnosis import agreement
from perfharness.model.activity import ACTIVITIES
from perfharness.model.diagnosis import (
    Diagnosis,
    FunctionShare,
    GpuCounters,
    GpuLimits,
    KernelGroup,
    Path,
    StageDiagnosis,
)
from perfharness.model.result import path_text
from perfharness.render.places import file_and_line
from perfharness.render.terminal.advice import cause_lines, cause_name, cause_text, milliseconds, stage_names
from perfharness.render.terminal.console import Column, Row, fixed, print_table, say, styled
from perfharness.render.terminal.findings import print_findings
from perfharness.render.terminal.results import row_names
from perfharness.render.text import NOT_MEASURED

TOP = 3
"""Functions of a stage, where not all are asked for."""
SHOWN = 0.02
"""Of a stage's time: functions and activities that take less are left out, where not all are asked for."""


def matching_stages(diagnosis: Diagnosis, name: str | None) -> list[StageDiagnosis]:
    """Stages that are called so; all of them for None."""
    return [stage for stage in diagnosis.stages if name is None or is_named(stage.path, name)]


def is_named(path: Path, name: str) -> bool:
    """Whether that is what a stage is called: the end of its path, or all of it."""
    return any(name == path_text(path[begin:]) for begin in range(len(path)))


def print_diagnosis(console: Console, diagnosis: Diagnosis, name: str | None = None) -> None:
    """What the stages' time is made of, functions, counters, and the warm-up.

    Args:
        name: only this stage, with all figures.
    """
    stages = matching_stages(diagnosis, name)
    for stage in stages if name is not None else ():
        say(console, styled(path_text(stage.path), "bold"), ": ", cause_text(cause_name(stage.verdict)))
        for line in [*reason_lines(stage), *figure_lines(stage)]:
            say(console, f"  {line}")
    names = stage_names(stage.path for stage in diagnosis.stages)
    _print_activities(console, names, stages)
    _print_functions(console, names, stages, details=name is not None)
    _print_counters(console, names, stages)
    _print_rooflines(console, names, stages)
    _print_slowdown(console, names, stages)
    for loop in dict.fromkeys(replace(loop, level_ms=None, tolerance_ms=None) for loop in diagnosis.warmup):
        if loop.state in ("enough", "cannot-tell"):
            reported = f"steady from batch {loop.steady_from}" if loop.state == "enough" else loop.reason
            say(console, f"Warm-up of {path_text(loop.loop)}: -w {loop.warmup_batches}, {loop.state} ({reported})")
    print_findings(console, diagnosis.findings)


def print_agreement(console: Console, diagnoses: Mapping[str, Diagnosis]) -> None:
    """All processes in one table, and the figures of the one that takes longest."""
    found = agreement(diagnoses)
    rows: list[Row] = []
    for path, one in zip(row_names([one.path for one in found]), found, strict=True):
        verdicts = ", ".join(f"{count} {code.value}" for code, count in one.verdicts.items())
        rows.append([path, verdicts, one.process, fixed(one.wall_ms)])
    say(console, styled(f"all {len(diagnoses)} processes", "bold"), " (ms per batch of the process that is named)")
    columns = [Column("stage", is_text=True), Column("verdicts", is_text=True), Column("process", is_text=True, drop=1)]
    print_table(console, [*columns, Column("CPU")], rows)
    longest = max(found, key=lambda one: one.wall_ms, default=None)
    if longest is not None:
        say(console, styled(longest.process, "bold"), " (others: perfharness analyze -v RUN/PROCESS)")
        print_diagnosis(console, diagnoses[longest.process])


def reason_lines(stage: StageDiagnosis) -> Iterator[str]:
    """The causes, the verdict first."""
    for cause in stage.causes:
        saves = "" if cause.saves_ms is None else f", saves up to {milliseconds(cause.saves_ms)} per batch"
        yield f"{cause_name(cause)}, {100 * cause.share:.0f} % of it{saves}"
        yield from (f"  {line.plain}" for line in cause_lines(cause))


def figure_lines(stage: StageDiagnosis) -> Iterator[str]:
    """The other figures of one stage, one per line."""
    yield f"{stage.batches} batches, {fixed(stage.wall_ms)} ms per batch; {stage.samples} samples"
    if stage.gpu_busy_ms is not None:
        yield f"GPU: busy {fixed(stage.gpu_busy_ms)} ms per batch"
    for kernel in stage.kernels:
        yield (
            f"  {100 * kernel.share:3.0f} %  {kernel.count:.1f} x {kernel.mean_us:.1f} us  {kernel.name}  "
            f"grid {_shape(kernel.grid)} block {_shape(kernel.block)}  {_residency(kernel)}"
        )
    for copy in stage.copies:
        rate = "? GB/s" if copy.gb_per_s is None else f"{copy.gb_per_s:.1f} GB/s"
        ends = "" if copy.source_gpu is None else f" GPU {copy.source_gpu} to GPU {copy.target_gpu}"
        memory, size = copy.host_memory or "no host memory", _megabytes(copy.bytes)
        yield f"  copy {copy.direction}{ends}, {memory}: {copy.count:.1f} ({fixed(copy.time_ms)} ms), {size}, {rate}"
    if stage.limits is not None and stage.limits.work_ms:
        yield from _limit_lines(stage.limits)


def _residency(kernel: KernelGroup) -> str:
    if kernel.occupancy is None or kernel.waves is None or kernel.limiter is None:
        return f"({kernel.kind.value})"
    return (
        f"({kernel.kind.value}; {kernel.waves:.2f} waves, occupancy at most {100 * kernel.occupancy:.0f} %, "
        f"by {kernel.limiter.value})"
    )


def _limit_lines(limits: GpuLimits) -> Iterator[str]:
    basis = "" if limits.basis is None else f", according to {limits.basis}"
    names = ", ".join(f"{name} {fixed(ms)}" for name, ms in limits.by_name_ms.items() if ms)
    yield (
        f"GPU work limited by: {limits.limit.value}{basis} ({fixed(limits.work_ms)} ms: by name {names or 'nothing'}, "
        f"underfilled {fixed(limits.underfilled_ms)}, short kernels {fixed(limits.short_ms)}; "
        f"last waves {fixed(limits.tail_ms)})"
    )
    if limits.moved_gb_per_s is not None:
        share = limits.moved_peak_share
        of_peak = "" if share is None else f", {100 * share:.0f} % of the memory's bandwidth"
        yield f"copies inside the GPU and memsets: {limits.moved_gb_per_s:.0f} GB/s{of_peak}"
    for missing in limits.missing:
        yield f"not known: {missing}"


def _megabytes(size: float | None) -> str:
    return "? MB" if size is None else f"{size / 1e6:.3f} MB"


def _shape(values: tuple[int, int, int] | None) -> str:
    return "?" if values is None else "x".join(str(value) for value in values)


Names = Mapping[Path, str]
"""Of stages."""
Rows = Sequence[tuple[Path, tuple[str, ...]]]
"""The rows of stages, those of a stage together."""


def _print_activities(console: Console, names: Names, stages: Sequence[StageDiagnosis]) -> None:
    """What the stages' threads did; without activities that take little of every stage."""
    shown = [one for one in ACTIVITIES if any(stage.activities.get(one, 0.0) >= SHOWN for stage in stages)]
    columns = [*(Column(f"{one.value}\n%") for one in shown), Column("samples", drop=1)]
    rows: Rows = [
        (stage.path, (*(f"{100 * stage.activities.get(one, 0.0):.0f}" for one in shown), str(stage.samples)))
        for stage in stages
    ]
    _print_rows(console, names, "Time: what the stage's threads did, in percent of its time", columns, rows)


def _print_functions(console: Console, names: Names, stages: Sequence[StageDiagnosis], *, details: bool) -> None:
    """Each stage's functions by their own time."""
    rows: Rows = [
        (stage.path, (one.function, _line(one), f"{100 * one.self_share:.0f}", f"{100 * one.total_share:.0f}"))
        for stage in stages
        for one in (stage.functions if details else stage.functions[:TOP])
        if details or one.self_share >= SHOWN
    ]
    columns = [Column("function", is_text=True), Column("line", is_text=True, is_whole=True)]
    columns += [Column("own\n%"), Column("with\ncallees\n%", drop=1)]
    _print_rows(console, names, "Functions: percent of the stage's sampled time", columns, rows)


def _line(function: FunctionShare) -> str:
    """The file, its folder with it, and the line."""
    return "/".join(file_and_line(function).split("/")[-2:])


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


def _print_rooflines(console: Console, names: Names, stages: Sequence[StageDiagnosis]) -> None:
    """What the kernels of each stage reached of the tensor cores' and the memory's peak."""
    rows: Rows = [
        (
            stage.path,
            (
                str(one.gpu),
                f"{one.flop_per_s / 1e12:.3g}",
                f"{100 * one.tensor_share:.0f}",
                f"{one.bytes_per_s / 1e9:.0f}",
                _percent(one.bytes_per_s, one.peak_bytes_per_s),
                NOT_MEASURED if one.flop_per_byte is None else f"{one.flop_per_byte:.3g}",
                _percent(one.flop_per_s, one.ceiling_flop_per_s),
            ),
        )
        for stage in stages
        if stage.limits is not None
        for one in stage.limits.roofline
    ]
    columns = [Column("GPU", drop=4), Column("tensor\nTFLOP/s"), Column("of its\npeak %"), Column("DRAM\nGB/s")]
    columns += [Column("of its\npeak %"), Column("FLOP\nper byte", drop=2), Column("of the\nroof %", drop=1)]
    title = "Roofline: by counters; the roof is the peak of the tensor cores, or of the memory at as many FLOP per byte"
    _print_rows(console, names, title, columns, rows)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}" if whole else NOT_MEASURED


def _counter(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{100 * value:.1f}"


def _print_slowdown(console: Console, names: Names, stages: Sequence[StageDiagnosis]) -> None:
    """How much slower the profiling pass was, and the stages that took another part of the batch in it."""
    slowdowns = [stage.slowdown for stage in stages if stage.slowdown is not None]
    if not slowdowns:
        return
    low, high = (f"{bound:.2f}" for bound in (min(slowdowns), max(slowdowns)))
    factor = low if low == high else f"{low} to {high}"
    changed = [names[stage.path] for stage in stages if stage.is_changed]
    more = f"; another part of the batch in it: {', '.join(changed)}" if changed else ""
    say(console, styled("Profiling pass", "bold"), f": stages took {factor} times as long as when measured{more}")


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
