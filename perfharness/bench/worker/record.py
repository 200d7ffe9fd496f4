"""The folder of a case while it runs: its state, what is known so far and the raw values, each written as a whole."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from perfharness.bench.spec import (
    ARRAYS_FOLDER,
    EXIT_FAILED,
    EXIT_MEMORY_LIMIT,
    EXIT_OK,
    EXIT_OUT_OF_MEMORY,
    EXIT_UNAVAILABLE,
    RESULT_NAME,
    STATUS_NAME,
    CaseSpec,
    CaseState,
)
from perfharness.model.bench import CaseResult, CaseStatus

EXITS: Mapping[CaseStatus, int] = {
    "ok": EXIT_OK,
    "failed": EXIT_FAILED,
    "unavailable": EXIT_UNAVAILABLE,
    "out-of-memory": EXIT_OUT_OF_MEMORY,
    "memory-limit": EXIT_MEMORY_LIMIT,
}


class CaseRecord:
    """What is known of a case, and told in its folder as soon as it is."""

    def __init__(self, folder: Path, spec: CaseSpec, result_type: type[CaseResult] = CaseResult) -> None:
        self.folder, self.begun_ns = folder, time.monotonic_ns()
        self.doing_now = "start"
        self._writing = threading.RLock()  # the watchdog has the last word from a thread of its own
        self.result = result_type(
            case=spec.case, status="failed", reason="it has not come to its end", started_unix_ns=time.time_ns()
        )

    def doing(self, what: str) -> None:
        """Say what is being done now."""
        with self._writing:
            self.doing_now = what
            write_whole(self.folder / STATUS_NAME, CaseState(doing=what, pid=os.getpid()).model_dump_json())

    def keep(self, **fields: Any) -> None:
        """Something is known."""
        with self._writing:
            self.result = self.result.model_copy(update=fields)
            write_whole(self.folder / RESULT_NAME, self.result.model_dump_json())

    def keep_part(self, part: str, **fields: Any) -> None:
        """Something of `memory` or `startup` is known."""
        self.keep(**{part: getattr(self.result, part).model_copy(update=fields)})

    def because(self, **reasons: str | None) -> None:
        """Why a field is empty, or what has to be known beside it."""
        said = {name: reason for name, reason in reasons.items() if reason}
        if said:
            self.keep(reasons={**self.result.reasons, **said})

    def keep_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Raw values."""
        folder = self.folder / ARRAYS_FOLDER
        folder.mkdir(exist_ok=True)
        for name, values in arrays.items():
            np.save(folder / f".{name}.npy", values, allow_pickle=False)
            (folder / f".{name}.npy").replace(folder / f"{name}.npy")

    def end(self, status: CaseStatus, reason: str | None) -> int:
        """The last word; the exit code."""
        with self._writing:
            seconds = (time.monotonic_ns() - self.begun_ns) / 1e9
            self.keep(status=status, reason=reason, duration_s=round(seconds, 6))
            doing = "done" if status == "ok" else self.doing_now
            state = CaseState(doing=doing, pid=os.getpid(), status=status, reason=reason)
            write_whole(self.folder / STATUS_NAME, state.model_dump_json())
        return EXITS[status]

    def end_at_once(self, status: CaseStatus, reason: str) -> NoReturn:
        """The last word from another thread, and the end of the process, whatever it is in the middle of."""
        with self._writing:
            os._exit(self.end(status, reason))


def write_whole(path: Path, text: str) -> None:
    """Write a file so that whoever reads it finds all of it, or what was there before."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.write_text(text)
    hidden.replace(path)
