"""Is the warm-up long enough: where the steady state of a loop of batches begins.

The reference is the second half of the loop: its median is the level, and what lies within three scaled median absolute
deviations of it counts as steady (Hampel's identifier: Hampel, "The influence curve and its role in robust estimation",
JASA 69, 1974; three of them as in Leys et al., J. Exp. Soc. Psych. 49, 2013). Robust figures, because single slow
batches are normal and unrelated to warm-up.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfharness.model.diagnosis import Path, WarmupDiagnosis, WarmupState
from perfharness.model.findings import Finding, Severity
from perfharness.model.result import Float64, path_text

MIN_BATCHES = 12
"""Fewer leave quarters of less than three batches, whose medians mean nothing."""
DEVIATIONS = 3.0
MAD_TO_SIGMA = 1.4826
"""Makes a median absolute deviation comparable with a standard deviation, for normal values."""
MIN_TOLERANCE = 0.10
"""Of the level: an H200 under load changes its clock by 5 % from one second to the next, which is not warming up."""
STEADY_RUN = 3
"""So many steady batches in a row begin the steady state: one may be steady by accident."""
LATEST_START = 0.5
"""A loop that settles only in its second half has no steady reference, and is never steady."""


def judge_warmup(loop: Path, times_ms: Float64, warmup_batches: int) -> WarmupDiagnosis:
    """Where the steady state begins.

    Args:
        loop: name of the loop.
        times_ms: host time of each batch, in order of start, warm-up included.
        warmup_batches: the cut that was chosen.
    """
    count = len(times_ms)

    def judged(state: WarmupState, start: int | None, reason: str | None, *scale: float) -> WarmupDiagnosis:
        level, tolerance = scale or (None, None)
        return WarmupDiagnosis(loop, count, warmup_batches, start, state, level, tolerance, reason)

    if count < MIN_BATCHES:
        return judged("cannot-tell", None, f"{count} batches are too few to tell ({MIN_BATCHES} are needed)")
    # The last -w batches are excluded too, so they are no reference.
    reference = times_ms[count // 2 : count - min(warmup_batches, count // 4)]
    level = float(np.median(reference))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(reference - level)))
    tolerance = max(DEVIATIONS * spread, MIN_TOLERANCE * level)
    half = len(reference) // 2
    drift = abs(float(np.median(reference[half:])) - float(np.median(reference[:half])))
    # Standard error of a median of `half` values: 1.2533 sigma / sqrt(half); of the difference of two, sqrt(2) more.
    drifts = drift > max(DEVIATIONS * 1.2533 * spread * np.sqrt(2 / max(half, 1)), MIN_TOLERANCE * level)
    start = _first_steady(np.abs(times_ms - level) <= tolerance + (drift if drifts else 0.0))
    if drifts:
        reason = f"the batches still change by {drift:.3f} ms within the second half (level {level:.3f} ms)"
        return judged("never-steady", start, reason, level, tolerance)
    if start is None or start > count * LATEST_START:
        reason = f"no {STEADY_RUN} batches in a row of the first half are within {tolerance:.3f} ms of {level:.3f} ms"
        return judged("never-steady", None, reason, level, tolerance)
    return judged("enough" if start <= warmup_batches else "too-short", start, None, level, tolerance)


def _first_steady(is_steady: npt.NDArray[np.bool_]) -> int | None:
    """Index of the first batch that begins a run of `STEADY_RUN`."""
    runs = np.lib.stride_tricks.sliding_window_view(is_steady, STEADY_RUN).all(axis=1)
    return int(np.argmax(runs)) if runs.any() else None


def warmup_findings(judged: list[WarmupDiagnosis]) -> list[Finding]:
    """A warning for each name of loops whose cut is too short, or that never become steady: the worst of its loops."""
    findings = []
    by_name: dict[str, list[WarmupDiagnosis]] = {}
    for loop in judged:
        by_name.setdefault(path_text(loop.loop), []).append(loop)
    for name, loops in by_name.items():
        late = max(loops, key=lambda loop: loop.steady_from or 0)
        if late.state != "cannot-tell" and (late.steady_from or 0) > late.warmup_batches:
            findings.append(
                Finding(
                    "warmup-too-short",
                    Severity.WARNING,
                    f"{name}: the slow beginning ends before batch {late.steady_from} of {late.batches}, "
                    f"but -w {late.warmup_batches} excludes only {late.warmup_batches}.",
                    f"Analyze again with -w {late.steady_from}.",
                )
            )
        never = next((loop for loop in loops if loop.state == "never-steady"), None)
        if never is not None:
            findings.append(
                Finding(
                    "never-steady",
                    Severity.WARNING,
                    f"{name}: the run never becomes steady: {never.reason}.",
                    "Run more batches, and look at what changes: clocks, caches, other processes, the input.",
                )
            )
    return findings
