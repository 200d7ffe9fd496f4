"""`perfharness stress URL`, as a user runs it."""

from __future__ import annotations

import json
import random
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import perfharness as api
from perfharness.errors import PerfHarnessError
from perfharness.model.load import LoadResult
from tests.integration import forked_command
from tests.integration.launches import environment, manifest, perfharness, processes_naming
from tests.load_server import serving

HERE = Path(__file__).parent
SERVER, ASGI = HERE.parent / "load_server.py", HERE / "asgi_server.py"


def free_port() -> int:
    """One below those that the system gives to connections and to servers without a port of their own."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(first // 2, first)
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


def stress(out: Path, url: str, *arguments: object) -> tuple[int, LoadResult | None, str]:
    done = perfharness(
        "stress", url, *arguments, "--no-telemetry", "--format", "json", "-o", out, PERFHARNESS_HISTORY="off"
    )
    return done.returncode, LoadResult.model_validate(json.loads(done.stdout)) if done.stdout else None, done.stderr


@pytest.mark.slow
def test_a_server_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "load.toml").write_text('[target]\ntext = "hello"\n')
    with serving() as url:
        code, found, said = stress(
            tmp_path / "out", url, "--rate", 60, "--duration", "1s", "--profile", tmp_path / "load.toml",
            "--expect-text", '"bytes": 5}',
        )  # fmt: skip
    assert (code, found is not None) == (0, True), said
    assert found is not None
    (phase,) = found.phases
    assert (phase.arrivals, phase.ok, found.target.kind) == (60, 60, "http")
    assert found.target.request == {"text": "hello", "expect-text": '"bytes": 5}'}
    assert phase.queueing.p50.value is None
    assert phase.queueing.reason is not None
    assert all(window.rss_mb is None for window in found.windows)  # of the generator it would be no answer


def test_a_server_that_is_started_is_traced_and_its_requests_are_batches(tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "out"
    profile = tmp_path / "load.toml"
    profile.write_text('[[load.phases]]\ntimes-file = "arrivals.txt"\nduration = 2\n')
    (tmp_path / "arrivals.txt").write_text("".join(f"{burst / 5}\n" * 4 for burst in range(10)))
    start = f"{sys.executable} {ASGI} {port}"
    code, found, said = stress(out, f"http://127.0.0.1:{port}/", "--start", start, "--profile", profile)
    assert found is not None, said
    assert code == 0, said
    (record,) = manifest(out)["processes"]
    assert record["ended"] == "ok"
    (phase,) = found.phases
    assert phase.ok == phase.queueing.count == phase.service.count == phase.arrivals == 40
    assert sorted(api.open_run(out).batches()["batch_index"].to_pylist()) == list(range(40))
    rows = pq.read_table(out / "proc_0_gpu_0/requests.parquet").to_pylist()
    for row in rows:
        assert row["sent_ns"] < row["begun_ns"] < row["done_ns"]
        assert row["done_ns"] - row["begun_ns"] >= 10e6
    assert all(window.rss_mb is not None for window in found.windows[:1])
    assert processes_naming(f"{ASGI} {port}") == []


@pytest.mark.slow
def test_a_server_with_several_workers(tmp_path: Path) -> None:
    """Each worker is a process of its own in the trace; together they have the requests that were sent."""
    port, out = free_port(), tmp_path / "out"
    start = (
        f"{sys.executable} -m uvicorn tests.integration.asgi_server:served --port {port} --workers 2 --lifespan off "
        "--log-level warning"
    )
    done = forked_command.run(
        ("stress", f"http://127.0.0.1:{port}/blocking", "--start", start, "--rate", 40, "--duration", "1500ms",
         "--tracer", "embedded", "--no-telemetry", "-o", out),
        environment(PERFHARNESS_HISTORY="off"),
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr  # 3: a busy machine
    found = LoadResult.model_validate_json((out / "load.json").read_text())
    (phase,) = found.phases
    assert phase.ok == phase.queueing.count == 60
    run = api.open_run(out)
    assert sorted(run.batches()["batch_index"].to_pylist()) == list(range(60))
    assert [one.record.ended for one in run.processes if one.record is not None] == ["ok", "ok"]
    assert processes_naming(f"--port {port}") == []


@pytest.mark.slow
def test_a_server_that_crashes_leaves_what_was_measured(tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "out"
    start = f"{sys.executable} {SERVER} --port {port} --crash-s 1.5"
    code, found, _ = stress(out, f"http://127.0.0.1:{port}/", "--start", start, "--rate", 40, "--duration", "30s")
    assert code == 1
    assert found is not None
    assert found.duration_s < 30  # it is not loaded on when it is gone
    assert found.status == "interrupted"
    (record,) = manifest(out)["processes"]
    assert (record["ended"], record["exit_code"]) == ("failed", 70)


@pytest.mark.slow
def test_a_started_server_that_does_not_get_ready(tmp_path: Path) -> None:
    with pytest.raises(PerfHarnessError, match="not ready"):
        api.stress(
            f"http://127.0.0.1:{free_port()}/", start="sleep 60", request={"ready_timeout_s": 0.5}, tracer="none",
            rate=5, duration_s=1, history=False, telemetry=False, output_dir=tmp_path / "out",
        )  # fmt: skip
