"""Read one launch for a comparison: its figures by stage, and the environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from perfharness.analysis.diagnosis import Advice, advise
from perfharness.errors import ResultError, UsageError
from perfharness.model.conditions import CLOCKS
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.findings import Severity
from perfharness.model.manifest import MANIFEST_NAME, ProcessRecord, RunManifest
from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME
from perfharness.model.result import Path as StagePath
from perfharness.runs.comparison.load_tests import read_load_test
from perfharness.runs.figures import LATENCY, METRICS, Figure, Value, figures_of_stages, stage_entries, value_at
from perfharness.runs.files.inputs import Located
from perfharness.runs.files.json_files import json_bytes, read_results
from perfharness.runs.files.process_traces import startup_of
from perfharness.runs.files.run_folder import AS_LAUNCHED, ReadAs, analyze_trace, read_manifest
from perfharness.runs.series.machine import LaunchConditions, conditions_of


@dataclass(frozen=True)
class LaunchFigures:
    """Figures of one launch.

    Attributes:
        folder: folder of the run, or the file.
        problem: why the launch is not usable, or None.
        environment: machine and settings by name; None if not recorded.
        errors: codes of findings of severity error.
        invalid: why the load test itself rejects its figures, or None.
        batches: mean number of items by path of the batch; None if not counted.
    """

    folder: Path
    run_id: str
    figures: Mapping[Figure, Value]
    created: str | None = None
    problem: str | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    start_unix_ns: int | None = None
    errors: tuple[str, ...] = ()
    conditions: LaunchConditions | None = None
    invalid: str | None = None
    batches: Mapping[StagePath, float | None] = field(default_factory=dict)
    command: Sequence[str] = ()

    @property
    def has_numbers(self) -> bool:
        """Whether any figure was measured."""
        return any(one.value is not None for one in self.figures.values())

    def value(self, figure: Figure) -> float | None:
        """Value of a figure, or None if not measured."""
        return None if (found := self.figures.get(figure)) is None else found.value


def values_of(launches: Sequence[LaunchFigures], figure: Figure) -> list[float]:
    """Values of a figure in the launches that measured it."""
    return [value for launch in launches if (value := launch.value(figure)) is not None]


def reason_of(launches: Sequence[LaunchFigures], figure: Figure) -> str | None:
    """Why a launch did not measure a figure, or None."""
    found = (launch.figures[figure] for launch in launches if figure in launch.figures)
    return next((one.reason for one in found if one.value is None and one.reason), None)


def figures_of(launches: Sequence[LaunchFigures]) -> list[Figure]:
    """Figures of all launches, in order."""
    return list(dict.fromkeys(figure for launch in launches for figure in launch.figures))


def paths_of(launches: Sequence[LaunchFigures]) -> list[StagePath]:
    """Stages of all launches, in order."""
    return list(dict.fromkeys(figure.path for figure in figures_of(launches) if figure.path))


def read_launches(located: Located, read_as: ReadAs = AS_LAUNCHED) -> list[LaunchFigures]:
    """Read the launches of a run, a process, a series of equal launches, or a trace.

    Raises `ResultError`, `TraceError`, or `UsageError` if `read_as` is given for a run.
    """
    if located.trace is not None:
        return [read_trace(located.trace, read_as)]
    if read_as != AS_LAUNCHED:
        raise UsageError(
            f"-w, --domain and --batch-pattern are for traces, but {located.path} is a run. "
            f"Compute its results again: `perfharness analyze {located.path}` with these options."
        )
    if located.is_series and not all(run.name.startswith("launch_") for run in located.runs):
        names = ", ".join(run.name for run in located.runs)
        raise ResultError(f"{located.path} has different launches; name those to compare: {names}")
    return [read_launch(run, located.process) for run in located.runs]


def read_launch(folder: Path, process: str | None = None) -> LaunchFigures:
    """Read a launch, or one process of it, from its result files. Raises `ResultError`."""
    manifest = read_manifest(folder)
    records = [record for record in manifest.measured_processes if process in (None, record.folder)]
    path = folder / (BENCHMARK_MEAN_NAME if process is None else f"{process}/{BENCHMARK_NAME}")
    tree = read_results(path)
    below = [one.folder for one in manifest.measured_processes if process and one.folder.startswith(f"{process}/")]
    if tree is None and below:
        raise ResultError(f"{process} measured nothing itself; name a process that it started: {', '.join(below[:5])}")
    if tree is None:
        raise ResultError(f"{path} is missing; write it again: perfharness analyze {folder}")
    stages = tree.get("stats_minus_warmup")
    if not isinstance(stages, dict):
        raise ResultError(f"{path} has no stages; write it again: perfharness analyze {folder}")
    figures = {**dict(figures_of_stages(stages)), **dict(_figures_of_run(folder, records, tree, process))}
    batches, environment = batches_of(stages), environment_of(manifest, records)
    errors = {
        one["code"] for one in tree.get("meta", {}).get("findings", []) if one.get("severity") == Severity.ERROR.value
    }
    bad = next((record for record in manifest.processes if record.ended != "ok"), None)
    problem = f"{bad.folder} ended: {bad.ended}" if bad else None
    test = read_load_test(folder) if process is None else None
    if test is not None:
        figures |= test.figures
        environment |= test.environment
        batches[LATENCY] = None
        errors -= test.of_no_concern
        errors |= {one.code for one in test.findings if one.severity is Severity.ERROR}
        problem = problem or test.problem
    launch = LaunchFigures(
        folder=folder,
        run_id=manifest.run_id,
        created=manifest.created,
        problem=problem,
        figures=figures,
        environment=environment,
        start_unix_ns=min((one.start_unix_ns for one in records if one.start_unix_ns is not None), default=None),
        errors=tuple(sorted(errors)),
        conditions=conditions_of(str(folder), manifest, tree),
        invalid=None if test is None else test.invalid,
        batches=batches,
        command=manifest.command,
    )
    return launch if problem or launch.has_numbers else replace(launch, problem="it has no numbers")


def read_trace(path: Path, read_as: ReadAs) -> LaunchFigures:
    """Read a bare trace as a launch of one process with unknown settings. Raises `TraceError`."""
    options = read_as.options()
    opened = analyze_trace(path, options, with_diagnosis=False)
    result, meta = opened.result, opened.trace_meta
    stages = orjson.loads(json_bytes({"stats": result.stats_minus_warmup}))["stats"]
    errors = {finding.code for finding in result.findings if finding.severity is Severity.ERROR}
    launch = LaunchFigures(
        folder=path,
        run_id=f"trace {path.resolve()}",
        figures=dict(figures_of_stages(stages)),
        environment={
            "gpu": f"1 x {meta.device_names[0]}" if len(meta.device_names) == 1 else None,
            "tracer": meta.tracer,
            "tracer version": meta.tracer_version,
            "warm-up": f"{options.warmup_batches} batches",
            "driver": meta.driver,
        },
        start_unix_ns=meta.session_start_unix_ns,
        errors=tuple(sorted(errors)),
        batches=batches_of(stages),
    )
    return launch if launch.has_numbers else replace(launch, problem="it has no batches")


def promises_of(folder: Path) -> list[Advice]:
    """Advice of a run with a saving, largest first."""
    adapter, diagnoses = TypeAdapter(Diagnosis), {}
    for process in read_manifest(folder).measured_processes if (folder / MANIFEST_NAME).is_file() else ():
        found = (read_results(folder / process.folder / BENCHMARK_NAME) or {}).get("diagnosis")
        with suppress(ValidationError):  # missing, or of another version
            diagnoses[process.folder] = adapter.validate_python({**(found or {}), "findings": []})
    return [one for one in advise(diagnoses) if one.cause.saves_ms is not None]


# ---- figures ----


def batches_of(stages: Mapping[str, Any]) -> dict[StagePath, float | None]:
    """Mean number of items per batch, by path."""
    counts = {path: entry["total_items"] for path, entry in stage_entries(stages) if "total_items" in entry}
    return {path: count.get("mean") if isinstance(count, dict) else None for path, count in counts.items()}


def _figures_of_run(
    folder: Path, records: Sequence[ProcessRecord], tree: Mapping[str, Any], process: str | None
) -> Iterator[tuple[Figure, Value]]:
    if throughput := tree.get("throughput"):
        yield Figure((), "throughput"), Value(value_at(tree, METRICS["throughput"]), throughput["reason"])
    startups = [startup_of(folder, record) for record in records if "/" not in record.folder]
    times = [None if one is None else one.get("process_to_first_batch_ms") for one in startups]
    known = [float(time) for time in times if time is not None]
    start_up = sum(known) / len(known) if known and len(known) == len(times) else None
    yield Figure((), "start_up"), Value(start_up, "the first batch of a process has no time")
    metrics = tree.get("gpu_metrics") or {}
    every = [tree.get("process_metrics")] if process else list(metrics.get("processes", {}).values())
    processes: list[dict[str, Any]] = [one for one in every if one]
    if processes and len(processes) == len(every):
        yield Figure((), "host_memory"), _memory([one["resident_memory"] for one in processes])
        if any(one["gpu_uuid"] is not None or one.get("gpu_uuids") for one in processes):
            yield Figure((), "gpu_memory"), _memory([one["gpu_memory"] for one in processes])
    energy = tree.get("energy")
    if energy and (energy.get("gpus") or energy.get("energy_per_item_j") is not None):
        yield Figure((), "energy_per_item"), Value(value_at(tree, METRICS["energy_per_item"]), energy.get("reason"))


def _memory(processes: Sequence[Mapping[str, Any]]) -> Value:
    unknown = next((one for one in processes if one["peak_bytes"] is None), None)
    if unknown is not None:
        return Value(None, unknown["reason"])
    return Value(float(sum(one["peak_bytes"] for one in processes)))


# ---- environment ----

VALIDITY = "validity"
"""Verdict of a load test on itself."""

DECIDING = {
    "gpu": "different GPUs",
    "cpu": "different CPUs",
    "tracer": "different tracers, with different overhead",
    "processes": "different numbers of processes, which share the machine",
    "warm-up": "different numbers of batches dropped",
    "clocks": "clocks held at their maximum on one side",
    "reading": "different ranges are batches, or cases were measured differently",
    "batches": "different batches traced",
    "load": "different loads",
    VALIDITY: "LoadGen's verdict is INVALID",
    "pass": "one side is a profiling pass, which may be slower",
}
"""Differences that make a comparison meaningless unless allowed, and why."""


def environment_of(manifest: RunManifest, records: Sequence[ProcessRecord]) -> dict[str, str | None]:
    """Machine and settings of a launch, by name."""
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
        "GPU instance": ", ".join(sorted(used)) or None,
        **{name: getattr(machine, name) for name in ("driver", "kernel", "python", "perfharness", "nvtx")},
        "CUDA of the driver": machine.cuda_driver,
        "host": machine.hostname,
        "operating system": machine.os,
        "CPU binding": manifest.cpu_bind,
        "telemetry": "sampled" if manifest.companions.get("telemetry") else "off",
        "script": Path(manifest.script).name,
        "arguments": " ".join(manifest.script_arguments) or "none",
        **{f"package {name}": version for name, version in sorted(machine.packages.items())},
    }
    if (source := manifest.source) is not None:
        commit = source.git_commit and source.git_commit + (" with changes" if source.git_dirty else "")
        found |= {"git commit": commit, "script's digest": source.script_sha256 and source.script_sha256[:12]}
    return found
