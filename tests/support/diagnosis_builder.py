"""Figures of a stage for tests of a few of them: all others are 0, empty or unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfharness.analysis.diagnosis.rules.evidence import Figures, HostEvidence, Issuing
from perfharness.model.diagnosis import FunctionTime, GpuLimit, GpuLimits, GpuWork, HostProfile, HostWork

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


_NO_PROFILE = HostProfile(
    samples=0, on_cpu_ms=None, state_ms={}, top_functions=[], collections=None, collection_ms=None, gil_holders=[],
    missing=[],
)  # fmt: skip
_NO_FIGURES = Figures(
    wall=0.0, span=0.0, batches=1, gpu_busy=0.0, copy_only=0.0, pageable=0.0, gpu_idle=0.0, blocking_idle=0.0,
    outside=0.0, issuing=Issuing(), operation_time=0.0, for_stages=0.0, other_stage=None, shared=None, loading=0.0,
    slow_start=0.0, recompiling=None, waiting_share=None, ready_share=None, api_is_complete=True, limits=_NO_LIMITS,
    blocked=None, other_thread=None, gpu_shares={},
)  # fmt: skip


def gpu_work(**figures: Any) -> GpuWork:
    """A stage's GPU work with these figures."""
    return replace(_NO_WORK, **figures)


def host_work(**figures: Any) -> HostWork:
    """A stage's host work with these figures."""
    return replace(_IDLE_HOST, **figures)


def line(function: str, number: int = 1) -> FunctionTime:
    """A line of `user.py`."""
    return FunctionTime(function, "user.py", number, self_ms=1.0, cumulative_ms=1.0, error_ms=0.1)


def figures(ms: float = 1.0, **others: Any) -> Figures:
    """What the rules read of a stage of one batch that takes so long, all of it outside of CUDA calls."""
    wall = ms * 1e6
    return replace(_NO_FIGURES, **({"wall": wall, "span": wall, "gpu_idle": wall, "outside": wall} | others))


def host_evidence(*, profile: dict[str, Any] | None = None, **evidence: Any) -> HostEvidence:
    """What samples say of a stage; `profile` are figures of its `HostProfile`."""
    return HostEvidence(replace(_NO_PROFILE, **(profile or {})), **evidence)
