"""The NVML layer over the replay of a hand-made record: values, refusals, devices by UUID."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pynvml
import pytest

from perfharness.model.environment import NVML_MODULE
from perfharness.telemetry.nvml import Refusal, ask, open_nvml
from tests.support.nvml_cards import IDLE_MW, LOAD_MW, error, gpu_uuid, h100_machine, mig_uuid
from tests.support.nvml_record import NvmlRecord
from tests.support.replayed_nvml import ReplayedNvml
from tests.support.steps import Fault, Steps


def replay(
    record: NvmlRecord | None = None, *faults: Fault, clock_ns: Callable[[], int] = lambda: 5_000_000_000
) -> ReplayedNvml:
    return ReplayedNvml(record or h100_machine(), clock_ns=clock_ns, unix_ns=lambda: 10**18, steps=Steps(list(faults)))


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
        assert instance.ask("nvmlDeviceGetPowerUsage").refusal is Refusal.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        (3, "not_supported"),
        (13, "not_supported"),
        (4, "no_permission"),
        (6, "not_found"),
        (15, "other"),
        (999, "other"),
    ],
)
def test_an_error_code_has_its_kind_and_reason(code: int, refusal: str) -> None:
    with open_nvml(replay(None, Fault(name="nvmlDeviceGetPowerUsage", error=code))) as nvml:
        answer = nvml.devices[0].ask("nvmlDeviceGetPowerUsage")
    assert (answer.value, answer.ok, answer.refusal) == (None, False, refusal)
    assert answer.reason


def test_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library, a lost GPU, a function that an old pynvml lacks, NVML before and after it is open."""
    record = h100_machine(2)
    error(record, "nvmlDeviceGetHandleByIndex", 0, code=pynvml.NVML_ERROR_GPU_IS_LOST)
    replayed = replay(record)
    with open_nvml(replayed) as nvml:
        assert [item.uuid for item in nvml.devices] == [gpu_uuid(1)]  # it does not hide the others
        assert [(index, answer.refusal) for index, answer in nvml.unreachable] == [(0, Refusal.OTHER)]
        assert ask(replayed, "nvmlDeviceGetCount").value == 2
    for closed in (replayed, replay()):
        assert ask(closed, "nvmlDeviceGetCount").refusal is Refusal.OTHER
    old = SimpleNamespace(NVMLError=pynvml.NVMLError)
    assert ask(old, "nvmlDeviceGetSomething", None).refusal is Refusal.NOT_SUPPORTED
    error(record, "nvmlInit", code=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    with open_nvml(replay(record)) as nvml:
        assert (nvml.opened.refusal, nvml.devices) == (Refusal.OTHER, ())
        assert nvml.ask("nvmlSystemGetDriverVersion") == nvml.opened
    monkeypatch.delenv(NVML_MODULE, raising=False)
    with open_nvml() as nvml:
        assert nvml.module is pynvml


def test_field_values_each_with_its_own_refusal() -> None:
    now_ns = 5_000_000_000
    with open_nvml(replay(clock_ns=lambda: now_ns)) as nvml:
        now_ns += 2_000_000_000
        fields = [pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_FI_DEV_POWER_AVERAGE, 5, (138, 2)]
        instant, average, unknown, link = nvml.devices[0].fields(fields)
    assert (instant.value, average.value) == (LOAD_MW, IDLE_MW)
    assert unknown.refusal is link.refusal is Refusal.NOT_SUPPORTED
