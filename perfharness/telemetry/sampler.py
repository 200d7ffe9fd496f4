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
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Literal

from perfharness.model.telemetry import FailureRecord, SubjectRecord, TelemetryMeta
from perfharness.telemetry.gpu import chosen_devices
from perfharness.telemetry.nvml import open_nvml
from perfharness.telemetry.protocol import Answer, Command, FollowedProcess, Ready, SamplerOptions
from perfharness.telemetry.source import Keys, Reading, SamplerContext, Source, Tape
from perfharness.telemetry.sources import make_sources
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

    A reading that hangs in a driver must not hold up the others, nor what was read before it: only whole readings
    change hands.
    """

    source: Source
    tape: Tape
    ticker: Ticker
    problem: str | None = None
    thread: threading.Thread | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    _read: deque[list[Reading]] = field(default_factory=deque)

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
        self._read.append(self.tape.take())
        self.begun.set()

    def take(self) -> list[Reading]:
        """What was read since the last time."""
        return [reading for _ in range(len(self._read)) for reading in self._read.popleft()]

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


class Sampler:
    """All sources, and the spool that they are written to.

    Args:
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
        self._subjects.append(
            SubjectRecord(
                subject=process.subject, kind="process", name=process.folder, pid=process.pid,
                gpu_uuid=process.gpu_uuids[0] if process.gpu_uuids else None,
                gpu_uuids=process.gpu_uuids if len(process.gpu_uuids) > 1 else [],
            )
        )  # fmt: skip
        for reader in self._readers:
            reader.source.follow(process)

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

    @property
    def problems(self) -> dict[str, str]:
        """Sources that gave up, and why."""
        return {reader.source.name: reader.problem for reader in self._readers if reader.problem is not None}

    def _write(self, ended: Ended) -> None:
        readings = [reading for reader in self._readers for reading in reader.take()]
        keys = list(self._keys.names)  # after the readings: it holds all that they use
        self._spool.append(readings, SpoolState(keys=keys, meta=self._meta(ended)), last=ended != "cut_off")

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
    with open_nvml() if options.gpu_uuids else nullcontext() as nvml:
        clock = ClockTie()
        devices = chosen_devices(nvml, options.gpu_uuids) if nvml is not None else []
        context = SamplerContext(options.period_ns, nvml, devices, clock.offset_ns)
        sources = make_sources(context)
        driver = nvml.ask("nvmlSystemGetDriverVersion").value if nvml is not None else None
        sampler = Sampler(options, sources, clock, driver)
        sampler.start()
        nvml_problem = nvml.opened.reason if nvml is not None else None
        _send(answers, Answer(ready=Ready(problems=sampler.problems, nvml_problem=nvml_problem)))
        why = _run_commands(sampler, sys.stdin.fileno(), terminated)
        if options.gpu_uuids and why == "stopped":
            time.sleep(GPU_TAIL_S)
        sampler.stop("parent_died" if why == "parent_died" else "stopped")
    done = finish_spool(options.spool, options.target)
    _send(answers, Answer(done=done.model_copy(update={"asked": why == "stopped"})))
    return 0


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
