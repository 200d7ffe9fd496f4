"""The folder of a running case: its state, results so far and raw values, each written atomically."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from perfharness.bench.spec import ARRAYS_FOLDER, EXITS, RESULT_NAME, STATUS_NAME, CaseSpec, CaseState
from perfharness.model.bench import CaseResult, CaseStatus


class CaseRecord:
    """Results of a running case, written to its folder as soon as they are known."""

    def __init__(self, folder: Path, spec: CaseSpec, result_type: type[CaseResult] = CaseResult) -> None:
        self.folder, self.begun_ns = folder, time.monotonic_ns()
        self.phase = "start"
        self._writing = threading.RLock()  # the watchdog may end the case from its own thread
        self.result = result_type(
            case=spec.case, status="failed", reason="it has not come to its end", started_unix_ns=time.time_ns()
        )

    def start_phase(self, what: str) -> None:
        """Write the phase to the status file."""
        with self._writing:
            self.phase = what
            write_whole(self.folder / STATUS_NAME, CaseState(doing=what, pid=os.getpid()).model_dump_json())

    def keep(self, **fields: Any) -> None:
        """Set fields of the result."""
        with self._writing:
            self.result = self.result.model_copy(update=fields)
            write_whole(self.folder / RESULT_NAME, self.result.model_dump_json())

    def keep_part(self, part: str, **fields: Any) -> None:
        """Set fields of `memory` or `startup`."""
        self.keep(**{part: getattr(self.result, part).model_copy(update=fields)})

    def add_reasons(self, **reasons: str | None) -> None:
        """Add reasons why fields are empty, or caveats on them; None is skipped."""
        said = {name: reason for name, reason in reasons.items() if reason}
        if said:
            self.keep(reasons={**self.result.reasons, **said})

    def keep_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write raw values."""
        folder = self.folder / ARRAYS_FOLDER
        folder.mkdir(exist_ok=True)
        for name, values in arrays.items():
            np.save(folder / f".{name}.npy", values, allow_pickle=False)
            (folder / f".{name}.npy").replace(folder / f"{name}.npy")

    def end(self, status: CaseStatus, reason: str | None) -> int:
        """Write the final status; returns the exit code."""
        with self._writing:
            seconds = (time.monotonic_ns() - self.begun_ns) / 1e9
            self.keep(status=status, reason=reason, duration_s=round(seconds, 6))
            doing = "done" if status == "ok" else self.phase
            state = CaseState(doing=doing, pid=os.getpid(), status=status, reason=reason)
            write_whole(self.folder / STATUS_NAME, state.model_dump_json())
        return EXITS[status]

    def exit_process(self, status: CaseStatus, reason: str) -> NoReturn:
        """Write the final status from another thread and exit the process immediately."""
        with self._writing:
            os._exit(self.end(status, reason))


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: readers see the old or the new content."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.write_text(text)
    hidden.replace(path)
