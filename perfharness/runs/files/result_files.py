"""Result files of a run: each is replaced as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfharness.errors import ResultError
from perfharness.files import is_plain_folder, reason_of
from perfharness.runs.files.json_files import RANGES_NAME, write_json


class ResultFiles:
    """Writes the result files of one analysis.

    Attributes:
        problem: why they could not be written, in a sentence; None: all were.
    """

    def __init__(self, run_dir: Path) -> None:
        self.problem: str | None = None
        self._run_dir = run_dir

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one, by its name in the run folder; does nothing after one that could not be written."""
        path = self._run_dir / name
        if self.problem is None:
            with self._noting():
                if path.with_name(RANGES_NAME) not in write_json(path, content, follow=False):
                    path.with_name(RANGES_NAME).unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove one of an earlier analysis, of a process whose trace is gone."""
        path = self._run_dir / name
        if self.problem is None:
            with self._noting():
                path.unlink(missing_ok=True)
                path.with_name(RANGES_NAME).unlink(missing_ok=True)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ResultError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            reason = reason_of(cause) if isinstance(cause, OSError) else str(error)
            self.problem = f"the results could not be written into {self._run_dir} ({reason})"


def size_of(trace: Path) -> int:
    """Bytes of a trace, a file or a folder of files."""
    files = trace.iterdir() if is_plain_folder(trace) else [trace]
    return sum(file.stat().st_size for file in files)
