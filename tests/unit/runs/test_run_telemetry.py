"""Run folders with telemetry of made-up sensors: the figures of their results, and the charts of their report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.cli.main import run
from perfharness.model.telemetry import TELEMETRY_NAME, process_subject
from tests.schemas import valid
from tests.support.sample_builder import SampleBuilder
from tests.unit.charts import report_charts
from tests.unit.made_up_run import AWAKE_W, BATCHES, COPY_W, IDLE_W, MATMUL_W, MS, T0, MadeUpRun, S


def analyzed(made: MadeUpRun) -> tuple[Any, set[str]]:
    """Write all; `benchmark_mean.json` after `analyze`, and the codes of its findings."""
    made.write()
    return analyzed_again(made.folder)


def analyzed_again(folder: Path, code: int = 0) -> tuple[Any, set[str]]:
    assert run(["analyze", str(folder), "-q"]) == code
    for path in folder.glob("proc_*/benchmark.json"):
        valid("benchmark", path)
    mean = valid("benchmark_mean", folder / "benchmark_mean.json")
    return mean, {finding["code"] for finding in mean["meta"]["findings"]}


def own(folder: Path, process: str = "proc_0_gpu_0") -> Any:
    return json.loads((folder / process / "benchmark.json").read_text())


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[MadeUpRun, Any]:
    """A run of one process on one GPU, analysed."""
    made = MadeUpRun(tmp_path_factory.mktemp("usual"))
    made.sample("GPU-a")
    return made, analyzed(made)[0]


def test_energy_of_a_run_with_its_idle_power_apart(usual: tuple[MadeUpRun, Any]) -> None:
    made, mean = usual
    energy, truth = mean["energy"], made.truth_j()
    gpu = energy["gpus"][0]
    assert energy["energy_j"] == pytest.approx(truth, abs=energy["error_j"])
    assert energy["energy_j"] == pytest.approx(truth, rel=0.01)
    assert energy["energy_per_batch_j"] == pytest.approx(truth / (BATCHES - 2), rel=0.01)
    assert energy["energy_per_item_j"] == pytest.approx(truth / (BATCHES - 2) / 8, rel=0.01)
    assert gpu["idle"]["power_mean_w"] == pytest.approx(IDLE_W, abs=1)
    seconds = (made.edges[-4] - made.edges[3]) / S
    assert gpu["idle_j"] == pytest.approx(IDLE_W * seconds, rel=0.01)
    assert gpu["energy_above_idle_j"] == pytest.approx(truth - IDLE_W * seconds, rel=0.02)
    assert (gpu["source"], gpu["update_period_ms"]) == ("energy_total_mj", 100)
    assert energy["energy_run_j"] > energy["energy_j"]


def test_long_stages_and_batches_have_energies_and_short_ones_bounds(usual: tuple[MadeUpRun, Any]) -> None:
    made, mean = usual
    stages = {one["stage"]: one for one in mean["energy"]["gpus"][0]["stages"]}
    lengths = np.diff(made.edges).reshape(-1, 3)[1:-1].sum(axis=0) / S  # without the batches of the warm-up
    for name, place, watts, is_long in (
        ("toy/batch/matmul", 0, MATMUL_W, True),
        ("toy/batch/copy", 1, COPY_W, False),
        ("waiting", 2, AWAKE_W, False),
    ):
        one, truth = stages[name], lengths[place] * watts
        assert one["busy_s"] == pytest.approx(lengths[place], rel=0.001)
        assert one["energy_j_low"] <= truth <= one["energy_j_high"]
        assert one["energy_j"] == (pytest.approx(truth, rel=0.03) if is_long else None)
        assert bool(one["reason"]) is not is_long
    assert stages["toy/batch/decode"]["energy_j"] == 0, "measured: it has no GPU work"
    found = own(made.folder)["energy"]["batch_energy_j"]
    expected = (np.diff(made.edges[::3]) - 1 >= 2 * S) & ~np.asarray([True, *[False] * (BATCHES - 2), True])
    assert [value is not None for value in found] == expected.tolist()
    for index in np.flatnonzero(expected).tolist():
        assert found[index] == pytest.approx(made.truth_j(index, index + 1), rel=0.06)


def test_a_sensor_cannot_separate_processes(tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path, (("proc_0_gpu_0", "GPU-a"), ("proc_1_gpu_0", "GPU-a")))
    made.log = SampleBuilder()
    made.sample("GPU-a")
    mean, codes = analyzed(made)
    first, gpu = mean["energy"]["processes"]["proc_0_gpu_0"], mean["energy"]["gpus"][0]
    assert (first["shared_with"], first["energy_j"], first["batch_energy_j"]) == (["proc_1_gpu_0"], None, [])
    assert first["reason"]
    assert mean["energy"]["energy_per_item_j"] == pytest.approx(made.truth_j() / (2 * 8 * (BATCHES - 2)), rel=0.01)
    assert (gpu["idle_j"], gpu["energy_above_idle_j"]) == (None, None)
    assert "energy-uncertain" in codes


def test_throttled_batches_are_marked_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeUpRun(tmp_path)
    made.sample("GPU-a", throttled_s=(9.0, 12.0))
    made.log.subject(process_subject("proc_0_gpu_0"), "process", name="proc_0_gpu_0", gpu_uuid="GPU-a")
    mean, codes = analyzed(made)
    starts, ends = made.edges[:-1:3] - made.edges[0], made.edges[3::3] - made.edges[0]
    hit = np.flatnonzero((starts < 12 * S) & (ends > 9 * S)).tolist()
    assert mean["gpu_metrics"]["gpus"][0]["throttled_batches"] == len(hit)
    batches = own(tmp_path)["data"]["toy"]
    assert [index for index in range(BATCHES) if batches[f"batch_{index}"]["throttled"]] == hit
    assert batches[f"batch_{hit[0]}"]["throttle_reasons"] == ["sm_clock_low", "sw_power_cap"]
    assert "throttle_reasons" not in batches["batch_0"]
    assert mean["stats_minus_warmup"]["toy"]["batch"]["cpu_time"]["count"] == BATCHES - 2
    assert "clocks-throttled" in codes
    assert run(["analyze", str(tmp_path)]) == 0
    assert re.search(rf"GPU 0: \d+ W \(up to \d+\), busy 7\d\.?\d? %.*{len(hit)} batches", capsys.readouterr().out)
    charts = report_charts(tmp_path)
    assert {"telemetry_gpu_0_0", "telemetry_host_0"} <= set(charts)
    drawn = charts["telemetry_gpu_0_0"]["datasets"]
    (span,) = drawn["telemetry_gpu_0_throttling"]
    first_s = (T0 - 8 * S - made.edges[0]) / S  # seconds begin with the first batch
    assert (span["until"] - span["seconds"], span["seconds"]) == pytest.approx((2.95, 9.05), abs=0.06)
    (clock,) = drawn["telemetry_gpu_0_SM clock (MHz)"]
    assert (clock["line"], set(clock["value"])) == ("SM", {345.0, 1700.0, 1980.0})
    assert clock["seconds"][0] == pytest.approx(first_s, abs=0.01)
    shares = {
        row["line"]: dict(zip(row["seconds"], row["value"], strict=True))
        for row in drawn["telemetry_gpu_0_stages (% of time)"]
    }
    assert np.mean([value for at, value in shares["matmul"].items() if 0 <= at < 36]) == pytest.approx(45, abs=5)
    assert [round(one["until"] - one["seconds"], 1) for one in drawn["telemetry_gpu_0_warmup"]] == [
        round(int(made.edges[stop] - made.edges[begin]) / S, 1) for begin, stop in ((0, 3), (-4, -1))
    ]


def test_a_process_of_two_gpus_has_the_energy_of_both(tmp_path: Path) -> None:
    """`matmul` runs on one, `copy` on the other: each GPU's energy goes to what ran there, the process has the sum."""
    made = MadeUpRun(tmp_path, (("proc_0_gpu_0-1", "GPU-a,GPU-b"),))
    made.sample("GPU-a")
    made.sample("GPU-b")
    mean, _ = analyzed(made)
    one = own(tmp_path, "proc_0_gpu_0-1")
    gpus = {gpu["uuid"]: gpu for gpu in mean["energy"]["gpus"]}
    assert mean["energy"]["energy_j"] == pytest.approx(2 * made.truth_j(), rel=0.01)
    assert one["energy"]["energy_j"] == mean["energy"]["energy_j"]
    of_both = pytest.approx(float(np.hypot(*(gpu["error_j"] for gpu in gpus.values()))), rel=1e-5)
    assert (one["energy"]["error_j"], mean["energy"]["error_j"]) == (of_both, of_both)
    assert one["energy"]["gpu_uuids"] == ["GPU-a", "GPU-b"]
    busy = {
        uuid: {stage["stage"].rpartition("/")[2]: stage["busy_s"] for stage in gpu["stages"]}
        for uuid, gpu in gpus.items()
    }
    assert (busy["GPU-a"]["copy"], busy["GPU-b"]["matmul"]) == (0, 0)
    assert busy["GPU-a"]["matmul"] == pytest.approx(1.5 * busy["GPU-b"]["copy"], rel=0.1)
    assert [gpu["processes"] for gpu in mean["gpu_metrics"]["gpus"]] == [["proc_0_gpu_0-1"]] * 2
    assert [gpu["busy_share"] for gpu in mean["gpu_metrics"]["gpus"]] == pytest.approx([0.45, 0.3], abs=0.03)
    assert [device["uuid"] for device in one["meta"]["device"]] == ["GPU-a", "GPU-b"]
    manifest = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(
        manifest.replace('"gpu_uuids":["GPU-a","GPU-b"]', '"gpu_uuids":["GPU-a","GPU-c"]')
    )
    gpu = analyzed_again(tmp_path)[0]["energy"]["gpus"][0]  # the trace does not name GPU-c
    assert gpu["energy_j"] is not None
    assert (gpu["stages"], bool(gpu["stages_reason"])) == ([], True)


def test_a_mig_instance_has_no_energy_of_its_own(tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path, (("proc_0_gpu_0", "MIG-1"),))
    made.sample("GPU-a")
    made.log.subject("MIG-1", "mig", parent_uuid="GPU-a")
    energy = analyzed(made)[0]["energy"]
    assert (energy["gpus"][0]["uuid"], energy["energy_j"]) == ("MIG-1", None)
    assert "MIG" in energy["reason"]


def test_memory_that_grows_is_a_finding_and_a_line_breaks_where_nothing_was_read(tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path)
    made.sample("GPU-a")
    times = np.arange(T0 - S, made.edges[-1] + 2 * S, 100 * MS, dtype=np.int64)
    grows = (1 << 30) + (times - times[0]) / S * (10 << 20)
    name = process_subject("proc_0_gpu_0")
    made.log.subject(name, "process", name="proc_0_gpu_0", gpu_uuid="GPU-a", pid=10)
    made.log.readings(name, "rss_bytes", times.tolist(), grows.tolist())
    made.log.readings(name, "context_switches", times.tolist(), (5 * np.arange(len(times))).tolist())
    made.log.subject("host", "host").subject("core:0", "core").subject("core:1", "core")
    percent = [None if 99 < place < 110 else 50.0 for place in range(len(times))]
    made.log.readings("host", "cpu_percent", times.tolist(), percent)
    for core in (0, 1):
        made.log.readings(f"core:{core}", "cpu_percent", times.tolist(), [100.0 * core] * len(times))
    mean, codes = analyzed(made)
    assert "memory-grows" in codes
    memory = mean["gpu_metrics"]["processes"]["proc_0_gpu_0"]["resident_memory"]
    assert memory["bytes_per_s_low"] <= 10 << 20 <= memory["bytes_per_s_high"]
    drawn = report_charts(tmp_path)["telemetry_host_0"]["datasets"]
    (switches,) = drawn["telemetry_host_context switches (1/s)"]
    assert set(switches["value"]) == {50.0}
    (cpu,) = drawn["telemetry_host_CPU (% of all cores)"]
    assert cpu["value"].count(None) == 10
    assert {(row["0"], row["1"]) for row in drawn["telemetry_host_cores"]} == {(0.0, 100.0)}


def test_a_run_without_telemetry_says_nothing_of_it(tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path)
    analyzed(made)
    (tmp_path / TELEMETRY_NAME).unlink()
    mean, codes = analyzed_again(tmp_path)
    assert not {"energy", "gpu_metrics"} & set(mean)
    assert "throttled" not in own(tmp_path)["data"]["toy"]["batch_0"]
    assert "telemetry-incomplete" not in codes
    (tmp_path / TELEMETRY_NAME).write_text("not parquet")
    mean, codes = analyzed_again(tmp_path)
    assert ("telemetry-incomplete" in codes, "energy" in mean) == (True, False)


def test_a_long_chart_is_thinned_and_keeps_every_extreme(tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path)
    made.sample("GPU-a", poll_ms=10)
    times = np.arange(T0 - S, made.edges[-1], 10 * MS, dtype=np.int64)
    values = np.random.default_rng(0).normal(500.0, 10.0, len(times))
    values[[777, 2001]] = 5000.0, -5000.0
    made.log.readings("GPU-a", "temperature_c", times.tolist(), values.tolist())
    analyzed(made)
    panels = report_charts(tmp_path)["telemetry_gpu_0_0"]["datasets"]
    (line,) = next(rows for name, rows in panels.items() if "°C" in name)
    assert len(line["value"]) <= 2000 < len(times)
    assert {5000.0, -5000.0} <= set(line["value"])
