"""Waiting until GPUs are cool enough: a warm card clocks lower, so repeats that begin warm are not repeats."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from perfharness.model.findings import Finding, Severity
from perfharness.model.gpu_wait import GpuWait
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import Answer, Nvml, open_nvml
from perfharness_launcher.conditions import Condition, Run

PERIOD_S = 1.0
START_MARGIN_C = 5.0
"""Each launch of a series begins at most this much warmer than the first one."""

Interrupted = Callable[[], bool]
Say = Callable[[str], object]


def cool_down(
    targets_c: Mapping[str, float],
    *,
    limit_s: float,
    interrupted: Interrupted = lambda: False,
    say: Say = lambda _: None,
) -> list[GpuWait]:
    """Wait until the sensor of every GPU has reported at most its target once.

    Args:
        targets_c: by UUID. A GPU whose temperature cannot be read is not waited for.
        limit_s: gives up after this time.
        interrupted: asked once a second; ends the waiting.
        say: called with a line when the wait begins.
    """
    if not targets_c:
        return []
    begin, passed_s = time.monotonic(), 0.0
    with open_nvml() as nvml:
        found = {uuid: _read(nvml, uuid, target_c) for uuid, target_c in targets_c.items()}
        while waiting := [one for one in found.values() if not one.reached and one.reason is None]:
            if passed_s >= limit_s or interrupted():
                break
            if not passed_s:
                warm = ", ".join(f"{one.begin_c} °C for {one.target_c:g} °C" for one in waiting)
                say(f"waiting until the GPUs are cool ({warm}), at most {limit_s:g} s")
            time.sleep(min(PERIOD_S, limit_s - passed_s))
            passed_s = time.monotonic() - begin
            for one in waiting:
                now = _read(nvml, one.gpu_uuid, one.target_c)
                found[one.gpu_uuid] = now.model_copy(update={"begin_c": one.begin_c, "waited_s": passed_s})
    return list(found.values())


def _read(nvml: Nvml, uuid: str, target_c: float) -> GpuWait:
    device, now = nvml.device(uuid), Answer(reason=nvml.opened.reason or "there is no such GPU")
    if device is not None:
        now = device.gpu.ask("nvmlDeviceGetTemperature", nvml.module.NVML_TEMPERATURE_GPU)
    reached = now.value is not None and now.value <= target_c
    return GpuWait(
        gpu_uuid=uuid,
        target_c=target_c,
        begin_c=now.value,
        end_c=now.value,
        waited_s=0.0,
        reached=reached,
        reason=now.reason,
    )


def cooled_down(target_c: float, limit_s: float, say: Say) -> Condition:
    """Wait before the first process (`--cool-down`)."""

    @contextmanager
    def condition(run: Run) -> Iterator[None]:
        targets_c = dict.fromkeys((gpu.uuid for gpu in run.gpus), target_c)
        found = cool_down(targets_c, limit_s=limit_s, interrupted=run.interrupted, say=say)
        problems = [_problem(one) for one in found if not one.reached] if found else ["the run uses no GPU"]
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
    gpus: Sequence[GpuRecord], first_c: dict[str, int], *, limit_s: float, interrupted: Interrupted, say: Say
) -> list[GpuWait]:
    """Wait until the GPUs are about as cool as before the first launch of a series; before the first, note that.

    Args:
        first_c: temperatures before the first launch on each GPU, by UUID; missing ones are added.
    """
    known = dict(first_c)
    targets_c = {gpu.uuid: known.get(gpu.uuid, math.inf) + START_MARGIN_C for gpu in gpus}
    found = cool_down(targets_c, limit_s=limit_s, interrupted=interrupted, say=say)
    first_c |= {one.gpu_uuid: one.begin_c for one in found if one.begin_c is not None} | known
    return [one for one in found if one.gpu_uuid in known]
