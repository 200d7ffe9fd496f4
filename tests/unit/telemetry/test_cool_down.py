"""Waiting for a temperature, on an injected clock and a replayed NVML."""

from __future__ import annotations

from functools import partial
from typing import Any

import pynvml
import pytest

from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.cool_down import cool_down
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.companions.cool_down import as_cool_as_first, not_cooled
from tests.support.nvml_cards import gpu_uuid, h100_machine
from tests.support.nvml_record import NvmlRecord, Recorded, device
from tests.support.replayed_nvml import ReplayedNvml

GPU = gpu_uuid(0)
Answers = list[tuple[float, int | None]]
"""Temperatures from these seconds on; None: refused."""


def machine(*gpus: Answers) -> NvmlRecord:
    record = h100_machine(len(gpus))
    for index, answers in enumerate(gpus):
        recorded = [Recorded(error=3) if celsius is None else Recorded(value=celsius) for _, celsius in answers]
        at_ns = [int(at_s * 1e9) for at_s, _ in answers]
        arguments = [device(gpu_uuid(index)), pynvml.NVML_TEMPERATURE_GPU]
        record.set_call("nvmlDeviceGetTemperature", arguments, *recorded, at_ns=at_ns)
    return record


@pytest.mark.parametrize(
    ("gpus", "limit_s", "slept", "results"),
    [
        # the second may warm up again: it was cool enough once
        ([[(0, 60), (4, 50), (9.5, 40)], [(0, 45), (2, 39), (3, 55)]], 300, [1.0] * 10,
         [(60, 40, 10.0, True), (45, 39, 2.0, True)]),
        ([[(0, 36)]], 300, [], [(36, 36, 0.0, True)]),
        ([[(0, 70), (2, 55)]], 2.5, [1.0, 1.0, 0.5], [(70, 55, 2.5, False)]),
        # an interrupt after two seconds
        ([[(0, 70)]], None, [1.0, 1.0], [(70, 70, 2.0, False)]),
        ([[(0, None)]], 300, [], [(None, None, 0.0, False)]),
    ],
)  # fmt: skip
def test_each_gpu_is_waited_for_until_it_is_cool_or_given_up(
    gpus: list[Answers], limit_s: float | None, slept: list[float], results: list[Any]
) -> None:
    now_s = 0.0
    waits: list[float] = []
    asked = iter([False, False, True])

    def sleep(seconds: float) -> None:
        nonlocal now_s
        waits.append(seconds)
        now_s += seconds

    with open_nvml(ReplayedNvml(machine(*gpus), clock_ns=lambda: int(now_s * 1e9))) as nvml:
        found = cool_down(
            nvml.gpus, 40, limit_s=limit_s or 300, interrupted=lambda: limit_s is None and next(asked),
            clock=lambda: now_s, sleep=sleep,
        )  # fmt: skip
    assert waits == slept
    assert [(one.begin_c, one.end_c, one.waited_s, one.reached) for one in found] == results
    assert [GPU in one.message for one in not_cooled(found)] == [True] * (not results[0][3])


def test_launches_of_a_series_wait_for_the_temperature_before_the_first() -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    nvml = ReplayedNvml(machine([(0, 35), (10, 60), (13, 40)], [(0, 50), (10, 55)]), clock_ns=lambda: int(now_s * 1e9))
    gpus = [GpuRecord(index=index, uuid=gpu_uuid(index)) for index in range(2)]
    waiting = partial(cool_down, clock=lambda: now_s, sleep=sleep)
    first_c: dict[str, int] = {}
    assert as_cool_as_first(gpus, first_c, limit_s=60, nvml=nvml, wait=waiting) == []
    assert (first_c, now_s) == ({gpu_uuid(0): 35, gpu_uuid(1): 50}, 0.0)
    now_s = 10.0  # after a launch
    found = as_cool_as_first(gpus, first_c, limit_s=60, nvml=nvml, wait=waiting)
    assert [(one.target_c, one.begin_c, one.end_c, one.waited_s, one.reached) for one in found] == [
        (40, 60, 40, 3.0, True),
        (55, 55, 55, 0.0, True),
    ]
    assert first_c[gpu_uuid(0)] == 35
    now_s = 11.0  # the limit is that of all GPUs together
    (late, _) = as_cool_as_first(gpus, {gpu_uuid(0): 20, gpu_uuid(1): 50}, limit_s=4, nvml=nvml, wait=waiting)
    assert (late.waited_s, late.end_c, late.reached) == (4.0, 40, False)
    assert as_cool_as_first([], {}, limit_s=4, nvml=nvml) == []
