"""Waiting for a temperature, on an injected clock and a replayed NVML."""

from __future__ import annotations

from collections.abc import Callable

import pynvml

from perfharness.telemetry.cool_down import cool_down
from perfharness.telemetry.nvml import open_nvml
from perfharness.testing.nvml_cards import error, gpu_uuid, h100_machine
from perfharness.testing.nvml_record import NvmlRecord, Recorded, device
from perfharness.testing.replayed_nvml import ReplayedNvml
from perfharness_launcher.companions.cool_down import not_cooled


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def cooling(*temperatures: tuple[float, int], index: int = 0, record: NvmlRecord | None = None) -> NvmlRecord:
    """A machine whose GPU has these temperatures from these seconds on."""
    record = record or h100_machine(2)
    record.set_call(
        "nvmlDeviceGetTemperature",
        [device(gpu_uuid(index)), pynvml.NVML_TEMPERATURE_GPU],
        *(Recorded(value=celsius) for _, celsius in temperatures),
        at_ns=[int(at_s * 1e9) for at_s, _ in temperatures],
    )
    return record


def wait(
    record: NvmlRecord, target_c: float, limit_s: float, interrupted: Callable[[], bool] = lambda: False
) -> tuple[Clock, list[tuple[int | None, int | None, float, bool]], list[str], list[str]]:
    clock = Clock()
    said: list[str] = []
    with open_nvml(ReplayedNvml(record, clock_ns=lambda: int(clock.now_s * 1e9))) as nvml:
        results = cool_down(
            nvml.gpus,
            target_c,
            limit_s=limit_s,
            interrupted=interrupted,
            say=said.append,
            clock=clock,
            sleep=clock.sleep,
        )
    told = [(result.begin_c, result.end_c, result.waited_s, result.reached) for result in results]
    return clock, told, said, [finding.message for finding in not_cooled(results)]


def test_each_gpu_is_waited_for() -> None:
    record = cooling((0, 60), (4, 50), (9.5, 40))
    cooling((0, 45), (2, 39), (3, 55), index=1, record=record)
    clock, told, said, findings = wait(record, 40, 300)
    assert told == [(60, 40, 10.0, True), (45, 39, 2.0, True)]  # the second may warm up again: it was cool enough once
    assert clock.slept == [1.0] * 10
    assert said == ["waiting for 40 °C (now 60 °C, 45 °C), at most 300 s"]
    assert findings == []


def test_cool_gpus_are_not_waited_for() -> None:
    clock, told, said, findings = wait(h100_machine(1), 40, 300)
    assert (clock.slept, said, findings) == ([], [], [])
    assert told == [(36, 36, 0.0, True)]


def test_after_the_limit_it_is_given_up_with_a_finding() -> None:
    record = cooling((0, 70), (2, 55), record=h100_machine(1))
    clock, told, _, findings = wait(record, 40, 2.5)
    assert clock.slept == [1.0, 1.0, 0.5]
    assert told == [(70, 55, 2.5, False)]
    assert findings == [f"GPU {gpu_uuid(0)} was still 55 °C after 2 s (70 °C before); at most 40 °C was asked for"]


def test_an_interrupt_ends_the_waiting() -> None:
    asked = iter([False, False, True])
    clock, told, _, _ = wait(cooling((0, 70), record=h100_machine(1)), 40, 300, lambda: next(asked))
    assert clock.slept == [1.0, 1.0]
    assert told == [(70, 70, 2.0, False)]


def test_a_temperature_that_cannot_be_read_is_told_and_not_waited_for() -> None:
    record = h100_machine(1)
    error(record, "nvmlDeviceGetTemperature", device(gpu_uuid(0)), 0, code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    clock, told, _, findings = wait(record, 40, 300)
    assert clock.slept == []
    assert told == [(None, None, 0.0, False)]
    assert findings == [
        f"GPU {gpu_uuid(0)}: the temperature cannot be read (this GPU does not support it), so nothing waited for it"
    ]
