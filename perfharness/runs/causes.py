"""The causes of a run: its measured and its profiling pass read from the folder."""

from __future__ import annotations

from pathlib import Path

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.causes import Causes, CpuSupply, Pass, diagnose, with_rank_delays
from perfharness.analysis.host_samples.host_profile import on_trace_clock
from perfharness.errors import TraceError
from perfharness.model.manifest import ProcessRecord, RunManifest
from perfharness.runs.clocks import machine_clock, on_utc
from perfharness.runs.explain import explaining_folder, usable_processes
from perfharness.runs.files.process_traces import ProcessTraces
from perfharness.runs.files.run_folder import AS_LAUNCHED, read_manifest
from perfharness.runs.gpu_sharing import GpuSharing
from perfharness.runs.ranks import RankComparison
from perfharness.runs.telemetry import RunTelemetry


def causes_of_run(run_dir: Path, *, one_pass: bool = False) -> dict[str, Causes]:
    """What limits the stages of each measured process with a trace, by folder. Raises `ResultError`.

    Args:
        run_dir: the run folder.
        one_pass: leave the profiling pass out.
    """
    manifest = read_manifest(run_dir)
    measured, profiling = _Passes(run_dir, manifest), None
    again: dict[str, ProcessRecord] = {}
    folder = None if one_pass else explaining_folder(run_dir, manifest)
    if folder is not None:
        of_profiling = read_manifest(folder)
        profiling, again = _Passes(folder, of_profiling), usable_processes(manifest, of_profiling)
    found: dict[str, Causes] = {}
    ranks = RankComparison(manifest)
    for process in manifest.measured_processes:
        first = measured.read(process)
        second = None
        if profiling is not None and process.folder in again:
            second = profiling.read(again[process.folder])
        if first is not None:
            found[process.folder] = diagnose(first, second)
            ranks.visit(process, first.analysis)
    compared = ranks.compare()
    for group in [] if compared is None else compared.groups:
        found |= {one: with_rank_delays(found[one], group.delays, one) for one in group.processes if one in found}
    return found


class _Passes:
    """The processes of one pass."""

    def __init__(self, run_dir: Path, manifest: RunManifest) -> None:
        self._manifest = manifest
        self._options = AS_LAUNCHED.options(manifest)
        self._traces = ProcessTraces(run_dir)
        self._telemetry = RunTelemetry(run_dir, manifest)
        self._sharing = GpuSharing(self._traces, manifest)

    def read(self, process: ProcessRecord) -> Pass | None:
        """One process; None: it left no trace that can be read."""
        if process.trace_path(self._traces.run_dir) is None:
            return None
        try:
            others = self._sharing.others_of(process)
            trace = on_utc(self._traces.open(process), machine_clock(self._manifest))
        except TraceError:
            return None
        probe = self._traces.host_probe(process)
        used = self._telemetry.cpu_time(process)
        used = None if used is None else used.on_trace_clock(trace.meta)
        quota = None if used is None or used.supply.quota is None else used.supply.quota
        return Pass(
            Analysis(trace, self._options, None if probe is None else on_trace_clock(probe, trace)),
            others(trace),
            self._supply(process),
            None if quota is None else (quota.start_ns, quota.end_ns),
        )

    def _supply(self, process: ProcessRecord) -> CpuSupply:
        """The CPUs of a process, and the launched processes that were given the same ones."""
        every = {one.folder: one for one in self._manifest.processes}
        launched = every.get(process.launched_folder)
        if launched is None:
            return CpuSupply()
        mine = [one for one in every.values() if _cpus(one) == _cpus(launched)]
        threads = [one.runnable_threads for one in mine if one.runnable_threads is not None]
        return CpuSupply(launched.cpus_allowed, len(mine), sum(threads) if len(threads) == len(mine) else None)


def _cpus(process: ProcessRecord) -> str | None:
    return None if process.placement is None else process.placement.cpus
