"""What runs alongside a launch: samplers, locked clocks, watchers. Started before any process, always stopped.

The order of a launch:

1. each companion's `start`, in the order given, before the first process (and its tracer) is spawned;
2. `process_started`, once for each process, as soon as its pid is known;
3. `is_done`, at every poll: one that says so has the processes ended as by Ctrl-C, and they have ended well then;
4. `stop`, in reverse order, after the last measured process has ended and before the tracers write their reports and
   anything is analysed: also after an exception, Ctrl-C, SIGTERM or SIGHUP, and when another companion failed.
   (After SIGKILL nothing can be done; what has to be put right then needs a file of its own on disk.) One that
   `outlasts_tracers` is told by `processes_ended` then, before the others stop, and stops when the tracers are done.

A companion that starts processes of its own does so without `PERFHARNESS_RUN_ID` in their environment, which would make
them part of the run, to be ended with it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfharness.errors import LaunchError, PerfHarnessError
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import GpuRecord


@dataclass(frozen=True)
class CompanionContext:
    """The run that a companion accompanies.

    Args:
        gpus: those that the run uses.
        run_dir: where the run is being written; what belongs to the run goes in here, under a name that is in
            `staging.has_name_of_a_run`. The folder moves when the run is put in place, after `stop`.
        run_id: of the run, as in the manifest.
        interrupted: whether the user has asked the launch to end; a `start` that takes long asks it.
    """

    run_dir: Path
    run_id: str
    gpus: tuple[GpuRecord, ...] = ()
    interrupted: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class MeasuredProcess:
    """A measured process that has started.

    Args:
        folder: name of its folder in the run, `proc_X_gpu_Y`.
        pid: in the launcher's pid namespace.
        start_unix_ns: just before it was started.
        gpu_uuids: of its GPUs.
    """

    folder: str
    pid: int
    start_unix_ns: int
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompanionReport:
    """The result of a companion.

    Args:
        findings: for the manifest; one of severity `ERROR` makes the launch exit with 3.
        record: JSON for the manifest, under the companion's name in `companions`; None: nothing.
    """

    findings: Sequence[Finding] = ()
    record: Mapping[str, Any] | None = None


class Companion:
    """Runs alongside a launch. All calls come from the launcher's main thread."""

    name: str
    """Lower-case words joined by dashes, its own in a launch: `clocks`, `telemetry`."""

    essential: bool = False
    """Whether a `start` that raises ends the launch before any process began; otherwise that is a finding."""

    outlasts_tracers: bool = False
    """Whether it stops after the tracers have written their reports."""

    def start(self, context: CompanionContext) -> None:
        """Be ready when this returns. What raises here has undone what it did: its `stop` is not called."""

    def process_started(self, process: MeasuredProcess) -> None:
        """A measured process has started; quick, for it runs between two polls of the processes."""

    def is_done(self) -> bool:
        """Whether what the processes were started for is over, so that they are to end: of one that is their only
        client. Asked at every poll, so it is quick.
        """
        return False

    def processes_ended(self) -> None:
        """The last measured process has ended; of one that `outlasts_tracers`. Not called where a launch breaks off."""

    def stop(self) -> CompanionReport:
        """End, and report. Called exactly once if `start` returned."""
        return CompanionReport()


@dataclass
class Companions:
    """The companions of one launch, called in the order above."""

    companions: Sequence[Companion]
    findings: list[Finding] = field(default_factory=list)
    """Their findings and failures; complete after `stop`."""

    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Their records for the manifest, by name."""

    _running: list[Companion] = field(default_factory=list, init=False)
    _failed: set[str] = field(default_factory=set, init=False)

    def start(self, context: CompanionContext) -> None:
        """Start one after the other, until the user interrupts.

        Raises:
            PerfHarnessError: an essential one failed; those before it are stopped.
        """
        try:
            for companion in self.companions:
                if context.interrupted():
                    return
                self._start(companion, context)
        except BaseException:
            self.stop()
            raise

    def _start(self, companion: Companion, context: CompanionContext) -> None:
        try:
            companion.start(context)
        except Exception as error:
            if not companion.essential:
                self._note_failure(companion, "could not be started, and the run went on without it", error)
            elif isinstance(error, PerfHarnessError):
                raise
            else:
                raise LaunchError(f"{companion.name} could not be started: {_message(error)}") from error
        else:
            self._running.append(companion)

    def process_started(self, process: MeasuredProcess) -> None:
        """Notify all that a process has started."""
        for companion in self._running:
            try:
                companion.process_started(process)
            except Exception as error:  # noqa: PERF203 - each on its own: the others have to be notified too
                self._note_failure(companion, f"failed over {process.folder}", error)

    def are_done(self) -> bool:
        """Whether one of them says that the processes are to end; one that fails over it does."""
        return any(self._is_done(companion) for companion in self._running)

    def _is_done(self, companion: Companion) -> bool:
        try:
            return companion.is_done()
        except Exception as error:
            self._note_failure(companion, "failed while the processes ran", error)
            return True

    def processes_ended(self) -> None:
        """Stop those that do not outlast the tracers, the last one first, after telling those that do."""
        outlasting = [companion for companion in self._running if companion.outlasts_tracers]
        for companion in reversed(outlasting):
            try:
                companion.processes_ended()
            except Exception as error:  # noqa: PERF203 - each on its own
                self._note_failure(companion, "failed when the processes had ended", error)
        self._running = [companion for companion in self._running if not companion.outlasts_tracers]
        self.stop()
        self._running = outlasting

    def stop(self) -> None:
        """Stop all that run, the last one first; a second call does nothing."""
        while self._running:
            companion = self._running.pop()
            try:
                report = companion.stop()
            except Exception as error:
                self._note_failure(companion, "failed while it was stopped", error)
                continue
            self.findings.extend(report.findings)
            if report.record is not None:
                self.records[companion.name] = dict(report.record)

    def _note_failure(self, companion: Companion, what: str, error: Exception) -> None:
        """The first failure of each is reported; more of the same would bury it."""
        if companion.name in self._failed:
            return
        self._failed.add(companion.name)
        self.findings.append(
            Finding("companion-failed", Severity.ERROR, f"{companion.name} {what}: {_message(error)}"),
        )


def _message(error: Exception) -> str:
    """The message of an own error; of any other, also its type and origin."""
    if isinstance(error, PerfHarnessError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
