"""Conditions of a launch: context managers around its measured processes, as locked clocks or a sampler.

They are entered in order before the first process starts. They are left in reverse order when the last measured
process has ended and before the tracers report: also after an exception, Ctrl-C, SIGTERM or SIGHUP.

A condition that starts processes of its own removes `PERFHARNESS_RUN_ID` from their environment, else they would end
with the run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfharness.errors import PerfHarnessError
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import GpuRecord
from perfharness_launcher.process import RunningProcess


@dataclass
class Run:
    """A run and its conditions.

    Args:
        folder: where the run is being written. Files of a condition need a name in `staging.has_name_of_a_run`.
        interrupted: whether the user has asked the launch to end. A condition that takes long to enter asks it.

    Attributes:
        records: JSON for the manifest, by name of the condition.
        of_processes: fields of `ProcessRecord`, by folder of the process.
        findings: for the manifest; one of severity `ERROR` makes the launch exit with 3.
        started: called with each measured process as soon as it has started; quick.
        done: whether the processes have served their purpose and are to end; quick.
    """

    folder: Path
    run_id: str
    gpus: tuple[GpuRecord, ...] = ()
    interrupted: Callable[[], bool] = lambda: False
    records: dict[str, Any] = field(default_factory=dict)
    of_processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    started: list[Callable[[RunningProcess], None]] = field(default_factory=list)
    done: list[Callable[[], bool]] = field(default_factory=list)
    _entered: ExitStack = field(default_factory=ExitStack)

    def enter(self, conditions: Iterable[Condition]) -> None:
        """Enter conditions until the user interrupts; an error that is not ours becomes a finding.

        Raises:
            PerfHarnessError: a condition called the launch off.
        """
        for condition in conditions:
            if self.interrupted():
                return
            with self._noting("could not be set up, and the run went on without it", but=PerfHarnessError):
                manager = condition(self)
                manager.__enter__()
                self._entered.callback(self._leave_one, manager)

    def notify_started(self, process: RunningProcess) -> None:
        """Call `started` with a process."""
        for callback in self.started:
            with self._noting(f"failed when {process.spec.folder} started"):
                callback(process)

    def is_done(self) -> bool:
        """Whether the processes are to end."""
        return any(is_done() for is_done in self.done)

    def leave(self) -> None:
        """Leave all conditions, the last one first; a second call does nothing."""
        self._entered.close()

    def _leave_one(self, manager: AbstractContextManager[None]) -> None:
        with self._noting("failed at its end"):
            manager.__exit__(None, None, None)

    @contextmanager
    def _noting(self, what: str, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        try:
            yield
        except but:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
            message = f"A condition of the launch {what}: {where}"
            self.findings.append(Finding("condition-failed", Severity.ERROR, message))


Condition = Callable[[Run], AbstractContextManager[None]]
