"""Figures of a stage for tests of a few of them: all others are 0, empty or unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfharness.model.diagnosis import GpuLimit, GpuLimits, GpuWork, HostWork

_NO_LIMITS = GpuLimits(
    limit=GpuLimit.CANNOT_TELL, basis=None, work_ms=0.0, by_name_ms={}, underfilled_ms=None, short_ms=0.0, tail_ms=None,
    moved_gb_per_s=None, moved_peak_share=None, at_peak_ms=None, evidence=[], missing=[],
)  # fmt: skip
_NO_WORK = GpuWork(
    kernel_count=0.0, kernel_time_ms=0.0, kernel_share=None, top_kernels=[], copies=[], memset_count=0.0,
    memset_time_ms=0.0, memset_bytes=0.0, graph_launch_count=0.0, graph_time_ms=0.0, busy_ms=0.0, projected_ms=0.0,
    operation_time_ms=0.0, streams=0, stream_overlap_ms=0.0, copy_with_compute_ms=0.0, shared_with_processes_ms=None,
    limits=_NO_LIMITS,
)  # fmt: skip
_IDLE_HOST = HostWork(
    activity_ms={}, calls={}, blocked_ms={}, blocking_calls=0.0, blocking_ms=0.0, launch_latency_us=None,
    queueing_us=None, longest_waits=[],
)  # fmt: skip


def gpu_work(**figures: Any) -> GpuWork:
    """A stage's GPU work with these figures."""
    return replace(_NO_WORK, **figures)


def host_work(**figures: Any) -> HostWork:
    """A stage's host work with these figures."""
    return replace(_IDLE_HOST, **figures)
