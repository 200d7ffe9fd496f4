"""Write down which lines each test runs, in pytest and in the processes that its tests start.

`scripts/mutate --record` puts this folder on PYTHONPATH, so that every Python imports it at its start, and gives it to
pytest as a plugin. Each file in the folder `MUTATE_LINES` holds a test's lines in one process. The test of a process is
the one that pytest names in its environment when it ends: the child of a fork server belongs to another test than the
server. A process that a signal ends, or that is started without these variables, leaves nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import time
import uuid
from pathlib import Path
from typing import NoReturn

FOLDER, ROOT = os.environ.get("MUTATE_LINES"), os.environ.get("MUTATE_ROOT")


class Recorder:
    """The lines of a process, by coverage.py."""

    def __init__(self, folder: str, root: str) -> None:
        import coverage

        self.folder = folder
        self.root = root
        self.context = ""
        self.started = 0.0
        self.coverage = coverage.Coverage(
            data_file=None,
            config_file=False,
            include=[f"{root}/perfharness/*", f"{root}/launcher/*"],
        )
        self.coverage.set_option("run:disable_warnings", ["no-data-collected", "couldnt-parse", "no-ctracer"])
        self.coverage.start()

    def start_test(self, test: str) -> None:
        """Count what this process runs from now on for `test`."""
        self.context, self.started = test, time.perf_counter()
        self.coverage.switch_context(test)

    def end_test(self) -> None:
        """Write down the test's lines and seconds."""
        self.write(self.context, time.perf_counter() - self.started)
        self.context = ""
        self.coverage.switch_context("")

    def write(self, test: str, seconds: float = 0.0) -> None:
        """Write down the lines of the context; a file's lines are the bits of a number."""
        data = self.coverage.get_data()
        data.set_query_context(self.context)
        ran = {file: data.lines(file) for file in data.measured_files()}
        lines = {
            os.path.relpath(file, self.root): f"{sum(1 << line for line in numbers):x}"
            for file, numbers in ran.items()
            if numbers
        }
        text = json.dumps({"test": test, "seconds": seconds, "lines": lines})
        Path(self.folder, f"{uuid.uuid4()}.json").write_text(text, encoding="utf-8")

    def write_at_end(self) -> None:
        """Write down the lines of a process that a test has started."""
        if test := os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]:
            self.write(test)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Begin a test, in the process that runs it."""
    if recorder is not None and "PYTEST_XDIST_WORKER" in os.environ:
        recorder.start_test(nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """End a test."""
    if recorder is not None and "PYTEST_XDIST_WORKER" in os.environ:
        recorder.end_test()


def exit_at_once(status: int) -> NoReturn:
    """End as `os._exit` does, which ends the children of forks, after writing down the lines."""
    try:
        if recorder is not None:
            recorder.write_at_end()
    finally:
        leave(status)


recorder = Recorder(FOLDER, ROOT) if FOLDER and ROOT else None
leave = os._exit
if recorder is not None:
    os._exit = exit_at_once
    atexit.register(recorder.write_at_end)
