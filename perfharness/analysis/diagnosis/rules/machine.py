"""Rules about CPUs that the machine keeps from the process: by a quota, by its hypervisor."""

from __future__ import annotations

from perfharness.analysis.diagnosis.rules.evidence import Figures, Match, percent
from perfharness.model.diagnosis import Verdict

OF_MACHINE = frozenset({Verdict.CPU_QUOTA, Verdict.CPU_STEAL})
"""Verdicts of the measured pass alone: what the machine keeps from one pass it need not keep from the other, and
recording uses up a quota, too."""

KEPT_SHARE = 0.20
"""Of the host time. Many programs use up a quota, or lose a few percent, without being slow for it."""

QUOTA_STEP = (
    "Raise the CPU quota (docker --cpus, limits.cpu of Kubernetes), or run no more threads than it is worth CPUs: "
    "OMP_NUM_THREADS, torch.set_num_threads, fewer workers or processes (-np)."
)
STEAL_STEP = (
    "Run it on a machine that has its CPUs to itself: another host or kind of instance; one whose CPU credits are used "
    "up gets less, too."
)
NO_LINE = "what keeps the CPUs from it is the machine, not a line of this stage"


def cpu_quota(f: Figures) -> Match | None:
    """A quota of the process's control groups is used up, so that all of the group stands still."""
    lost = f.throttled_ns
    if not lost or f.kept.quota_cpus is None:
        return None
    evidence = (
        f"A quota of {f.kept.quota_cpus:.3g} CPUs is used up: its container or control group stands still for "
        f"{percent(lost, f.wall)} of its host time."
    )
    return _match(f, Verdict.CPU_QUOTA, lost, evidence, QUOTA_STEP)


def cpu_steal(f: Figures) -> Match | None:
    """The hypervisor gives the CPUs of this virtual machine to others."""
    share = f.kept.stolen_share or 0.0
    evidence = f"The hypervisor gives {100 * share:.0f} % of the CPU time that this machine wants to other machines."
    return _match(f, Verdict.CPU_STEAL, share * f.computing_ns, evidence, STEAL_STEP)


def _match(f: Figures, verdict: Verdict, lost: float, evidence: str, next_step: str) -> Match | None:
    if lost <= 0:
        return None
    return Match(
        verdict, lost, f.wall, [evidence], next_step, verdict_share=KEPT_SHARE,
        saves_ns=min(lost, f.gpu_idle) if f.uses_gpu else lost, where_reason=NO_LINE,
    )  # fmt: skip
