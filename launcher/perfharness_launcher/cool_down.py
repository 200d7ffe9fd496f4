"""Waiting until GPUs are cool enough: a warm card clocks lower, so repeats that begin warm are not repeats."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from perfharness.model.findings import Finding, Severity
from perfharness.model.gpu_wait import GpuWait
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import Device, open_nvml
from perfharness_launcher.conditions import Condition, Run

PERIOD_S = 1.0

START_MARGIN_C = 5
"""A launch of a series begins at most so much warmer than the first: idle GPUs differ by less from minute to minute."""

HINT = "a higher --cool-down, or a longer cool-down-limit in perfharness.toml"


def cool_down(
    gpus: Sequence[Device], target_c: float, *, limit_s: float,
    interrupted: Callable[[], bool] = lambda: False, say: Callable[[str], object] = lambda _: None,
) -> list[GpuWait]:  # fmt: skip
    """Wait until every GPU is at most that warm, by the sensor on its die.

    Args:
        gpus: of an open NVML; a MIG instance stands for its whole GPU.
        target_c: degrees Celsius.
        limit_s: after that long, those that are still too warm are given up.
        interrupted: asked once a second; ends the waiting.
        say: called with a line when the wait begins.

    Returns:
        One per GPU, in the order given. A GPU whose temperature cannot be read is not waited for.
    """
    begin = time.monotonic()
    found = {gpu: _read(gpu, target_c) for gpu in gpus}
    while waiting := [gpu for gpu, one in found.items() if not one.reached and one.reason is None]:
        passed_s = time.monotonic() - begin
        if passed_s >= limit_s or interrupted():
            break
        if all(one.waited_s == 0 for one in found.values()):
            warm = ", ".join(f"{found[gpu].begin_c} °C" for gpu in waiting)
            say(f"waiting for {target_c:g} °C (now {warm}), at most {limit_s:g} s")
        time.sleep(min(PERIOD_S, limit_s - passed_s))
        for gpu in waiting:
            now = _read(gpu, target_c)
            waited = {"begin_c": found[gpu].begin_c, "waited_s": time.monotonic() - begin}
            found[gpu] = now.model_copy(update=waited)
    return list(found.values())


def _read(gpu: Device, target_c: float) -> GpuWait:
    now = gpu.gpu.ask("nvmlDeviceGetTemperature", gpu.nvml.NVML_TEMPERATURE_GPU)
    temperature = int(now.value) if now.ok else None
    reached = temperature is not None and temperature <= target_c
    return GpuWait(
        gpu_uuid=gpu.uuid,
        target_c=target_c,
        begin_c=temperature,
        end_c=temperature,
        waited_s=0.0,
        reached=reached,
        reason=now.reason,
    )


def cooled_down(target_c: float, limit_s: float, say: Callable[[str], None]) -> Condition:
    """Wait before the first process (`--cool-down`)."""

    @contextmanager
    def condition(run: Run) -> Iterator[None]:
        with open_nvml() as nvml:
            devices = [device for gpu in run.gpus if (device := nvml.device(gpu.uuid)) is not None]
            found = cool_down(devices, target_c, limit_s=limit_s, interrupted=run.interrupted, say=say)
            if not devices:
                problem = nvml.opened.reason or "the run uses no GPU"
                text = f"--cool-down waited for no GPU: {problem}"
                run.findings.append(Finding("not-cooled-down", Severity.WARNING, text))
        gpus = [one.model_dump() for one in found]
        run.records["cool-down"] = {"target_c": target_c, "limit_s": limit_s, "gpus": gpus}
        run.findings += [
            Finding("not-cooled-down", Severity.WARNING, _message(one), HINT) for one in found if not one.reached
        ]
        yield

    return condition


def as_cool_as_first(
    gpus: Sequence[GpuRecord], first_c: dict[str, int], *, limit_s: float,
    interrupted: Callable[[], bool] = lambda: False, say: Callable[[str], object] = lambda _: None,
) -> list[GpuWait]:  # fmt: skip
    """Wait until the GPUs are about as cool as before the first launch of a series; before the first, note that.

    Args:
        gpus: of the launch that is about to begin.
        first_c: temperatures before the first launch on each GPU, by UUID; what it does not have is added.
        limit_s: of all GPUs together; after that long, the launch begins in any case.

    Returns:
        One for each GPU that was waited for, or could have been.
    """
    found: list[GpuWait] = []
    if not gpus:
        return found
    with open_nvml() as nvml:
        for gpu in gpus:
            if (device := nvml.device(gpu.uuid)) is None:
                continue
            if gpu.uuid in first_c:
                left_s = max(0.0, limit_s - sum(one.waited_s for one in found))
                target_c = first_c[gpu.uuid] + START_MARGIN_C
                found += cool_down([device], target_c, limit_s=left_s, interrupted=interrupted, say=say)
            elif (now_c := _read(device, 0.0).begin_c) is not None:
                first_c[gpu.uuid] = now_c
    return found


def _message(result: GpuWait) -> str:
    if result.reason is not None:
        return f"GPU {result.gpu_uuid}: did not wait, its temperature cannot be read ({result.reason})."
    return (
        f"GPU {result.gpu_uuid} was still at {result.end_c} °C after {result.waited_s:.0f} s (target "
        f"{result.target_c:g} °C, at first {result.begin_c} °C)."
    )
