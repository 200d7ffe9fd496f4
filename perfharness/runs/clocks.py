"""Traces put on UTC by the clock that was sampled during the run."""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from perfharness.analysis.timeline.clock import tie_trace_clock
from perfharness.model.manifest import RunManifest
from perfharness.model.telemetry import ClockTieRecord
from perfharness.model.trace import Trace


def machine_clock(manifest: RunManifest) -> ClockTieRecord | None:
    """UTC against the monotonic clock, as the sampler measured it; None where nothing was sampled."""
    try:
        return ClockTieRecord.model_validate(manifest.companions.get("telemetry", {}).get("clock"))
    except ValidationError:
        return None


def on_utc(trace: Trace, machine: ClockTieRecord | None) -> Trace:
    """The trace with the best that is known of UTC as its session start."""
    clock = tie_trace_clock(trace, machine)
    if clock is None:
        return trace
    return replace(trace, meta=replace(trace.meta, session_start_unix_ns=clock.unix_origin_ns, clock=clock))
