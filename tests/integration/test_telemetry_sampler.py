"""The sampler as the process that it is: beside real processes, stopped, interrupted, orphaned, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from perfharness.errors import LaunchError
from perfharness.model.manifest import GpuRecord
from perfharness.model.telemetry import HOST, TELEMETRY_NAME, SampleLog, process_subject
from perfharness.telemetry.protocol import SPOOL_NAME, Answer, SamplerOptions, sampler_command
from perfharness.telemetry.spool import read_spool
from perfharness.telemetry.store import read_sample_log
from perfharness_launcher.companions.telemetry import TelemetryCompanion, free_cpus
from perfharness_launcher.conditions import MeasuredProcess, Run
from perfharness_launcher.process import Placement
from tests.integration.launches import PATIENCE_S, wait_for
from tests.support.nvml_cards import gpu_uuid, h100_machine
from tests.support.replayed_nvml import replay_environment

MS = 1_000_000
FOLDER = "proc_0_gpu_0"
PERIOD_MS = 50.0
SUBJECT = process_subject(FOLDER)


@pytest.fixture
def replayed_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine with one made-up GPU; returns its UUID."""
    record = tmp_path / "nvml.json"
    record.write_text(h100_machine().model_dump_json())
    for name, value in replay_environment(record).items():
        monkeypatch.setenv(name, value)
    return gpu_uuid(0)


class Beside:
    """A launch as far as a companion sees it, with one real measured process."""

    def __init__(self, tmp_path: Path, gpu: str | None = None, idle_s: float = 0.0, **options: Any) -> None:
        self.run_dir = tmp_path / "run"
        self.run_dir.mkdir()
        self.gpu = gpu
        gpus = () if gpu is None else (GpuRecord(index=0, uuid=gpu),)
        self.run = Run(self.run_dir, "run", gpus)
        self.companion = TelemetryCompanion(PERIOD_MS, idle_s, **options)

    def start(self) -> Beside:
        self.companion.start(self.run)
        return self

    @property
    def sampler(self) -> psutil.Process:
        assert self.companion._process is not None
        return psutil.Process(self.companion._process.pid)

    def measure(self, code: str) -> None:
        """Run a process to its end and report it to the companion."""
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            self.companion.process_started(
                MeasuredProcess(FOLDER, process.pid, time.time_ns(), (self.gpu,) if self.gpu else ())
            )
            process.wait()

    def stop(self) -> tuple[SampleLog, set[str], Any]:
        """The file, the findings' codes, the record in the manifest; nothing else is left in the folder."""
        self.companion.stop(self.run)
        assert [path.name for path in self.run_dir.iterdir()] == [TELEMETRY_NAME]
        record = self.run.records.get("telemetry")
        json.dumps(record)
        return read_sample_log(self.run_dir / TELEMETRY_NAME), {one.code for one in self.run.findings}, record


BUSY = "import time\nwhile time.process_time() < 0.9: sum(range(1000))"


def test_a_run_is_sampled_from_before_its_first_process_to_its_end(tmp_path: Path, replayed_gpu: str) -> None:
    beside = Beside(tmp_path, replayed_gpu, idle_s=0.4).start()
    before = time.time_ns()
    beside.measure(BUSY)
    after = time.time_ns()
    log, codes, record = beside.stop()
    power, cpu_time = log.series[replayed_gpu, "power_instant_mw"], log.series[SUBJECT, "cpu_time_ns"]
    assert power.time_unix_ns[0] < before
    assert power.time_unix_ns[-1] > after
    assert (np.diff(power.time_monotonic_ns) > 0).all()
    assert 100 * MS < cpu_time.value[-1] <= (after - before) * 2
    assert (np.diff(cpu_time.value) >= 0).all()
    assert {one.kind for one in log.subjects()} == {"gpu", "host", "core", "process"}
    assert [one.pid is not None for one in log.subjects("process")] == [True]
    idle_start, idle_end = log.meta.idle_start_unix_ns, log.meta.idle_end_unix_ns
    assert idle_start is not None
    assert idle_end is not None
    assert idle_start + 400 * MS <= idle_end <= before
    assert len(power.between(idle_start, idle_end)) >= 2
    assert (log.meta.ended, record["file"]) == ("stopped", TELEMETRY_NAME)
    assert "power_instant_mw" in record["sampled"][replayed_gpu]
    assert codes <= {"telemetry-not-read", "telemetry-late"}


@pytest.mark.parametrize("gpu", [None, pytest.param("GPU-of-nowhere", marks=pytest.mark.slow)])
def test_without_a_gpu_or_nvml_the_host_is_sampled(tmp_path: Path, gpu: str | None) -> None:
    beside = Beside(tmp_path, gpu).start()
    beside.measure(BUSY)
    log, codes, _ = beside.stop()
    assert {record.kind for record in log.subjects()} == {"host", "core", "process"}
    assert (SUBJECT, "rss_bytes") in log.series
    assert codes - {"telemetry-late"} == (set() if gpu is None else {"telemetry-without-gpu"})


def test_a_killed_sampler_leaves_what_it_had_read(tmp_path: Path, replayed_gpu: str) -> None:
    beside = Beside(tmp_path, replayed_gpu).start()
    beside.measure(BUSY)
    spool = beside.run_dir / SPOOL_NAME
    wait_for(lambda: len(read_spool(spool).columns["key"]) > 300)
    beside.sampler.kill()
    content, whole = spool.read_bytes(), read_spool(spool).columns["value"]
    for keep in (0.3, 0.6, 0.95):  # a spool that was cut off gives all its whole batches
        (tmp_path / "cut").write_bytes(content[: int(len(content) * keep)])
        found = read_spool(tmp_path / "cut")
        assert found.cut_off
        assert len(found.columns["value"]) < len(whole)
        np.testing.assert_array_equal(found.columns["value"], whole[: len(found.columns["value"])])
    log, codes, _ = beside.stop()
    assert ("telemetry-cut-off" in codes, log.meta.ended) == (True, "cut_off")
    assert len(log.series[replayed_gpu, "power_instant_mw"]) > 5


def test_a_sampler_that_is_terminated_is_reported_though_it_ended_in_order(tmp_path: Path) -> None:
    beside = Beside(tmp_path).start()
    beside.sampler.terminate()
    wait_for((beside.run_dir / TELEMETRY_NAME).exists)
    log, codes, _ = beside.stop()
    assert "telemetry-cut-off" in codes
    assert (HOST, "memory_used_bytes") in log.series


def test_a_sampler_that_never_comes_to_its_end_is_killed_and_its_readings_kept(tmp_path: Path) -> None:
    beside = Beside(tmp_path, done_s=0.5).start()
    sampler = beside.sampler
    sampler.suspend()
    log, codes, _ = beside.stop()
    assert "telemetry-cut-off" in codes
    assert not sampler.is_running()
    assert (HOST, "context_switches") in log.series


def test_the_sampler_is_no_part_of_the_run_nor_of_the_terminal(tmp_path: Path) -> None:
    """It has not the mark of the run, keeps to CPUs that no process is bound to, and outlives a Ctrl-C."""
    mine = sorted(os.sched_getaffinity(0))
    free = free_cpus([Placement(cpus=tuple(mine[1:]))] if mine[1:] else [])
    assert free == (mine[:1] if mine[1:] else [])
    assert free_cpus([Placement()]) == free_cpus([]) == []
    beside = Beside(tmp_path, cpus=free, environ={**os.environ, "PERFHARNESS_RUN_ID": "run"}).start()
    sampler = beside.sampler
    assert "PERFHARNESS_RUN_ID" not in sampler.environ()
    assert "PATH" in sampler.environ()
    assert sampler.cpu_affinity() == (free or mine)
    assert os.getpgid(sampler.pid) != os.getpgid(0)
    sampler.send_signal(signal.SIGINT)
    beside.measure("pass")
    assert "telemetry-cut-off" not in beside.stop()[1]


@pytest.mark.parametrize(
    ("code", "message"),
    [("import sys; sys.exit('no such luck')", "no such luck"), ("import sys; sys.stdin.read()", "not ready after")],
)
def test_a_sampler_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path, code: str, message: str) -> None:
    beside = Beside(tmp_path, command=lambda _: [sys.executable, "-c", code], ready_s=0.2 if "stdin" in code else 60)
    with pytest.raises(LaunchError, match=message):
        beside.start()
    assert not psutil.pid_exists(beside.companion._process.pid)  # type: ignore[union-attr]
    assert list(beside.run_dir.iterdir()) == []


@pytest.mark.parametrize(("end", "ended"), [("stdin", "parent_died"), ("sigterm", "stopped")])
def test_it_ends_by_itself_in_good_order_among_modules_that_are_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, ended: str
) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = SamplerOptions(spool=tmp_path / SPOOL_NAME, target=tmp_path / TELEMETRY_NAME, period_ns=50 * MS)
    pipe = subprocess.PIPE
    with subprocess.Popen(sampler_command(options), stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert Answer.model_validate_json(process.stdout.readline()).ready is not None
        process.stdin.close() if end == "stdin" else process.terminate()
        assert process.wait(timeout=PATIENCE_S) == 0
    assert read_sample_log(tmp_path / TELEMETRY_NAME).meta.ended == ended
