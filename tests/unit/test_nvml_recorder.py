"""A record of the replay of a record answers as the first one did; and nothing but queries goes through."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from perfharness.telemetry.nvml import open_nvml
from perfharness.testing.nvml_cards import error, gpu_uuid, h100_machine, mig_uuid
from perfharness.testing.nvml_record import NvmlRecord, read_record
from perfharness.testing.nvml_recorder import NvmlRecorder
from perfharness.testing.nvml_values import device
from perfharness.testing.replayed_nvml import ReplayedNvml, replay_environment

ROOT = Path(__file__).resolve().parents[2]
REAL_UUID = "GPU-5f0c3b1a-1111-2222-3333-444455556666"


def recorded_again(record: NvmlRecord, seconds: float = 0.0) -> NvmlRecord:
    nvml = ReplayedNvml(record) if seconds else ReplayedNvml(record, clock_ns=lambda: 0)
    nvml.nvmlInit()
    recorder = NvmlRecorder(nvml)
    recorder.find_devices()
    recorder.ask_once()
    recorder.watch(seconds)
    return NvmlRecord.model_validate_json(json.dumps(recorder.record({})))


def test_every_recorded_answer_comes_back() -> None:
    first = h100_machine(2, mig_instances={1: 2})
    error(first, "nvmlDeviceGetTotalEnergyConsumption", device(gpu_uuid(1)), code=pynvml.NVML_ERROR_GPU_IS_LOST)
    second = recorded_again(first)
    for call in first.calls:
        again = second.call(call.function, *call.arguments)
        assert again is not None, call.function
        answer, before = again.answers[0], call.answers[0]
        if "Affinity" in call.function:  # asked for with more words
            answer = answer.model_copy(update={"value": answer.value[: len(before.value)]})
        assert answer == before, call.function
    fields = {(item.device, item.field, item.scope): item for item in second.fields}
    for item in first.fields:
        assert fields[item.device, item.field, item.scope].answers[0] == item.answers[0]


def test_what_changes_is_kept_with_its_time() -> None:
    first = h100_machine()
    power = first.call("nvmlDeviceGetPowerUsage", device(gpu_uuid(0)))
    assert power is not None
    power.at_ns = [0, 400_000_000]
    power.answers = [power.answers[0], power.answers[0].model_copy(update={"value": 123_456})]
    second = recorded_again(first, seconds=1.0).call("nvmlDeviceGetPowerUsage", device(gpu_uuid(0)))
    assert second is not None
    assert [answer.value for answer in second.answers] == [70_000, 123_456]
    assert second.at_ns[1] > 0


def test_no_uuid_of_the_machine_is_left() -> None:
    text = h100_machine().model_dump_json().replace(gpu_uuid(0), REAL_UUID)
    again = recorded_again(NvmlRecord.model_validate_json(text)).model_dump_json()
    assert REAL_UUID not in again
    assert gpu_uuid(0) in again


def test_nothing_can_be_set() -> None:
    nvml = ReplayedNvml(h100_machine())
    nvml.nvmlInit()
    recorder = NvmlRecorder(nvml)
    recorder.find_devices()
    for name in dir(pynvml):
        if name.startswith(("nvmlDeviceSet", "nvmlDeviceReset", "nvmlDeviceClear", "nvmlSystemSet")):
            with pytest.raises(ValueError, match="no query"):
                recorder.call(name, recorder.devices[0][0], 1)


def test_the_script_writes_a_record_that_can_be_replayed(tmp_path: Path) -> None:
    source = h100_machine(1, mig_instances={0: 1}).write(tmp_path / "source.json")
    target = tmp_path / "record.json.gz"
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/record_nvml"), "-o", str(target), "--seconds", "0.2", "--load", "true"],
        env={**os.environ, **replay_environment(source)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with open_nvml(ReplayedNvml(read_record(target))) as nvml:
        assert [item.uuid for item in nvml.devices] == [gpu_uuid(0), mig_uuid(0, 0)]
        assert nvml.devices[0].ask("nvmlDeviceGetPowerUsage").ok
        assert nvml.devices[0].ask("nvmlDeviceGetSamples", 0, 0).ok


def test_a_fault_of_pynvml_at_one_query_does_not_lose_the_others() -> None:
    class Faulty(ReplayedNvml):
        def nvmlDeviceGetName(self, _handle: object) -> str:  # noqa: N802
            raise TypeError("not with this driver")

    nvml = Faulty(h100_machine())
    nvml.nvmlInit()
    recorder = NvmlRecorder(nvml)
    recorder.find_devices()
    recorder.ask_once()
    record = recorder.record({})
    assert record["about"]["queries_that_pynvml_failed_at"] == {"nvmlDeviceGetName": "TypeError: not with this driver"}
    assert any(call["function"] == "nvmlDeviceGetPowerUsage" for call in record["calls"])
