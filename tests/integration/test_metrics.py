"""What Prometheus reads: of an annotated service, and of a run while it is measured."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from perfharness.metrics.running import RunningRanges, RunningReadings, running_folders
from perfharness.model.telemetry import HOST
from perfharness.telemetry.store import read_sample_log
from tests.contract.tiny_models import onnx_model
from tests.integration.launches import (
    CHECKOUT,
    PATIENCE_S,
    environment,
    hanging,
    launching,
    perfharness,
    wait_for,
)
from tests.support.nvml_cards import gpu_uuid, h100_machine
from tests.support.replayed_nvml import replay_environment

MEASURED = """
import asyncio, os, sys, threading, time
from pathlib import Path
from perfharness import PerfRecorder

perf = PerfRecorder("svc")

def loop():
    with perf.range("pipeline"):
        for i in range(500):
            with perf.batch(i, total_items=3):
                with perf.range("decode"):
                    pass

async def requests():
    for i in range(20):
        with perf.batch(i, total_items=5, message="request"):
            with perf.range("read"):
                await asyncio.sleep(0)

async def serve():
    await asyncio.gather(requests(), requests())

threads = [threading.Thread(target=loop) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
asyncio.run(serve())
perf.push_range("batch", batch_idx=1)
perf.pop_range(total_items=1000, delete_range=True)
if os.fork() == 0:
    loop()
    os._exit(0)
os.wait()
print("hanging", flush=True)
while not Path(sys.argv[1]).exists(): time.sleep(0.01)
"""
"""1,540 batches with 4,700 items in two threads, two tasks and a child, and one that is deleted."""


# ---- services ----

Samples = dict[tuple[str, ...], float]
"""By name and values of the labels, in order of their names."""


def samples(text: str) -> Samples:
    return {
        (one.name, *(one.labels[name] for name in sorted(one.labels))): one.value
        for family in text_string_to_metric_families(text)
        if family.name.startswith("perfharness")
        for one in family.samples
    }


def counts(found: Samples) -> dict[str, dict[str, int]]:
    """Ranges, batches, items and failed batches by recorder."""
    total: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (name, *labels), value in found.items():
        if name == "perfharness_stage_seconds_count":
            total[labels[0]]["ranges"] += round(value)
        elif name.endswith("_total"):
            total[labels[0]][name.removeprefix("perfharness_").removesuffix("_total")] = round(value)
    return total


def service(*arguments: str) -> list[str]:
    no_warning = "ignore:This process:DeprecationWarning"  # Python 3.12 and later, of a fork with threads
    return [sys.executable, "-W", no_warning, "-m", "tests.support.metrics_service", *arguments]


def run_service(name: str, **environ: str) -> tuple[dict[str, dict[str, int]], Samples]:
    """What the recorders of a service counted, and what it exposed."""
    done = subprocess.run(
        service(name), env=environment(**environ), cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    found = json.loads(done.stdout.splitlines()[-1])
    return found["counts"], samples(found["text"])


NOT_PROCESSED = {"a_cancelled_task": 0, "exceptions": 0, "items_set_inside": 9, "deleted_and_shared": 0}
"""Items without those of failed and deleted batches, by program."""


@pytest.mark.parametrize("name", ["programs", "threads", "tasks", "children", "many_children"])
def test_a_service_exposes_what_its_recorders_count(tmp_path: Path, name: str) -> None:
    counted, found = run_service(name, TMPDIR=str(tmp_path))
    exposed = counts(found)
    for recorder, expected in counted.items():
        for what in ("ranges", "batches", "failed_batches"):
            assert exposed[recorder][what] == expected[what], (recorder, what)
        items = NOT_PROCESSED.get(recorder, expected["items"])
        assert exposed[recorder]["items"] == items, recorder
    for (metric, *labels), value in found.items():
        if metric == "perfharness_stage_seconds_count":
            infinite = ("perfharness_stage_seconds_bucket", "+Inf", *labels)
            total = ("perfharness_stage_seconds_sum", *labels)
            assert found[infinite] == value
            assert found[total] > 0
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_names_with_ids_do_not_make_series_without_end(tmp_path: Path) -> None:
    _, found = run_service("names_with_ids", TMPDIR=str(tmp_path))
    stages = {key: value for key, value in found.items() if key[0] == "perfharness_stage_seconds_count"}
    assert len(stages) == 201
    assert stages["perfharness_stage_seconds_count", "svc", "(other)"] == 8800


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def scrape(port: int) -> Samples:
    """What is exposed; nothing while nobody answers."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return samples(answer.read().decode())
    return {}


@contextmanager
def worker(port: int, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A process of a service, when it has made its batches."""
    with subprocess.Popen(
        service("served", f"127.0.0.1:{port}"), env=environment(**environ), cwd=CHECKOUT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def has_batches(port: int, count: int) -> Callable[[], bool]:
    return lambda: counts(scrape(port))["svc"].get("batches") == count


def test_workers_share_an_endpoint_that_outlives_each_of_them(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        first, second = (stack.enter_context(worker(port, TMPDIR=str(tmp_path))) for _ in range(2))
        wait_for(has_batches(port, 20))
        first.kill()  # it answered until now
        first.wait()
        wait_for(has_batches(port, 20))
        stack.enter_context(worker(port, TMPDIR=str(tmp_path)))
        wait_for(has_batches(port, 30))
        second.send_signal(signal.SIGTERM)
        second.wait()
        wait_for(has_batches(port, 30))
    with worker(port, TMPDIR=str(tmp_path)):  # for a moment, there was no worker
        wait_for(has_batches(port, 40))
    (in_use,) = tmp_path.glob("*/in-use")
    os.utime(in_use, (0, 0))
    with worker(port, TMPDIR=str(tmp_path)):  # the service is started again, some time after its end
        wait_for(has_batches(port, 10))


def test_a_taken_port_is_a_warning_for_a_service(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with worker(port := other.getsockname()[1], TMPDIR=str(tmp_path)) as process:
            process.kill()
            _, errors = process.communicate()
    assert errors.count(f"port {port} of 127.0.0.1 is in use") == 1


REFUSED = """
from perfharness import PerfRecorder
import sys
{hide}
try:
    perf = PerfRecorder("svc", metrics={argument})
except Exception as error:
    print(type(error).__name__, error)
with perf.range("stage"):
    print("it works")
"""
NO_CLIENT = "sys.modules['prometheus_client'] = None"


@pytest.mark.parametrize(
    ("argument", "variable", "hide", "out", "err"),
    [
        ("'9400'", "", "", "UsageError", ""),
        ("True", "", NO_CLIENT, "UsageError metrics need prometheus-client; install it with: pip", ""),
        ("None", "somewhere", "", "it works", "RuntimeWarning: PERFHARNESS_METRICS: metrics at 'somewhere'"),
        ("None", "1", NO_CLIENT, "it works", "RuntimeWarning: PERFHARNESS_METRICS: metrics need prometheus-client"),
        ("False", "somewhere", "", "it works", ""),
        ("None", "", "assert 'perfharness.metrics' not in sys.modules", "it works", ""),
    ],
)
def test_metrics_that_cannot_be_exposed(argument: str, variable: str, hide: str, out: str, err: str) -> None:
    program = REFUSED.format(argument=argument, hide=hide)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(PERFHARNESS_METRICS=variable), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.startswith(out)
    assert err in done.stderr if err or out == "it works" else True


# ---- runs ----


def test_a_running_launch_is_read_from_its_folder_and_exposed(tmp_path: Path) -> None:
    script, go, out, port = tmp_path / "measured.py", tmp_path / "go", tmp_path / "out", free_port()
    script.write_text(MEASURED)
    replay = replay_environment(h100_machine().write(tmp_path / "nvml.json"))
    address = f"127.0.0.1:{port}"
    arguments = ("--telemetry", "--metrics", address, "--tracer", "embedded", "-o", out, script, go)
    with launching(arguments, environment(**replay)) as launcher:
        wait_for(lambda: hanging(out, 1))
        sampled_last = {"perfharness_gpu_power_watts", "perfharness_process_resident_memory_bytes"}
        wait_for(lambda: sampled_last <= {name for name, *_ in scrape(port)})
        (folder,) = running_folders(out)
        ranges, readings = RunningRanges(folder), RunningReadings(folder)
        ranges.read()
        readings.read()
        found = scrape(port)
        refused = perfharness("launch", "--metrics", address, "-o", tmp_path / "other", script, go)
        assert (refused.returncode, "is in use" in refused.stderr) == (2, True)
        go.touch()
        assert launcher.wait() == 0
    assert (scrape(port), running_folders(out), list(out.rglob(".telemetry*"))) == ({}, [], [])

    (process,) = ranges.processes.values()
    assert (process.batches, process.items) == (1540, 4700)
    assert {path: stage.count for path, stage in process.stages.items()} == {
        ("svc", "pipeline"): 3,
        ("svc", "pipeline/batch"): 1500,
        ("svc", "pipeline/batch/decode"): 1500,
        ("svc", "request"): 40,
        ("svc", "request/read"): 40,
    }
    outer, inner = (process.stages["svc", path].total_ns for path in ("pipeline/batch", "pipeline/batch/decode"))
    assert outer > inner > 0
    of_process = {name: value for (name, *_, place), value in found.items() if place == "proc_0_gpu_0"}
    assert of_process["perfharness_run_batches_total"] == 1540
    assert of_process["perfharness_run_items_total"] == 4700
    stages = sum(value for (name, *_), value in found.items() if name == "perfharness_run_stage_ranges_total")
    assert stages == 3083

    sampled, latest = read_sample_log(out / "telemetry.parquet"), readings.latest()
    assert {(HOST, "cpu_percent"), ("process:proc_0_gpu_0", "rss_bytes")} < latest.keys()
    of_gpu = {name.removeprefix("perfharness_gpu_"): value for (name, *labels), value in found.items()
              if labels[-1] == gpu_uuid(0)}  # fmt: skip
    assert of_gpu.keys() == {
        *("power_watts", "energy_joules_total", "temperature_celsius", "utilization_ratio", "memory_utilization_ratio"),
        *("sm_clock_hertz", "memory_clock_hertz", "memory_used_bytes"),
    }
    for name, metric, scale in (
        ("power_watts", "power_instant_mw", 1e3),
        ("energy_joules_total", "energy_total_mj", 1e3),
        ("utilization_ratio", "gpu_utilization_percent", 1e2),
        ("memory_clock_hertz", "memory_clock_mhz", 1e-6),
    ):
        values = sampled.series[gpu_uuid(0), metric].value
        assert np.isclose(values, of_gpu[name] * scale).any(), name
        assert latest[gpu_uuid(0), metric] in values


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--metrics", "127.0.0.1:0", "--no-telemetry"), ("HOST:PORT", "--no-telemetry")),
        (("--metrics", "192.0.2.1:9400"), ("192.0.2.1:9400",)),
    ],
)
def test_options_that_do_not_work(tmp_path: Path, options: tuple[str, ...], names: tuple[str, ...]) -> None:
    (tmp_path / "script.py").touch()
    done = perfharness("launch", "-o", tmp_path / "out", *options, tmp_path / "script.py")
    assert done.returncode == 2
    assert all(name in done.stderr for name in names)
    assert "Traceback" not in done.stderr


ANSWER = """
import time

def answer(request=None):
    time.sleep(0.002)
"""
OTHER_VERBS = {
    "stress": ("app.py:answer", "--rate", 50, "--duration", "20s", "--tracer", "embedded"),
    "bench": ("--model", "tiny.onnx", "--backend", "onnxruntime", "--batch-size", 1, "--duration", 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", OTHER_VERBS)
def test_loads_and_suites_are_exposed(tmp_path: Path, verb: str) -> None:
    (tmp_path / "app.py").write_text(ANSWER)
    (tmp_path / "tiny.onnx").write_bytes(onnx_model("fp32"))
    port = free_port()
    words = (verb, *OTHER_VERBS[verb], "--metrics", f"127.0.0.1:{port}", "-o", "out")
    command = [sys.executable, "-m", "perfharness", *map(str, words)]
    wanted = {"perfharness_process_resident_memory_bytes", "perfharness_host_cpu_ratio"}
    if verb == "stress":
        wanted |= {"perfharness_run_batches_total", "perfharness_run_stage_ranges_total"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL) as started:
        wait_for(lambda: wanted <= {name for name, *_ in scrape(port)})
        assert started.wait(PATIENCE_S) == 0
    assert scrape(port) == {}
