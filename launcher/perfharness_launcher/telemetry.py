"""Sample GPUs and host from before the first process of a launch until after its last one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from perfharness.errors import ResultError
from perfharness.model.findings import Finding, Severity, listed
from perfharness.model.telemetry import TELEMETRY_NAME, SampleLog
from perfharness.telemetry.processes import FollowedProcess
from perfharness.telemetry.readings import unread_metrics
from perfharness.telemetry.sampler import SOURCE_FAILED, sampling
from perfharness_launcher.conditions import Run
from perfharness_launcher.process import RunningProcess

PERIOD_NS = 50_000_000
"""Sensors are updated every 20 to 200 ms."""

STEP_NS = 1_000_000
"""Report larger changes of UTC during a run."""

OFTEN_ABSENT = frozenset({"quota_cpus", "quota_throttled_ns", "quota_throttled_periods", "steal_percent"})
"""Metrics that most machines lack, and no finding reports: the results have null and the reason."""

LISTED = 3
"""Number of unread metrics to name per reason."""

BUSY_QUANTILE = 0.9
"""The median is too low, because a process has few threads while it starts."""


@contextmanager
def sampled(run: Run, idle_s: float = 0.0, running: Iterable[FollowedProcess] = ()) -> Iterator[None]:
    """Sample GPUs and host into `telemetry.parquet`, from `idle_s` before the first process.

    `running`: processes that already run.
    """

    def follow(process: RunningProcess) -> None:
        uuids = tuple(gpu.uuid for gpu in process.spec.gpus)
        sampler.follow(FollowedProcess(process.spec.folder, process.pid or 0, uuids))

    path, gpus = run.folder / TELEMETRY_NAME, [gpu.uuid for gpu in run.gpus]
    try:
        with sampling(path, PERIOD_NS, gpus, idle_s=idle_s, interrupted=run.interrupted) as sampler:
            for one in running:
                sampler.follow(one)
            run.started.append(follow)
            yield
    except ResultError as error:
        run.findings.append(Finding("telemetry-incomplete", Severity.WARNING, f"The run has no telemetry: {error}"))
        return
    run.findings += telemetry_findings(sampler.log, sampler.nvml_problem)
    meta = sampler.log.meta
    cpu_s = None if meta.sampler_cpu_ns is None else meta.sampler_cpu_ns / 1e9
    run.records["telemetry"] = {"clock": meta.clock.model_dump(), "sampler_cpu_s": cpu_s}
    run.of_processes |= {process.folder: cpu_supply(sampler.log, process) for process in sampler.followed}


def cpu_supply(log: SampleLog, process: FollowedProcess) -> dict[str, float | None]:
    """Seconds that threads of a process and its children ran, and were ready without a CPU."""
    found: dict[str, float | None] = {"cpus_allowed": process.cpus_allowed}
    run, ready = (log.get(process.subject, f"thread_{what}_ns") for what in ("run", "ready"))
    if run is None or ready is None or not run.is_read.any():
        return found | dict.fromkeys(("cpu_run_s", "cpu_ready_s", "runnable_threads"))
    run_ns, ready_ns = (one.value[one.is_read].astype(float) for one in (run, ready))
    runnable = np.diff(run_ns + ready_ns) / np.diff(run.time_monotonic_ns[run.is_read])
    return found | {
        "cpu_run_s": run_ns[-1] / 1e9,
        "cpu_ready_s": ready_ns[-1] / 1e9,
        "runnable_threads": float(np.quantile(runnable, BUSY_QUANTILE)) if len(runnable) else None,
    }


def telemetry_findings(log: SampleLog, nvml_problem: str | None) -> Iterator[Finding]:
    """Findings about the sampling."""
    if nvml_problem is not None:
        message, hint = f"The GPUs could not be sampled: {nvml_problem}.", "`perfharness doctor` lists what is missing."
        yield Finding("gpu-metrics-unavailable", Severity.WARNING, message, hint)
    for failure in log.meta.failures:
        if failure.metric == SOURCE_FAILED:
            message = f"telemetry: {failure.subject}: {failure.reason}"
            yield Finding("telemetry-incomplete", Severity.WARNING, message)
    unread: dict[tuple[str, str], list[str]] = {}
    for failure in unread_metrics(log):
        if failure.metric not in OFTEN_ABSENT:
            unread.setdefault((failure.subject, failure.reason), []).append(failure.metric)
    if unread:
        parts = (f"{listed(metrics, LISTED)} of {subject} ({reason})" for (subject, reason), metrics in unread.items())
        yield Finding("telemetry-incomplete", Severity.NOTE, f"Metrics without readings: {'; '.join(parts)}")
    moved_ns = log.meta.clock.moved_ns
    if abs(moved_ns) > STEP_NS:
        message = f"The machine's UTC moved by {moved_ns / 1e6:+.3f} ms during the run."
        yield Finding("clock-uncertain", Severity.WARNING, message, "Run again once the clock is stable.")
