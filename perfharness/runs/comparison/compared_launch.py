"""What a comparison takes of one launch: its figures by stage, and the environment that they were measured in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from perfharness.errors import ResultError, UsageError
from perfharness.model.conditions import CLOCKS
from perfharness.model.findings import Severity
from perfharness.model.manifest import ProcessRecord, RunManifest, SourceRecord
from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, TIMES, path_text
from perfharness.model.result import Path as StagePath
from perfharness.runs.comparison.compared_figure import Figure
from perfharness.runs.comparison.launch_figures import PER_ITEM, entry_figures, stage_entries
from perfharness.runs.comparison.load_test import LoadTest, read_load_test
from perfharness.runs.files.inputs import Located
from perfharness.runs.files.json_files import json_bytes, read_results
from perfharness.runs.files.run_folder import AS_LAUNCHED, ReadAs, analyze_trace, read_manifest
from perfharness.runs.files.startup_file import startup_of
from perfharness.runs.series.machine import LaunchConditions, conditions_of


@dataclass(frozen=True)
class LaunchFigures:
    """One launch.

    Attributes:
        folder: of the run, or the file.
        created: UTC, ISO 8601; None: not known.
        problem: why it cannot stand for its side; None: it can.
        figures: None where it could not be measured; `reasons` may have why.
        environment: what it ran on and how, by name, as text; None: not recorded.
        start_unix_ns: of its first process; None: not known.
        errors: codes of the findings that put numbers in doubt.
        conditions: what is known about the machine meanwhile.
        invalid: why no figure of it is to be compared, by the verdict of the test itself; None: all may be.
        items: how many a batch has on average, by the path of the batch, where they were counted.
    """

    folder: Path
    run_id: str
    created: str | None
    problem: str | None
    figures: Mapping[Figure, float | None]
    reasons: Mapping[Figure, str] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    start_unix_ns: int | None = None
    errors: tuple[str, ...] = ()
    conditions: LaunchConditions | None = None
    invalid: str | None = None
    items: Mapping[StagePath, float] = field(default_factory=dict)

    @property
    def paths(self) -> list[StagePath]:
        """Of its stages, in order."""
        return list(dict.fromkeys(figure.path for figure in self.figures if figure.path))


def read_launch(folder: Path, process: str | None = None) -> LaunchFigures:
    """A launch, or one process of it, from its result files.

    Raises `ResultError` where there are none, or they cannot be read.
    """
    manifest = read_manifest(folder)
    records = [record for record in manifest.measured_processes if process in (None, record.folder)]
    path = folder / (BENCHMARK_MEAN_NAME if process is None else f"{process}/{BENCHMARK_NAME}")
    tree = read_results(path)
    below = [one.folder for one in manifest.measured_processes if process and one.folder.startswith(f"{process}/")]
    if tree is None and below:
        raise ResultError(f"{process} measured nothing itself; name a process that it started: {', '.join(below[:5])}")
    if tree is None:
        raise ResultError(f"{path} is not there; write it again: perfharness analyze {folder}")
    try:
        figures = dict(_stage_figures(tree["stats_minus_warmup"]))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ResultError(f"{path} cannot be read ({error}); write it again: perfharness analyze {folder}") from error
    reasons: dict[Figure, str] = {}
    for name, (value, reason) in _run_figures(folder, records, tree, is_process=process is not None).items():
        figures[Figure((), name)] = value
        if value is None and reason:
            reasons[Figure((), name)] = reason
    test = read_load_test(folder) if process is None else None
    if test is not None:
        of_test = {**test.figures, **test.figures_of_phases}
        figures |= {figure: one.value for figure, one in of_test.items()}
        reasons |= {figure: one.reason for figure, one in of_test.items() if one.value is None and one.reason}
    starts = [record.start_unix_ns for record in records if record.start_unix_ns is not None]
    findings = tree.get("meta", {}).get("findings", [])
    errors = {str(one.get("code")) for one in findings if isinstance(one, dict) and one.get("severity") == "error"}
    if test is not None:
        errors = (errors - test.of_no_concern) | {one.code for one in test.findings if one.severity is Severity.ERROR}
    bad = [record for record in manifest.processes if record.ended != "ok"]
    problem = f"{bad[0].folder} ended: {bad[0].ended}" if bad else None
    if problem is None and test is not None:
        problem = test.problem
    if problem is None and not any(value is not None for value in figures.values()):
        problem = "it has no numbers"
    return LaunchFigures(
        folder=folder,
        run_id=manifest.run_id,
        created=manifest.created,
        problem=problem,
        figures=figures,
        reasons=reasons,
        environment={**environment_of(manifest, records), **({} if test is None else _of_test(test))},
        start_unix_ns=min(starts, default=None),
        errors=tuple(sorted(errors)),
        conditions=conditions_of(str(folder), manifest, tree),
        invalid=None if test is None else test.invalid,
        items=_items_of(tree["stats_minus_warmup"]),
    )


def _of_test(test: LoadTest) -> dict[str, str | None]:
    """What was under load, and under which: what was launched for that is perfharness's own worker."""
    found: dict[str, str | None] = {"load": test.load, "script": test.short_target}
    found["arguments"] = " ".join(test.arguments) or "none"
    if test.kind == "mlperf":
        found[VALIDITY] = test.verdict + (f" ({test.verdict_reason})" if test.verdict_reason else "")
    return found


def read_launches(located: Located, read_as: ReadAs = AS_LAUNCHED) -> list[LaunchFigures]:
    """The launches that a path names: a run, a process of one, all launches of a repeat, or a trace.

    Args:
        read_as: how a trace is read; a run has been.

    Raises:
        ResultError: it is none of these, or cannot be read.
        TraceError: a trace cannot be read.
        UsageError: a run is to be read in another way.
    """
    if located.trace is not None:
        return [read_trace(located.trace, read_as)]
    if read_as != AS_LAUNCHED:
        raise UsageError(
            f"{located.path} is a run, whose results are compared as they are; -w, --domain and --batch-pattern are "
            f"for traces: compute the results again with `perfharness analyze {located.path}` and these options"
        )
    if located.is_series and not all(run.name.startswith("launch_") for run in located.runs):
        names = ", ".join(run.name for run in located.runs)
        raise ResultError(f"{located.path} holds launches that differ on purpose; name those to compare: {names}")
    return [read_launch(run, located.process) for run in located.runs]


def read_trace(path: Path, read_as: ReadAs) -> LaunchFigures:
    """A bare trace as a launch of one process; how it was launched is not in it. Raises `TraceError`."""
    options = read_as.options()
    opened = analyze_trace(path, options, with_diagnosis=False)
    result, meta = opened.result, opened.trace_meta
    stages = orjson.loads(json_bytes({"stats": result.stats_minus_warmup}))["stats"]
    figures = dict(_stage_figures(stages))
    errors = {finding.code for finding in result.findings if finding.severity is Severity.ERROR}
    return LaunchFigures(
        folder=path,
        run_id=f"trace {path.resolve()}",
        created=None,
        problem=None if any(value is not None for value in figures.values()) else "it has no batches",
        figures=figures,
        environment={
            "gpu": f"1 x {meta.device_names[0]}" if len(meta.device_names) == 1 else None,
            "tracer": meta.tracer,
            "tracer version": meta.tracer_version,
            "warm-up": f"{options.warmup_batches} batches",
            "driver": meta.driver,
        },
        start_unix_ns=meta.session_start_unix_ns,
        errors=tuple(sorted(errors)),
        items=_items_of(stages),
    )


def find_stage(name: str, paths: Sequence[StagePath], where: str) -> StagePath:
    """The stage of that path or last name. Raises `UsageError` where there is none, or several."""
    found = [path for path in paths if path_text(path) == name] or [path for path in paths if path[-1] == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{where} has several stages '{name}'; give the path: {', '.join(map(path_text, found))}")
    there = ", ".join(map(path_text, paths)) or "none"
    raise UsageError(f"{where} has no stage '{name}'; stages there are: {there}")


def _stage_figures(tree: Mapping[str, Any]) -> Iterator[tuple[Figure, float | None]]:
    """Of every stage of the tree."""
    for path, entry in stage_entries(tree):
        found = dict(entry_figures(entry))
        for time in TIMES:
            yield Figure(path, time), found.get(time)
            if found.get(f"{time}{PER_ITEM}") is not None:
                yield Figure(path, f"{time}{PER_ITEM}"), found[f"{time}{PER_ITEM}"]
        if "total_items" in entry:
            yield Figure(path, "latency_p50"), found.get("cpu_time_p50")
            yield Figure(path, "latency_p95"), found.get("cpu_time_p95")
        for quantile in ("p50", "p95", "p99"):
            yield Figure(path, f"stage_{quantile}"), found.get(f"cpu_time_{quantile}")


def _items_of(tree: Mapping[str, Any]) -> dict[StagePath, float]:
    """Mean number of items of a batch, by its path."""
    counts = {path: entry.get("total_items") for path, entry in stage_entries(tree)}
    return {path: mean for path, count in counts.items() if isinstance(count, dict) and (mean := count.get("mean"))}


Measured = tuple[float | None, str | None]
"""A figure, and why there is none."""


def _run_figures(
    folder: Path, records: list[ProcessRecord], tree: Mapping[str, Any], *, is_process: bool
) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    throughput = tree.get("throughput")
    if throughput is not None:
        found["throughput"] = throughput["items_per_second"], throughput["reason"]
    found["start_up"] = _mean_startup(folder, records)
    metrics = tree.get("gpu_metrics") or {}
    every = [tree.get("process_metrics")] if is_process else list(metrics.get("processes", {}).values())
    processes: list[dict[str, Any]] = [one for one in every if one]
    if processes and len(processes) == len(every):
        found["host_memory"] = _total(processes, lambda one: one["resident_memory"])
        if any(one["gpu_uuid"] is not None or one.get("gpu_uuids") for one in processes):
            found["gpu_memory"] = _total(processes, lambda one: one["gpu_memory"])
    energy = tree.get("energy")
    if energy and (energy.get("gpus") or energy.get("energy_per_item_j") is not None):
        found["energy_per_item"] = energy.get("energy_per_item_j"), energy.get("reason")
    return found


def _mean_startup(folder: Path, records: list[ProcessRecord]) -> Measured:
    startups = [startup_of(folder, record) for record in records if "/" not in record.folder]
    values = [None if one is None else one.get("process_to_first_batch_ms") for one in startups]
    known = [float(value) for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, "the time of the first batch is not known of every process"
    return sum(known) / len(known), None


def _total(processes: list[dict[str, Any]], of: Callable[[dict[str, Any]], dict[str, Any]]) -> Measured:
    growths = [of(one) for one in processes]
    peaks = [one["peak_bytes"] for one in growths]
    if any(peak is None for peak in peaks):
        return None, next((one["reason"] for one in growths if one["peak_bytes"] is None), None)
    return float(sum(peaks)), None


VALIDITY = "validity"
"""Of a test: whether it may be compared, by its own verdict."""

DECIDING = {
    "gpu": "other GPUs",
    "cpu": "other CPUs",
    "tracer": "another tracer, which costs another time",
    "processes": "another number of processes, which share the machine",
    "warm-up": "other batches excluded",
    "clocks": "clocks held at their maximum on one side",
    "reading": "other ranges read as batches, other batches excluded, or another way of measuring a case",
    "batches": "other batches traced, so others measured",
    "load": "other loads",
    VALIDITY: "no test that is INVALID by LoadGen's own verdict is evidence",
    "pass": "a profiling pass, which may cost time, on one side",
}
"""Differences that make a comparison meaningless unless they are what is compared, and why."""


def environment_of(manifest: RunManifest, records: list[ProcessRecord]) -> dict[str, str | None]:
    """What a launch ran on and how, by name."""
    machine, used = manifest.environment, {uuid for record in records for uuid in record.given_gpus}
    models = Counter(gpu.name or "unnamed" for gpu in machine.gpus if gpu.uuid in used)
    unknown = len(used) - sum(models.values())
    names = [f"{count} x {name}" for name, count in sorted(models.items())] + [f"{unknown} unknown"] * (unknown > 0)
    launched = {record.launched_folder for record in records}
    ranks = {
        (record.launched_folder, own.rank)
        for record in records
        if (own := record.measured_self) is not None and own.rank is not None
    }
    read = {
        "domain": manifest.domain,
        "pattern": manifest.batch_pattern,
        "ranks parallel by": None if manifest.parallel == "auto" else manifest.parallel,
    }
    found: dict[str, str | None] = {
        "gpu": ", ".join(names) or "none",
        "cpu": None if machine.cpu is None else f"{machine.cpu}, {machine.cpu_count} usable",
        "tracer": manifest.tracer.kind,
        "processes": str(len(launched))
        + (f" with {len(ranks)} ranks" if ranks else "")
        + (f" on {manifest.gpus_per_process} GPUs each" if manifest.gpus_per_process > 1 else ""),
        "warm-up": f"{manifest.warmup_batches} batches",
        "clocks": "held at the maximum" if manifest.companions.get(CLOCKS) else "as they were",
        "reading": ", ".join(f"{name} {value}" for name, value in read.items() if value is not None) or "as recorded",
        "batches": "all" if manifest.capture_batches is None else f"{manifest.capture_batches} captured",
        "pass": "explaining" if manifest.explaining else "measured",
        "tracer version": manifest.tracer.version,
        "driver": machine.driver,
        "CUDA of the driver": machine.cuda_driver,
        "GPU instance": ", ".join(sorted(used)) or None,
        "host": machine.hostname,
        "operating system": machine.os,
        "kernel": machine.kernel,
        "python": machine.python,
        "perfharness": machine.perfharness,
        "nvtx": machine.nvtx,
        "CPU binding": manifest.cpu_bind,
        "telemetry": "sampled" if manifest.companions.get("telemetry") else "off",
        "script": Path(manifest.script).name,
        "arguments": " ".join(manifest.script_arguments) or "none",
        **{f"package {name}": version for name, version in sorted(machine.packages.items())},
    }
    if manifest.source is not None:
        found |= _of_source(manifest.source)
    return found


def _of_source(source: SourceRecord) -> dict[str, str | None]:
    commit = source.git_commit and source.git_commit + (" with changes" if source.git_dirty else "")
    return {"git commit": commit, "script's digest": source.script_sha256 and source.script_sha256[:12]}
