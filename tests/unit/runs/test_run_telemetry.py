"""Run folders with telemetry of made-up sensors: the figures of their results, and the charts of their report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.cli.main import run
from perfharness.model import conventions
from perfharness.model.manifest import EnvironmentRecord, GpuRecord
from perfharness.model.telemetry import TELEMETRY_NAME, process_subject
from perfharness.telemetry.store import write_sample_log
from tests.schemas import valid
from tests.support.sample_builder import SampleBuilder
from tests.support.simulated_sensors import Load, Sensor
from tests.support.trace_builder import TraceBuilder
from tests.unit.charts import report_charts
from tests.unit.run_records import manifest_of, process

MS = 1_000_000
S = 1_000 * MS
T0 = 1_700_000_000 * S
IDLE_W, MATMUL_W, COPY_W, AWAKE_W = 75.0, 600.0, 250.0, 110.0
BATCHES = 20
IDLE_S = 4.0


class MadeUpRun:
    """Batches of 900 ms matmul, 600 ms copy and 500 ms without GPU work, after four idle seconds; sensors beside it.

    Every part varies by a tenth, as real ones do: batches of exactly 2 s would be in step with the sensor.
    """

    def __init__(self, folder: Path, processes: tuple[tuple[str, str], ...] = (("proc_0_gpu_0", "GPU-a"),)) -> None:
        self.folder = folder
        self.processes = processes
        random = np.random.default_rng(4)
        parts = np.tile([900, 600, 500], (BATCHES, 1)) * random.uniform(0.9, 1.1, (BATCHES, 3))
        lengths = np.round(parts * MS).astype(np.int64)
        self.edges = np.r_[0, np.cumsum(lengths)] + T0 + S
        self.truth = dict(
            zip(("matmul", "copy", "waiting"), (lengths / S).sum(axis=0) * (MATMUL_W, COPY_W, AWAKE_W), strict=True)
        )
        power = np.tile([MATMUL_W, COPY_W, AWAKE_W], BATCHES)
        self.load = Load(np.r_[T0 - 9 * S, self.edges, self.edges[-1] + 9 * S], np.r_[IDLE_W, power, IDLE_W])
        self.log = SampleBuilder(idle_start_unix_ns=T0 - round(IDLE_S * S) - S // 2, idle_end_unix_ns=T0 - S // 2)

    def write_traces(self) -> None:
        for folder, uuids in self.processes:
            builder = TraceBuilder(gpu=False)
            for number, uuid in enumerate(uuids.split(",")):
                builder.row("TARGET_INFO_GPU", id=number, name="Test GPU", uuid=uuid.partition("-")[2])
            builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=T0)
            builder.mark(conventions.MARK_RECORDER, 0, domain="perfharness", category="toy")
            for index in range(len(self.edges) // 3):
                first, second, third, end = (int(edge) - T0 for edge in self.edges[3 * index : 3 * index + 4])
                builder.range("batch", first, end - 1, domain="perfharness", category="toy", payload=index)
                for name, start, stop in (
                    ("matmul", first, second),
                    ("copy", second, third),
                    ("decode", third, end - 2),
                ):
                    builder.range(name, start + 1, stop - 1, domain="perfharness", category="toy")
                    if name != "decode":
                        device = int("," in uuids and name == "copy")
                        builder.kernel((start + 2, start + 3), (start, stop), device=device)
                builder.mark(conventions.MARK_ITEMS, end - 2, domain="perfharness", category="toy", payload=8)
            (self.folder / folder).mkdir(parents=True)
            builder.write(self.folder / folder / "trace.sqlite")

    def sample(
        self, uuid: str, *, throttled_s: tuple[float, float] | None = None, busy: bool = True, poll_ms: int = 50,
    ) -> None:  # fmt: skip
        """Sensors of one GPU, all polled at one pace: counter, power, clocks, utilisation."""
        polls = np.arange(T0 - 8 * S, self.edges[-1] + 4 * S, poll_ms * MS, dtype=np.int64)
        load = self.load if busy else Load(self.load.edge_ns[[0, -1]], np.asarray([IDLE_W]))
        sensor = Sensor(phase_ns=13 * MS, noise=0.005)
        counter, power = sensor.counter_mj(load, polls), sensor.power_mw(load, polls)
        updated = np.r_[True, np.diff((polls - T0 - sensor.phase_ns) // sensor.period_ns) > 0].tolist()
        self.log.subject(uuid, "gpu", name="NVIDIA H200", gpu_index=0)
        for metric, values in (("energy_total_mj", counter), ("power_instant_mw", power)):
            self.log.readings(uuid, metric, polls.tolist(), values.tolist(), is_new=updated, update_period_ns=100 * MS)
        running = (polls > self.edges[0]) & (polls < self.edges[-1]) & busy
        reasons = np.where(running, 0, 1)
        clock = np.where(running, 1980.0, 345.0)
        if throttled_s is not None:
            inside = (polls > self.edges[0] + throttled_s[0] * S) & (polls < self.edges[0] + throttled_s[1] * S)
            reasons, clock = np.where(inside, 4, reasons), np.where(inside, 1700.0, clock)
        for name, column in (
            ("gpu_utilization_percent", np.where(running, 80, 0)),
            ("clock_event_reasons", reasons),
            ("sm_clock_mhz", clock),
            ("power_limit_mw", np.full(len(polls), 700e3)),
        ):
            self.log.readings(uuid, name, polls.tolist(), column.tolist())

    def analyzed(self, code: int = 0) -> tuple[Any, set[str]]:
        """Write all; `benchmark_mean.json` after `analyze`, and the codes of its findings."""
        self.write_traces()
        write_sample_log(self.folder / TELEMETRY_NAME, self.log.build())
        uuids = list(dict.fromkeys(uuid for _, given in self.processes for uuid in given.split(",")))
        processes = [
            process(
                index, gpu_uuid=given.split(",")[0], gpu_uuids=given.split(",") if "," in given else [], folder=folder,
                start_unix_ns=T0, duration_s=float(self.edges[-1] - T0) / S + 1,
            )
            for index, (folder, given) in enumerate(self.processes)
        ]  # fmt: skip
        gpus = [GpuRecord(index=0, uuid=uuid, name="NVIDIA H200") for uuid in uuids]
        manifest = manifest_of(*processes, environment=EnvironmentRecord(gpus=gpus))
        (self.folder / "manifest.json").write_text(manifest.model_dump_json())
        return analyzed(self.folder, code)

    def truth_j(self, first: int = 1, last: int = -1) -> float:
        """Energy of the batches from the first to before the last."""
        return float(
            self.load.energy_j(int(self.edges[3 * first]), int(self.edges[3 * last - 1 if last < 0 else 3 * last]))
        )


def analyzed(folder: Path, code: int = 0) -> tuple[Any, set[str]]:
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
    return made, made.analyzed()[0]


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
    mean, codes = made.analyzed()
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
    mean, codes = made.analyzed()
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
    mean, _ = made.analyzed()
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
    gpu = analyzed(tmp_path)[0]["energy"]["gpus"][0]  # the trace does not name GPU-c
    assert gpu["energy_j"] is not None
    assert (gpu["stages"], bool(gpu["stages_reason"])) == ([], True)


def test_a_mig_instance_has_no_energy_of_its_own(tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path, (("proc_0_gpu_0", "MIG-1"),))
    made.sample("GPU-a")
    made.log.subject("MIG-1", "mig", parent_uuid="GPU-a")
    energy = made.analyzed()[0]["energy"]
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
    mean, codes = made.analyzed()
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
    made.analyzed()
    (tmp_path / TELEMETRY_NAME).unlink()
    mean, codes = analyzed(tmp_path)
    assert not {"energy", "gpu_metrics"} & set(mean)
    assert "throttled" not in own(tmp_path)["data"]["toy"]["batch_0"]
    assert "telemetry-incomplete" not in codes
    (tmp_path / TELEMETRY_NAME).write_text("not parquet")
    mean, codes = analyzed(tmp_path)
    assert ("telemetry-incomplete" in codes, "energy" in mean) == (True, False)


def test_a_long_chart_is_thinned_and_keeps_every_extreme(tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path)
    made.sample("GPU-a", poll_ms=10)
    times = np.arange(T0 - S, made.edges[-1], 10 * MS, dtype=np.int64)
    values = np.random.default_rng(0).normal(500.0, 10.0, len(times))
    values[[777, 2001]] = 5000.0, -5000.0
    made.log.readings("GPU-a", "temperature_c", times.tolist(), values.tolist())
    made.analyzed()
    panels = report_charts(tmp_path)["telemetry_gpu_0_0"]["datasets"]
    (line,) = next(rows for name, rows in panels.items() if "°C" in name)
    assert len(line["value"]) <= 2000 < len(times)
    assert {5000.0, -5000.0} <= set(line["value"])
