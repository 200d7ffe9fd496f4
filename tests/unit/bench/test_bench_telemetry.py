"""The telemetry pass: figures by hand of synthetic readings, and of a replayed H100."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from perfharness.bench.spec import TelemetrySettings
from perfharness.bench.telemetry import measure_telemetry, summarize
from perfharness.model.telemetry import TELEMETRY_NAME, process_subject
from perfharness.telemetry.store import read_sample_log
from tests.support.nvml_cards import gpu_uuid, h100_machine
from tests.support.replayed_nvml import replay_environment
from tests.support.sample_builder import SampleBuilder
from tests.unit.bench_results import known

GPU = "GPU-0"
MS, S = 1_000_000, 1_000_000_000
START = 1_700_000_000 * S
WINDOW = (START + 1 * S, START + 5 * S)
ENDS = [START + 1 * S + (number + 1) * 4 * S // 600 for number in range(600)]


def readings() -> SampleBuilder:
    """Ten seconds at 300 W; 1980 MHz, from the fifth second on 1800."""
    made = SampleBuilder(period_ns=50 * MS)
    end = START + 10 * S

    def joules(moment: int) -> float:
        return 300_000.0 * (moment - START) / S

    made.polled(GPU, "energy_total_mj", joules, START, end, update_period_ns=100 * MS)
    made.polled(GPU, "gpu_utilization_percent", lambda _: 87.0, START, end, update_period_ns=200 * MS)
    made.polled(
        GPU, "sm_clock_mhz", lambda t: 1980.0 if t < START + 4 * S else 1782.0, START, end, update_period_ns=100 * MS
    )
    made.subject(process_subject("case"), "process")
    made.polled(process_subject("case"), "process_memory_bytes", lambda _: 3e9, START, end, update_period_ns=100 * MS)
    made.polled(process_subject("case"), "rss_bytes", lambda _: 1e9, START, end, update_period_ns=50 * MS)
    made.polled(process_subject("case"), "cpu_percent", lambda _: 150.0, START, end, update_period_ns=50 * MS)
    return made


def test_energy_is_the_counters_over_the_window_per_item() -> None:
    found = summarize(readings().build(), (GPU,), WINDOW, 600, ENDS)
    energy, power = known(found.energy_per_item_j), known(found.power_mean_w)
    assert energy.value == pytest.approx(300 * 4 / 600, rel=0.06), "1200 J of 600 items"
    low, high = known(energy.interval)
    assert low <= 2.0 <= high
    assert power == pytest.approx(300, rel=0.06)
    assert found.telemetry_items_per_second == 150, "600 items of 4 s"
    assert power / 150 == pytest.approx(energy.value)
    assert found.utilization_percent == 87
    assert found.clock_drop_percent == pytest.approx(10.0)
    assert (found.cpu_percent, found.io_wait_percent) == (150, None)
    assert (found.device_peak_bytes, found.host_peak_bytes) == (3_000_000_000, 1_000_000_000)
    assert found.reasons == {}


def test_what_was_not_read_has_a_reason() -> None:
    found = summarize(SampleBuilder().subject(GPU).build(), (GPU,), WINDOW, 10, ENDS)
    for name in ("utilization_percent", "power_mean_w", "energy_per_item_j", "clock_drop_percent"):
        assert getattr(found, name) is None
        assert "not sampled" in found.reasons[name]
    without = summarize(readings().build(), (), WINDOW, 10, ENDS)
    assert without.energy_per_item_j is None
    assert without.telemetry_items_per_second == 2.5, "it ran all the same"
    assert set(without.reasons.values()) == {"the case has no GPU"}
    assert without.host_peak_bytes == 1_000_000_000


@pytest.mark.slow
def test_the_real_sampler_beside_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvml.json").write_text(h100_machine().model_dump_json())
    for name, value in replay_environment(tmp_path / "nvml.json").items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "case"
    folder.mkdir()

    rounds, round_ms = 70, 37  # in step with no sensor: what one may never have seen would have no energy

    def work() -> list[int]:
        begin = time.time_ns()
        time.sleep(rounds * round_ms / 1e3)
        return [begin + (number + 1) * round_ms * MS for number in range(rounds)]

    settings = TelemetrySettings(gpu_uuids=(gpu_uuid(0),), idle_seconds=2.2)  # the load of the record begins at 2 s
    found = measure_telemetry(folder, settings, 4, work)
    log = read_sample_log(folder / TELEMETRY_NAME)
    assert (gpu_uuid(0), "sm_clock_mhz") in log.series
    energy, power = known(found.energy_per_item_j), known(found.power_mean_w)
    assert energy.value == pytest.approx(power * round_ms / 1e3 / 4, rel=0.1)
    assert found.host_peak_bytes
