"""The diagnosis for people: a table of verdicts, then what each stage's verdict rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perfharness.model.diagnosis import Diagnosis, GpuLimit, GpuLimits, KernelGroup, StageDiagnosis, Verdict
from perfharness.model.pooled_diagnosis import PooledDiagnosis
from perfharness.model.result import path_text
from perfharness.report.stage_names import row_names
from perfharness.report.terminal import NOT_MEASURED, print_findings

VERDICT_STYLE = {Verdict.GPU_BOUND: "green", Verdict.CANNOT_TELL: "dim"}
DEFAULT_STYLE = "yellow"


def matching_stages(diagnosis: Diagnosis, name: str | None) -> list[StageDiagnosis]:
    """Stages whose own name, or whole path, is `name`; all of them for None."""
    return [stage for stage in diagnosis.stages if name is None or name in (stage.path[-1], path_text(stage.path))]


def print_diagnosis(console: Console, diagnosis: Diagnosis, name: str | None = None) -> None:
    """The table of stages, the reasons, the warm-up, and what is missing. With a name, everything of that stage."""
    stages = matching_stages(diagnosis, name)
    if stages:
        console.print(
            "ms per batch, without warm-up (costs: what the whole would save)",
            highlight=False,
        )
        console.print(_table(stages))
    for stage in stages:
        console.print(f"[bold]{escape(path_text(stage.path))}[/]: {_verdict(stage)}", highlight=False)
        lines = [*_reasons(stage), *(_figures(stage) if name is not None else [])]
        for line in lines:
            console.print(f"  {escape(line)}", soft_wrap=True, highlight=False)
    for loop in dict.fromkeys(replace(loop, level_ms=None, tolerance_ms=None) for loop in diagnosis.warmup):
        if loop.state in ("enough", "cannot-tell"):
            said = f"steady from batch {loop.steady_from}" if loop.state == "enough" else loop.reason
            console.print(
                f"Warm-up of {escape(path_text(loop.loop))}: -w {loop.warmup_batches}, {loop.state} ({said})",
                soft_wrap=True,
                highlight=False,
            )
    for missing in diagnosis.missing:
        console.print(f"[dim]not known[/]: {escape(missing)}", soft_wrap=True, highlight=False)
    print_findings(console, diagnosis.findings)


def print_pooled(console: Console, pooled: PooledDiagnosis, name: str | None = None) -> None:
    """All processes in one table: means over all their batches, and how far their verdicts agree."""
    stages = [stage for stage in pooled.stages if name is None or name in (stage.path[-1], path_text(stage.path))]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("stage", no_wrap=True)
    table.add_column("verdicts")
    for heading in ("agree", "batches", "CPU", "GPU", "copies", "waiting", "costs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage in stages:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in stage.verdicts.items())
        mean, saving = stage.per_batch, stage.saving_share
        times = (mean.cpu_ms, mean.gpu_busy_ms, mean.copy_ms, mean.blocking_ms)
        table.add_row(
            escape(path_text(stage.path)), verdicts, f"{100 * stage.agreement:.0f} %", str(stage.totals.batches),
            *(_number(time) for time in times),
            NOT_MEASURED if saving is None else f"{100 * saving[0]:.0f} to {100 * saving[1]:.0f} %",
        )  # fmt: skip
    console.print(f"[bold]all {len(pooled.processes)} processes[/] (ms per batch, over all their batches)")
    console.print(table)


def _table(stages: list[StageDiagnosis]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("stage", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for heading in ("CPU", "GPU", "copies", "waiting", "costs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage, name in zip(stages, row_names([stage.path for stage in stages]), strict=True):
        style = VERDICT_STYLE.get(stage.verdict.verdict, DEFAULT_STYLE)
        table.add_row(escape(name), f"[{style}]{stage.verdict.verdict.value}[/]", *(_cells(stage)))
    return table


def _verdict(stage: StageDiagnosis) -> str:
    """The verdict, and of the GPU's work what limits it, where that can be told."""
    limit = stage.verdict.limit
    told = limit is not None and limit is not GpuLimit.CANNOT_TELL
    return f"{stage.verdict.verdict.value} ({limit.value})" if told and limit else stage.verdict.verdict.value


def _cells(stage: StageDiagnosis) -> Iterator[str]:
    gpu, host, cost = stage.gpu, stage.host, stage.cost
    yield _number(stage.cpu_ms)
    yield _number(gpu.busy_ms if gpu else None)
    yield _number(sum(copy.time_ms for copy in gpu.copies) if gpu else None)
    yield _number(host.blocking_ms if host else None)
    yield NOT_MEASURED if cost.saving_share is None else f"{100 * cost.saving_share:.0f} %"


def _number(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.3f}"


def _reasons(stage: StageDiagnosis) -> Iterator[str]:
    yield from stage.verdict.evidence
    yield f"next: {stage.verdict.next_step}"
    for missing in stage.verdict.missing:
        yield f"missing: {missing}"


def _figures(stage: StageDiagnosis) -> Iterator[str]:
    """Everything else that is known of one stage, a line each."""
    items = f", {stage.items} items" if stage.items is not None else ""
    yield f"{stage.batches} batches{items}; CPU {_number(stage.cpu_ms_per_item)} ms an item"
    if stage.cost.saving_share is None:
        yield f"what it costs the whole: not known ({stage.cost.reason})"
    else:
        yield (
            f"without it, a batch of the pipeline would take {_number(stage.cost.without_stage_ms)} ms "
            f"instead of {_number(stage.cost.pipeline_ms)}"
        )
    if stage.gpu is not None:
        yield from _gpu_lines(stage)
    if stage.host is not None:
        yield from _host_lines(stage)


def _gpu_lines(stage: StageDiagnosis) -> Iterator[str]:
    gpu = stage.gpu
    assert gpu is not None
    share = "" if gpu.kernel_share is None else f", {100 * gpu.kernel_share:.0f} % of its operations' time"
    yield (
        f"GPU: busy {_number(gpu.busy_ms)} ms, from first to last {_number(gpu.projected_ms)}; "
        f"{gpu.kernel_count:.1f} kernels ({_number(gpu.kernel_time_ms)} ms{share}), "
        f"{gpu.memset_count:.1f} memsets ({_number(gpu.memset_time_ms)} ms, {_megabytes(gpu.memset_bytes)}), "
        f"{gpu.graph_launch_count:.1f} graph launches ({_number(gpu.graph_time_ms)} ms) on {gpu.streams} streams"
    )
    yield (
        f"at once: {_number(gpu.stream_overlap_ms)} ms of its operations, {_number(gpu.copy_with_compute_ms)} ms of "
        f"copies beside kernels, {_number(gpu.shared_with_processes_ms)} ms beside other processes on the GPU"
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
        yield (
            f"  copy {copy.direction}{ends}, {memory}: {copy.count:.1f} ({_number(copy.time_ms)} ms), {size}, {rate}"
        )
    for during in stage.gpu_during:
        meanwhile = ", ".join(f"{name} {_number(ms)}" for name, ms in during.host_meanwhile_ms.items())
        yield (
            f"{_gpu_name(during.gpu)} while the host was in it: busy {_number(during.busy_ms)} ms, "
            f"idle {_number(during.idle_ms)} ms in {during.gaps:.1f} gaps "
            f"(the longest {_number(during.longest_gap_ms)} ms); the host meanwhile: {meanwhile}"
        )


def _residency(kernel: KernelGroup) -> str:
    if kernel.occupancy is None or kernel.waves is None or kernel.limiter is None:
        return f"({kernel.kind.value})"
    return (
        f"({kernel.kind.value}; {kernel.waves:.2f} waves, occupancy at most {100 * kernel.occupancy:.0f} %, "
        f"by {kernel.limiter.value})"
    )


def _limit_lines(limits: GpuLimits) -> Iterator[str]:
    basis = "" if limits.basis is None else f", told by {limits.basis}"
    names = ", ".join(f"{name} {_number(ms)}" for name, ms in limits.by_name_ms.items() if ms)
    yield (
        f"limited by: {limits.limit.value}{basis} ({_number(limits.work_ms)} ms of work: by name {names or 'nothing'}, "
        f"underfilled {_number(limits.underfilled_ms)}, short kernels {_number(limits.short_ms)}; "
        f"last waves {_number(limits.tail_ms)})"
    )
    if limits.moved_gb_per_s is not None:
        share = limits.moved_peak_share
        of_peak = "" if share is None else f", {100 * share:.0f} % of the memory's bandwidth"
        yield f"copies inside the GPU and memsets: {limits.moved_gb_per_s:.0f} GB/s{of_peak}"


def _megabytes(size: float | None) -> str:
    return "? MB" if size is None else f"{size / 1e6:.3f} MB"


def _gpu_name(place: int | None) -> str:
    return "GPU" if place is None else f"GPU {place}"


def _shape(values: tuple[int, int, int] | None) -> str:
    return "?" if values is None else "x".join(str(value) for value in values)


def _calls(count: float | None) -> str:
    return f" ({count:.1f} calls)" if count else ""


def _host_lines(stage: StageDiagnosis) -> Iterator[str]:
    host = stage.host
    assert host is not None
    parts = (f"{name} {_number(ms)}{_calls(host.calls.get(name))}" for name, ms in host.activity_ms.items())
    yield f"host, ms in CUDA calls by kind and outside of them: {', '.join(parts)}"
    yield f"blocking: {host.blocking_calls:.1f} calls, {_number(host.blocking_ms)} ms"
    blocked = {kind: ms for kind, ms in host.blocked_ms.items() if ms is not None}
    if blocked:
        yield (
            "outside of CUDA, blocked in: " + ", ".join(f"{kind} {_number(ms)}" for kind, ms in blocked.items()) + " ms"
        )
    if host.launch_latency_us is not None and host.queueing_us is not None:
        yield f"launch latency {host.launch_latency_us:.1f} us (median), queueing {host.queueing_us:.1f} us (mean)"
    for wait in host.longest_waits:
        where = f" of '{wait.waited_for_stage}'" if wait.waited_for_stage else ""
        what = f"waited for {wait.waited_for}{where}" if wait.waited_for else "no operation ended meanwhile"
        batch = "" if wait.batch is None else f" in batch {wait.batch}"
        yield f"  {_number(wait.time_ms)} ms in {wait.call}{batch}: {what}"
