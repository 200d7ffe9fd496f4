"""Clocks at their maximum during a launch: set before the first process, restored after the last, however it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from perfharness.errors import PerfHarnessError
from perfharness.model.clocks import CLOCKS_COMPANION, ClocksRecord, ClockStep
from perfharness.model.findings import Finding, Severity
from perfharness.telemetry.clock_files import state_dirs
from perfharness.telemetry.clock_settings import refusal_lines
from perfharness.telemetry.clocks import RESTORE_COMMAND, ClockOwner, Restored
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.conditions import Run

RESTORED_DURING_RUN = "the clocks were restored during the run (`clocks restore --force`)"
PERMISSION_HINT = (
    "locking clocks takes root with CAP_SYS_ADMIN; perfharness doctor says what is missing; without -m nothing is set"
)


@contextmanager
def maximized_clocks(run: Run) -> Iterator[None]:
    """Maximize the clocks of the run's GPUs. NVML stays open: without persistence mode an idle driver forgets them."""
    with open_nvml() as nvml:
        owner = ClockOwner(nvml, state_dirs()[0], run.interrupted)
        try:
            owner.maximize([gpu.uuid for gpu in run.gpus])
        except PerfHarnessError as error:
            run.findings.append(Finding("clocks-refused", Severity.ERROR, str(error), PERMISSION_HINT))
            yield
            return
        yield
        restored = owner.restore()
    steps = [_with_outcome(step, restored) for step in owner.steps]
    run.findings += _findings(steps, restored)
    run.records[CLOCKS_COMPANION] = ClocksRecord(steps=steps).model_dump(mode="json")


def _with_outcome(step: ClockStep, restored: Sequence[Restored]) -> ClockStep:
    """The step, with the outcome of undoing it."""
    for item in restored:
        if (item.gpu_uuid, item.setting) == (step.gpu_uuid, step.setting):
            return step.model_copy(update={"restored": item.outcome, "restored_reason": item.reason})
    if step.answer == "set":  # and its state file is gone
        return step.model_copy(update={"restored": "changed_by_others", "restored_reason": RESTORED_DURING_RUN})
    return step


def _findings(steps: Sequence[ClockStep], restored: Sequence[Restored]) -> list[Finding]:
    """What was refused, what did not come back as it should have, which GPUs were restored under the run."""
    if not steps:
        return [
            Finding("clocks-refused", Severity.WARNING, "there is no GPU whose clocks could be set", "leave -m away")
        ]
    undone = dict.fromkeys(step.gpu_uuid for step in steps if step.restored_reason == RESTORED_DURING_RUN)
    return [
        *(Finding("clocks-refused", Severity.WARNING, line, PERMISSION_HINT) for line in refusal_lines(steps)),
        *(
            Finding("clocks-not-restored", Severity.ERROR, str(item), RESTORE_COMMAND)
            if item.outcome == "failed"
            else Finding("clocks-changed-meanwhile", Severity.WARNING, str(item))
            for item in restored
            if item.outcome in ("failed", "changed_by_others")
        ),
        *(
            Finding("clocks-changed-meanwhile", Severity.WARNING, f"GPU {uuid}: {RESTORED_DURING_RUN}", "run it again")
            for uuid in undone
        ),
    ]
