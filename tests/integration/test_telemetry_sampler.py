"""The sampler as the process that it is: beside real processes, stopped, interrupted, orphaned, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from perfharness.errors import LaunchError
from perfharness.model.manifest import GpuRecord
from perfharness.model.telemetry import HOST, TELEMETRY_NAME, process_subject
from perfharness.telemetry.protocol import SPOOL_NAME, Answer, SamplerOptions, sampler_command
from perfharness.telemetry.spool import read_spool
from perfharness.telemetry.store import read_sample_log
from perfharness.testing.nvml_cards import gpu_uuid, h100_machine
from perfharness.testing.replayed_nvml import replay_environment
from perfharness_launcher.companions.companion import CompanionContext, MeasuredProcess
from perfharness_launcher.companions.telemetry import TelemetryCompanion, free_cpus
from perfharness_launcher.processes.spawn import Placement

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

    def __init__(self, tmp_path: Path, gpu: str | None = None) -> None:
        self.run_dir = tmp_path / "run"
        self.run_dir.mkdir()
        self.gpu = gpu
        gpus = () if gpu is None else (GpuRecord(index=0, uuid=gpu),)
        self.context = CompanionContext(self.run_dir, "run", gpus)

    def measure(self, companion: TelemetryCompanion, code: str) -> int:
        """Run a process to its end and report it to the companion; returns its pid."""
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            companion.process_started(MeasuredProcess(FOLDER, process.pid, time.time_ns(), self.gpu))
            process.wait()
        return process.pid


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


BUSY = "import time\nwhile time.process_time() < 0.9: sum(range(1000))"


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_run_is_sampled_from_before_its_first_process_to_its_end(tmp_path: Path, replayed_gpu: str) -> None:
    beside, companion = Beside(tmp_path, replayed_gpu), TelemetryCompanion(PERIOD_MS)
    companion.start(beside.context)
    before = time.time_ns()
    beside.measure(companion, BUSY)
    after = time.time_ns()
    report = companion.stop()
    log = read_sample_log(beside.run_dir / TELEMETRY_NAME)
    assert names(beside.run_dir) == [TELEMETRY_NAME]
    power = log.get(replayed_gpu, "power_instant_mw")
    assert power is not None
    assert power.time_unix_ns[0] < before
    assert power.time_unix_ns[-1] > after
    assert (np.diff(power.time_monotonic_ns) > 0).all()
    cpu_time = log.get(SUBJECT, "cpu_time_ns")
    assert cpu_time is not None
    assert 100 * MS < cpu_time.value[-1] <= (after - before) * 2
    assert (np.diff(cpu_time.value) >= 0).all()
    temperature = log.meta.update_period_ns(replayed_gpu, "temperature_c")
    assert log.get(HOST, "cpu_percent") is not None
    assert [record.pid is not None for record in log.subjects("process")] == [True]
    assert log.meta.ended == "stopped"
    assert temperature is None or temperature > 0
    assert report.record is not None
    assert report.record["file"] == TELEMETRY_NAME
    assert "power_instant_mw" in report.record["sampled"][replayed_gpu]
    codes = {finding.code for finding in report.findings}
    assert codes <= {"telemetry-not-read", "telemetry-late"}
    json.dumps(report.record)


def test_without_a_gpu_the_host_is_sampled(tmp_path: Path) -> None:
    beside, companion = Beside(tmp_path), TelemetryCompanion(PERIOD_MS)
    companion.start(beside.context)
    beside.measure(companion, BUSY)
    report = companion.stop()
    log = read_sample_log(beside.run_dir / TELEMETRY_NAME)
    assert {record.kind for record in log.subjects()} == {"host", "core", "process"}
    assert log.get(SUBJECT, "rss_bytes") is not None
    assert not [finding for finding in report.findings if finding.code != "telemetry-late"]


def test_a_gpu_without_nvml_is_told_and_the_host_is_sampled(tmp_path: Path) -> None:
    beside, companion = Beside(tmp_path, "GPU-of-nowhere"), TelemetryCompanion(PERIOD_MS)
    companion.start(beside.context)
    report = companion.stop()
    assert "telemetry-without-gpu" in {finding.code for finding in report.findings}
    assert read_sample_log(beside.run_dir / TELEMETRY_NAME).get(HOST, "memory_used_bytes") is not None


def test_idle_power_is_watched_before_the_first_process(tmp_path: Path, replayed_gpu: str) -> None:
    beside, companion = Beside(tmp_path, replayed_gpu), TelemetryCompanion(PERIOD_MS, 0.4)
    companion.start(beside.context)
    ready = time.time_ns()
    companion.stop()
    log = read_sample_log(beside.run_dir / TELEMETRY_NAME)
    assert log.meta.idle_start_unix_ns is not None
    assert log.meta.idle_end_unix_ns is not None
    assert log.meta.idle_end_unix_ns - log.meta.idle_start_unix_ns >= 400 * MS
    assert log.meta.idle_end_unix_ns <= ready
    power = log.get(replayed_gpu, "power_instant_mw")
    assert power is not None
    assert len(power.between(log.meta.idle_start_unix_ns, log.meta.idle_end_unix_ns)) >= 2


def sampler_of(companion: TelemetryCompanion) -> int:
    assert companion._process is not None
    return companion._process.pid


def test_a_killed_sampler_leaves_what_it_had_read(tmp_path: Path, replayed_gpu: str) -> None:
    beside, companion = Beside(tmp_path, replayed_gpu), TelemetryCompanion(PERIOD_MS)
    companion.start(beside.context)
    beside.measure(companion, BUSY)
    spool = beside.run_dir / SPOOL_NAME
    wait_for(lambda: len(read_spool(spool).columns["key"]) > 300, "the spool does not grow")
    os.kill(sampler_of(companion), signal.SIGKILL)
    report = companion.stop()
    assert "telemetry-cut-off" in {finding.code for finding in report.findings}
    log = read_sample_log(beside.run_dir / TELEMETRY_NAME)
    assert log.meta.ended == "cut_off"
    power = log.get(replayed_gpu, "power_instant_mw")
    assert power is not None
    assert len(power) > 5
    assert names(beside.run_dir) == [TELEMETRY_NAME]


def test_a_sampler_that_is_terminated_is_reported_though_it_ended_in_order(tmp_path: Path) -> None:
    beside, companion = Beside(tmp_path), TelemetryCompanion(PERIOD_MS)
    companion.start(beside.context)
    os.kill(sampler_of(companion), signal.SIGTERM)
    wait_for(lambda: (beside.run_dir / TELEMETRY_NAME).exists(), "the file is not written")
    assert "telemetry-cut-off" in {finding.code for finding in companion.stop().findings}
    assert read_sample_log(beside.run_dir / TELEMETRY_NAME).get(HOST, "memory_used_bytes") is not None


def test_the_mark_of_the_run_is_not_on_the_sampler(tmp_path: Path) -> None:
    companion = TelemetryCompanion(PERIOD_MS, environ={**os.environ, "PERFHARNESS_RUN_ID": "run"})
    companion.start(Beside(tmp_path).context)
    environment = psutil.Process(sampler_of(companion)).environ()
    companion.stop()
    assert "PERFHARNESS_RUN_ID" not in environment
    assert "PATH" in environment


def test_the_sampler_keeps_to_cpus_that_no_process_is_bound_to(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("there is one CPU only")
    beside = Beside(tmp_path)
    free = free_cpus([Placement(cpus=tuple(mine[1:]))])
    assert free == mine[:1]
    assert free_cpus([Placement()]) == free_cpus([]) == []
    companion = TelemetryCompanion(PERIOD_MS, cpus=free)
    companion.start(beside.context)
    affinity = psutil.Process(sampler_of(companion)).cpu_affinity()
    companion.stop()
    assert affinity == mine[:1]


def test_a_sampler_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    beside = Beside(tmp_path)
    code = "import sys; sys.exit('no such luck')"
    companion = TelemetryCompanion(PERIOD_MS, command=lambda _: [sys.executable, "-c", code])
    with pytest.raises(LaunchError, match="no such luck"):
        companion.start(beside.context)
    assert names(beside.run_dir) == []


def test_a_sampler_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    code = "import sys; sys.stdin.read()"
    companion = TelemetryCompanion(PERIOD_MS, command=lambda _: [sys.executable, "-c", code], ready_s=0.2)
    with pytest.raises(LaunchError, match="not ready after"):
        companion.start(Beside(tmp_path).context)
    assert not psutil.pid_exists(sampler_of(companion))


def test_a_sampler_that_never_comes_to_its_end_is_killed_and_its_readings_kept(tmp_path: Path) -> None:
    beside, companion = Beside(tmp_path), TelemetryCompanion(PERIOD_MS, done_s=0.5)
    companion.start(beside.context)
    os.kill(sampler_of(companion), signal.SIGSTOP)
    report = companion.stop()
    assert "telemetry-cut-off" in {finding.code for finding in report.findings}
    assert not psutil.pid_exists(sampler_of(companion))
    assert read_sample_log(beside.run_dir / TELEMETRY_NAME).get(HOST, "context_switches") is not None


def test_ctrl_c_on_the_terminal_does_not_end_it(tmp_path: Path) -> None:
    beside, companion = Beside(tmp_path), TelemetryCompanion(PERIOD_MS)
    companion.start(beside.context)
    pid = sampler_of(companion)
    assert os.getpgid(pid) != os.getpgid(0)
    os.kill(pid, signal.SIGINT)
    beside.measure(companion, "pass")
    assert "telemetry-cut-off" not in {finding.code for finding in companion.stop().findings}


def start_alone(folder: Path) -> subprocess.Popen[bytes]:
    options = SamplerOptions(spool=folder / SPOOL_NAME, target=folder / TELEMETRY_NAME, period_ns=50 * MS)
    process = subprocess.Popen(sampler_command(options), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert Answer.model_validate_json(process.stdout.readline()).ready is not None
    return process


def test_it_ends_by_itself_and_keeps_its_readings_when_its_parent_dies(tmp_path: Path) -> None:
    with start_alone(tmp_path) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=30) == 0
    assert read_sample_log(tmp_path / TELEMETRY_NAME).meta.ended == "parent_died"


def test_sigterm_ends_it_in_good_order(tmp_path: Path) -> None:
    with start_alone(tmp_path) as process:
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert read_sample_log(tmp_path / TELEMETRY_NAME).meta.ended == "stopped"


def test_modules_in_the_folder_of_the_user_are_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start_alone(tmp_path) as process:
        process.terminate()
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
def test_a_cut_off_spool_gives_all_its_whole_batches(tmp_path: Path, keep: float) -> None:
    beside, companion = Beside(tmp_path), TelemetryCompanion(PERIOD_MS)
    companion.start(beside.context)
    beside.measure(companion, "import time; time.sleep(1.2)")
    spool = beside.run_dir / SPOOL_NAME
    content = spool.read_bytes()
    whole = read_spool(spool)
    companion.stop()
    assert whole.state is not None
    cut = tmp_path / "cut"
    cut.write_bytes(content[: int(len(content) * keep)])
    found = read_spool(cut)
    assert found.cut_off
    count = len(found.columns["key"])
    assert count < len(whole.columns["key"])
    np.testing.assert_array_equal(found.columns["value"], whole.columns["value"][:count])
