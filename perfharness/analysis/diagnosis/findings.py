"""Doubts about a diagnosis: a busy machine, a pass that differs, a GPU that others may have used."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.analysis.diagnosis.host import MIN_SAMPLES
from perfharness.model.activity import Activity
from perfharness.model.diagnosis import Code, Diagnosis
from perfharness.model.findings import Finding, Severity
from perfharness.model.result import path_text

SHARED_CPUS = 0.5
"""Share of a batch's time spent waiting for a CPU: above it, less than half of the measured time is the program's."""


def diagnosis_findings(diagnosis: Diagnosis, others_reason: str | None) -> Iterator[Finding]:
    """Findings about a diagnosis; `others_reason`: why the GPU use of the run's other processes is unknown."""
    if others_reason is not None:
        message = f"Waits for a shared GPU are unknown: {others_reason}."
        yield Finding("gpu-sharing-unknown", Severity.NOTE, message)
    changed = [stage for stage in diagnosis.stages if stage.is_changed]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        message = f"{path_text(changed[0].path)}{more} took a different share of the batch in the profiling pass."
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
    who = "Other" if all(one.slowdown is None for one in batches) else "In the profiling pass, other"
    message = (
        f"{who} programs occupied the CPUs {100 * waits[worst]:.0f} % of the time of {path_text(worst)}; times and "
        "savings are those of a busy machine."
    )
    yield Finding("cpu-shared", Severity.WARNING, message, "Measure on an idle machine.")
