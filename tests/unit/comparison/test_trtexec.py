"""Results of trtexec beside those of a service: its times, its log, and what is only in one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from tests.unit.compared_runs import first_version, write_side

COUNT = 40
LOG = """\
&&&& RUNNING TensorRT.trtexec [TensorRT v100300] # trtexec --loadEngine=model.engine
[10/03/2024-10:47:50] [I] Selected Device: NVIDIA H200
[10/03/2024-10:47:59] [I] Average on 10 runs - GPU latency: 7.5 ms - Host latency: 7.6 ms (enqueue 7.6 ms)
[10/03/2024-10:47:59] [I] === Performance summary ===
[10/03/2024-10:47:59] [I] Throughput: 130.298 qps
[10/03/2024-10:47:59] [I] Latency: min = 5.3 ms, max = 13.3 ms, mean = 7.6 ms, median = 7.1 ms, \
percentile(90%) = 10.2 ms, percentile(95%) = 10.8 ms, percentile(99%) = 12.9 ms
[10/03/2024-10:47:59] [I] Enqueue Time: min = 2.7 ms, max = 15 ms, mean = 7.5 ms, median = 7.8 ms, \
percentile(99%) = 14.1 ms
[10/03/2024-10:47:59] [I] H2D Latency: min = 0.006 ms, max = 0.069 ms, mean = 0.01 ms, median = 0.008 ms, \
percentile(99%) = 5e-2 ms
[10/03/2024-10:47:59] [I] GPU Compute Time: min = 5.3 ms, max = 13.3 ms, mean = 7.58 ms, median = 7.14 ms, \
percentile(99%) = 12.9 ms
[10/03/2024-10:47:59] [I] D2H Latency: min = 0.003 ms, max = 0.11 ms, mean = 0.01 ms, median = 0.004 ms, \
percentile(99%) = 0.09 ms
[10/03/2024-10:47:59] [W] * GPU compute time is unstable, with coefficient of variance = 20%.
"""


def times(compute_ms: float, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "startEnqMs": index, "endEnqMs": index + 0.2, "startComputeMs": index, "endComputeMs": index + compute_ms,
            "h2dMs": 0.1, "computeMs": compute_ms, "d2hMs": 0.2, "latencyMs": compute_ms + 0.3, **more,
        }
        for index in range(COUNT)
    ]  # fmt: skip


def compare(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """A comparison at a stated spread."""
    return first_version(capsys, *words, "--spread", "2%")


def means(version: dict[str, Any]) -> dict[str, Any]:
    return {f"{row['stage']}.{row['metric']}": row["base"]["mean"] for row in version["rows"]}


def test_exported_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = tmp_path / "times.json", tmp_path / "other.json"
    path.write_text(json.dumps(times(2.7)))
    other.write_text(json.dumps(times(3.7)))
    version = compare(capsys, path, other)
    assert means(version) == {
        "trtexec.gpu_time": pytest.approx(3.0),
        "trtexec.p50": pytest.approx(3.0),
        "trtexec.p95": pytest.approx(3.0),
        "trtexec/h2d.gpu_time": pytest.approx(0.1),
        "trtexec/compute.gpu_time": pytest.approx(2.7),
        "trtexec/d2h.gpu_time": pytest.approx(0.2),
        "trtexec/enqueue.cpu_time": pytest.approx(0.2),
    }
    assert [one["metric"] for one in version["not_compared"]] == ["throughput"]
    older = [{"inMs": 0.1, "computeMs": 2.0, "outMs": 0.3, "latencyMs": 2.4, "endToEndMs": 9.0}] * 3
    path.write_text(json.dumps(older))
    assert means(compare(capsys, path, other))["trtexec/d2h.gpu_time"] == pytest.approx(0.3)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_log(tmp_path: Path, encoding: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = tmp_path / "trtexec.log", tmp_path / "other.log"
    path.write_bytes(LOG.replace("\n", "\r\n").encode(encoding))
    other.write_text(LOG.replace("v100300", "v100400"))
    version = compare(capsys, path, other, "--fail-if", "trtexec/h2d.p99 > 0.1ms")
    found = means(version)
    assert (found["trtexec.gpu_time"], found["trtexec.p95"], found["trtexec/compute.gpu_time"]) == (
        pytest.approx(7.6),
        pytest.approx(10.8),
        pytest.approx(7.58),
    )
    assert "gpu-compute-time-unstable" in version["remarks"][0]


@pytest.mark.parametrize(
    "content",
    [
        "&&&& RUNNING TensorRT.trtexec [TensorRT v100300]\n[I] Engine built\n",
        '[{"computeMs": 1.0}, {"latencyMs": 2.0}]',
        '[{"computeMs": "fast"}]',
        '[{"computeMs": 1.0}, 3]',
        '[{"computeMs": 1.0',
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    assert run(["compare", str(path), str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert (str(path) in line, "trtexec" in line or "summary" in line) == (True, True)


def test_a_service_is_compared_stage_by_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, service = tmp_path / "times.json", write_side(tmp_path / "service", [2.0, 2.01, 1.99], infer_ms=3.0)
    engine.write_text(json.dumps(times(2.7)))
    version = compare(capsys, engine, service, "--map", "trtexec=batch")
    (latency,) = [row for row in version["rows"] if row["metric"] == "p50"]
    assert (latency["stage"], latency["new_stage"], latency["verdict"]) == ("trtexec", "toy/batch", "slower")
    assert latency["ratio"] == pytest.approx(5.0 * 0.99 / 3.0, rel=1e-2)
    only_new = {one["stage"]: one["cpu_ms"] for one in version["unmatched"] if one["side"] == "new"}
    assert only_new == {
        "toy/batch/decode": pytest.approx(2.0, rel=1e-3),
        "toy/batch/infer": pytest.approx(3.0, rel=1e-3),
    }
    assert (version["differences"], version["order"]) == ([], "unknown")


def test_another_gpu_is_not_comparable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(LOG.replace("H200", "H100") if name == "b" else LOG)
    code = run(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--spread", "2%", "--fail-on", "not-comparable"])
    assert (code, "H100" in capsys.readouterr().out) == (3, True)
