"""A real Prometheus scrapes real services: a launch, a bench, and gunicorn with two workers."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration import bench_runs
from tests.integration.launches import CHECKOUT, PATIENCE_S, environment, launching, wait_for
from tests.integration.test_metrics import free_port
from tests.support.fake_backend import FakeScript

pytestmark = pytest.mark.slow

WSGI = """
import os
import prometheus_client
from perfharness import PerfRecorder

perf = PerfRecorder("web", metrics=os.environ.get("AT") or True)

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    if environ["PATH_INFO"] == "/metrics":
        registry = prometheus_client.REGISTRY
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            from perfharness.metrics import collector
            from prometheus_client.multiprocess import MultiProcessCollector
            registry = prometheus_client.CollectorRegistry()
            MultiProcessCollector(registry)
            registry.register(collector())
        return [prometheus_client.generate_latest(registry)]
    with perf.batch(0, total_items=2):
        with perf.range("answer"):
            return [str(os.getpid()).encode()]
"""


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of prometheus and promtool; skips the test where there is none."""
    script = CHECKOUT / "scripts" / "install_prometheus"
    done = subprocess.run([script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        pytest.skip(f"no Prometheus: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return Path(done.stdout.strip().splitlines()[-1])


def get(url: str) -> str:
    """What is answered; nothing while nobody answers."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())
    return ""


class Prometheus:
    """A server that scrapes one address every second."""

    def __init__(self, programs: Path, port: int) -> None:
        self._programs, self._port = programs, port

    def query(self, expression: str) -> list[dict[str, Any]]:
        text = get(f"http://127.0.0.1:{self._port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        return json.loads(text)["data"]["result"] if text else []

    def value(self, expression: str) -> float | None:
        found = self.query(expression)
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def complaints(self, url: str) -> str:
        """What promtool says about the text there."""
        text = get(url)
        assert "perfharness_" in text
        done = subprocess.run(
            [self._programs / "promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")


@contextmanager
def scraping(programs: Path, target: int, folder: Path) -> Iterator[Prometheus]:
    port, settings = free_port(), folder / "prometheus.yml"
    settings.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: test, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
    )
    options = [f"--config.file={settings}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("w") as log, subprocess.Popen(
        [programs / "prometheus", *options, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
    ) as process:  # fmt: skip
        try:
            yield Prometheus(programs, port)
        finally:
            process.terminate()


def test_prometheus_scrapes_a_launch(tmp_path: Path, programs: Path) -> None:
    script, go, port = tmp_path / "app.py", tmp_path / "go", free_port()
    script.write_text(
        "import sys, time\nfrom pathlib import Path\nfrom perfharness import PerfRecorder\n"
        "perf, i = PerfRecorder('app'), 0\n"
        "while not Path(sys.argv[1]).exists():\n"
        "    with perf.batch(i, total_items=4), perf.range('work'): time.sleep(0.01)\n"
        "    i += 1\n"
    )
    arguments = ("--telemetry", "--metrics", f"127.0.0.1:{port}", "--tracer", "embedded", "-o", tmp_path / "out")
    with scraping(programs, port, tmp_path) as prometheus:
        with launching((*arguments, script, go), environment()) as launcher:
            wait_for(lambda: (prometheus.value("rate(perfharness_run_items_total[5s])") or 0) > 0)
            of_stage = "perfharness_run_stage_seconds_total{stage='batch/work'}"
            mean = f"{of_stage} / on(process, recorder, stage) perfharness_run_stage_ranges_total"
            assert 0.01 <= (prometheus.value(mean) or 0) < 1
            assert 0 <= (prometheus.value("perfharness_host_cpu_ratio") or 0) <= 1
            assert prometheus.complaints(f"http://127.0.0.1:{port}/metrics") == ""
            go.touch()
            assert launcher.wait() == 0
        wait_for(lambda: prometheus.value("up") == 0)


def test_a_bench_exposes_its_telemetry_pass(tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "out"
    long = "[telemetry]\nseconds = 4\nidle_seconds = 0\n"
    passes = '["latency", "telemetry"]'
    suite = bench_runs.write_suite(tmp_path, FakeScript(execute_ms=2), more=long, batch_sizes="[1]", passes=passes)
    process = bench_runs.start("bench", suite, "-o", out, "--no-charts", "--metrics", f"127.0.0.1:{port}")
    wait_for(lambda: 'perfharness_process_cpu_seconds_total{host="' in get(f"http://127.0.0.1:{port}/metrics"))
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("way", ["preloaded", "multiprocess", "address"])
def test_gunicorn_with_two_workers(tmp_path: Path, programs: Path, way: str) -> None:
    pytest.importorskip("gunicorn")
    (tmp_path / "web.py").write_text(WSGI)
    port = free_port()
    metrics_port = free_port() if way == "address" else port
    environ = {"TMPDIR": str(tmp_path)}
    if way == "multiprocess":
        (tmp_path / "metrics").mkdir()
        environ["PROMETHEUS_MULTIPROC_DIR"] = str(tmp_path / "metrics")
    elif way == "address":
        environ["AT"] = f"127.0.0.1:{metrics_port}"
    options = ["--workers", "2", "--max-requests", "40", "--bind", f"127.0.0.1:{port}"]
    options += ["--preload"] if way == "preloaded" else []
    command = [sys.executable, "-m", "gunicorn", *options, "web:app"]
    with (tmp_path / "gunicorn.log").open("w") as log, subprocess.Popen(
        command, cwd=tmp_path, env=environment(**environ), stdout=log, stderr=log
    ) as server:  # fmt: skip
        try:
            workers = set()
            wait_for(lambda: get(f"http://127.0.0.1:{port}/") != "")
            answered = 1
            while answered < 300:
                found = get(f"http://127.0.0.1:{port}/")
                workers.add(found)
                answered += found != ""
            assert len(workers - {""}) > 3  # each ends after 40 requests
            with scraping(programs, metrics_port, tmp_path) as prometheus:
                wait_for(lambda: prometheus.value("perfharness_batches_total") == answered)
                assert prometheus.value("perfharness_items_total") == 2 * answered
                of_stage = "perfharness_stage_seconds_count{stage='batch/answer',recorder='web'}"
                assert prometheus.value(of_stage) == answered
                p99 = "histogram_quantile(0.99, sum by (le, stage) (perfharness_stage_seconds_bucket))"
                assert len(prometheus.query(p99)) == 2
                assert prometheus.complaints(f"http://127.0.0.1:{metrics_port}/metrics") == ""
                assert prometheus.query("resets(perfharness_batches_total[1m]) > 0") == []
        finally:
            server.terminate()
