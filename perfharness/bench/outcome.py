"""What became of the process of a case: from its files and its exit, whether or not it came to its end."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from perfharness.bench.spec import ARRAYS, ARRAYS_FOLDER, RESULT_NAME, STATUS_NAME, CaseState
from perfharness.model.bench import BenchCase, CaseResult, CaseStatus
from perfharness_launcher.outcome import last_said, log_tail, signal_name
from perfharness_launcher.spawn import STDERR_LOG

LOOKED_AT_LINES = 100
"""Of the log, for signs of memory that ran out: a stack follows them."""

NO_MEMORY = ("std::bad_alloc", "MemoryError", "cudaErrorMemoryAllocation", "CUDA out of memory", "Out of memory")
"""What libraries write to stderr before they abort for lack of memory, instead of raising."""


def case_outcome(
    folder: Path, case: BenchCase, return_code: int | None, *, timed_out_s: float | None = None
) -> CaseResult:
    """The row of a case.

    Args:
        folder: of the case; the end of the log that its process wrote there tells the reason of a crash.
        return_code: of its process as `subprocess` has it, less the signal's number; None: it was never started.
        timed_out_s: the time limit, where the process was ended for it.

    What had been measured before a crash is kept, with a status that says so.
    """
    result = _result(folder) or CaseResult(case=case, status="failed")
    state = _state(folder)
    if return_code is None:
        return result.model_copy(update={"status": "not-run", "reason": "it was not started"})
    if timed_out_s is not None:
        reason = f"it had not ended after {timed_out_s:g} s{_while(state)}; allow more, or ask for less"
        return result.model_copy(update={"status": "timeout", "reason": reason})
    if state is not None and state.status is not None:
        return result.model_copy(update={"status": state.status, "reason": state.reason})
    status, reason = _crash(return_code, state, log_tail(folder / STDERR_LOG, LOOKED_AT_LINES))
    if status == "out-of-memory" and result.memory.limit_held_by is not None and case.device == "cpu":
        status = "memory-limit"
    return result.model_copy(update={"status": status, "reason": reason})


def has_reported(folder: Path) -> bool:
    """Whether the process of a case said what became of it."""
    state = _state(folder)
    return state is not None and state.status is not None


def read_arrays(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Raw values of a case by name (`ARRAYS`); what was not measured is not there, nor what cannot be read."""
    found = {}
    for name in ARRAYS:
        with suppress(OSError, ValueError):
            found[name] = np.load(folder / ARRAYS_FOLDER / f"{name}.npy", allow_pickle=False)
    return found


def _result(folder: Path) -> CaseResult | None:
    try:
        return CaseResult.model_validate_json((folder / RESULT_NAME).read_text())
    except (OSError, ValidationError):
        return None


def _state(folder: Path) -> CaseState | None:
    try:
        return CaseState.model_validate_json((folder / STATUS_NAME).read_text())
    except (OSError, ValidationError):
        return None


def _crash(return_code: int, state: CaseState | None, stderr: str) -> tuple[CaseStatus, str]:
    said = last_said(stderr)
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
