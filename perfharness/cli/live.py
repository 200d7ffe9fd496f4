"""What the processes of a launch are doing, while they do it: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from perfharness_launcher.spawn import STDERR_LOG, STDOUT_LOG, RunningProcess
from perfharness_launcher.supervise import Phase

REFRESH_S = 0.5
LAST_LINE_BYTES = 512
MIRROR_BYTES = 1 << 20


class LaunchView:
    """Observer of a launch.

    Args:
        show_output: mirror the processes' output, each line with its process in front.
    """

    def __init__(
        self, console: Console, *, show_output: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._clock = clock
        self._show_output = show_output
        self._processes: Sequence[RunningProcess] = ()
        self._mirrors: list[LogMirror] = []
        self._phases: list[Phase] = []
        self._stage = ""
        self._usage: dict[int, psutil.Process] = {}
        self._begin = self._next_refresh = clock()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> LaunchView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._mirror()
        if self._live is not None:
            self._live.stop()

    def started(self, processes: Sequence[RunningProcess]) -> None:
        """Take over the processes to show."""
        self._processes = processes
        if self._show_output:
            self._mirrors = [
                LogMirror(process.folder / log, process.spec.folder)
                for process in processes
                for log in (STDOUT_LOG, STDERR_LOG)
            ]

    def look(self, phases: Sequence[Phase]) -> None:
        """Show what has changed."""
        if self._live is None and list(phases) != self._phases:
            self._print_changes(phases)
        self._phases = list(phases)
        now = self._clock()
        if now >= self._next_refresh or all(phase is Phase.DONE for phase in phases):
            self._next_refresh = now + REFRESH_S
            self._mirror()
            if self._live is not None:
                self._live.update(self._table(now), refresh=True)

    def stage(self, name: str) -> None:
        """Say what comes after the processes."""
        self._stage = f", {name}"
        self._mirror()
        if self._live is not None:
            self._live.update(self._table(self._clock()), refresh=True)
        else:
            self._print_line(name)

    def interrupted(self, count: int) -> None:
        """Say what is being done about it."""
        self._console.print(
            "ending the processes and writing what there is; once more: kill them"
            if count == 1
            else "killing the processes and their tracers"
        )

    def _print_changes(self, phases: Sequence[Phase]) -> None:
        before: Sequence[Phase | None] = self._phases or [None] * len(phases)
        for process, old, new in zip(self._processes, before, phases, strict=True):
            if old is not new:
                self._print_line(f"{process.spec.folder}: {new.value}")

    def _print_line(self, text: str) -> None:
        elapsed = self._clock() - self._begin
        self._console.print(f"[{elapsed:6.1f} s] {text}", markup=False, highlight=False)

    def _mirror(self) -> None:
        lines = [line for mirror in self._mirrors for line in mirror.new_lines()]
        if lines:  # all at once, for each print draws the table anew
            self._console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    def _table(self, now: float) -> Table:
        table = Table(title=f"{now - self._begin:.0f} s{self._stage}", title_justify="left", box=None)
        for name in ("process", "state", "CPU", "memory", "last output"):
            table.add_column(name, no_wrap=True, overflow="ellipsis")
        for process, phase in zip(self._processes, self._phases, strict=True):
            cpu, memory = self._cost(process)
            table.add_row(process.spec.folder, phase.value, cpu, memory, escape(last_line(process.folder / STDOUT_LOG)))
        return table

    def _cost(self, process: RunningProcess) -> tuple[str, str]:
        """CPU in cores and resident memory of the measured process."""
        pid = process.status.pid
        if pid is None or not process.is_measured:
            return "", ""
        try:
            known = self._usage.setdefault(pid, psutil.Process(pid))
            return f"{known.cpu_percent() / 100:.1f}", f"{known.memory_info().rss / 2**20:.0f} MiB"
        except psutil.Error:
            return "", ""


class LogMirror:
    """Follows a log file, whole lines at a time."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._position = 0
        self._partial = b""

    def new_lines(self) -> list[str]:
        """What was added since the last time, the name in front of each line."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                added = file.read(MIRROR_BYTES)
        except OSError:
            return []
        self._position += len(added)
        *whole, self._partial = (self._partial + added).split(b"\n")
        return [f"{self._name} | {line.decode(errors='replace').rstrip()}" for line in whole]


def last_line(path: Path) -> str:
    """The last line of a log that is not blank."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_LINE_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
