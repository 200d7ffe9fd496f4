"""Doubts about the diagnosis of a process: a busy machine, a pass that differs, a GPU that others may have used."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.analysis.diagnosis.host import MIN_SAMPLES
from perfharness.model.activity import Activity
from perfharness.model.diagnosis import Code, Diagnosis
from perfharness.model.findings import Finding, Severity
from perfharness.model.result import path_text

SHARED_CPUS = 0.5
"""Of a batch's time, waiting for a CPU: what was measured is less than half of what the program does."""


def diagnosis_findings(diagnosis: Diagnosis, others_reason: str | None) -> Iterator[Finding]:
    """Findings; `others_reason`: why it is not known when other processes of the run used the GPU."""
    if others_reason is not None:
        message = f"Waits for a GPU that processes share are not known: {others_reason}."
        yield Finding("gpu-sharing-unknown", Severity.NOTE, message)
    changed = [stage for stage in diagnosis.stages if stage.is_changed]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        message = f"In the profiling pass {path_text(changed[0].path)}{more} took another part of the batch."
        hint = "Read the shares of these stages as those of the profiling pass."
        yield Finding("profiling-pass-differs", Severity.NOTE, message, hint)
    loops = {loop.loop for loop in diagnosis.warmup}
    batches = [stage for stage in diagnosis.stages if stage.path in loops and stage.samples >= MIN_SAMPLES]
    waits = {
        one.path: one.activities.get(Activity.NO_CPU, 0.0)
        for one in batches
        if all(cause.code is not Code.CPU_CONTENTION for cause in one.causes)
    }
    worst = max(waits, key=lambda path: waits[path], default=None)
    if worst is None or waits[worst] <= SHARED_CPUS:
        return
    who = "Other" if all(one.slowdown is None for one in batches) else "In the profiling pass other"
    message = (
        f"{who} programs had the CPUs {100 * waits[worst]:.0f} % of the time of {path_text(worst)}: times and savings "
        "are those of a busy machine."
    )
    yield Finding("cpu-shared", Severity.WARNING, message, "Measure while nothing else runs on the machine.")
