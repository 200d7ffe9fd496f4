"""The sampler: a process of its own that reads all sources during a launch, until it is stopped.

It takes commands as lines of JSON on its standard input and answers on its standard output (`protocol.py`). The end of
its input means that its parent has died: it finishes its file and ends. SIGINT, which a Ctrl-C sends to every process
of the terminal, is ignored; SIGTERM ends it as a stop would.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Literal

from perfharness.model.telemetry import FailureRecord, SubjectRecord, TelemetryMeta, process_subject
from perfharness.telemetry.gpu import gpu_sources
from perfharness.telemetry.host import HostSource, ProcessSource, ThreadSource, proc_is_there
from perfharness.telemetry.nvml import Nvml, open_nvml
from perfharness.telemetry.protocol import Answer, Command, FollowedProcess, Ready, SamplerOptions
from perfharness.telemetry.source import Columns, Keys, Source, Tape, TrackedProcess
from perfharness.telemetry.spool import SpoolState, SpoolWriter, finish_spool
from perfharness.telemetry.ticks import ClockTie, Ticker

FLUSH_S = 1.0
"""The most that a killed sampler loses."""

GPU_TAIL_S = 0.3
"""How long it continues after the stop command, so that sensors with an update period of 100 ms cover the end."""

STUCK_S = 5.0
"""How long to wait for a reading to return at the end."""

Ended = Literal["stopped", "parent_died", "cut_off"]


@dataclass
class _SourceThread:
    """One source with its thread, its ticker and its tape.

    A reading that hangs in a driver must not hold up the others, nor what was read before it: the lock is held only
    while whole readings change hands.
    """

    source: Source
    tape: Tape
    ticker: Ticker
    problem: str | None = None
    thread: threading.Thread | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _read: Columns = field(default_factory=Columns)

    def run(self) -> None:
        """Read at each tick until the end; a source that raises is not read again; the others go on."""
        try:
            while self.ticker.next():
                self.read()
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self.begun.set()

    def read(self) -> None:
        """One reading of everything."""
        self.source.read(self.tape)
        taken = self.tape.take()
        with self._lock:
            self._read.extend(taken)
        self.begun.set()

    def take(self) -> Columns:
        """What was read since the last time."""
        with self._lock:
            taken, self._read = self._read, Columns()
        return taken

    def join(self) -> None:
        """Wait for the thread to end, and read for the last time: not right after the reading before, for a share of a
        few milliseconds would be noise.
        """
        if self.thread is None:
            return
        self.thread.join(timeout=STUCK_S)
        if self.thread.is_alive():
            self.problem = self.problem or f"a reading had not returned after {STUCK_S:g} s"
        elif self.problem is None and 2 * (time.monotonic_ns() - self.tape.read_at_ns) >= self.source.period_ns:
            with contextlib.suppress(Exception):
                self.read()

    def close(self) -> None:
        """Close the source, unless it is still being read."""
        if self.thread is None or not self.thread.is_alive():
            self.source.close()


class Sampler:
    """All sources, and the spool that they are written to.

    Args:
        sources: they are closed at the end.
        driver: version of the NVIDIA driver, for the file.
    """

    def __init__(
        self, options: SamplerOptions, sources: Sequence[Source], clock: ClockTie, driver: str | None = None
    ) -> None:
        self._options = options
        self._clock = clock
        self._driver = driver
        self._keys = Keys()
        self._ending = threading.Event()
        self._readers = [
            _SourceThread(source, Tape(self._keys), Ticker(source.name, source.period_ns, self._ending.wait))
            for source in sources
        ]
        self._subjects = [subject for source in sources for subject in source.subjects()]
        self._spool = SpoolWriter(options.spool)
        self._idle: tuple[int, int] | None = None

    def start(self) -> None:
        """Begin to sample; when this returns, every source has been read once and it is known which cannot be."""
        for reader in self._readers:
            reader.thread = threading.Thread(target=reader.run, name=reader.source.name, daemon=True)
            reader.thread.start()
        for reader in self._readers:
            reader.begun.wait()
        if self._options.idle_ns:
            begin = time.monotonic_ns()
            time.sleep(self._options.idle_ns / 1e9)
            self._idle = (begin, time.monotonic_ns())
        self.flush()

    def follow(self, process: FollowedProcess) -> None:
        """A measured process has begun."""
        subject = process_subject(process.folder)
        self._subjects.append(
            SubjectRecord(
                subject=subject, kind="process", name=process.folder, pid=process.pid, gpu_uuid=process.gpu_uuid
            )
        )
        for reader in self._readers:
            reader.source.follow(TrackedProcess(subject, process.pid, process.gpu_uuid))

    def flush(self) -> None:
        """Write what was read since the last time."""
        self._clock.read_again()
        self._write("cut_off")

    def stop(self, ended: Ended) -> None:
        """Read everything once more, write it, and close the spool."""
        self._ending.set()
        for reader in self._readers:
            reader.join()
        self._clock.read_again()
        self._write(ended)
        self._spool.close()
        for reader in self._readers:
            reader.close()

    @property
    def problems(self) -> dict[str, str]:
        """Sources that gave up, and why."""
        return {reader.source.name: reader.problem for reader in self._readers if reader.problem is not None}

    def _write(self, ended: Ended) -> None:
        parts = [reader.take() for reader in self._readers]
        keys = list(self._keys.names)  # after the columns: it holds all that they use
        self._spool.append(parts, SpoolState(keys=keys, meta=self._meta(ended)), last=ended != "cut_off")

    def _meta(self, ended: Ended) -> TelemetryMeta:
        clock = self._clock.record()
        idle = None if self._idle is None else [moment + clock.offset_ns for moment in self._idle]
        failures = [
            FailureRecord(subject=subject, metric=metric, reason=reason, count=count)
            for reader in self._readers
            for (subject, metric, reason), count in list(reader.tape.failures.items())
        ]
        broken = [
            FailureRecord(subject=name, metric="*", reason=f"the source gave up: {reason}", count=1)
            for name, reason in self.problems.items()
        ]
        return TelemetryMeta(
            period_ns=self._options.period_ns,
            clock=clock,
            subjects=self._subjects,
            failures=failures + broken,
            ticks=[reader.ticker.record() for reader in self._readers],
            ended=ended,
            idle_start_unix_ns=idle[0] if idle else None,
            idle_end_unix_ns=idle[1] if idle else None,
            sampler_cpu_ns=time.process_time_ns(),
            driver=self._driver,
        )


def main(arguments: Sequence[str]) -> int:
    """Sample until stopped; returns the exit code."""
    options = SamplerOptions.model_validate_json(arguments[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminated = _pipe_written_by(signal.SIGTERM)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not get among the answers
    if options.cpus:
        with contextlib.suppress(OSError):  # it only disturbs the run more then
            os.sched_setaffinity(0, options.cpus)
    with ExitStack() as stack:
        nvml = stack.enter_context(_nvml(options))
        clock = ClockTie()
        sampler = Sampler(options, _sources(options, nvml, clock), clock, _driver(nvml))
        sampler.start()
        _send(answers, Answer(ready=Ready(problems=sampler.problems, nvml_problem=_nvml_problem(nvml))))
        why = _run_commands(sampler, sys.stdin.fileno(), terminated)
        if options.gpu_uuids and why == "stopped":
            time.sleep(GPU_TAIL_S)
        sampler.stop("parent_died" if why == "parent_died" else "stopped")
    done = finish_spool(options.spool, options.target)
    _send(answers, Answer(done=done.model_copy(update={"asked": why == "stopped"})))
    return 0


@contextmanager
def _nvml(options: SamplerOptions) -> Iterator[Nvml | None]:
    """NVML, where a GPU is to be sampled."""
    if not options.gpu_uuids:
        yield None
        return
    with open_nvml() as nvml:
        yield nvml


def _nvml_problem(nvml: Nvml | None) -> str | None:
    return None if nvml is None else nvml.opened.reason


def _driver(nvml: Nvml | None) -> str | None:
    return None if nvml is None else nvml.ask("nvmlSystemGetDriverVersion").value


def _sources(options: SamplerOptions, nvml: Nvml | None, clock: ClockTie) -> list[Source]:
    sources: list[Source] = []
    if nvml is not None and nvml.opened.ok:
        sources += gpu_sources(nvml, options.gpu_uuids, options.period_ns, lambda unix_ns: unix_ns - clock.offset_ns)
    if proc_is_there():
        sources += [HostSource(options.period_ns), ProcessSource(options.period_ns), ThreadSource()]
    return sources


def _run_commands(sampler: Sampler, commands: int, terminated: int) -> Literal["stopped", "terminated", "parent_died"]:
    """Run the parent's commands until it sends stop or dies, or SIGTERM comes."""
    pending = b""
    while True:
        readable, _, _ = select.select([commands, terminated], [], [], FLUSH_S)
        if terminated in readable:
            return "terminated"
        if commands in readable:
            read = os.read(commands, 65536)
            if not read:
                return "parent_died"
            *lines, pending = (pending + read).split(b"\n")
            for command in map(Command.model_validate_json, lines):
                if command.stop:
                    return "stopped"
                if command.follow is not None:
                    sampler.follow(command.follow)
        sampler.flush()


def _pipe_written_by(number: signal.Signals) -> int:
    """Read end of a pipe that becomes readable when the signal comes."""
    reader, writer = os.pipe()

    def handle(_number: int, _frame: FrameType | None) -> None:
        os.write(writer, b"x")

    signal.signal(number, handle)
    return reader


def _send(answers: IO[str], answer: Answer) -> None:
    """A line to the parent, if it is still there."""
    with contextlib.suppress(BrokenPipeError):
        answers.write(answer.model_dump_json() + "\n")
        answers.flush()
