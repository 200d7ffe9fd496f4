"""`--cool-down`: a launch begins when its GPUs are cool enough; so does each of a sweep or of repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfharness.model.findings import Finding, Severity
from perfharness.telemetry.cool_down import CoolDown, cool_down
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.companions.companion import Companion, CompanionContext, CompanionReport


class CoolDownCompanion(Companion):
    """Waits before the first process.

    Args:
        target_c: degrees Celsius.
        say: called with a line when there is something to wait for.
    """

    name = "cool-down"

    def __init__(self, target_c: float, limit_s: float, say: Callable[[str], None]) -> None:
        self._target_c = target_c
        self._limit_s = limit_s
        self._say = say
        self._results: list[CoolDown] = []
        self._problem: str | None = None

    def start(self, context: CompanionContext) -> None:
        """Wait."""
        with open_nvml() as nvml:
            uuids = [gpu.uuid for gpu in context.gpus]
            devices = [device for uuid in uuids if (device := nvml.device(uuid))]
            if not devices:
                self._problem = nvml.opened.reason or "the run uses no GPU"
            self._results = cool_down(
                devices, self._target_c, limit_s=self._limit_s, interrupted=context.interrupted, say=self._say
            )

    def stop(self) -> CompanionReport:
        """Report how long it took, and what stayed too warm."""
        record = {
            "target_c": self._target_c,
            "limit_s": self._limit_s,
            "gpus": [item.to_json() for item in self._results],
        }
        nothing = f"--cool-down waited for no GPU: {self._problem}"
        findings = [] if self._problem is None else [Finding("not-cooled-down", Severity.WARNING, nothing)]
        return CompanionReport([*findings, *not_cooled(self._results)], record)


def not_cooled(results: Sequence[CoolDown]) -> list[Finding]:
    """A finding for each GPU that was not cool enough when the run began."""
    hint = "a higher --cool-down, or a longer --cool-down-limit"
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
