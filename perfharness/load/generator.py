"""One process's part of a load: its phases, one after the other."""

from __future__ import annotations

import gc
import itertools
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from perfharness.bench.memory import host_bytes
from perfharness.errors import LaunchError, PerfHarnessError
from perfharness.load.profile import Phase, Profile
from perfharness.load.record import LoadLog
from perfharness.load.request import MakeTarget
from perfharness.load.schedule import ClosedSchedule, OpenSchedule, Schedule, arrivals_of
from perfharness.load.timer import wait_until
from perfharness.load.workers import AnyWorkers, Served, workers_for
from perfharness.model.load import Status
from perfharness.recorder import PerfRecorder

PARTS = 5
LEAST_ANSWERS = 20
"""Minimum answers in all parts together."""

CLOSED_IDS = 1 << 24
"""Ids reserved for a closed phase of several processes: how many each needs is unknown."""

LEAD_NS = 20_000_000
"""From the begin of the clock to the first request; by then all workers wait."""


@dataclass
class LoadRun:
    """Sends a profile to the workers' targets.

    Args:
        process: index of this process among `processes`; each sends its share.
    """

    profile: Profile
    workers: AnyWorkers
    log: LoadLog
    process: int = 0
    processes: int = 1
    is_alone: bool = False
    """The targets are in other processes, so garbage collection here is not part of the measurement."""

    status: Status = field(default="ok", init=False)
    reason: str | None = field(default=None, init=False)
    _next_id: int = field(default=0, init=False)
    _recent: deque[dict[str, Any]] = field(default_factory=deque, init=False)
    """Windows in which errors are counted for the error limit."""

    def interrupt(self) -> None:
        """End as soon as possible and keep the results so far; may be called from a signal handler."""
        if self.status == "ok":
            self.status = "interrupted"
        self.log.stop.set()

    def run(self) -> None:
        """Run all phases. The workers have been opened."""
        if self.is_alone:  # new objects are collected as usual
            gc.collect()
            gc.freeze()
        self.log.begin(perf_counter_ns(), process=self.process, processes=self.processes)
        self.log.on_window = self._judge
        for index, phase in enumerate(self.profile.phases):
            if not self.log.stop.is_set():
                self._run_phase(index, phase)

    def _run_phase(self, index: int, phase: Phase) -> None:
        """Send the `index`-th phase of the profile, and wait for its answers."""
        profile = self.profile
        users = phase.concurrency or profile.concurrency
        schedule = self._schedule(index, phase, users)
        later_s = sum(one.duration_s for one in profile.phases[index + 1 :])
        facts = {"loop": phase.loop, "concurrency": users, "later_s": later_s}
        self.log.begin_phase(index, phase.name, schedule.start_ns, schedule.end_ns, schedule.due_ns, **facts)
        timeout_ns = None if profile.request_timeout_s is None else round(profile.request_timeout_s * 1e9)
        self.workers.serve(Served(schedule, self.log.add, self.log.stop, timeout_ns, round(profile.grace_s * 1e9)))
        wait_until(schedule.end_ns, self.log.stop)
        self.log.end_phase()
        if isinstance(schedule, ClosedSchedule):
            self._next_id = next(schedule.ids) if self.processes == 1 else self._next_id + CLOSED_IDS

    def _schedule(self, index: int, phase: Phase, users: int) -> Schedule:
        profile = self.profile
        if phase.loop == "open":
            arrivals = arrivals_of(profile, index, self._next_id, self.process, self.processes)
            self._next_id = arrivals.next_id
            return OpenSchedule(phase, perf_counter_ns() + LEAD_NS, profile.mix, arrivals)
        ids = itertools.count(self._next_id + self.process, self.processes)
        random = np.random.default_rng([profile.seed, index, self.process])
        return ClosedSchedule(phase, perf_counter_ns() + LEAD_NS, profile.mix, users, ids, random)

    def _judge(self, window: dict[str, Any]) -> None:
        """Stop if the error rate exceeds the limit in each part of the last seconds, not for a short burst."""
        limit, length_ns = self.profile.max_error_rate, round(self.profile.error_window_s * 1e9)
        if limit is None or self.log.stop.is_set() or self.profile.phases[window["phase"]].warmup:
            return
        self._recent.append(window)
        first_ns = window["end_ns"] - length_ns
        if self._recent[0]["start_ns"] > first_ns:
            return  # too short so far
        while self._recent[0]["end_ns"] <= first_ns:
            self._recent.popleft()
        parts = np.zeros((PARTS, 2), np.int64)
        for one in self._recent:
            failed = sum(one["errors"].values())
            parts[(one["end_ns"] - first_ns - 1) * PARTS // length_ns] += one["ok"] + failed, failed
        answers, failures = parts[parts[:, 0] > 0].T
        if answers.sum() >= LEAST_ANSWERS and (failures > limit * answers).all():
            self.status = "stopped-by-errors"
            self.reason = (
                f"for {length_ns / 1e9:g} s more than {limit:.1%} of the answers were errors, {failures.sum()} of "
                f"{answers.sum()}"
            )
            self.log.stop.set()


def send_load(
    profile: Profile,
    make_target: MakeTarget,
    folder: Path,
    recorder: PerfRecorder | None = None,
    *,
    memory_bytes: Callable[[], int | None] = host_bytes,
    opened: Callable[[LoadRun], None] = lambda run: None,
    **settings: Any,
) -> None:
    """Open the targets, send the load, write the results. Raises `LaunchError` if a target cannot be opened.

    Args:
        recorder: finalized at the end, unless a batch is still open.
        memory_bytes: memory of the process that holds the target.
        opened: called before the clock starts; may wait for other processes.
        settings: fields of `LoadRun`.
    """
    workers = workers_for(make_target, profile.concurrency)
    try:
        workers.open()
    except PerfHarnessError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise LaunchError(f"the target failed before the load began: {type(error).__name__}: {error}") from error
    log = LoadLog(folder, memory_bytes)
    run = LoadRun(profile, workers, log, **settings)
    opened(run)
    run.run()
    log.close(run.status, run.reason)
    try:
        workers.close()
    finally:
        if recorder is not None and not workers.has_abandoned:
            recorder.finalize()
