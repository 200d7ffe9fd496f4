"""`--plots` of a real launch, and of a run that lies on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.cli.main import run
from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness.telemetry.store import read_sample_log
from tests.integration.launches import CHECKOUT, perfharness
from tests.support.nvml_cards import gpu_uuid, h100_machine, value
from tests.support.nvml_record import device
from tests.support.replayed_nvml import replay_environment

TOY = CHECKOUT / "samples" / "toy_pipeline.py"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
def test_a_run_is_drawn_afterwards(tmp_path: Path) -> None:
    out = tmp_path / "out"
    picture = out / "telemetry_host.png"
    launched = perfharness("launch", "--tracer", "embedded", "-o", out, TOY, "--stage-ms", "30")
    assert launched.returncode == 0, launched.stderr
    assert not picture.exists()
    assert run(["analyze", "--plots", str(out)]) == 0
    assert picture.read_bytes().startswith(PNG)
    (out / TELEMETRY_NAME).unlink()
    assert run(["analyze", "--plots", str(out)]) == 1


def test_plots_without_telemetry_are_refused_before_anything_starts(tmp_path: Path) -> None:
    assert run(["launch", "--plots", "--no-telemetry", "-o", str(tmp_path / "out"), str(TOY)]) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_each_of_two_gpus_has_its_own_readings_and_its_own_picture(tmp_path: Path) -> None:
    """The second GPU is hotter; the launch gives the processes the GPUs in the other order."""
    record, out = h100_machine(2), tmp_path / "out"
    for index, celsius in enumerate((41, 77)):
        value(record, "nvmlDeviceGetTemperature", device(gpu_uuid(index)), 0, result=celsius)
    replay = tmp_path / "nvml.json"
    replay.write_text(record.model_dump_json())
    done = perfharness(
        "launch", "--gpus", "1,0", "--tracer", "embedded", "--measure-idle", "0", "--plots", "-o", out, TOY,
        "--stage-ms", "50", **replay_environment(replay),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    log = read_sample_log(out / TELEMETRY_NAME)
    for index, celsius in enumerate((41, 77)):
        temperature = log.get(gpu_uuid(index), "temperature_c")
        assert temperature is not None
        assert set(temperature.value) == {celsius}
        assert (out / f"telemetry_gpu_{index}.png").read_bytes().startswith(PNG)
    gpus = {process.subject: process.gpu_uuid for process in log.subjects("process")}
    assert gpus == {"process:proc_0_gpu_1": gpu_uuid(1), "process:proc_0_gpu_0": gpu_uuid(0)}
