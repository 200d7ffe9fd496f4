"""Clocks at their maximum beside a launch: set before the first process, restored after the last, however it ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from perfharness.errors import ClockError
from perfharness.model.clocks import CLOCKS_COMPANION, ClocksRecord, ClockStep
from perfharness.model.findings import Finding, Severity
from perfharness.telemetry.clock_state import StateStore, own_store
from perfharness.telemetry.clock_words import RESTORE_COMMAND, restored_in_words, steps_in_words
from perfharness.telemetry.clocks import ClockTaker, Restored, process_as_owner
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.companions import CompanionContext, CompanionReport, MeasuredProcess

UNDONE_MEANWHILE = "somebody restored the clocks while the run lasted (`clocks restore --force`)"
PERMISSION_CURE = (
    "locking clocks takes root with CAP_SYS_ADMIN; perfharness doctor says what is missing; without -m nothing is set"
)


class ClockCompanion:
    """Maximises the clocks of a launch's GPUs.

    Args:
        stop_on_refusal: whether a launch whose clocks cannot all be set is to end before it began.
        store: where what they were before is kept; None: this user's place.
    """

    name = CLOCKS_COMPANION

    def __init__(self, *, stop_on_refusal: bool = False, store: StateStore | None = None) -> None:
        self.essential = stop_on_refusal
        self._store = store or own_store()
        self._open = ExitStack()
        self._taker: ClockTaker | None = None

    def start(self, context: CompanionContext) -> None:
        """Set everything; NVML stays open, for without persistence mode the driver forgets when nobody uses it."""
        with ExitStack() as opening:
            nvml = opening.enter_context(open_nvml())
            self._taker = ClockTaker(
                nvml,
                self._store,
                process_as_owner("launch"),
                stop_on_refusal=self.essential,
                interrupted=context.interrupted,
            )
            steps = self._taker.take([gpu.uuid for gpu in context.plan.gpus])
            if self.essential and (refusals := refused_lines(steps)):
                self._taker.give_back()
                raise ClockError(f"the clocks cannot be set as asked: {'; '.join(refusals)}; what was set is restored")
            self._open = opening.pop_all()

    def measured(self, process: MeasuredProcess) -> None:
        """Nothing is to be done for a process."""

    def stop(self) -> CompanionReport:
        """Restore, and tell what was set and what became of it."""
        assert self._taker is not None
        with self._open:
            restored = self._taker.give_back()
        steps = with_outcomes(self._taker.steps, restored)
        record = ClocksRecord(steps=steps)
        if not steps:
            none = Finding(
                "clocks-refused", Severity.WARNING, "there is no GPU whose clocks could be set", "leave -m away"
            )
            return CompanionReport([none], record.model_dump(mode="json"))
        findings = [*refusal_findings(steps), *restore_findings(restored), *undone_findings(steps)]
        return CompanionReport(findings, record.model_dump(mode="json"))


def with_outcomes(steps: Sequence[ClockStep], restored: Iterable[Restored]) -> list[ClockStep]:
    """The steps, with what became of each change in the end."""
    outcomes = {(item.gpu_uuid, item.setting): item for item in restored}
    return [_with_outcome(step, outcomes.get((step.gpu_uuid, step.setting))) for step in steps]


def _with_outcome(step: ClockStep, found: Restored | None) -> ClockStep:
    if found is not None:
        return step.model_copy(update={"restored": found.outcome, "restored_reason": found.reason})
    if step.answer == "set":  # and nothing is remembered of it
        return step.model_copy(update={"restored": "changed_by_others", "restored_reason": UNDONE_MEANWHILE})
    return step


def refused_lines(steps: Sequence[ClockStep]) -> list[str]:
    """A line for each step that was refused."""
    return [line for step, line in steps_in_words(steps) if step.answer == "refused"]


def refusal_findings(steps: Sequence[ClockStep]) -> list[Finding]:
    """A finding for each step that was refused."""
    return [Finding("clocks-refused", Severity.WARNING, line, PERMISSION_CURE) for line in refused_lines(steps)]


def restore_findings(restored: Iterable[Restored]) -> list[Finding]:
    """A finding for each change that did not come back as it should have."""
    findings = []
    for item in restored:
        if item.outcome == "failed":
            findings.append(Finding("clocks-not-restored", Severity.ERROR, restored_in_words(item), RESTORE_COMMAND))
        elif item.outcome == "changed_by_others":
            findings.append(Finding("clocks-changed-meanwhile", Severity.WARNING, restored_in_words(item)))
    return findings


def undone_findings(steps: Sequence[ClockStep]) -> list[Finding]:
    """A finding for each GPU whose clocks were restored under the run."""
    gpus = dict.fromkeys(step.gpu_uuid for step in steps if step.restored_reason == UNDONE_MEANWHILE)
    return [
        Finding("clocks-changed-meanwhile", Severity.WARNING, f"GPU {uuid}: {UNDONE_MEANWHILE}", "run it again")
        for uuid in gpus
    ]
