"""Windows of processes that run already: loops, threads, tasks, forked workers, a service, a launch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import perfharness as api
from perfharness.errors import NothingRecordedError
from perfharness.recorder.windows import socket_folders
from tests.integration.launches import PATIENCE_S, environment, launching, perfharness, read, wait_for
from tests.integration.test_stress_http import ASGI, free_port

LOOP = """
import itertools, time
from perfharness import PerfRecorder
perf = PerfRecorder("loop", {"size": 4})
with perf.range("pipeline"):
    for index in itertools.count():
        with perf.range("load"):
            time.sleep(0.001)
        with perf.batch(index, total_items=4):
            with perf.range("decode"):
                time.sleep(0.004)
            perf.push_range("model")
            time.sleep(0.002)
            perf.pop_range()
"""
IN_FLIGHT = """
import asyncio, threading, time
from perfharness import PerfRecorder
perf = PerfRecorder("mixed")

@perf.annotate("stage")
def stage():
    time.sleep(0.003)

def work(lead):
    time.sleep(lead)
    while True:
        with perf.range("outer"):
            for _ in range(3):
                with perf.batch(0, 1), perf.batch(1, 1, message="part"):
                    stage()

async def request():
    async with asyncio.Semaphore():
        with perf.batch(0, 2, message="request"):
            with perf.range("wait"):
                await asyncio.sleep(0.004)

async def serve():
    while True:
        await asyncio.gather(*(request() for _ in range(3)))

for number in range(2):
    threading.Thread(target=work, args=(number / 500,), daemon=True).start()
asyncio.run(serve())
"""
FORKS = """
import os, time
from perfharness import PerfRecorder
perf = PerfRecorder("server")
for _ in range(2):
    if not os.fork():
        while True:
            with perf.batch(0, 1), perf.range("answer"):
                time.sleep(0.003)
while True:
    time.sleep(1)
"""
IDLE = "import time\nfrom perfharness import PerfRecorder\nPerfRecorder('idle')\ntime.sleep(600)\n"
PLAIN = "import time\ntime.sleep(600)\n"


@contextlib.contextmanager
def running(folder: Path, program: str, *, waits: bool = True, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that was started without perfharness, and waits for callers."""
    (folder / "program.py").write_text(program)
    own = {"PERFHARNESS_ON_DEMAND": "1", "XDG_RUNTIME_DIR": "", **variables}
    with subprocess.Popen([sys.executable, "program.py"], cwd=folder, env=environment(**own)) as process:
        try:
            if waits:
                wait_for(lambda: is_listening(process.pid))
            yield process
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()


def is_listening(pid: int) -> bool:
    return any((folder / f"{pid}.sock").exists() for folder in socket_folders(os.geteuid()))


def record(target: object, out: Path, *options: object) -> subprocess.CompletedProcess[str]:
    return perfharness("record", target, "--no-telemetry", "-o", out, *options)


def mean_of(out: Path) -> dict[str, Any]:
    mean: dict[str, Any] = read(out, "benchmark_mean.json")
    return mean


def codes(out: Path) -> set[str]:
    return {finding["code"] for finding in mean_of(out)["meta"]["findings"]}


def counts(tree: dict[str, Any], path: str = "") -> dict[str, int]:
    """Occurrences of each range, by path."""
    found = {path: tree["cpu_time"]["count"]} if "cpu_time" in tree else {}
    for name, below in tree.items():
        if isinstance(below, dict) and name not in ("cpu_time", "gpu_time"):
            found |= counts(below, f"{path}/{name}".lstrip("/"))
    return found


def test_three_windows_of_a_loop_that_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, LOOP) as process:
        windows = [tmp_path / f"win_{number}" for number in range(3)]
        for out in windows:
            done = record(process.pid, out, "--batches", 20)
            assert done.returncode == 0, done.stderr
        assert process.poll() is None
    launched = tmp_path / "launched"
    bounded = LOOP.replace("itertools.count()", "range(22)")
    (tmp_path / "program.py").write_text(f"{bounded}perf.finalize()\n")
    done = perfharness("launch", "--tracer", "embedded", "--no-telemetry", "-o", launched, tmp_path / "program.py")
    assert done.returncode == 0, done.stderr
    reference = counts(mean_of(launched)["stats_minus_warmup"])
    assert reference["loop/pipeline/batch"] == 20
    for out in windows:
        tree = mean_of(out)
        assert counts(tree["stats_minus_warmup"]) == reference
        batch = tree["stats_minus_warmup"]["loop"]["pipeline"]["batch"]
        assert batch["decode"]["cpu_time"]["min"] >= 4
        assert batch["cpu_time"]["min"] >= 6
        assert [(one["path"][-1], one["count"]) for one in tree["outside_batches"]] == [("load", 19)]
        manifest = read(out, "manifest.json")
        assert manifest["script"] == str(tmp_path / "program.py")
        assert manifest["processes"][0]["ended"] == "ok"
        assert read(out, "proc_0_gpu_0/recorder.json")["recorders"][0]["args"] == {"size": 4}
        assert not {"trace-missing-ranges", "range-never-closed", "recorder-not-finalized"} & codes(out)
    page = tmp_path / "report.html"
    assert perfharness("analyze", windows[0]).returncode == 0
    assert perfharness("report", windows[0], "-o", page).returncode == 0
    assert perfharness("compare", windows[0], windows[1]).returncode in (0, 3)
    assert perfharness("export", windows[2], "-o", tmp_path / "timeline.json").returncode == 0


@pytest.mark.parametrize("batches", [pytest.param(1, marks=pytest.mark.slow), 25])
def test_threads_and_tasks_that_are_in_flight(batches: int, tmp_path: Path) -> None:
    with running(tmp_path, IN_FLIGHT) as process:
        done = record(process.pid, tmp_path / "win", "--batches", batches)
    assert done.returncode == 0, done.stderr
    found = counts(mean_of(tmp_path / "win")["stats_minus_warmup"])
    threads = found.get("mixed/outer/batch", 0)
    assert threads + found.get("mixed/request", 0) == batches
    assert found.get("mixed/outer/batch/part/stage", 0) == threads
    assert found.get("mixed/request/wait", 0) == found.get("mixed/request", 0)
    assert not {"trace-missing-ranges", "range-never-closed", "no-batches"} & codes(tmp_path / "win")


@pytest.mark.slow
def test_the_workers_of_a_fork_server(tmp_path: Path) -> None:
    with running(tmp_path, FORKS) as process:
        children = psutil.Process(process.pid).children
        wait_for(lambda: sum(is_listening(child.pid) for child in children()) == 2)
        workers = [child.pid for child in children()]
        done = record(process.pid, tmp_path / "win", "--batches", 20)
        of_one = record(workers[0], tmp_path / "one", "--batches", 5)
    assert (done.returncode, of_one.returncode) == (0, 0), done.stderr + of_one.stderr
    (launched,) = read(tmp_path / "win", "manifest.json")["processes"]
    assert sorted(one["pid"] for one in launched["measured"]) == sorted(workers)
    for number in range(2):
        tree = read(tmp_path / "win", f"proc_0_gpu_0/child_{number}/benchmark.json")
        assert counts(tree["stats_minus_warmup"])["server/batch/answer"] == 20
    assert codes(tmp_path / "win") >= {"window-idle-process"}
    assert counts(mean_of(tmp_path / "one")["stats_minus_warmup"])["server/batch"] == 5


@pytest.mark.slow
def test_the_requests_of_a_service(tmp_path: Path) -> None:
    port = free_port()
    ask = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"X-Perfharness-Request": "1"})
    stopping = threading.Event()

    def load() -> None:
        while not stopping.is_set():
            with contextlib.suppress(OSError):
                urllib.request.urlopen(ask, timeout=5).read()

    program = f"import runpy, sys\nsys.argv = ['server', '{port}']\nrunpy.run_path('{ASGI}', run_name='__main__')\n"
    callers = [threading.Thread(target=load) for _ in range(3)]
    with running(tmp_path, program) as process:
        for caller in callers:
            caller.start()
        try:
            for number in range(3):
                out = tmp_path / f"win_{number}"
                done = record(process.pid, out, "--batches", 12)
                assert done.returncode == 0, done.stderr
                stats = mean_of(out)["stats_minus_warmup"]
                assert counts(stats) == {"server/request": 12, "server/request/model": 12}
                assert stats["server"]["request"]["model"]["cpu_time"]["min"] >= 10
        finally:
            stopping.set()
            for caller in callers:
                caller.join()


@pytest.mark.slow
def test_the_processes_of_a_launch(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LOOP)
    out = tmp_path / "out"
    arguments = ("--on-demand", "-np", 2, "--no-barrier", "-o", out, tmp_path / "program.py")
    with launching(arguments, environment(XDG_RUNTIME_DIR="")) as launcher:
        children = psutil.Process(launcher.pid).children
        wait_for(lambda: sum(is_listening(child.pid) for child in children(recursive=True)) == 2)
        done = record(out, tmp_path / "win", "--batches", 10)
        launcher.send_signal(signal.SIGINT)
        launcher.wait(PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert counts(mean_of(tmp_path / "win")["stats_minus_warmup"])["loop/pipeline/batch/model"] == 20
    assert sorted(path.name for path in (tmp_path / "win").glob("proc_*")) == ["proc_0_gpu_0", "proc_1_gpu_0"]
    assert read(out, "manifest.json")["tracer"]["kind"] == "none"
    assert not list(out.glob("proc_*/*.sqlite"))


def is_in_the_window(out: Path) -> bool:
    return bool(list(out.glob(".perfharness-run-*/proc_0_gpu_0/.ranges_*.log")))


def kill_in_the_window(process: subprocess.Popen[bytes], out: Path) -> None:
    wait_for(lambda: is_in_the_window(out))
    time.sleep(0.5)
    process.kill()


def test_a_process_that_is_killed_in_the_window(tmp_path: Path) -> None:
    with running(tmp_path, LOOP) as process:
        killer = threading.Thread(target=kill_in_the_window, args=(process, tmp_path / "win"))
        killer.start()
        done = record(process.pid, tmp_path / "win", "--batches", 100_000)
        killer.join()
    assert done.returncode == 3, done.stderr
    assert codes(tmp_path / "win") >= {"window-process-ended", "processes-failed"}
    assert counts(mean_of(tmp_path / "win")["stats_minus_warmup"])["loop/pipeline/batch/model"] > 10


@pytest.mark.slow
def test_a_window_that_is_interrupted_keeps_its_batches(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perfharness", "record", "--no-telemetry", "--batches", "100000"]
    out = tmp_path / "win"
    with running(tmp_path, LOOP) as process:
        words = [*command, "-o", str(out), str(process.pid)]
        with subprocess.Popen(words, env=environment(XDG_RUNTIME_DIR=""), stderr=subprocess.PIPE) as caller:
            wait_for(lambda: is_in_the_window(out))
            refused = record(process.pid, tmp_path / "second")
            time.sleep(0.3)
            caller.send_signal(signal.SIGINT)
            caller.wait(PATIENCE_S)
        assert caller.returncode == 3
        assert refused.returncode == 1
        assert not (tmp_path / "second").exists()
        assert record(process.pid, tmp_path / "third", "--batches", 3).returncode == 0
    found = counts(mean_of(out)["stats_minus_warmup"])
    assert found["loop/pipeline/batch"] == found["loop/pipeline/batch/model"]
    assert "window-incomplete" in codes(out)
    assert "range-never-closed" not in codes(out)


def test_no_batch_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, IDLE) as process:
        done = record(process.pid, tmp_path / "win", "--timeout", 0.3)
        assert done.returncode == 3
        assert not (tmp_path / "win").exists()
        with pytest.raises(NothingRecordedError):
            api.record(process.pid, output_dir=tmp_path / "win", timeout_s=0.3, telemetry=False)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("PLAIN", ()),
        ("4000000", ()),
        ("nowhere", ()),
        ("PLAIN", ("--batches", "0")),
        ("PLAIN", ("--timeout", "0")),
    ],
)
def test_what_cannot_be_recorded(target: str, options: tuple[str, ...], tmp_path: Path) -> None:
    with running(tmp_path, PLAIN, waits=False) as process:
        done = record(process.pid if target == "PLAIN" else target, tmp_path / "win", *options)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "win").exists()


@pytest.mark.parametrize("tracer", ["nsys", "none"])
def test_on_demand_needs_the_embedded_tracer(tracer: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PLAIN)
    done = perfharness("launch", "--on-demand", "--tracer", tracer, "-o", tmp_path / "out", tmp_path / "program.py")
    assert done.returncode == 2


def test_nothing_waits_without_the_variable(tmp_path: Path) -> None:
    with running(tmp_path, IDLE, waits=False, PERFHARNESS_ON_DEMAND="") as process:
        time.sleep(0.5)
        assert not is_listening(process.pid)
