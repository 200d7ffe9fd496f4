"""Waiting for a temperature, on a made-up clock and a replayed NVML."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pynvml
import pytest

from perfharness.model.manifest import GpuRecord
from perfharness_launcher import conditions as module
from perfharness_launcher.conditions import as_cool_as_first, cool_down
from tests.support.nvml_cards import gpu_uuid, h100_machine
from tests.support.nvml_record import Recorded, device
from tests.support.replayed_nvml import ReplayedNvml

Answers = list[tuple[float, int | None]]
"""Temperatures from these seconds on; None: refused."""


class Machine:
    """GPUs whose temperatures follow a clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *gpus: Answers) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []
        record = h100_machine(len(gpus))
        for index, answers in enumerate(gpus):
            recorded = [Recorded(error=3) if celsius is None else Recorded(value=celsius) for _, celsius in answers]
            at_ns = [int(at_s * 1e9) for at_s, _ in answers]
            arguments = [device(gpu_uuid(index)), pynvml.NVML_TEMPERATURE_GPU]
            record.set_call("nvmlDeviceGetTemperature", arguments, *recorded, at_ns=at_ns)
        self.nvml = ReplayedNvml(record, clock_ns=lambda: int(self.now_s * 1e9))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep))
        monkeypatch.setattr("importlib.import_module", lambda _: self.nvml)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.mark.parametrize(
    ("gpus", "limit_s", "slept", "results"),
    [
        # the second may warm up again: it was cool enough once
        ([[(0, 60), (4, 50), (9.5, 40)], [(0, 45), (2, 39), (3, 55)]], 300, [1.0] * 10,
         [(60, 40, 10.0, True), (45, 39, 2.0, True)]),
        ([[(0, 36)]], 300, [], [(36, 36, 0.0, True)]),
        ([[(0, 60)]], 2.5, [1.0, 1.0, 0.5], [(60, 60, 2.5, False)]),
        ([[(0, None)]], 300, [], [(None, None, 0.0, False)]),
        ([[(0, 60)]], None, [1.0, 1.0], [(60, 60, 2.0, False)]),  # interrupted
    ],
)  # fmt: skip
def test_a_run_waits_until_all_gpus_were_cool_enough(
    monkeypatch: pytest.MonkeyPatch, gpus: list[Answers], limit_s: float | None, slept: list[float], results: object
) -> None:
    machine, asked = Machine(monkeypatch, *gpus), iter([False, False, True])
    targets_c = {gpu_uuid(index): 40.0 for index in range(len(gpus))}
    found = cool_down(targets_c, limit_s=limit_s or 300, interrupted=lambda: limit_s is None and next(asked))
    assert machine.slept == slept
    assert [(one.begin_c, one.end_c, one.waited_s, one.reached) for one in found] == results


def test_launches_of_a_series_wait_for_the_temperature_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, [(0, 35), (10, 60), (13, 40)], [(0, 50), (10, 55)])
    gpus = [GpuRecord(index=index, uuid=gpu_uuid(index)) for index in range(2)]
    wait = functools.partial(as_cool_as_first, interrupted=lambda: False, say=lambda _: None)
    first_c: dict[str, int] = {}
    assert wait(gpus, first_c, limit_s=60) == []
    assert (first_c, machine.now_s) == ({gpu_uuid(0): 35, gpu_uuid(1): 50}, 0.0)
    machine.now_s = 10.0  # after a launch
    found = wait(gpus, first_c, limit_s=60)
    assert [(one.target_c, one.begin_c, one.end_c, one.waited_s, one.reached) for one in found] == [
        (40, 60, 40, 3.0, True),
        (55, 55, 55, 0.0, True),
    ]
    assert first_c[gpu_uuid(0)] == 35
    machine.now_s = 11.0  # the limit is that of all GPUs together
    (late, _) = wait(gpus, {gpu_uuid(0): 20, gpu_uuid(1): 50}, limit_s=4)
    assert (late.waited_s, late.end_c, late.reached) == (4.0, 40, False)
