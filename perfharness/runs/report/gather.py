"""Gather the content of a report from runs and traces, without writing into their folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import advise, agreement
from perfharness.analysis.energy.results import RunEnergy
from perfharness.analysis.host_samples.stacks import Stack
from perfharness.analysis.metrics.activity import ProcessActivity, process_activity
from perfharness.analysis.metrics.results import RunMetrics
from perfharness.analysis.ranks import RunRanks
from perfharness.analysis.stages.charts import (
    MAX_POINTS,
    BatchTimeline,
    Rest,
    batch_series,
    batch_timelines,
    histogram,
    rest_of_batches,
)
from perfharness.analysis.stages.tree import combine
from perfharness.analysis.suites.cost import Cost, Prices, cost
from perfharness.distribution import VERSION
from perfharness.errors import ResultError, UsageError
from perfharness.model.manifest import RunManifest, TracerRecord, is_part_of
from perfharness.model.result import Path as StagePath
from perfharness.model.result import ProcessResult, Tree
from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness.model.trace import TraceMeta
from perfharness.progress import in_steps
from perfharness.runs.comparison.compare import compare_runs
from perfharness.runs.comparison.load_tests import of_no_concern, read_load_test, read_mlperf_file
from perfharness.runs.comparison.result import Comparison
from perfharness.runs.files.inputs import Located
from perfharness.runs.files.json_files import part_of
from perfharness.runs.files.run_folder import AS_LAUNCHED, ReadAs, analyze_run, analyze_trace, read_manifest
from perfharness.runs.report.model import (
    LoadReport,
    LoopSeries,
    Measured,
    MergedReport,
    Report,
    RunReport,
    SeriesReport,
    SlowestReport,
    StageDistribution,
    SuiteReport,
)
from perfharness.runs.run import SampledRun, named_stacks
from perfharness.runs.series.model import Series, read_series
from perfharness.runs.slowest import SlowestOfRun
from perfharness.runs.stage_lines import StageLine, names_findings, range_sums, stage_lines, stage_values, without_ids
from perfharness.telemetry.store import read_sample_log

MOST_SLOW = 5
"""Number of slowest batches per loop path to compare with the typical one."""

MAX_DISTRIBUTIONS = 12
"""Number of stages with a histogram: batches, then stages that take most of their time."""

ALL_POINTS, LEAST_POINTS = 4000, 100
"""Points of all loops of a run together, and at least of each loop."""


def gather(
    located: Sequence[Located],
    read_as: ReadAs = AS_LAUNCHED,
    prices: Prices | None = None,
    suites: Sequence[SuiteReport] = (),
    merged: Sequence[MergedReport] = (),
    loads: Mapping[Path, LoadReport] | None = None,
) -> Report:
    """Gather the content of a report on runs, series, and traces. Raises `ResultError`, `TraceError`.

    Args:
        suites, merged: suites of `perfharness bench`.
        loads: load tests by run folder.
    """
    runs: list[RunReport] = []
    series: list[SeriesReport] = []
    loads = loads or {}
    for one in in_steps(located, lambda one: f"reading {one.name}"):
        if one.trace is not None:
            runs.append(_trace_report(one, read_as, prices))
            continue
        found = _series_report(one)
        if found is not None:
            series.append(found)
        for run_dir in one.runs:
            if found is None or found.shown in (None, run_dir.name):
                name = f"{one.name}/{run_dir.name}" if one.is_series else one.name
                runs.append(_run_report(name, run_dir, one.process, read_as, prices, loads.get(run_dir)))
    comparison, reason = _comparison(located)
    return Report(
        made_by=f"perfharness {VERSION}",
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        title=", ".join([*(one.name for one in located), *(one.name for one in suites)]),
        runs=runs,
        series=series,
        suites=list(suites),
        merged=list(merged),
        comparison=comparison,
        comparison_reason=reason,
    )


def _series_report(one: Located) -> SeriesReport | None:
    series = read_series(one.path) if one.is_series else None
    return None if series is None else SeriesReport(name=one.name, series=series, shown=_middle_launch(series, one))


def _middle_launch(series: Series, one: Located) -> str | None:
    """Folder of the launch with the median batch time, or None to show all launches."""
    if series.kind not in ("repeat", "overhead"):
        return None
    times = {
        row.folder.rpartition("/")[2]: [row.figures.get(path, {}).get("cpu_time") for path in series.loops]
        for row in series.measured()
        if one.path / row.folder in one.runs
    }
    known = sorted((max(time for time in of if time), name) for name, of in times.items() if any(of))
    return known[len(known) // 2][1] if known else one.runs[0].name


def _comparison(located: Sequence[Located]) -> tuple[Comparison | None, str | None]:
    """Compare runs with the first one; return the comparison or the problem (both None for other inputs)."""
    sides = [str(one.path) for one in located if one.trace is None and one.process is None]
    if len(sides) < 2 or len(sides) < len(located):
        return None, None
    try:
        return compare_runs(sides[0], *sides[1:]), None
    except (ResultError, UsageError) as error:
        return None, str(error)


@dataclass
class _Seen:
    """Data of each process's analysis; `has_requests` adds timelines of the slowest requests."""

    path: Path
    manifest: RunManifest | None = None
    only: str | None = None
    has_requests: bool = False
    timelines: dict[str, list[BatchTimeline]] = field(default_factory=dict)
    rests: dict[str, dict[StagePath, Rest]] = field(default_factory=dict)
    activities: dict[str, ProcessActivity] = field(default_factory=dict)
    metas: dict[str, TraceMeta] = field(default_factory=dict)
    stacks: dict[str, list[Stack]] = field(default_factory=dict)
    slowest: SlowestOfRun = field(init=False)

    def __post_init__(self) -> None:
        self.slowest = SlowestOfRun(self.path, self.manifest, MOST_SLOW, timelines=self.has_requests)

    def visit(self, process: str, analysis: Analysis) -> None:
        """Take the data of a process."""
        if not is_part_of(self.only, process):
            return
        self.timelines[process] = batch_timelines(analysis, process)
        self.rests[process] = rest_of_batches(analysis)
        self.metas[process] = analysis.trace.meta
        if self.manifest is None:
            self.slowest.visit(process, self.path, None, analysis)
        else:
            record = next(one for one in self.manifest.measured_processes if one.folder == process)
            self.slowest.visit(process, self.path / process, record, analysis)
        clock = analysis.trace.meta.clock
        activity = None if clock is None else process_activity(analysis.stages, analysis.stage_times, clock)
        if activity is not None:
            self.activities[process] = activity

    def visit_profiling(self, process: str, analysis: Analysis) -> None:
        """Take the stacks of a process of the profiling pass."""
        if is_part_of(self.only, process):
            self.stacks |= named_stacks(process, analysis)

    def of_traces(self) -> dict[str, Any]:
        """GPUs in the traces, and the largest error of their clocks."""
        clocks = [meta.clock for meta in self.metas.values()]
        errors = [clock.error_ns for clock in clocks if clock is not None]
        return {
            "devices": list(dict.fromkeys(name for meta in self.metas.values() for name in meta.device_names)),
            "clock_error_ns": max(errors) if errors and len(errors) == len(clocks) else None,
        }


def _run_report(
    name: str, run_dir: Path, process: str | None, read_as: ReadAs, prices: Prices | None, load: LoadReport | None
) -> RunReport:
    manifest, test = read_manifest(run_dir), read_load_test(run_dir)
    seen = _Seen(run_dir, manifest, process, has_requests=test is not None)
    summary = analyze_run(
        run_dir, manifest, read_as, write=False, visit=seen.visit, visit_profiling=seen.visit_profiling
    )
    mean = summary.mean if process is None else summary.mean_of(process)
    findings = [one for one in summary.findings if one.process is None or is_part_of(process, one.process)]
    results = {of: result for of, result in summary.results.items() if is_part_of(process, of)}
    if process is None:
        results = {of: results[of] for of in mean["meta"]["processes"]}
    measured = Measured(
        created=manifest.created,
        script=manifest.script if test is None else test.target,
        command=manifest.command,
        warmup_batches=mean["meta"]["warmup_batches"],
        tracer=manifest.tracer,
        environment=manifest.environment,
        processes=[one for one in manifest.measured_processes if is_part_of(process, one.folder)],
        nodes=manifest.nodes,
        explained=manifest.explained,
        **seen.of_traces(),
    )
    mlperf = read_mlperf_file(run_dir) if process is None else None
    of_load = [*(mlperf.findings if mlperf else ()), *(load.result.findings if load else ())]
    ignored = of_no_concern(load.result) if load else frozenset()
    sampled = None
    if (run_dir / TELEMETRY_NAME).is_file() and "gpu_metrics" in mean:
        of = Path(manifest.script).name if test is None else test.short_target
        with suppress(ResultError):  # reported by the analysis
            log = read_sample_log(run_dir / TELEMETRY_NAME)
            metrics = part_of(mean, "gpu_metrics", RunMetrics)
            titles = {} if metrics is None else metrics.gpu_titles
            sampled = SampledRun(f"{of}  {manifest.created}", log, seen.activities, titles)
    return RunReport(
        **_common(name, str(run_dir), mean, results, seen, prices),
        measured=measured,
        findings=[*of_load, *(one for one in findings if one.code not in ignored)],
        load=load,
        mlperf=mlperf,
        stacks=max(seen.stacks.items(), key=lambda one: sum(ms for _, ms in one[1]), default=None),
        sampled=sampled,
    )


def _trace_report(one: Located, read_as: ReadAs, prices: Prices | None) -> RunReport:
    assert one.trace is not None
    seen, options = _Seen(one.trace.parent), read_as.options()
    opened = analyze_trace(one.trace, options, visit=lambda analysis: seen.visit(one.name, analysis))
    result, meta = opened.result, opened.trace_meta
    results = {one.name: result}
    mean = combine(results, with_data=False)
    measured = Measured(
        warmup_batches=options.warmup_batches,
        tracer=TracerRecord(kind=meta.tracer, version=meta.tracer_version),
        **seen.of_traces(),
    )
    return RunReport(
        **_common(one.name, str(one.path), mean, results, seen, prices),
        measured=measured,
        findings=[*(replace(finding, process=one.name) for finding in result.findings), *names_findings(mean)],
    )


def _common(
    name: str, path: str, mean: Tree, results: Mapping[str, ProcessResult], seen: _Seen, prices: Prices | None
) -> dict[str, Any]:
    """Fields for runs and bare traces."""
    diagnoses = {of: result.diagnosis for of, result in results.items() if result.diagnosis is not None}
    of_processes, energy = list(results.values()), part_of(mean, "energy", RunEnergy)
    stages = stage_lines(mean, of_processes, [seen.rests[of] for of in results], agreement(diagnoses))
    return {
        "name": name,
        "path": path,
        "throughput": mean["throughput"],
        "stages": stages,
        "outside_batches": mean["outside_batches"],
        "ranges": [] if stages else range_sums(of_processes),
        "advice": advise(without_ids(diagnoses, stages)),
        "diagnoses": diagnoses,
        "series": _series(results),
        "distributions": list(_distributions(stages, of_processes)),
        "timelines": _pick({of: seen.timelines[of] for of in results}),
        **_slowest(seen),
        "energy": energy,
        "metrics": part_of(mean, "gpu_metrics", RunMetrics),
        "cost": None if prices is None else _cost(prices, mean["throughput"], energy),
        "ranks": part_of(mean, "ranks", RunRanks),
    }


def _slowest(seen: _Seen) -> dict[str, Any]:
    if not seen.slowest.has_seen:
        return {"slowest_reason": "no process left a readable trace"}
    result, timelines = seen.slowest.result()
    if not any(loop.requests for loop in result.loops):
        return {"slowest_reason": "the trace has no batch outside of the warm-up"}
    return {"slowest": SlowestReport(result=result, timelines=timelines[0] if timelines else [])}


def _series(results: Mapping[str, ProcessResult]) -> list[LoopSeries]:
    """Series of all loops, with fewer points each if there are many."""
    loops = [(of, loop) for of, result in results.items() for loop in result.loops if loop.count]
    points = min(MAX_POINTS, max(LEAST_POINTS, ALL_POINTS // max(len(loops), 1)))
    return [LoopSeries(process=of, loop=loop.path, series=batch_series(loop, points)) for of, loop in loops]


def _cost(prices: Prices, throughput: Tree, energy: RunEnergy | None) -> Cost:
    per_item = relative = None
    if energy is not None and energy.energy_per_item_j is not None:
        per_item = energy.energy_per_item_j
        if energy.energy_j and energy.error_j is not None:
            relative = energy.error_j / energy.energy_j
    return cost(prices, throughput["items_per_second"], per_item, relative)


def _distributions(stages: Sequence[StageLine], results: Sequence[ProcessResult]) -> Iterator[StageDistribution]:
    chosen = sorted(
        (line for line in stages if not line.is_rest), key=lambda line: (not line.is_batch, -(line.cpu_share or 0.0))
    )[:MAX_DISTRIBUTIONS]
    for line in stages:
        if line in chosen:
            found = histogram(stage_values(results, line.path)["cpu_time"])
            if found is not None:
                yield StageDistribution(path=line.path, histogram=found)


def _pick(timelines: Mapping[str, Sequence[BatchTimeline]]) -> list[BatchTimeline]:
    """Median of the processes' typical batches, and the best and worst batch of all."""
    every = [one for own in timelines.values() for one in own]
    if not every:
        return []
    typical = sorted((one for one in every if one.which == "typical"), key=lambda one: one.cpu_ms)
    best, worst = (extreme(every, key=lambda one: one.cpu_ms) for extreme in (min, max))
    middle = typical[len(typical) // 2]
    picked = [middle]
    picked += [replace(best, which="best")] if best.cpu_ms < middle.cpu_ms else []
    picked += [replace(worst, which="worst")] if worst.cpu_ms > middle.cpu_ms else []
    return picked
