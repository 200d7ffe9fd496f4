"""Live view of a launch: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import psutil
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from perfharness.cli.support.progress import BAR_WIDTH, bar
from perfharness.render.console import say
from perfharness_launcher.outcome import log_tail
from perfharness_launcher.process import STDERR_LOG, STDOUT_LOG, RunningProcess
from perfharness_launcher.supervise import Observer, Phase

REFRESH_S = 0.5
MIRROR_BYTES = 1 << 20


class LaunchView(Observer):
    """Live view of a launch, a context manager.

    A separate thread draws, so that a stopped terminal does not block the launch.

    Args:
        show_output: mirror the processes' output, each line prefixed with its process.
        expected_s: estimated duration, or None if unknown.
    """

    def __init__(self, console: Console, *, show_output: bool = False, expected_s: float | None = None) -> None:
        self._console, self._expected_s = console, expected_s
        self._reading: tuple[int, int] | None = None
        self.shows_output = show_output
        self._processes: Sequence[RunningProcess] = ()
        self._mirrors: list[LogMirror] = []
        self._phases: Sequence[Phase] = ()
        self._stage = ""
        self._lines: deque[str] = deque()
        self._usage: dict[int, psutil.Process] = {}
        self._begin = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._due = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._draw_until_the_end, name="perfharness-live", daemon=True)

    def __enter__(self) -> LaunchView:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        self._due.set()
        self._thread.join()

    def started(self, processes: Sequence[RunningProcess]) -> None:
        """Show these processes."""
        if self.shows_output:
            self._mirrors = [
                LogMirror(process.folder / log, process.spec.folder)
                for process in processes
                for log in (STDOUT_LOG, STDERR_LOG)
            ]
        self._processes, self._phases = processes, ()

    def poll(self, phases: Sequence[Phase]) -> None:
        """Update the state of the processes."""
        if list(phases) == self._phases:
            return
        if self._live is None:
            self._add_changes(phases)
        self._phases = list(phases)

    def message(self, text: str) -> None:
        """Print a line with its time."""
        self._add_line(text)
        self._due.set()

    def output(self, line: str) -> None:
        """With `show_output`, print a line as it is."""
        if self.shows_output:
            self._lines.append(line)
            self._due.set()

    def stage(self, name: str) -> None:
        """Show the step after the processes have ended."""
        for mirror in self._mirrors:  # the folder will be moved
            mirror.open()
        self._stage = f", {name}"
        if self._live is None:
            self._add_line(name)
        self._due.set()

    def interrupted(self, count: int) -> None:
        """Report Ctrl-C."""
        self._lines.append(
            "Stopping the processes and saving results; press Ctrl-C again to kill them."
            if count == 1
            else "Killing the processes and their tracers."
        )
        self._due.set()

    def details(self) -> list[str]:
        """Lines below the table."""
        return []

    def times(self) -> tuple[float, float] | None:
        """Seconds passed and expected, or None if unknown."""
        passed_s = time.monotonic() - self._begin
        return None if self._expected_s is None or passed_s >= self._expected_s else (passed_s, self._expected_s)

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show how many traces are read, as a listener of `perfharness.progress`."""
        self._reading = done, total
        self._stage = f", {step}"
        self._due.set()

    def _add_changes(self, phases: Sequence[Phase]) -> None:
        before: Sequence[Phase | None] = self._phases or [None] * len(phases)
        for process, old, new in zip(self._processes, before, phases, strict=True):
            if old is not new:
                self._add_line(f"{process.spec.folder}: {new.value}")

    def _add_line(self, text: str) -> None:
        self._lines.append(f"[{time.monotonic() - self._begin:6.1f} s] {text}")

    def _draw_until_the_end(self) -> None:
        with self._live or contextlib.nullcontext():
            while True:
                self._due.wait(REFRESH_S)
                self._due.clear()
                ending = self._ending
                self._draw(ending)
                if ending:
                    return

    def _draw(self, ending: bool) -> None:
        for lines in self._mirrored(ending):  # one print per block, because each redraws the table
            say(self._console, "\n".join(lines))
        while self._lines:
            say(self._console, self._lines.popleft())
        if self._live is not None and self._processes and not ending:
            self._live.update(Group(self._table(time.monotonic()), *self.details(), *self._bars()), refresh=True)

    def _bars(self) -> Iterator[RenderableType]:
        if self._reading is not None:
            done, total = self._reading
            yield ProgressBar(total=total, completed=done, width=BAR_WIDTH)
        elif (times := self.times()) is not None:
            yield bar(*times)

    def _mirrored(self, ending: bool) -> Iterator[list[str]]:
        for mirror in self._mirrors:
            while lines := mirror.new_lines():
                yield lines
            if ending and (rest := mirror.rest()):
                yield [rest]

    def _table(self, now: float) -> Table:
        table = Table(title=f"{now - self._begin:.0f} s{self._stage}", title_justify="left", box=None)
        for name in ("process", "state", "CPU", "memory", "last output"):
            table.add_column(name, no_wrap=True, overflow="ellipsis")
        for process, phase in zip(self._processes, self._phases, strict=True):
            cpu, memory = self._cost(process)
            table.add_row(
                process.spec.folder, phase.value, cpu, memory, log_tail(process.folder / STDOUT_LOG, 1).strip()
            )
        return table

    def _cost(self, process: RunningProcess) -> tuple[str, str]:
        """CPU cores and resident memory in use."""
        pid = process.pid
        if pid is None or process.is_over:
            return "", ""
        try:
            known = self._usage.setdefault(pid, psutil.Process(pid))
            return f"{known.cpu_percent() / 100:.1f}", f"{known.memory_info().rss / 2**20:.0f} MiB"
        except psutil.Error:
            return "", ""


class LogMirror:
    """Follows a log file by whole lines, even if its folder is moved."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._file: IO[bytes] | None = None
        self._partial = b""

    def open(self) -> None:
        """Open the file if it exists."""
        if self._file is None:
            with contextlib.suppress(OSError):
                self._file = self._path.open("rb", buffering=0)
                weakref.finalize(self, self._file.close)

    def new_lines(self) -> list[str]:
        """Next added lines, each prefixed with the name; empty at the end of the file."""
        self.open()
        lines: list[bytes] = []
        while not lines and self._file is not None and (added := self._file.read(MIRROR_BYTES)):
            *lines, self._partial = (self._partial + added).split(b"\n")
        return [self._named(line) for line in lines]

    def rest(self) -> str:
        """Text after the last line break, prefixed with the name; empty if there is none."""
        rest, self._partial = self._partial, b""
        return self._named(rest) if rest else ""

    def _named(self, line: bytes) -> str:
        return f"{self._name} | {line.decode(errors='replace').rstrip()}"
