"""The record of a real H200 answers through the replay as the card did."""

from __future__ import annotations

from pathlib import Path

import pynvml

from perfharness.telemetry.nvml import open_nvml
from perfharness.testing.nvml_record import read_record
from perfharness.testing.replayed_nvml import ReplayedNvml

RECORD = Path(__file__).parents[1] / "nvml" / "h200.json.gz"
UUID = "GPU-00000000-0000-4000-8000-000000000000"


def test_the_card_says_what_it_is() -> None:
    with open_nvml(ReplayedNvml(read_record(RECORD))) as nvml:
        gpu = nvml.device(UUID)
        assert gpu is not None
        assert gpu.ask("nvmlDeviceGetName").value == "NVIDIA H200"
        assert gpu.ask("nvmlDeviceGetTotalEnergyConsumption").ok
        assert not gpu.ask("nvmlDeviceGetFanSpeed").ok  # it is cooled by the chassis


def test_no_trace_of_the_real_card_is_in_the_record() -> None:
    text = read_record(RECORD).model_dump_json()
    assert {part[:36] for part in text.split("GPU-")[1:]} == {UUID[4:]}


def test_power_rises_under_load_and_the_power_cap_shows() -> None:
    now = 0
    seen: list[float] = []
    reasons = 0
    with open_nvml(ReplayedNvml(read_record(RECORD), clock_ns=lambda: now)) as nvml:
        gpu = nvml.device(UUID)
        assert gpu is not None
        for second in range(60):
            now = second * 1_000_000_000
            power = gpu.ask("nvmlDeviceGetPowerUsage")
            assert power.ok
            seen.append(power.value / 1000)
            reasons |= gpu.ask("nvmlDeviceGetCurrentClocksEventReasons").value
    assert max(seen[:8]) < 150
    assert max(seen) > 600
    assert reasons & pynvml.nvmlClocksEventReasonSwPowerCap
