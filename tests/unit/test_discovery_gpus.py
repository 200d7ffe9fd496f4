"""GPUs as NVML tells of them; NVML is played by a few lines with its names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from perfharness_launcher.gpus import find_gpus


class NVMLError(Exception):
    pass


class NVMLError_NotFound(NVMLError):  # noqa: N801, N818 - NVML's own name
    pass


class FakeNvml:
    """One plain GPU, then one with MIG on: three places, the middle one empty."""

    NVML_DEVICE_MIG_ENABLE = 1
    NVMLError = NVMLError
    NVMLError_NotFound = NVMLError_NotFound

    def __init__(self, *, driver: bool = True) -> None:
        self.driver = driver
        self.is_open = False

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13000

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.65"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"GPU-{index}"

    def nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:  # noqa: N802
        if handle == "GPU-0":
            raise NVMLError("Not Supported")
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle: str) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, _handle: str, position: int) -> str:  # noqa: N802
        if position == 1:
            raise NVMLError_NotFound
        return f"MIG-{position}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, _handle: str) -> bytes:  # noqa: N802
        return b"NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        if handle.startswith("MIG"):
            raise NVMLError("Not Supported")
        return SimpleNamespace(total=150_000_000_000)


def test_gpus_and_mig_instances() -> None:
    nvml = FakeNvml()
    facts = find_gpus(nvml)
    assert [(gpu.index, gpu.uuid, gpu.mig) for gpu in facts.gpus] == [
        (0, "GPU-0", False),
        (1, "MIG-0", True),
        (1, "MIG-2", True),
    ]
    assert (facts.gpus[0].name, facts.gpus[0].memory_total_bytes) == ("NVIDIA H200", 150_000_000_000)
    assert facts.gpus[1].memory_total_bytes is None
    assert (facts.driver, facts.cuda_driver, facts.problem) == ("580.65", (13, 0), None)
    assert not nvml.is_open


def test_a_machine_without_a_driver_says_why() -> None:
    facts = find_gpus(FakeNvml(driver=False))
    assert (facts.gpus, facts.problem, facts.cuda_driver) == ((), "NVML: Driver Not Loaded", None)
