"""Results of trtexec beside those of a service: its times, its log, and what is only in one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.comparison.compare import Rule
from perfharness.cli.main import run
from perfharness.errors import ResultError
from perfharness.runs.comparison.compare import compare_sides, read_side
from perfharness.runs.comparison.compared_figure import Figure
from perfharness.runs.comparison.matched_sides import CompareOptions
from perfharness.runs.comparison.trtexec import is_trtexec, read_trtexec
from tests.unit.compared_runs import write_side

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


def test_exported_times(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text(json.dumps(times(2.7)))
    found = read_trtexec(path)
    assert is_trtexec(path)
    assert {figure.text: found.figures[figure] for figure in found.figures if figure.is_judged} == {
        "trtexec.gpu_time": pytest.approx(3.0),
        "trtexec.latency_p50": pytest.approx(3.0),
        "trtexec.latency_p95": pytest.approx(3.0),
        "trtexec/h2d.gpu_time": pytest.approx(0.1),
        "trtexec/compute.gpu_time": pytest.approx(2.7),
        "trtexec/d2h.gpu_time": pytest.approx(0.2),
        "trtexec/enqueue.cpu_time": pytest.approx(0.2),
        "throughput": None,
    }
    older = [{"inMs": 0.1, "computeMs": 2.0, "outMs": 0.3, "latencyMs": 2.4, "endToEndMs": 9.0}] * 3
    path.write_text(json.dumps(older))
    assert read_trtexec(path).figures[Figure(("trtexec", "d2h"), "gpu_time")] == pytest.approx(0.3)


def test_a_log(tmp_path: Path) -> None:
    path = tmp_path / "trtexec.log"
    path.write_text(LOG)
    found = read_trtexec(path)
    assert is_trtexec(path)
    assert found.figures[Figure(("trtexec",), "gpu_time")] == 7.6
    assert found.figures[Figure(("trtexec",), "latency_p95")] == 10.8
    assert found.figures[Figure(("trtexec", "compute"), "gpu_time")] == 7.58
    assert found.figures[Figure(("trtexec", "compute"), "stage_p95")] is None
    assert found.figures[Figure(("trtexec", "h2d"), "stage_p99")] == 0.05
    assert (found.environment["gpu"], found.environment["package tensorrt"]) == ("1 x NVIDIA H200", "100300")
    assert found.errors == ("gpu-compute-time-unstable",)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_that_windows_wrote(tmp_path: Path, encoding: str) -> None:
    for name, text in (("log", LOG.replace("\n", "\r\n")), ("json", json.dumps(times(2.7)))):
        plain, path = tmp_path / f"{name}.plain", tmp_path / name
        plain.write_text(text)
        path.write_bytes(text.encode(encoding))
        assert is_trtexec(path)
        assert read_trtexec(path).figures == read_trtexec(plain).figures
        assert read_trtexec(path).run_id == read_trtexec(plain).run_id


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
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    assert is_trtexec(path)
    with pytest.raises(ResultError, match=str(path)):
        read_trtexec(path)


def test_a_service_is_compared_stage_by_stage(tmp_path: Path) -> None:
    engine, service = tmp_path / "times.json", write_side(tmp_path / "service", [2.0, 2.01, 1.99], infer_ms=3.0)
    engine.write_text(json.dumps(times(2.7)))
    options = CompareOptions(renamed={"trtexec": "batch"}, rule=Rule(spread=0.02))
    (version,) = compare_sides(read_side(str(engine)), [read_side(service)], options).versions
    (latency,) = [row for row in version.rows if row.metric == "latency_p50"]
    assert (latency.stage, latency.new_stage, latency.verdict) == ("trtexec", "toy/batch", "slower")
    assert latency.ratio == pytest.approx(5.0 * 0.99 / 3.0, rel=1e-2)
    only_new = {one.stage: one.cpu_ms for one in version.unmatched if one.side == "new"}
    assert only_new == {
        "toy/batch/decode": pytest.approx(2.0, rel=1e-3),
        "toy/batch/infer": pytest.approx(3.0, rel=1e-3),
    }
    assert [one.stage for one in version.unmatched if one.side == "base"] == version.only_in_base
    assert version.differences == []
    assert version.order == "unknown"


def test_another_gpu_is_not_comparable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(LOG.replace("H200", "H100") if name == "b" else LOG)
    code = run(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--spread", "2%", "--fail-on", "not-comparable"])
    assert (code, "H100" in capsys.readouterr().out) == (3, True)
