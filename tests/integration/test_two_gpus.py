"""Telemetry of a launch on two GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness.telemetry.store import read_sample_log
from tests.integration.launches import CHECKOUT, perfharness
from tests.support.nvml_cards import gpu_uuid, h100_machine, value
from tests.support.nvml_record import device
from tests.support.replayed_nvml import replay_environment

TOY = CHECKOUT / "samples" / "toy_pipeline.py"


@pytest.mark.slow
def test_each_of_two_gpus_has_its_own_readings(tmp_path: Path) -> None:
    """The second GPU is hotter; the launch gives the processes the GPUs in the other order."""
    record, out = h100_machine(2), tmp_path / "out"
    for index, celsius in enumerate((41, 77)):
        value(record, "nvmlDeviceGetTemperature", device(gpu_uuid(index)), 0, result=celsius)
    replay = tmp_path / "nvml.json"
    replay.write_text(record.model_dump_json())
    done = perfharness(
        "launch", "--gpus", "1,0", "--tracer", "embedded", "-o", out, TOY, "--stage-ms", "50",
        **replay_environment(replay),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    log = read_sample_log(out / TELEMETRY_NAME)
    for index, celsius in enumerate((41, 77)):
        temperature = log.get(gpu_uuid(index), "temperature_c")
        assert temperature is not None
        assert set(temperature.value) == {celsius}
    gpus = {process.subject: process.gpu_uuid for process in log.subjects("process")}
    assert gpus == {"process:proc_0_gpu_1": gpu_uuid(1), "process:proc_0_gpu_0": gpu_uuid(0)}
