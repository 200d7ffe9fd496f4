"""The NVML layer over the replay of a hand-made record: values, refusals, devices by UUID, the state of setters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from perfharness.model.environment import NVML_MODULE
from perfharness.telemetry.nvml import REFUSALS, Refusal, ask, open_nvml, refused
from perfharness_launcher.plan.gpus import find_gpus
from tests.support.nvml_cards import (
    ENERGY_BEFORE_MJ,
    IDLE_MW,
    LOAD_MW,
    error,
    gpu_uuid,
    h100_machine,
    mig_uuid,
)
from tests.support.nvml_record import NvmlRecord, read_record
from tests.support.replayed_nvml import NVML_STATE, ReplayedNvml, replay_environment
from tests.support.steps import STEP_FAULTS, Fault, Steps, faults_to_json

ROOT = Path(__file__).resolve().parents[3]


class Clock:
    def __init__(self) -> None:
        self.now_ns = 5_000_000_000

    def __call__(self) -> int:
        return self.now_ns


def replay(record: NvmlRecord | None = None, *faults: Fault, clock: Clock | None = None) -> ReplayedNvml:
    return ReplayedNvml(
        record or h100_machine(), clock_ns=clock or Clock(), unix_ns=lambda: 10**18, steps=Steps(list(faults))
    )


def test_devices_are_found_by_uuid() -> None:
    with open_nvml(replay(h100_machine(2, mig_instances={1: 2}))) as nvml:
        assert [(item.uuid, item.index, item.is_mig) for item in nvml.devices] == [
            (gpu_uuid(0), 0, False),
            (gpu_uuid(1), 1, False),
            (mig_uuid(1, 0), 1, True),
            (mig_uuid(1, 1), 1, True),
        ]
        instance = nvml.device(mig_uuid(1, 1))
        assert instance is not None
        assert instance.gpu.uuid == gpu_uuid(1)
        assert nvml.device("GPU-other") is None
        assert [gpu.uuid for gpu in nvml.gpus] == [gpu_uuid(0), gpu_uuid(1)]
        assert instance.ask("nvmlDeviceGetPowerUsage").refusal is Refusal.MIG


def test_every_error_code_has_its_reason() -> None:
    codes = {item: getattr(pynvml, item) for item in dir(pynvml) if item.startswith("NVML_ERROR_")}
    for name, code in codes.items():
        with open_nvml(replay(None, Fault(name="nvmlDeviceGetPowerUsage", error=code))) as nvml:
            answer = nvml.devices[0].ask("nvmlDeviceGetPowerUsage")
            assert (answer.value, answer.code, answer.ok) == (None, code, False), name
            assert answer.reason
    assert set(codes.values()) - {999} == set(REFUSALS)
    assert "4711" in refused(4711).reason


def test_a_machine_without_nvml_says_so() -> None:
    record = h100_machine()
    error(record, "nvmlInit", code=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    with open_nvml(replay(record)) as nvml:
        assert nvml.opened.refusal is Refusal.NO_LIBRARY
        assert nvml.devices == ()
        assert nvml.ask("nvmlSystemGetDriverVersion") == nvml.opened


def test_refusals_before_init_of_a_lost_gpu_and_of_an_old_pynvml() -> None:
    record = h100_machine(2)
    error(record, "nvmlDeviceGetHandleByIndex", 0, code=pynvml.NVML_ERROR_GPU_IS_LOST)
    replayed = replay(record)
    with open_nvml(replayed) as nvml:
        assert [item.uuid for item in nvml.devices] == [gpu_uuid(1)]  # it does not hide the others
        assert [(index, answer.refusal) for index, answer in nvml.unreachable] == [(0, Refusal.GPU_LOST)]
        assert ask(replayed, "nvmlDeviceGetCount").value == 2
    for closed in (replayed, replay()):
        assert ask(closed, "nvmlDeviceGetCount").code == pynvml.NVML_ERROR_UNINITIALIZED
    old = SimpleNamespace(NVMLError=pynvml.NVMLError)
    assert ask(old, "nvmlDeviceGetSomething", None).refusal is Refusal.NOT_SUPPORTED


def test_readings_follow_the_clock() -> None:
    clock = Clock()
    with open_nvml(replay(clock=clock)) as nvml:
        gpu = nvml.devices[0]
        assert gpu.ask("nvmlDeviceGetPowerUsage").value == IDLE_MW
        assert gpu.ask("nvmlDeviceGetTotalEnergyConsumption").value == ENERGY_BEFORE_MJ
        clock.now_ns += 2_000_000_000
        assert gpu.ask("nvmlDeviceGetPowerUsage").value == LOAD_MW
        assert gpu.ask("nvmlDeviceGetTotalEnergyConsumption").value == ENERGY_BEFORE_MJ + 2 * IDLE_MW
        assert gpu.ask("nvmlDeviceGetUtilizationRates").value.gpu == 97


def test_field_values_each_with_its_own_refusal() -> None:
    clock = Clock()
    with open_nvml(replay(clock=clock)) as nvml:
        clock.now_ns += 2_000_000_000
        instant, average, unknown, link = nvml.devices[0].fields(
            [pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_FI_DEV_POWER_AVERAGE, 5, (138, 2)]
        )
    assert (instant.answer.value, average.answer.value) == (LOAD_MW, IDLE_MW)
    assert instant.timestamp_us == 10**15 + 2_000_000
    assert unknown.answer.refusal is link.answer.refusal is Refusal.NOT_SUPPORTED


def test_samples_newer_than_the_last_seen() -> None:
    clock = Clock()
    with open_nvml(replay(clock=clock)) as nvml:
        gpu = nvml.devices[0]
        kind, first = gpu.ask("nvmlDeviceGetSamples", pynvml.NVML_TOTAL_POWER_SAMPLES, 0).value
        assert (kind, len(first)) == (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 119)
        last = first[-1].timeStamp
        assert gpu.ask("nvmlDeviceGetSamples", 0, last).refusal is Refusal.NOT_FOUND
        clock.now_ns += 50_000_000
        _, newer = gpu.ask("nvmlDeviceGetSamples", 0, last).value
        assert [sample.timeStamp - last for sample in newer] == [20_000, 40_000]
        assert newer[0].sampleValue.uiVal == IDLE_MW


@pytest.mark.parametrize(
    ("setter", "allowed", "refused_values", "getter", "before"),
    [
        ("SetPersistenceMode", (1,), (2,), ("GetPersistenceMode",), 0),
        ("SetPowerManagementLimit", (700_000,), (700_001,), ("GetPowerManagementLimit",), 650_000),
        ("SetGpuLockedClocks", (1980, 1980), (1980, 1000), ("GetClockInfo", pynvml.NVML_CLOCK_SM), 345),
        ("SetMemoryLockedClocks", (1593, 1593), (1593, 1000), ("GetClockInfo", pynvml.NVML_CLOCK_MEM), 2619),
        ("SetApplicationsClocks", (2619, 1980), (2619, 1981), ("GetApplicationsClock", 0), 1755),
    ],
)
def test_what_is_set_is_what_is_read(
    setter: str, allowed: tuple[int, ...], refused_values: tuple[int, ...], getter: tuple[Any, ...], before: int
) -> None:
    with open_nvml(replay()) as nvml:
        gpu, read = nvml.devices[0], (f"nvmlDevice{getter[0]}", *getter[1:])
        assert gpu.ask(*read).value == before
        assert gpu.ask(f"nvmlDevice{setter}", *refused_values).refusal is Refusal.INVALID_ARGUMENT
        assert gpu.ask(f"nvmlDevice{setter}", *allowed).ok
        assert gpu.ask(*read).value == allowed[-1]
        limit = gpu.fields([pynvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT])[0].answer.value
        assert limit == (700_000 if "Power" in setter else 650_000)
        if "Locked" in setter:
            assert gpu.ask(f"nvmlDevice{setter.replace('Set', 'Reset')}").ok
            assert gpu.ask(*read).value == before


CHILD = """
import os
from perfharness.telemetry.nvml import open_nvml
with open_nvml() as nvml:
    print(nvml.devices[0].ask("nvmlDeviceGetPowerManagementLimit").value)
    print(nvml.devices[0].ask("nvmlDeviceSetPowerManagementLimit", 700_000).reason)
"""


def in_a_process(record: Path, state: Path, *faults: Fault) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **replay_environment(record), NVML_STATE: str(state)}
    environment[STEP_FAULTS] = faults_to_json(*faults)
    return subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True)


def test_processes_share_the_state(tmp_path: Path) -> None:
    record, state = h100_machine().write(tmp_path / "record.json"), tmp_path / "state.json"
    refused_first = in_a_process(record, state, Fault(name="nvmlDeviceSet*", error=4))
    assert refused_first.stdout.split()[0] == "650000", refused_first.stderr
    assert in_a_process(record, state).stdout.split() == ["650000", "None"]
    assert in_a_process(record, state).stdout.split() == ["700000", "None"]


def test_pynvml_answers_unless_another_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NVML_MODULE, raising=False)
    with open_nvml() as nvml:
        assert nvml.module is pynvml


def test_the_launcher_sees_the_same_devices() -> None:
    facts = find_gpus(replay(h100_machine(2, mig_instances={0: 1})))
    assert [(gpu.uuid, gpu.mig) for gpu in facts.gpus] == [(mig_uuid(0, 0), True), (gpu_uuid(1), False)]
    assert (facts.driver, facts.cuda_driver) == ("580.65.06", (13, 0))


H200 = ROOT / "tests" / "nvml" / "h200.json.gz"


def test_the_record_of_a_real_h200_answers_as_the_card_did() -> None:
    record = read_record(H200)
    assert {part[:36] for part in record.model_dump_json().split("GPU-")[1:]} == {gpu_uuid(0)[4:]}
    now, reasons, seen = 0, 0, []
    with open_nvml(ReplayedNvml(record, clock_ns=lambda: now)) as nvml:
        gpu = nvml.devices[0]
        assert gpu.ask("nvmlDeviceGetName").value == "NVIDIA H200"
        assert not gpu.ask("nvmlDeviceGetFanSpeed").ok  # it is cooled by the chassis
        for second in range(60):
            now = second * 1_000_000_000
            seen.append(gpu.ask("nvmlDeviceGetPowerUsage").value / 1000)
            reasons |= gpu.ask("nvmlDeviceGetCurrentClocksEventReasons").value
    assert max(seen[:8]) < 150
    assert max(seen) > 600
    assert reasons & pynvml.nvmlClocksEventReasonSwPowerCap
