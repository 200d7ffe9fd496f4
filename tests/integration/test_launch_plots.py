"""`--plots` of a real launch, and of a run that lies on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness.telemetry.store import read_sample_log
from tests.integration.launches import CHECKOUT, perfharness
from tests.support.nvml_cards import gpu_uuid, h100_machine, value
from tests.support.nvml_record import device
from tests.support.replayed_nvml import replay_environment

pytest.importorskip("altair")

TOY = CHECKOUT / "samples" / "toy_pipeline.py"
PNG = b"\x89PNG\r\n\x1a\n"


def test_a_run_is_drawn_afterwards_and_a_later_run_takes_its_pictures_away(tmp_path: Path) -> None:
    out = tmp_path / "out"
    picture = out / "telemetry_host.png"
    launched = perfharness("launch", "--tracer", "embedded", "-o", out, TOY, "--stage-ms", "30")
    assert launched.returncode == 0, launched.stderr
    assert not picture.exists()
    analysed = perfharness("analyze", "--plots", out)
    assert analysed.returncode == 0, analysed.stderr
    assert f"drawn: {picture}" in analysed.stderr
    assert picture.read_bytes().startswith(PNG)
    again = perfharness("launch", "--tracer", "embedded", "--no-telemetry", "-o", out, TOY, "--stage-ms", "1")
    assert again.returncode == 0, again.stderr
    assert not picture.exists()
    without = perfharness("analyze", "--plots", out)
    assert without.returncode == 1
    assert "was not sampled" in without.stderr


def test_plots_without_telemetry_are_refused_before_anything_starts(tmp_path: Path) -> None:
    done = perfharness("launch", "--plots", "--no-telemetry", "-o", tmp_path / "out", TOY)
    assert done.returncode == 2
    assert "--no-telemetry" in done.stderr
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
