"""Waiting until GPUs are cool enough: a warm card clocks lower, so repeats that begin warm are not repeats."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perfharness.telemetry.nvml import Device

PERIOD_S = 1.0


@dataclass(frozen=True)
class CoolDown:
    """How one GPU was waited for.

    Args:
        begin_c, end_c: its temperature at first and at last, degrees Celsius; None where it could not be read.
        waited_s: until it was cool enough, or was given up.
        reached: whether it was cool enough in the end.
        reason: why its temperature could not be read.
    """

    gpu_uuid: str
    target_c: float
    begin_c: int | None
    end_c: int | None
    waited_s: float
    reached: bool
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        return asdict(self)


def cool_down(
    gpus: Sequence[Device],
    target_c: float,
    *,
    limit_s: float,
    interrupted: Callable[[], bool] = lambda: False,
    say: Callable[[str], object] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[CoolDown]:
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
    begin = clock()
    results = [_read(gpu, None, target_c, 0.0) for gpu in gpus]
    if any(_is_waiting(result) for result in results):
        warm = ", ".join(f"{result.begin_c} °C" for result in results if _is_waiting(result))
        say(f"waiting for {target_c:g} °C (now {warm}), at most {limit_s:g} s")
    while any(_is_waiting(result) for result in results) and clock() - begin < limit_s and not interrupted():
        sleep(min(PERIOD_S, max(0.0, limit_s - (clock() - begin))))
        results = [
            _read(gpu, result, target_c, clock() - begin) if _is_waiting(result) else result
            for gpu, result in zip(gpus, results, strict=True)
        ]
    return results


def _is_waiting(result: CoolDown) -> bool:
    return not result.reached and result.reason is None


def _read(gpu: Device, before: CoolDown | None, target_c: float, waited_s: float) -> CoolDown:
    now = gpu.gpu.ask("nvmlDeviceGetTemperature", gpu.nvml.NVML_TEMPERATURE_GPU)
    temperature = int(now.value) if now.ok else None
    return CoolDown(
        gpu.uuid,
        target_c,
        before.begin_c if before else temperature,
        temperature,
        waited_s,
        temperature is not None and temperature <= target_c,
        now.reason,
    )
