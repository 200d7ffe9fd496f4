"""Join the telemetry of a run with its traces: throttled batches, `gpu_metrics`, `energy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from perfharness.analysis.diagnosis.cpu_supply import CpuQuota, cpu_quota
from perfharness.analysis.energy.account import account
from perfharness.analysis.energy.work import Batches, MeasuredProcess, OnGpu, union_window
from perfharness.analysis.metrics.clocks import (
    RequestedClocks,
    Throttling,
    of_any,
    throttling_known,
    throttling_of,
)
from perfharness.analysis.metrics.findings import metric_findings
from perfharness.analysis.metrics.summary import summarise_metrics, summarise_other_hosts
from perfharness.errors import ResultError
from perfharness.model.conditions import CLOCKS, ClocksRecord, condition
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import ProcessRecord, RunManifest
from perfharness.model.result import GpuWork, ProcessResult, Tree
from perfharness.model.telemetry import TELEMETRY_NAME, FailureRecord, SampleLog, member_subject, process_subject
from perfharness.model.units import NS_PER_S
from perfharness.telemetry.store import read_sample_log

UNSEEN = "not seen: the sampler looks for children once per second, by their pid on the machine"


@dataclass(frozen=True)
class MachineSide:
    """Telemetry for benchmark_mean.json, and for benchmark.json by process; empty without telemetry."""

    mean: Tree = field(default_factory=dict)
    processes: Mapping[str, Tree] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


class RunTelemetry:
    """Telemetry of a run folder; `log` is None if missing or unreadable (`problems`)."""

    def __init__(self, run_dir: Path, manifest: RunManifest) -> None:
        self.log: SampleLog | None = None
        self.problems: list[Finding] = []
        self._manifest = manifest
        try:
            if (run_dir / TELEMETRY_NAME).exists():
                self.log = _with_measured(read_sample_log(run_dir / TELEMETRY_NAME), manifest)
        except ResultError as error:
            message = f"The run has no gpu_metrics and no energy: {error}."
            self.problems = [Finding("telemetry-incomplete", Severity.WARNING, message)]
        self._throttling: dict[str, Throttling] = {}

    def _sensor_uuid(self, uuid: str) -> str:
        """GPU with the sensors for power and clocks: the parent of a MIG instance."""
        subjects = () if self.log is None else self.log.meta.subjects
        record = next((one for one in subjects if one.subject == uuid), None)
        return (record.parent_uuid if record else None) or uuid

    def cpu_quota(self, process: ProcessRecord) -> CpuQuota | None:
        """CPU quota of a launched process and its children on UTC, or None."""
        return None if self.log is None else cpu_quota(self.log, process_subject(process.launched_folder))

    def throttling(self, process: ProcessRecord) -> Throttling | None:
        """Times with throttled clocks on any GPU of the process, or None if unknown."""
        found = [self._throttling_of(uuid) for uuid in dict.fromkeys(map(self._sensor_uuid, process.used_gpus))]
        known = [one for one in found if one is not None]
        return of_any(known) if known and len(known) == len(found) else None

    def _throttling_of(self, uuid: str) -> Throttling | None:
        if self.log is None or not throttling_known(self.log, uuid):
            return None
        if uuid not in self._throttling:
            on_it = [one for one in self._manifest.processes if uuid in map(self._sensor_uuid, one.given_gpus)]
            lifetime = union_window([_lifetime(one) for one in on_it])
            requested = self._requested().get(uuid, RequestedClocks())
            self._throttling[uuid] = throttling_of(self.log, uuid, requested, lifetime)
        return self._throttling[uuid]

    def summarize(self, results: Mapping[str, ProcessResult], nsys_bytes: Mapping[str, int]) -> MachineSide:
        """Compute metrics, energy and findings; `nsys_bytes` are sizes of nsys's traces by folder."""
        if self.log is None:
            return MachineSide(findings=self.problems)
        processes = [self._measured(record, results.get(record.folder)) for record in self._manifest.measured_processes]
        throttling = {
            uuid: found
            for record in self._manifest.processes
            for uuid in map(self._sensor_uuid, record.given_gpus)
            if (found := self._throttling_of(uuid)) is not None
        }
        hosts = {node.rank: node.environment.hostname for node in self._manifest.nodes}
        metrics = summarise_metrics(self.log, processes, throttling, self._requested(), hosts)
        energy, findings = account(self.log, processes, {gpu.uuid: gpu for gpu in metrics.gpus})
        trees = {}
        for record in self._manifest.measured_processes:
            own, joules = metrics.processes.get(record.folder), energy.processes.get(record.folder)
            trees[record.folder] = {
                "process_metrics": None if own is None else asdict(own),
                "energy": None if joules is None else {"unit": "joules", **asdict(joules)},
            }
        others = {name: asdict(one) for name, one in summarise_other_hosts(self.log, processes).items()}
        gpu_metrics = {**asdict(metrics), **({"hosts": others} if others else {})}
        mean = {"gpu_metrics": gpu_metrics, "energy": {"unit": "joules", **asdict(energy)}}
        return MachineSide(mean, trees, [*metric_findings(metrics, nsys_bytes), *findings])

    def _requested(self) -> dict[str, RequestedClocks]:
        machines = [self._manifest.companions, *(node.companions for node in self._manifest.nodes[1:])]
        return {
            step.gpu_uuid: RequestedClocks(
                clocks.requested_mhz(step.gpu_uuid, "graphics_clock_lock_mhz"),
                clocks.requested_mhz(step.gpu_uuid, "memory_clock_lock_mhz"),
            )
            for companions in machines
            if (clocks := condition(companions, CLOCKS, ClocksRecord)) is not None
            for step in clocks.steps
        }

    def _measured(self, record: ProcessRecord, result: ProcessResult | None) -> MeasuredProcess:
        reason = None
        if result is None:
            reason = f"{record.folder} left no readable trace"
        elif not result.clock_is_utc:
            reason = f"the trace of {record.folder} has no start time"
        uuids = record.used_gpus
        work = result.gpu_work[: len(uuids)] if result else ()
        if not work:
            work = (GpuWork(reason=reason or "not analysed"),) * len(uuids)
        return MeasuredProcess(
            folder=record.folder,
            gpus=tuple(OnGpu(uuid, self._sensor_uuid(uuid), of_gpu) for uuid, of_gpu in zip(uuids, work, strict=True)),
            batches=Batches.of(result.loops if result else []),
            lifetime=_lifetime(record),
            reason=reason,
            max_rss_bytes=record.max_rss_bytes,
        )


def _with_measured(log: SampleLog, manifest: RunManifest) -> SampleLog:
    """Rename the readings of child processes to the names of their results."""
    started = [one for one in manifest.measured_processes if one.folder != one.launched_folder and one.pid is not None]
    names = {member_subject(one.launched_folder, one.pid or 0): process_subject(one.folder) for one in started}
    sampled = {subject for subject, _ in log.series}
    unseen = [
        FailureRecord(subject=name, metric=metric, reason=UNSEEN, count=0)
        for subject, name in names.items()
        if subject not in sampled
        for metric in ("cpu_percent", "rss_bytes", "threads")
    ]
    meta = log.meta.model_copy(update={"failures": [*log.meta.failures, *unseen]})
    return SampleLog(log.series, meta).with_names(names)


def _lifetime(record: ProcessRecord) -> tuple[int, int] | None:
    if record.start_unix_ns is None or record.duration_s is None:
        return None
    return record.start_unix_ns, record.start_unix_ns + round(record.duration_s * NS_PER_S)
