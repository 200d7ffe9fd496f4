"""GPUs as NVML tells of them, replayed."""

from __future__ import annotations

import pynvml
import pytest

from perfharness_launcher.doctor import Health, check_gpus
from perfharness_launcher.plan.gpus import find_gpus
from tests.support.nvml_cards import GIB, error, gpu_uuid, h100_machine, mig_uuid, value
from tests.support.nvml_record import device
from tests.support.replayed_nvml import ReplayedNvml


def test_gpus_and_mig_instances() -> None:
    record = h100_machine(2, mig_instances={1: 3})
    empty = (device(gpu_uuid(1)), 1)
    error(record, "nvmlDeviceGetMigDeviceHandleByIndex", *empty, code=pynvml.NVML_ERROR_NOT_FOUND)
    error(record, "nvmlDeviceGetMemoryInfo", device(mig_uuid(1, 0)), code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    nvml = ReplayedNvml(record)
    facts = find_gpus(nvml)
    assert [(gpu.index, gpu.uuid, gpu.mig) for gpu in facts.gpus] == [
        (0, gpu_uuid(0), False),
        (1, mig_uuid(1, 0), True),
        (1, mig_uuid(1, 2), True),
    ]
    assert (facts.gpus[0].name, facts.gpus[0].memory_total_bytes) == ("NVIDIA H100 80GB HBM3", 80 * GIB)
    assert facts.gpus[1].memory_total_bytes is None
    assert (facts.driver, facts.cuda_driver, facts.problem) == ("580.65.06", (13, 0), None)
    with pytest.raises(pynvml.NVMLError_Uninitialized):  # it was closed again
        nvml.nvmlDeviceGetCount()


def test_a_gpu_with_mig_on_and_no_instance_is_none() -> None:
    record = h100_machine(1)
    value(record, "nvmlDeviceGetMigMode", device(gpu_uuid(0)), result=[1, 1])
    assert find_gpus(ReplayedNvml(record)).gpus == ()


def test_a_lost_gpu_does_not_hide_the_others_and_is_told() -> None:
    record = h100_machine(2)
    error(record, "nvmlDeviceGetHandleByIndex", 0, code=pynvml.NVML_ERROR_GPU_IS_LOST)
    facts = find_gpus(ReplayedNvml(record))
    assert [(gpu.index, gpu.uuid) for gpu in facts.gpus] == [(1, gpu_uuid(1))]
    check = next(check_gpus(facts, {}))
    assert check.health is Health.BAD
    assert check.text.startswith("GPU 0")
