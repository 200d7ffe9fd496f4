"""`--cool-down`: a launch begins when its GPUs are cool enough; so does each of a sweep or of repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.cool_down import CoolDown, cool_down
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.conditions import Condition, Run

START_MARGIN_C = 5
"""A launch of a series begins at most so much warmer than the first: idle GPUs differ by less from minute to minute."""


def cooled_down(target_c: float, limit_s: float, say: Callable[[str], None]) -> Condition:
    """Wait before the first process until the GPUs are cool.

    Args:
        target_c: degrees Celsius.
        say: called with a line when there is something to wait for.
    """

    @contextmanager
    def condition(run: Run) -> Iterator[None]:
        with open_nvml() as nvml:
            devices = [device for gpu in run.gpus if (device := nvml.device(gpu.uuid))]
            if not devices:
                nothing = f"--cool-down waited for no GPU: {nvml.opened.reason or 'the run uses no GPU'}"
                run.findings.append(Finding("not-cooled-down", Severity.WARNING, nothing))
            results = cool_down(devices, target_c, limit_s=limit_s, interrupted=run.interrupted, say=say)
        run.findings += not_cooled(results)
        gpus = [item.to_json() for item in results]
        run.records["cool-down"] = {"target_c": target_c, "limit_s": limit_s, "gpus": gpus}
        yield

    return condition


def as_cool_as_first(
    gpus: Sequence[GpuRecord],
    first_c: dict[str, int],
    *,
    limit_s: float,
    interrupted: Callable[[], bool] = lambda: False,
    say: Callable[[str], object] = lambda _: None,
    nvml: Any = None,
    wait: Callable[..., list[CoolDown]] = cool_down,
) -> list[CoolDown]:
    """Wait until the GPUs are about as cool as before the first launch of a series; before the first, note that.

    Args:
        gpus: of the launch that is about to begin.
        first_c: temperatures before the first launch on each GPU, by UUID; what it does not have is added.
        limit_s: of all GPUs together; after that long, the launch begins in any case.
        nvml: `pynvml`, or one that answers like it; None: as `open_nvml` decides.
        wait: waits for some GPUs; replaced in tests.

    Returns:
        One for each GPU that was waited for, or could have been.
    """
    found: list[CoolDown] = []
    if not gpus:
        return found
    with open_nvml(nvml) as opened:
        for gpu in gpus:
            if (device := opened.device(gpu.uuid)) is None:
                continue
            if gpu.uuid not in first_c:
                (now,) = wait([device], 0.0, limit_s=0.0)  # reads it
                if now.begin_c is not None:
                    first_c[gpu.uuid] = now.begin_c
                continue
            left_s = max(0.0, limit_s - sum(one.waited_s for one in found))
            target_c = first_c[gpu.uuid] + START_MARGIN_C
            found += wait([device], target_c, limit_s=left_s, interrupted=interrupted, say=say)
    return found


def not_cooled(results: Sequence[CoolDown]) -> list[Finding]:
    """A finding for each GPU that was not cool enough when the run began."""
    hint = "a higher --cool-down, or a longer cool-down-limit in perfharness.toml"
    return [
        Finding("not-cooled-down", Severity.WARNING, _message(result), hint) for result in results if not result.reached
    ]


def _message(result: CoolDown) -> str:
    if result.reason is not None:
        return f"GPU {result.gpu_uuid}: the temperature cannot be read ({result.reason}), so nothing waited for it"
    return (
        f"GPU {result.gpu_uuid} was still {result.end_c} °C after {result.waited_s:.0f} s"
        f" ({result.begin_c} °C before); at most {result.target_c:g} °C was asked for"
    )
