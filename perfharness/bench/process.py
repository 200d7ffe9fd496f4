"""Run a case in its own supervised process (time limit, interrupts, no leftover processes), and read its results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from perfharness.bench.spec import (
    ARRAYS,
    ARRAYS_FOLDER,
    CASE_ENTRY,
    RESULT_NAME,
    SPEC_NAME,
    STATUS_NAME,
    CaseSpec,
    CaseState,
)
from perfharness.model import environment
from perfharness.model.bench import BenchCase, CaseResult, CaseStatus
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.launch import new_run_id
from perfharness_launcher.nsys.command_line import TRACER_LOG
from perfharness_launcher.processes.outcome import last_lines, log_tail, signal_name
from perfharness_launcher.processes.spawn import STDERR_LOG, ProcessGroup, ProcessSpec, RunningProcess
from perfharness_launcher.processes.supervise import Ending, Observer, Patience, Phase, Supervisor

SEARCHED_LINES = 100
"""Lines at the end of the log that are searched for out-of-memory messages; a stack trace follows these."""

NO_MEMORY = ("std::bad_alloc", "MemoryError", "cudaErrorMemoryAllocation", "CUDA out of memory", "Out of memory")
"""What libraries write to stderr before they abort for lack of memory, instead of raising."""


def case_outcome(
    folder: Path,
    case: BenchCase,
    return_code: int | None,
    *,
    timed_out_s: float | None = None,
    result_type: type[CaseResult] = CaseResult,
) -> CaseResult:
    """The result of a case.

    Args:
        folder: of the case; the end of its log has the reason of a crash.
        return_code: of its process as `subprocess` has it, less the signal's number; None: it was never started.
        timed_out_s: the time limit that was exceeded; None: it was not.
        result_type: of `result.json` and of the return value.

    Figures measured before a crash are kept; the status reports the crash.
    """
    try:
        result = result_type.model_validate_json((folder / RESULT_NAME).read_text())
    except (OSError, ValidationError):
        result = result_type(case=case, status="failed")
    state = _state(folder)
    if return_code is None:
        return result.model_copy(update={"status": "not-run", "reason": "it was not started"})
    if timed_out_s is not None:
        reason = f"it had not ended after {timed_out_s:g} s{_while(state)}; allow more, or ask for less"
        return result.model_copy(update={"status": "timeout", "reason": reason})
    if state is not None and state.status is not None:
        return result.model_copy(update={"status": state.status, "reason": state.reason})
    status, reason = _crash(return_code, state, log_tail(folder / STDERR_LOG, SEARCHED_LINES))
    return result.model_copy(update={"status": status, "reason": reason})


def has_reported(folder: Path) -> bool:
    """Whether the process of a case reported its outcome."""
    state = _state(folder)
    return state is not None and state.status is not None


def read_arrays(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Raw values of a case by name (`ARRAYS`); without those that were not measured or cannot be read."""
    found = {}
    for name in ARRAYS:
        with suppress(OSError, ValueError):
            found[name] = np.load(folder / ARRAYS_FOLDER / f"{name}.npy", allow_pickle=False)
    return found


def _state(folder: Path) -> CaseState | None:
    try:
        return CaseState.model_validate_json((folder / STATUS_NAME).read_text())
    except (OSError, ValidationError):
        return None


def _crash(return_code: int, state: CaseState | None, stderr: str) -> tuple[CaseStatus, str]:
    said = last_lines(stderr)
    status: CaseStatus = "out-of-memory" if any(sign in stderr for sign in NO_MEMORY) else "failed"
    if return_code >= 0:
        return status, f"its process ended with exit code {return_code}{_while(state)}{said}"
    name = signal_name(-return_code)
    hint = (
        "; the kernel ends a process so when the machine has no memory left (its log tells)"
        if name == "SIGKILL"
        else ""
    )
    return status, f"its process was ended by {name}{_while(state)}{hint}{said}"


def _while(state: CaseState | None) -> str:
    return "" if state is None else f" while in {state.doing}"


@dataclass(frozen=True)
class CaseEnd:
    """How the process ended.

    Args:
        return_code: as `subprocess` has it, less the number of a signal; None: it was never started.
        reason: why it was not started.
        leftovers: command lines of processes that it left running; they were ended.
    """

    return_code: int | None
    timed_out: bool = False
    interrupted: bool = False
    reason: str | None = None
    started_unix_ns: int | None = None
    duration_s: float | None = None
    max_rss_bytes: int | None = None
    leftovers: Sequence[str] = ()

    @property
    def signal(self) -> str | None:
        """Name of the signal that ended it."""
        return signal_name(-self.return_code) if self.return_code is not None and self.return_code < 0 else None


Run = Callable[[CaseSpec, Path, str], CaseEnd]
"""Runs a case in a folder; the text is the purpose of the run."""


def result_of(
    end: CaseEnd,
    case: BenchCase,
    folder: Path,
    timeout_s: float | None,
    result_type: type[CaseResult] = CaseResult,
) -> CaseResult:
    """The result of a case whose process has ended; `timeout_s` is its time limit."""
    late = timeout_s if end.timed_out else None
    found = case_outcome(folder, case, end.return_code, timed_out_s=late, result_type=result_type)
    return found if end.reason is None else found.model_copy(update={"reason": end.reason})


def run_process(
    spec: CaseSpec,
    folder: Path,
    interrupts: Interrupts,
    *,
    timeout_s: float | None,
    poll: Callable[[], None] = lambda: None,
    patience: Patience | None = None,
    entry: str = CASE_ENTRY,
) -> CaseEnd:
    """Run a case in `folder`, which is created; its `spec.json` and logs are there afterwards.

    It sees only the case's GPU, or none, and ends with this process.

    Args:
        timeout_s: of the whole process; None: as long as it takes.
        poll: called about 20 times a second.
        entry: the module that measures.
    """
    (end,) = run_processes([spec], [folder], interrupts, timeout_s=timeout_s, poll=poll, patience=patience, entry=entry)
    return end


def run_processes(
    specs: Sequence[CaseSpec],
    folders: Sequence[Path],
    interrupts: Interrupts,
    *,
    timeout_s: float | None = None,
    barrier_timeout_s: float | None = None,
    poll: Callable[[], None] = lambda: None,
    patience: Patience | None = None,
    entry: str = CASE_ENTRY,
) -> list[CaseEnd]:
    """Run several cases concurrently, in folders of one parent.

    Args:
        barrier_timeout_s: how long the first process at its timed rounds waits for the others; None: it does not wait.
    """
    group = ProcessGroup(
        tuple(
            _process(number, spec, folder, entry)
            for number, (spec, folder) in enumerate(zip(specs, folders, strict=True))
        ),
        timeout_s=timeout_s,
        barrier_timeout_s=barrier_timeout_s,
    )
    observer = _SpecWriter(specs, folders, poll)
    supervisor = Supervisor(group, folders[0].parent, new_run_id(), interrupts, observer, patience or Patience())
    endings = supervisor.run()
    for folder in folders:
        (folder / TRACER_LOG).unlink(missing_ok=True)
    return [_end(ending, supervisor.leftovers) for ending in endings]


def _process(number: int, spec: CaseSpec, folder: Path, entry: str) -> ProcessSpec:
    gpus = ",".join(spec.telemetry.gpu_uuids) if spec.case.device == "cuda" else ""
    command = (sys.executable, "-m", entry, str(folder.absolute() / SPEC_NAME))
    variables = {"CUDA_VISIBLE_DEVICES": gpus, environment.PROCESS_INDEX: str(number)}
    return ProcessSpec(number, 0, None, folder.name, command, variables)


def _end(ending: Ending, leftovers: Sequence[str]) -> CaseEnd:
    status = ending.process.status
    if status.pid is None:
        return CaseEnd(
            None,
            interrupted=ending.stopped == "interrupted",
            reason=status.not_started or "its supervisor ended before it was started",
        )
    ended = status.ended or {}
    code, number = ended.get("exit_code"), ended.get("signal")
    return CaseEnd(
        return_code=code if code is not None else -(number or 9),  # its supervisor was killed with it
        timed_out=ending.stopped == "timeout",
        interrupted=ending.stopped == "interrupted",
        started_unix_ns=status.start_unix_ns,
        duration_s=ended["duration_ns"] / 1e9 if ended else None,
        max_rss_bytes=ended.get("max_rss_bytes"),
        leftovers=tuple(leftovers),
    )


@dataclass
class _SpecWriter(Observer):
    """Writes each spec right before its process starts: start-up time is counted from then."""

    specs: Sequence[CaseSpec]
    folders: Sequence[Path]
    on_poll: Callable[[], None]
    clock_ns: Callable[[], int] = time.time_ns
    _waiting: list[tuple[RunningProcess, CaseSpec, Path]] = field(default_factory=list, init=False)

    def started(self, processes: Sequence[RunningProcess]) -> None:
        """All processes have started and wait."""
        self._waiting = list(zip(processes, self.specs, self.folders, strict=True))

    def poll(self, phases: Sequence[Phase]) -> None:
        """Write the specs of processes that are ready."""
        del phases
        for one in [one for one in self._waiting if one[0].status.ready]:
            self._waiting.remove(one)
            _, spec, folder = one
            spec = spec.model_copy(update={"spawned_unix_ns": self.clock_ns()})
            (folder / SPEC_NAME).write_text(spec.model_dump_json(indent=2) + "\n", encoding="utf-8")
        self.on_poll()
