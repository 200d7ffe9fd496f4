"""From results to what the run store holds of them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from perfharness.model.bench import CaseResult, Estimate
from perfharness.model.bench_suite import BenchSuiteResult, SweepFile
from perfharness.model.conventions import printable
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import ProcessRecord, RunManifest
from perfharness.model.result import Tree, path_text
from perfharness.runs.comparison.compared_figure import METRICS
from perfharness.runs.comparison.compared_figure import Figure as Compared
from perfharness.runs.comparison.compared_launch import LaunchFigures
from perfharness.runs.comparison.launch_figures import stage_entries
from perfharness.runs.comparison.load_test import LoadTest, read_load_test
from perfharness.runs.store.records import (
    BUSY,
    BUSY_PER_ITEM,
    COMMITTED,
    CPU,
    CPU_PER_ITEM,
    DEVICE_MEMORY,
    ENERGY_PER_BATCH,
    ENERGY_PER_ITEM,
    GPU,
    GPU_PER_ITEM,
    HOST_MEMORY,
    LATENCY,
    THROUGHPUT,
    UNITS,
    Figure,
    Kind,
    StoredRun,
)

LONGEST_PATH_BYTES = 1000
"""A database index has no room for more; a longer path is cut, and ends in a digest of the whole."""

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

STAGE_METRICS = (CPU, CPU_PER_ITEM)
GPU_METRICS = (GPU, BUSY, GPU_PER_ITEM, BUSY_PER_ITEM)
"""Without a GPU their zeros mean nothing, and are not stored."""


def stored_launch(manifest: RunManifest, mean: Tree, findings: Iterable[Finding], folder: Path) -> StoredRun:
    """A launch: what its manifest, the content of its `benchmark_mean.json` and its load test say.

    Raises `ResultError` where the file of the load test cannot be read.
    """
    test = read_load_test(folder)
    of_run = [one for one in findings if test is None or one.code not in test.of_no_concern]
    severities = [finding.severity for finding in (*of_run, *(() if test is None else test.findings))]
    has_gpu = any(process.given_gpus for process in manifest.processes)
    ok = sum(process.ended == "ok" and _has_trace(manifest, process) for process in manifest.processes)
    script, arguments = manifest.script, manifest.script_arguments
    if test is not None:
        script = test.target
        arguments = arguments if test.arguments is None else list(test.arguments)
    facts = {
        "script": Path(script).name if test is None else test.short_target,
        "arguments": arguments,
        "machine": manifest.environment.hostname,
        "cpu": manifest.environment.cpu,
        "gpus": _gpus(manifest),
        "tracer": manifest.tracer.kind,
        "processes_per_gpu": manifest.num_processes_per_gpu,
        "warmup_batches": manifest.warmup_batches,
        **({"gpus_per_process": manifest.gpus_per_process} if manifest.gpus_per_process > 1 else {}),
        **({} if test is None else {**test.facts, "load": test.load}),
    }
    return StoredRun(
        run_id=manifest.run_id,
        kind="launch" if test is None else test.kind,
        folder=str(folder.absolute()),
        created=manifest.created,
        created_unix_ns=_began_ns(manifest),
        command=manifest.command,
        script=script,
        script_path=_script_path(manifest, script),
        script_arguments=arguments,
        setup=digest(facts),
        setup_facts=facts,
        environment={
            **manifest.environment.model_dump(mode="json"),
            "tracer": manifest.tracer.model_dump(mode="json", include={"kind", "version"}),
            **_source(manifest),
        },
        git_commit=None if manifest.source is None else manifest.source.git_commit,
        git_dirty=None if manifest.source is None else manifest.source.git_dirty,
        num_processes=len(manifest.processes),
        processes_ok=ok,
        exit_code=_exit_code(ok == len(manifest.processes), severities, test),
        verdict=None if test is None else _verdict(test),
        errors=severities.count(Severity.ERROR),
        warnings=severities.count(Severity.WARNING),
        notes=severities.count(Severity.NOTE),
        figures=[*launch_figures(mean, has_gpu=has_gpu), *([] if test is None else test_figures(test))],
    )


def _verdict(test: LoadTest) -> str:
    return test.verdict + (f": {test.verdict_reason}" if test.verdict_reason else "")


def test_figures(test: LoadTest) -> Iterator[Figure]:
    """The figures of a load test, and of each of its phases, where there are several."""
    of_phases = test.figures_of_phases if len(test.phases) > 1 else {}
    for figure, found in {**test.figures, **of_phases}.items():
        value = finite(found.value)
        yield Figure(
            path=short(figure.stage),
            metric=figure.metric,
            unit=METRICS[figure.metric].unit,
            count=found.count,
            mean=value,
            low=finite(found.low),
            high=finite(found.high),
            reason=found.reason or (None if value is not None else "not measured"),
        )


def _source(manifest: RunManifest) -> dict[str, Any]:
    """When its commit was made; digests of the script and of the files that its arguments name."""
    if manifest.source is None:
        return {}
    files = {f"{one.name} ({one.argument})": one.sha256 for one in manifest.source.input_files}
    return {
        COMMITTED: manifest.source.git_committed_unix_s,
        "script_sha256": manifest.source.script_sha256,
        "input_files": files,
    }


def _began_ns(manifest: RunManifest) -> int:
    """When the first process began; `created` has whole seconds."""
    starts = [process.start_unix_ns for process in manifest.processes if process.start_unix_ns is not None]
    return min(starts, default=unix_ns(manifest.created))


def _has_trace(manifest: RunManifest, process: ProcessRecord) -> bool:
    return process.left_traces or manifest.tracer.kind == "none"


def _exit_code(all_well: bool, severities: Sequence[Severity], test: LoadTest | None) -> int:
    """As `perfharness launch`, `stress` and `mlperf` end."""
    if test is not None and test.exit_code:
        return test.exit_code
    if not all_well:
        return 1
    return 3 if Severity.ERROR in severities else 0


def _gpus(manifest: RunManifest) -> list[str]:
    """Names of the GPUs that processes ran on."""
    names = {gpu.uuid: gpu.name or gpu.uuid for gpu in manifest.environment.gpus}
    used = dict.fromkeys(uuid for process in manifest.processes for uuid in process.given_gpus)
    return [names.get(uuid, uuid) for uuid in used]


def _script_path(manifest: RunManifest, script: str) -> str | None:
    """Of `path/file.py`, or of a target `path/file.py:function`."""
    name = script if Path(script).suffix == ".py" else script.rpartition(":")[0]
    path = Path(manifest.working_dir or "", name)
    return os.path.normpath(path) if path.is_absolute() and path.suffix == ".py" else None


def launch_figures(mean: Tree, *, has_gpu: bool) -> Iterator[Figure]:
    """The figures of a launch: of the whole, and of every stage that has statistics without warm-up."""
    throughput = mean.get("throughput") or {}
    yield whole(THROUGHPUT, throughput.get(THROUGHPUT), throughput.get("reason"))
    energy = mean.get("energy") or {}
    for metric in (ENERGY_PER_ITEM, ENERGY_PER_BATCH):
        if energy.get(metric) is not None or has_gpu:
            yield whole(metric, energy.get(metric), energy.get("reason") or "not measured")
    metrics = (*STAGE_METRICS, *GPU_METRICS) if has_gpu else STAGE_METRICS
    for path, statistics in stage_entries(mean.get("stats_minus_warmup") or {}):
        for metric in metrics:
            found = statistics.get(metric)
            if isinstance(found, dict) and found.get("count"):
                yield Figure(
                    path=short(path_text(path)),
                    metric=metric,
                    unit=UNITS[metric],
                    count=found["count"],
                    **{name: finite(found.get(name)) for name in ("mean", "p50", "p95")},
                    reason=None if finite(found.get("mean")) is not None else "not measured in every batch",
                )


def whole(metric: str, value: float | None, reason: str | None = None) -> Figure:
    """A figure of the run as a whole."""
    value = finite(value)
    reason = None if value is not None else reason or "not measured"
    return Figure(metric=metric, unit=UNITS.get(metric, ""), mean=value, reason=reason)


def stored_series(
    kind: Kind,
    *,
    folder: Path,
    created: str,
    command: Sequence[str],
    script: str,
    script_arguments: Sequence[str],
    launches: Sequence[StoredRun],
    exit_code: int,
    figures: Sequence[Figure] = (),
) -> StoredRun:
    """A series of launches, each of which has its own row with its figures.

    Args:
        figures: of the series as a whole.
    """
    first = launches[0] if launches else None
    if first is not None and first.kind != "launch":  # what was launched is perfharness's own worker
        script, script_arguments = first.script, first.script_arguments
    facts = {"script": Path(script).name, "arguments": list(script_arguments), "kind": kind}
    return StoredRun(
        run_id=run_id(kind, folder, created),
        kind=kind,
        folder=str(folder.absolute()),
        created=created,
        created_unix_ns=first.created_unix_ns if first else unix_ns(created),
        command=list(command),
        script=script,
        script_path=first.script_path if first else None,
        script_arguments=list(script_arguments),
        setup=digest({**facts, **(first.setup_facts if first else {})}),
        setup_facts=facts,
        environment=first.environment if first else {},
        git_commit=first.git_commit if first else None,
        git_dirty=first.git_dirty if first else None,
        num_processes=len(launches),
        processes_ok=sum(launch.exit_code == 0 for launch in launches),
        exit_code=exit_code,
        figures=list(figures),
    )


def stored_suite(result: BenchSuiteResult | SweepFile, folder: Path, exit_code: int) -> StoredRun:
    """A suite, or a sweep, of `perfharness bench`: one path for each case."""
    kind: Kind = "bench" if isinstance(result, BenchSuiteResult) else "bench-sweep"
    name = result.name if isinstance(result, BenchSuiteResult) else "sweep"
    machine = result.machine
    facts = {"suite": name, "kind": kind, "machine": machine.hostname, "cpu": machine.cpu, "gpus": machine.gpus}
    created = result.created
    return StoredRun(
        run_id=run_id(kind, folder, created),
        kind=kind,
        folder=str(folder.absolute()),
        created=created,
        created_unix_ns=unix_ns(created),
        command=result.command,
        script=name,
        setup=digest(facts),
        setup_facts=facts,
        environment=machine.model_dump(mode="json", exclude={"machine_id"}),
        num_processes=len(result.cases),
        processes_ok=sum(case.status == "ok" for case in result.cases),
        exit_code=exit_code,
        figures=[figure for case in result.cases for figure in case_figures(case)],
    )


def stored_trtexec(launch: LaunchFigures, created_unix_ns: int) -> StoredRun:
    """A result of trtexec: its stages, on the GPU but for `enqueue`.

    Args:
        created_unix_ns: when its file was written, for it holds no date.
    """
    name = launch.folder.name
    gpu = launch.environment.get("gpu")
    facts = {"file": name, "kind": "trtexec", "gpu": gpu}
    created = datetime.fromtimestamp(created_unix_ns / 1e9, timezone.utc)
    return StoredRun(
        run_id=launch.run_id,
        kind="trtexec",
        folder=str(launch.folder.absolute()),
        created=created.isoformat(timespec="seconds"),
        created_unix_ns=created_unix_ns,
        script=name,
        setup=digest(facts),
        setup_facts=facts,
        environment=dict(launch.environment),
        exit_code=0,
        figures=[
            Figure(
                path=short(path_text(path)),
                metric=metric,
                unit=UNITS[metric],
                mean=finite(launch.figures[Compared(path, metric)]),
                p50=finite(launch.figures.get(Compared(path, "stage_p50"))),
                p95=finite(launch.figures.get(Compared(path, "stage_p95"))),
            )
            for path in launch.paths
            for metric in (CPU, GPU)
            if Compared(path, metric) in launch.figures
        ],
    )


def case_figures(case: CaseResult) -> Iterator[Figure]:
    """The figures of a case."""
    path, latency = short(case.case.case_id), case.latency
    if latency is None:
        yield Figure(path=path, metric=LATENCY, unit=UNITS[LATENCY], reason=case.reason or case.status)
        return
    yield Figure(
        path=path,
        metric=LATENCY,
        unit=UNITS[LATENCY],
        count=latency.iterations,
        mean=finite(latency.mean.value),
        p50=finite(latency.p50),
        p95=None if latency.p95 is None else finite(latency.p95.value),
    )
    single: dict[str, Estimate | float | None] = {
        THROUGHPUT: case.items_per_second,
        ENERGY_PER_ITEM: case.energy_per_item_j,
        DEVICE_MEMORY: case.memory.device_peak_bytes,
        HOST_MEMORY: case.memory.host_peak_bytes,
    }
    for metric, found in single.items():
        value = finite(found.value if isinstance(found, Estimate) else found)
        if value is not None:
            yield Figure(path=path, metric=metric, unit=UNITS[metric], mean=value)


def finite(value: Any) -> float | None:
    """A number, or None."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def short(path: str) -> str:
    """A path that an index has room for, with what no database takes escaped."""
    path = printable(path)
    encoded = path.encode()
    if len(encoded) <= LONGEST_PATH_BYTES:
        return path
    return f"{encoded[: LONGEST_PATH_BYTES - 70].decode('utf-8', 'ignore')}…{hashlib.sha256(encoded).hexdigest()}"


def digest(facts: Mapping[str, Any]) -> str:
    """A short text that is equal where the facts are."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def run_id(kind: str, folder: Path, created: str) -> str:
    """The id of what has none of its own: the same again where it is stored again."""
    when = datetime.fromtimestamp(unix_ns(created) / 1e9, timezone.utc).strftime("%Y%m%dT%H%M%S")
    return f"{when}-{digest({'kind': kind, 'folder': str(folder.absolute()), 'created': created})[:8]}"


def unix_ns(created: str) -> int:
    """Nanoseconds since 1970 of a time in ISO 8601; without a zone it is UTC. Raises `ValueError`."""
    time = datetime.fromisoformat(created.replace("Z", "+00:00"))
    time = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
    return (time - EPOCH) // timedelta(microseconds=1) * 1000
