"""Run a case in its own supervised process (time limit, interrupts, no leftover processes), and read its results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from perfharness.bench.spec import CASE_ENTRY, RESULT_NAME, SPEC_NAME, CaseSpec
from perfharness.model import environment
from perfharness.model.bench import BenchCase, CaseProcess, CaseResult, CaseStatus
from perfharness_launcher import conditions
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.nsys import TRACER_LOG
from perfharness_launcher.outcome import last_lines, log_tail, signal_name
from perfharness_launcher.process import STDERR_LOG, ProcessSpec, RunningProcess
from perfharness_launcher.staging import new_run_id
from perfharness_launcher.supervise import Observer, Phase, Supervisor

SEARCHED_LINES = 100
"""Last lines of the log to search for out-of-memory messages, which a stack trace may follow."""

NO_MEMORY = ("std::bad_alloc", "MemoryError", "cudaErrorMemoryAllocation", "CUDA out of memory", "Out of memory")
"""Messages on stderr of libraries that abort on missing memory instead of raising."""

RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""Like `python -m`, but without modules of the current folder."""


@dataclass(frozen=True)
class CaseEnd:
    """End of a case's process, by an exit code or a signal.

    Args:
        not_started: why it was not started.
        leftovers: command lines of processes that it left running, which were ended.
    """

    exit_code: int | None = None
    signal: str | None = None
    not_started: str | None = None
    timed_out: bool = False
    interrupted: bool = False
    started_unix_ns: int | None = None
    duration_s: float | None = None
    max_rss_bytes: int | None = None
    leftovers: Sequence[str] = ()


def result_of(
    end: CaseEnd,
    case: BenchCase,
    folder: Path,
    timeout_s: float | None = None,
    result_type: type[CaseResult] = CaseResult,
) -> CaseResult:
    """Result of a case after its process ended. Figures from before a crash are kept."""
    try:
        result = result_type.model_validate_json((folder / RESULT_NAME).read_text())
    except (OSError, ValidationError):
        result = result_type(case=case, status="failed", process=CaseProcess(reported=False))
    assert result.process is not None
    status, reason = _status(end, result, folder, timeout_s)
    ended = {"exit_code": end.exit_code, "signal": end.signal, "timed_out": end.timed_out}
    memory = result.memory
    if memory.host_peak_bytes is None:
        memory = memory.model_copy(update={"host_peak_bytes": end.max_rss_bytes})
    update = {
        "status": status,
        "reason": reason,
        "process": result.process.model_copy(update=ended),
        "memory": memory,
        "started_unix_ns": end.started_unix_ns,
        "duration_s": end.duration_s,
    }
    return result.model_copy(update=update)


def _status(end: CaseEnd, result: CaseResult, folder: Path, timeout_s: float | None) -> tuple[CaseStatus, str | None]:
    if end.not_started is not None:
        return "not-run", end.not_started
    assert result.process is not None
    phase = f" in the phase {result.process.phase}" if result.process.phase else ""
    if end.timed_out:
        return "timeout", f"it had not ended after {timeout_s:g} s{phase}; raise the limit, or measure less"
    if result.process.reported:
        return result.status, result.reason
    stderr = log_tail(folder / STDERR_LOG, SEARCHED_LINES)
    status: CaseStatus = "out-of-memory" if any(sign in stderr for sign in NO_MEMORY) else "failed"
    if end.signal is None:
        return status, f"its process ended with exit code {end.exit_code}{phase}{last_lines(stderr)}"
    hint = "; the kernel does that when the machine is out of memory (see its log)" if end.signal == "SIGKILL" else ""
    return status, f"its process was ended by {end.signal}{phase}{hint}{last_lines(stderr)}"


def run_process(
    spec: CaseSpec,
    folder: Path,
    interrupts: Interrupts,
    *,
    timeout_s: float | None = None,
    poll: Callable[[], None] = lambda: None,
    entry: str = CASE_ENTRY,
) -> CaseEnd:
    """Run a case in a new folder, which then has its `spec.json` and logs.

    It sees only its own GPU, if any, and ends with this process.

    Args:
        timeout_s: for the whole process; None for no limit.
        poll: called about 20 times per second.
        entry: the measuring module.
    """
    gpus = ",".join(spec.telemetry.gpu_uuids) if spec.case.device == "cuda" else ""
    command = (sys.executable, "-c", RUN_MODULE, entry, str(folder.absolute() / SPEC_NAME))
    variables = {"CUDA_VISIBLE_DEVICES": gpus, environment.PROCESS_INDEX: "0"}
    process = ProcessSpec(0, (), folder.name, command, variables)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SPEC_NAME).write_text(spec.model_dump_json(indent=2) + "\n", encoding="utf-8")
    run = conditions.Run(folder.parent, new_run_id())
    supervisor = Supervisor([process], run, interrupts, _Poller(poll), timeout_s=timeout_s)
    (ending,) = supervisor.watch()
    (folder / TRACER_LOG).unlink(missing_ok=True)
    return _end(ending, supervisor.leftovers)


def _end(ending: RunningProcess, leftovers: Sequence[str]) -> CaseEnd:
    interrupted = ending.stopped == "interrupted"
    if ending.pid is None:
        reason = ending.not_started or "its supervisor ended before it was started"
        return CaseEnd(interrupted=interrupted, not_started=reason)
    ended = ending.ended
    code = ended.get("exit_code")
    return CaseEnd(
        exit_code=code,
        signal=signal_name(ended.get("signal") or 9) if code is None else None,  # 9: killed with its supervisor
        timed_out=ending.stopped == "timeout",
        interrupted=interrupted,
        started_unix_ns=ending.start_unix_ns,
        duration_s=ended["duration_ns"] / 1e9 if ended else None,
        max_rss_bytes=ended.get("max_rss_bytes"),
        leftovers=tuple(leftovers),
    )


@dataclass
class _Poller(Observer):
    """Calls a function at every poll."""

    on_poll: Callable[[], None]

    def poll(self, phases: Sequence[Phase]) -> None:
        del phases
        self.on_poll()
