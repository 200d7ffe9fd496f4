"""The telemetry sampler of a launch: started before any process, notified of each, stopped after the last."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from perfharness.errors import LaunchError, PerfHarnessError
from perfharness.model.environment import RUN_ID
from perfharness.model.findings import Finding, Severity
from perfharness.model.telemetry import TELEMETRY_NAME, TickRecord
from perfharness.telemetry.protocol import (
    SPOOL_NAME,
    Answer,
    Command,
    Done,
    FollowedProcess,
    Ready,
    SamplerOptions,
    sampler_command,
)
from perfharness_launcher.conditions import Condition, MeasuredProcess, Run
from perfharness_launcher.process import Placement

READY_S = 60.0
DONE_S = 60.0
FINISHED_BYTES_PER_S = 5e6
"""How fast a sampler at least converts its spool; the wait for it is that much longer."""

END_S = 2.0
POLL_S = 0.1

LATE_SHARE, LATE_LEAST = 0.1, 10
"""More late or missed ticks than both of these are reported."""

STEP_NS = 1_000_000
"""UTC that was set by more than this during a run is reported: times of day of other programs will not agree."""

GIVEN_UP = "*"
"""Metric of a failure that is a whole source's."""

OFTEN_ABSENT = frozenset(
    {"busy_frequency_mhz", "busy_frequency_percent", "quota_cpus", "steal_percent", "thermal_throttle_count"}
)
"""Metrics that most machines lack one of: null with the reason in the results, and not worth a note at every launch."""

SAMPLE_INTERVAL_MS = 50.0
"""How often a launch is sampled; sensors are updated every 20 to 200 ms."""

LISTED = 3
"""Metrics that are named where several were not read for one reason."""


class TelemetryCompanion:
    """Samples the GPUs of the run and the host, into `telemetry.parquet` of the run.

    Args:
        sample_interval_ms: how often.
        measure_idle_s: how long the GPUs are sampled before `start` returns, for their idle power.
        cpus: that the sampler runs on; empty: as this process.
        command: the sampler's command line, made of its options; replaced in tests.
        environ: the environment that it gets, less the mark of the run: it is no part of it.
    """

    def __init__(
        self,
        sample_interval_ms: float,
        measure_idle_s: float = 0.0,
        *,
        cpus: Sequence[int] = (),
        command: Any = sampler_command,
        environ: Mapping[str, str] | None = None,
        ready_s: float = READY_S,
        done_s: float = DONE_S,
    ) -> None:
        self._sample_interval_ms = sample_interval_ms
        self._measure_idle_s = measure_idle_s
        self._cpus = cpus
        self._command = command
        self._environ = os.environ if environ is None else environ
        self._ready_s = ready_s
        self._done_s = done_s
        self._process: subprocess.Popen[bytes] | None = None
        self._options: SamplerOptions | None = None
        self._answers = b""
        self._ready: Ready | None = None

    def start(self, run: Run) -> None:
        """Start the sampler and wait until it has read everything once. Raises `LaunchError` where it does not."""
        gpus = [gpu.uuid for gpu in run.gpus]
        self._options = SamplerOptions(
            spool=run.folder / SPOOL_NAME,
            target=run.folder / TELEMETRY_NAME,
            period_ns=round(self._sample_interval_ms * 1e6),
            gpu_uuids=gpus,
            idle_ns=round(self._measure_idle_s * 1e9) if gpus else 0,
            cpus=list(self._cpus),
        )
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `_end`
        try:
            self._process = subprocess.Popen(
                self._command(self._options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={name: value for name, value in self._environ.items() if name != RUN_ID},
                start_new_session=True,  # a Ctrl-C on the terminal is not for it
            )
            self._ready = self._wait_until_ready(run)
        except BaseException:
            self._end()
            self._options.spool.unlink(missing_ok=True)
            raise

    def process_started(self, process: MeasuredProcess) -> None:
        """Follow this process too."""
        self._send(
            Command(follow=FollowedProcess(folder=process.folder, pid=process.pid, gpu_uuids=list(process.gpu_uuids)))
        )

    def stop(self, run: Run) -> None:
        """End the sampler; where it has died, make the file of what it had written."""
        assert self._options is not None
        self._send(Command(stop=True))
        done = self._wait_until_done()
        code = self._end(END_S)
        findings: list[Finding] = []
        if done is None or not done.asked:
            findings.append(self._cut_off(code))
        if done is None:
            done = _finish(self._options, findings)
        run.findings += findings
        if done is not None:
            run.findings += telemetry_findings(done, self._ready)
            run.records["telemetry"] = manifest_record(done)

    def _wait_until_ready(self, run: Run) -> Ready:
        for answer in self._answers_within(self._ready_s + self._measure_idle_s):
            if run.interrupted():
                raise LaunchError("the launch was called off while the telemetry sampler was starting")
            if answer is not None and answer.ready is not None:
                return answer.ready
        raise LaunchError(f"the telemetry sampler was not ready after {self._ready_s:g} s{self._tail()}")

    def _wait_until_done(self) -> Done | None:
        with contextlib.suppress(LaunchError):
            for answer in self._answers_within(self._done_s + self._spool_bytes() / FINISHED_BYTES_PER_S):
                if answer is not None and answer.done is not None:
                    return answer.done
        return None

    def _spool_bytes(self) -> int:
        assert self._options is not None
        try:
            return self._options.spool.stat().st_size
        except OSError:
            return 0

    def _answers_within(self, seconds: float) -> Iterator[Answer | None]:
        """Answers as they come, None now and then in between. Raises `LaunchError` where the sampler has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not select.select([self._process.stdout], [], [], POLL_S)[0]:
                yield None
                continue
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            if not read:
                raise LaunchError(f"the telemetry sampler ended before it should have{self._tail()}")
            *lines, self._answers = (self._answers + read).split(b"\n")
            yield from map(_parsed, lines)

    def _send(self, command: Command) -> None:
        """Send the sampler a command, if it still runs; that it does not is found at the end."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(command.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()

    def _end(self, patience_s: float = 0.0) -> int | None:
        """End the sampler; returns its exit code, or minus the number of the signal."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=patience_s)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._errors.close()
        return self._process.returncode

    def _tail(self) -> str:
        """The end of what the sampler wrote to its standard error, for a message."""
        try:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
        except (OSError, ValueError):
            return ""
        return f": {lines[-1]}" if lines else ""

    def _cut_off(self, code: int | None) -> Finding:
        how = "was killed" if code is not None and code < 0 else "was ended" if code == 0 else f"ended with {code}"
        return Finding(
            "telemetry-cut-off",
            Severity.WARNING,
            f"the telemetry sampler {how} before the run was over; the readings up to then are kept",
            "look for what ended it (the system's log reports a lack of memory), and run again",
        )


def sampled(sample_interval_ms: float, measure_idle_s: float = 0.0, **options: Any) -> Condition:
    """Sample the GPUs of the run and the host. Arguments: as of `TelemetryCompanion`."""

    @contextlib.contextmanager
    def condition(run: Run) -> Iterator[None]:
        sampler = TelemetryCompanion(sample_interval_ms, measure_idle_s, **options)
        try:
            sampler.start(run)
        except LaunchError as error:
            run.findings.append(Finding("telemetry-lost", Severity.ERROR, f"the run has no telemetry: {error}"))
            yield
            return
        run.started.append(sampler.process_started)
        yield
        sampler.stop(run)

    return condition


def _parsed(line: bytes) -> Answer:
    try:
        return Answer.model_validate_json(line)
    except ValidationError as error:
        raise LaunchError(f"the telemetry sampler wrote a line that is no answer: {line!r:.200}") from error


def free_cpus(placements: Iterable[Placement]) -> list[int]:
    """CPUs that no measured process is bound to, for the sampler; empty where each has some or none is bound."""
    bound = [set(placement.cpus) for placement in placements]
    if not bound or not all(bound):
        return []
    return sorted(os.sched_getaffinity(0) - set().union(*bound))


def _listed(metrics: Sequence[str]) -> str:
    """The first few: a GPU without counters lacks more than a dozen for one reason."""
    more = len(metrics) - LISTED
    return ", ".join(metrics) if more <= 1 else f"{', '.join(metrics[:LISTED])} and {more} more"


def telemetry_findings(done: Done, ready: Ready | None) -> Iterator[Finding]:
    """Findings about the sampling."""
    if ready is not None and ready.nvml_problem is not None:
        yield Finding(
            "telemetry-without-gpu",
            Severity.WARNING,
            f"the sampler could not ask the GPUs anything: {ready.nvml_problem}",
            "`perfharness doctor` lists what is missing",
        )
    for failure in done.meta.failures:
        if failure.metric == GIVEN_UP:
            message = f"telemetry: {failure.subject}: {failure.reason}"
            yield Finding("telemetry-source-failed", Severity.WARNING, message)
    unread: dict[tuple[str, str], list[str]] = {}
    for failure in done.unread:
        if failure.metric in OFTEN_ABSENT:
            continue
        unread.setdefault((failure.subject, failure.reason), []).append(failure.metric)
    if unread:
        parts = (f"{_listed(metrics)} of {subject} ({reason})" for (subject, reason), metrics in unread.items())
        yield Finding("telemetry-not-read", Severity.NOTE, f"never read, so null: {'; '.join(parts)}")
    late = [
        record
        for record in done.meta.ticks
        if record.late + record.missed > max(LATE_LEAST, LATE_SHARE * (record.ticks + record.missed))
    ]
    slow = [record for record in late if 2 * record.overrun >= record.late + record.missed]
    if slow:
        longest_ms = max(record.longest_ns for record in slow) / 1e6
        yield Finding(
            "telemetry-late",
            Severity.NOTE,
            f"the sampler did not get to read in time ({_late(slow)}): readings took up to {longest_ms:.0f} ms, as the "
            "driver answers one after the other",
        )
    if len(slow) < len(late):
        waited = _late([record for record in late if record not in slow])
        yield Finding(
            "telemetry-late",
            Severity.NOTE,
            f"the sampler did not get to read in time ({waited}): the machine had no CPU left for it",
            "leave a core free",
        )
    moved = done.meta.clock.moved_ns
    if abs(moved) > STEP_NS:
        yield Finding(
            "clock-stepped",
            Severity.WARNING,
            f"the machine's UTC was moved by {moved / 1e6:+.3f} ms during the run",
            "times of the run are those of the clock before; run again once the clock is settled",
        )


def _late(records: Sequence[TickRecord]) -> str:
    return "; ".join(
        f"{record.source}: {record.late} of {record.ticks} late, {record.missed} left out" for record in records
    )


def manifest_record(done: Done) -> dict[str, Any]:
    """The entry in the manifest."""
    meta = done.meta
    return {
        "file": TELEMETRY_NAME,
        "ended": meta.ended,
        "period_ms": meta.period_ns / 1e6,
        "clock": meta.clock.model_dump(),
        "sources": {record.source: record.model_dump(exclude={"source"}) for record in meta.ticks},
        "sampled": done.sampled,
        "sampler_cpu_s": None if meta.sampler_cpu_ns is None else meta.sampler_cpu_ns / 1e9,
    }


def _finish(options: SamplerOptions, findings: list[Finding]) -> Done | None:
    """The file, of what a sampler that died had written; imported here, for the numeric libraries are seldom needed."""
    from perfharness.telemetry.spool import finish_spool

    try:
        return finish_spool(options.spool, options.target)
    except (PerfHarnessError, OSError) as error:
        options.spool.unlink(missing_ok=True)
        findings.append(Finding("telemetry-lost", Severity.WARNING, f"the run has no telemetry: {error}"))
        return None
