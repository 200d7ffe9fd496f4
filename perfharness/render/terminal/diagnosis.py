"""The diagnosis for people: a table of verdicts, then the evidence of each stage's verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import Console

from perfharness.analysis.diagnosis.advice import advise
from perfharness.model.diagnosis import (
    Diagnosis,
    GpuLimits,
    HostActivity,
    KernelGroup,
    Path,
    StageDiagnosis,
    Verdict,
)
from perfharness.model.pooled_diagnosis import PooledDiagnosis
from perfharness.model.result import path_text
from perfharness.model.text import NOT_MEASURED
from perfharness.render.places import place_text
from perfharness.render.terminal.advice import milliseconds, verdict_name, verdict_text
from perfharness.render.terminal.console import Column, Row, fixed, print_table, say, styled
from perfharness.render.terminal.evidence import print_evidence
from perfharness.render.terminal.findings import print_findings
from perfharness.render.terminal.results import row_names


def matching_stages(diagnosis: Diagnosis, name: str | None) -> list[StageDiagnosis]:
    """Stages that are called so; all of them for None."""
    return [stage for stage in diagnosis.stages if name is None or is_named(stage.path, name)]


def is_named(path: Path, name: str) -> bool:
    """Whether that is what a stage is called: the end of its path, or all of it."""
    return any(name == path_text(path[begin:]) for begin in range(len(path)))


def print_diagnosis(console: Console, diagnosis: Diagnosis, name: str | None = None) -> None:
    """The evidence, and the warm-up; the table of all stages stands above it.

    Args:
        name: only this stage, with all figures.
    """
    stages = matching_stages(diagnosis, name)
    if name is None:
        _print_undecided(console, stages)
    elif stages:
        say(console, "ms per batch, without warm-up (costs: what the whole would save)")
        _print_table(console, stages)
        for stage in stages:
            say(console, styled(path_text(stage.path), "bold"), ": ", verdict_text(verdict_name(stage)))
            for line in [*reason_lines(stage), *figure_lines(stage, has_gpu=bool(diagnosis.gpus))]:
                say(console, f"  {line}")
    print_evidence(console, stages, details=name is not None)
    for loop in dict.fromkeys(replace(loop, level_ms=None, tolerance_ms=None) for loop in diagnosis.warmup):
        if loop.state in ("enough", "cannot-tell"):
            said = f"steady from batch {loop.steady_from}" if loop.state == "enough" else loop.reason
            say(console, f"Warm-up of {path_text(loop.loop)}: -w {loop.warmup_batches}, {loop.state} ({said})")
    for missing in diagnosis.missing:
        say(console, styled("not known", "dim"), f": {missing}")
    print_findings(console, diagnosis.findings)


def _print_undecided(console: Console, stages: Sequence[StageDiagnosis]) -> None:
    """Why stages have no verdict; equal reasons are one line."""
    reasons: dict[str, list[str]] = {}
    for stage in stages:
        if stage.verdict.verdict is Verdict.CANNOT_TELL:
            verdict = stage.verdict
            reason = next(iter([*verdict.evidence, *verdict.missing]), "")
            reasons.setdefault(f"{reason} {verdict.next_step}", []).append(path_text(stage.path))
    for reason, paths in reasons.items():
        say(console, verdict_text(Verdict.CANNOT_TELL.value), ": ", styled(", ".join(paths), "bold"), f": {reason}")


def print_pooled(console: Console, pooled: PooledDiagnosis, name: str | None = None) -> None:
    """All processes in one table: means over all their batches, and how far their verdicts agree."""
    stages = [stage for stage in pooled.stages if name is None or is_named(stage.path, name)]
    headings = ("agree", "batches", "CPU", "GPU", "copies", "waiting", "costs")
    rows = []
    for path, stage in zip(row_names([stage.path for stage in stages]), stages, strict=True):
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in stage.verdicts.items())
        mean, saving = stage.per_batch, stage.saving_share
        times = (mean.cpu_ms, mean.gpu_busy_ms, mean.copy_ms, mean.blocking_ms)
        rows.append([
            path, verdicts, f"{100 * stage.agreement:.0f} %", str(stage.totals.batches),
            *(fixed(time) for time in times),
            NOT_MEASURED if saving is None else f"{100 * saving[0]:.0f} to {100 * saving[1]:.0f} %",
        ])  # fmt: skip
    say(console, styled(f"all {len(pooled.processes)} processes", "bold"), " (ms per batch, over all their batches)")
    _print_known(console, ("stage", "verdicts"), headings, rows)


def print_example(console: Console, diagnoses: Mapping[str, Diagnosis]) -> None:
    """Evidence of the one process that the most valuable advice is about, where there is any."""
    advice = advise(diagnoses)
    process = advice[0].process if advice else next(iter(diagnoses))
    stages = diagnoses[process].stages
    if any(stage.profile is not None or stage.counters for stage in stages):
        say(console, styled(process, "bold"), " (others: perfharness analyze -v RUN/PROCESS)")
        print_evidence(console, stages, details=False)


NUMBERS = ("CPU", "GPU", "copies", "waiting", "costs")
GPU_HEADINGS = frozenset({"GPU", "copies", "waiting"})
DROPPED = {"copies": 5, "waiting": 4, "batches": 3, "agree": 2, "GPU": 1}
"""In what order columns are left out where the terminal is narrow: the smallest last."""


def _print_table(console: Console, stages: list[StageDiagnosis]) -> None:
    rows: list[Row] = []
    for name, stage in zip(row_names([stage.path for stage in stages]), stages, strict=True):
        gpu, saving = stage.gpu, stage.cost.saving_share
        times = (
            stage.cpu_ms,
            gpu.busy_ms if gpu else None,
            sum(copy.time_ms for copy in gpu.copies) if gpu else None,
            stage.host.blocking_ms if stage.host else None,
        )
        costs = NOT_MEASURED if saving is None else f"{100 * saving:.0f} %"
        rows.append([name, verdict_text(verdict_name(stage)), *(fixed(time) for time in times), costs])
    _print_known(console, ("stage", "limited by"), NUMBERS, rows)


def _print_known(console: Console, texts: Sequence[str], headings: Sequence[str], rows: Sequence[Row]) -> None:
    """Print a table without GPU columns where no GPU was used."""
    nothing = (NOT_MEASURED, fixed(0.0))
    columns = [*(Column(text, is_text=True, is_whole=text == "limited by") for text in texts)]
    columns += [Column(heading, drop=DROPPED.get(heading, 0)) for heading in headings]
    known = [
        place
        for place, column in enumerate(columns)
        if column.heading not in GPU_HEADINGS or any(str(row[place]) not in nothing for row in rows)
    ]
    print_table(console, [columns[place] for place in known], [[row[place] for place in known] for row in rows])


def reason_lines(stage: StageDiagnosis) -> Iterator[str]:
    """The causes; of the verdict, what is not one of them."""
    for cause in stage.causes:
        yield f"{cause.code}, {100 * cause.share:.0f} % of it: {cause.what}"
        yield f"  where: {cause.where_reason or 'not known' if cause.where is None else place_text(cause.where)}"
        saves = "" if cause.saves_ms is None else f" (saves up to {milliseconds(cause.saves_ms)} a batch)"
        yield f"  try: {cause.try_this}{saves}"
    whats, steps = ({getattr(cause, name) for cause in stage.causes} for name in ("what", "try_this"))
    yield from (evidence for evidence in stage.verdict.evidence if evidence not in whats)
    if stage.verdict.next_step not in steps:
        yield f"next: {stage.verdict.next_step}"
    for missing in stage.verdict.missing:
        yield f"missing: {missing}"


def figure_lines(stage: StageDiagnosis, *, has_gpu: bool) -> Iterator[str]:
    """All other figures of one stage, one per line."""
    items = f", {stage.items} items" if stage.items is not None else ""
    yield f"{stage.batches} batches{items}; CPU {fixed(stage.cpu_ms_per_item)} ms an item"
    if stage.cost.saving_share is None:
        yield f"what it costs the whole: not known ({stage.cost.reason})"
    else:
        yield (
            f"without it, a batch of the pipeline would take {fixed(stage.cost.without_stage_ms)} ms "
            f"instead of {fixed(stage.cost.pipeline_ms)}"
        )
    if has_gpu and stage.gpu is not None:
        yield from _gpu_lines(stage)
    if stage.host is not None:
        yield from _host_lines(stage)


def _gpu_lines(stage: StageDiagnosis) -> Iterator[str]:
    gpu = stage.gpu
    assert gpu is not None
    share = "" if gpu.kernel_share is None else f", {100 * gpu.kernel_share:.0f} % of its operations' time"
    yield (
        f"GPU: busy {fixed(gpu.busy_ms)} ms, from first to last {fixed(gpu.projected_ms)}; "
        f"{gpu.kernel_count:.1f} kernels ({fixed(gpu.kernel_time_ms)} ms{share}), "
        f"{gpu.memset_count:.1f} memsets ({fixed(gpu.memset_time_ms)} ms, {_megabytes(gpu.memset_bytes)}), "
        f"{gpu.graph_launch_count:.1f} graph launches ({fixed(gpu.graph_time_ms)} ms) on {gpu.streams} streams"
    )
    yield (
        f"at once: {fixed(gpu.stream_overlap_ms)} ms of its operations, {fixed(gpu.copy_with_compute_ms)} ms of "
        f"copies during kernels, {fixed(gpu.shared_with_processes_ms)} ms shared with other processes on the GPU"
    )
    for kernel in gpu.top_kernels:
        yield (
            f"  {100 * kernel.share:3.0f} %  {kernel.count:.1f} x {kernel.mean_us:.1f} us  {kernel.name}  "
            f"grid {_shape(kernel.grid)} block {_shape(kernel.block)}  {_residency(kernel)}"
        )
    yield from _limit_lines(gpu.limits)
    for copy in gpu.copies:
        rate = "? GB/s" if copy.gb_per_s is None else f"{copy.gb_per_s:.1f} GB/s"
        ends = "" if copy.source_gpu is None else f" GPU {copy.source_gpu} to GPU {copy.target_gpu}"
        memory = copy.host_memory or "no host memory"
        size = _megabytes(copy.bytes)
        yield (f"  copy {copy.direction}{ends}, {memory}: {copy.count:.1f} ({fixed(copy.time_ms)} ms), {size}, {rate}")
    for during in stage.gpu_during:
        gpu_name = "GPU" if during.gpu is None else f"GPU {during.gpu}"
        meanwhile = ", ".join(f"{name} {fixed(ms)}" for name, ms in during.host_meanwhile_ms.items())
        yield (
            f"{gpu_name} while the host was in it: busy {fixed(during.busy_ms)} ms, "
            f"idle {fixed(during.idle_ms)} ms in {during.gaps:.1f} gaps "
            f"(the longest {fixed(during.longest_gap_ms)} ms); the host meanwhile: {meanwhile}"
        )


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
        f"limited by: {limits.limit.value}{basis} ({fixed(limits.work_ms)} ms of work: by name {names or 'nothing'}, "
        f"underfilled {fixed(limits.underfilled_ms)}, short kernels {fixed(limits.short_ms)}; "
        f"last waves {fixed(limits.tail_ms)})"
    )
    if limits.moved_gb_per_s is not None:
        share = limits.moved_peak_share
        of_peak = "" if share is None else f", {100 * share:.0f} % of the memory's bandwidth"
        yield f"copies inside the GPU and memsets: {limits.moved_gb_per_s:.0f} GB/s{of_peak}"


def _megabytes(size: float | None) -> str:
    return "? MB" if size is None else f"{size / 1e6:.3f} MB"


def _shape(values: tuple[int, int, int] | None) -> str:
    return "?" if values is None else "x".join(str(value) for value in values)


def _host_lines(stage: StageDiagnosis) -> Iterator[str]:
    host = stage.host
    assert host is not None
    counts = {name: f" ({count:.1f} calls)" for name, count in host.calls.items() if count}
    parts = (f"{name} {fixed(ms)}{counts.get(name, '')}" for name, ms in host.activity_ms.items())
    if any(ms for name, ms in host.activity_ms.items() if name != HostActivity.OUTSIDE.value):
        yield f"host, ms in CUDA calls by kind and outside of them: {', '.join(parts)}"
        yield f"blocking: {host.blocking_calls:.1f} calls, {fixed(host.blocking_ms)} ms"
    blocked = {kind: ms for kind, ms in host.blocked_ms.items() if ms is not None}
    if blocked:
        yield f"outside of CUDA, blocked in: {', '.join(f'{kind} {fixed(ms)}' for kind, ms in blocked.items())} ms"
    if host.launch_latency_us is not None and host.queueing_us is not None:
        yield f"launch latency {host.launch_latency_us:.1f} us (median), queueing {host.queueing_us:.1f} us (mean)"
    for wait in host.longest_waits:
        where = f" of '{wait.waited_for_stage}'" if wait.waited_for_stage else ""
        what = f"waited for {wait.waited_for}{where}" if wait.waited_for else "no operation ended meanwhile"
        batch = "" if wait.batch is None else f" in batch {wait.batch}"
        yield f"  {fixed(wait.time_ms)} ms in {wait.call}{batch}: {what}"
