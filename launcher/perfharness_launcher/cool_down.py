"""Waiting until GPUs are cool enough: a warm card clocks lower, so repeats that begin warm are not repeats."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from perfharness.model.conditions import GpuWait
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import Device, open_nvml
from perfharness_launcher.conditions import Condition, Run

PERIOD_S = 1.0
START_MARGIN_C = 5
"""Each launch of a series begins at most this much warmer than the first one."""

Interrupted = Callable[[], bool]
Say = Callable[[str], object]


def cool_down(
    targets_c: Mapping[Device, float],
    *,
    limit_s: float,
    interrupted: Interrupted = lambda: False,
    say: Say = lambda _: None,
) -> list[GpuWait]:
    """Wait until the sensor of every GPU has reported at most its target once.

    Args:
        targets_c: by GPU of an open NVML. One whose temperature cannot be read is not waited for.
        limit_s: gives up after this time.
        interrupted: asked once a second; ends the waiting.
        say: called with a line when the wait begins.
    """
    begin, passed_s = time.monotonic(), 0.0
    found = {gpu: _read(gpu, target_c) for gpu, target_c in targets_c.items()}
    while waiting := [gpu for gpu, one in found.items() if not one.reached and one.reason is None]:
        if passed_s >= limit_s or interrupted():
            break
        if not passed_s:
            warm = ", ".join(f"{found[gpu].begin_c} °C for {targets_c[gpu]:g} °C" for gpu in waiting)
            say(f"waiting until the GPUs are cool ({warm}), at most {limit_s:g} s")
        time.sleep(min(PERIOD_S, limit_s - passed_s))
        passed_s = time.monotonic() - begin
        for gpu in waiting:
            waited = {"begin_c": found[gpu].begin_c, "waited_s": passed_s}
            found[gpu] = _read(gpu, targets_c[gpu]).model_copy(update=waited)
    return list(found.values())


def _read(gpu: Device, target_c: float) -> GpuWait:
    now = gpu.gpu.ask("nvmlDeviceGetTemperature", gpu.nvml.NVML_TEMPERATURE_GPU)
    now_c = int(now.value) if now.ok else None
    known = {"gpu_uuid": gpu.uuid, "target_c": target_c, "waited_s": 0.0, "reason": now.reason}
    reached = now_c is not None and now_c <= target_c
    return GpuWait.model_validate({**known, "begin_c": now_c, "end_c": now_c, "reached": reached})


def cooled_down(target_c: float, limit_s: float, say: Say) -> Condition:
    """Wait before the first process (`--cool-down`)."""

    @contextmanager
    def condition(run: Run) -> Iterator[None]:
        with open_nvml() as nvml:
            devices = list(filter(None, (nvml.device(gpu.uuid) for gpu in run.gpus)))
            targets_c = dict.fromkeys(devices, target_c)
            found = cool_down(targets_c, limit_s=limit_s, interrupted=run.interrupted, say=say)
            problems = [] if devices else [f"there is no GPU ({nvml.opened.reason or 'the run uses none'})"]
        problems += [_problem(one) for one in found if not one.reached]
        hint = "Use a higher --cool-down, or a longer cool-down-limit in perfharness.toml."
        run.findings += [
            Finding("not-cooled-down", Severity.WARNING, f"--cool-down: {problem}.", hint) for problem in problems
        ]
        gpus = [one.model_dump() for one in found]
        run.records["cool-down"] = {"target_c": target_c, "limit_s": limit_s, "gpus": gpus}
        yield

    return condition


def _problem(result: GpuWait) -> str:
    if result.reason is not None:
        return f"the temperature of GPU {result.gpu_uuid} cannot be read ({result.reason})"
    after = f"after {result.waited_s:.0f} s (target {result.target_c:g} °C, at first {result.begin_c} °C)"
    return f"GPU {result.gpu_uuid} was still at {result.end_c} °C {after}"


def as_cool_as_first(
    gpus: Sequence[GpuRecord],
    first_c: dict[str, int],
    *,
    limit_s: float,
    interrupted: Interrupted = lambda: False,
    say: Say = lambda _: None,
) -> list[GpuWait]:
    """Wait until the GPUs are about as cool as before the first launch of a series; before the first, note that.

    Args:
        first_c: temperatures before the first launch on each GPU, by UUID; missing ones are added.
    """
    if not gpus:
        return []
    with open_nvml() as nvml:
        devices = list(filter(None, (nvml.device(gpu.uuid) for gpu in gpus)))
        targets_c = {gpu: first_c[gpu.uuid] + float(START_MARGIN_C) for gpu in devices if gpu.uuid in first_c}
        now_c = {gpu.uuid: _read(gpu, 0.0).begin_c for gpu in devices if gpu not in targets_c}
        first_c |= {uuid: celsius for uuid, celsius in now_c.items() if celsius is not None}
        return cool_down(targets_c, limit_s=limit_s, interrupted=interrupted, say=say)
