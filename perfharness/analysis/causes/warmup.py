"""Where the steady state of a loop of batches begins, and whether its batches get slower or faster all along.

The reference is the second half of the loop: its median is the level, and what lies within three scaled median absolute
deviations of it counts as steady (Hampel, JASA 69, 1974). Single slow batches are normal and unrelated to warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.model.diagnosis import Path, WarmupDiagnosis
from perfharness.model.findings import Finding, Severity
from perfharness.model.result import Float64, path_text

MIN_BATCHES = 12
DEVIATIONS = 3.0
MAD_TO_SIGMA = 1.4826
"""Makes a median absolute deviation comparable with a standard deviation, for normal values."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median of n normal values, by sigma and the root of n."""
MIN_TOLERANCE = 0.10
"""Of the level: a GPU under load changes its clock by 5 % from one second to the next."""
STEADY_RUN = 3
LATEST_START = 0.5
"""Of the loop: one that becomes steady later has no steady reference."""


@dataclass(frozen=True)
class Drift:
    """How the batches of a loop change all along: medians of its first and last quarter, ms."""

    first_ms: float
    last_ms: float

    @property
    def is_slower(self) -> bool:
        """Whether they get slower."""
        return self.last_ms > self.first_ms


def judge_warmup(loop: Path, times_ms: Float64, warmup_batches: int) -> WarmupDiagnosis:
    """Where the steady state begins: the first of three batches in a row that are no slower than the level.

    Args:
        loop: name of the loop.
        times_ms: duration of each batch, in order of start, warm-up included.
        warmup_batches: the cut that was chosen.
    """
    count = len(times_ms)
    if count < MIN_BATCHES:
        reason = f"{count} batches are too few, {MIN_BATCHES} are needed"
        return WarmupDiagnosis(loop, count, warmup_batches, None, "cannot-tell", None, None, reason)
    reference = times_ms[count // 2 : count - min(warmup_batches, count // 4)]
    level, tolerance = _level(reference)
    if (drift := find_drift(times_ms)) is not None:
        reason = f"batches change from {drift.first_ms:.3g} to {drift.last_ms:.3g} ms"
        return WarmupDiagnosis(loop, count, warmup_batches, None, "never-steady", level, tolerance, reason)
    start = _first_steady(times_ms <= level + tolerance)
    if start is None or start > count * LATEST_START:
        reason = f"no {STEADY_RUN} batches in a row of the first half are within {tolerance:.3f} ms of {level:.3f} ms"
        return WarmupDiagnosis(loop, count, warmup_batches, None, "never-steady", level, tolerance, reason)
    state = "enough" if start <= warmup_batches else "too-short"
    return WarmupDiagnosis(loop, count, warmup_batches, start, state, level, tolerance, None)


def find_drift(times_ms: Float64) -> Drift | None:
    """The change of batches that get slower, or faster, from quarter to quarter, by more than chance; None: they do not."""
    if len(times_ms) < MIN_BATCHES:
        return None
    quarters = np.array_split(times_ms, 4)
    levels = np.asarray([float(np.median(one)) for one in quarters])
    errors = [_sigma(one) * MEDIAN_ERROR / np.sqrt(len(one)) for one in quarters]
    least = max(DEVIATIONS * float(np.hypot(errors[0], errors[-1])), MIN_TOLERANCE * float(levels.mean()))
    steps = np.diff(levels)
    goes_on = np.all(steps[1:] > 0) or np.all(steps[1:] < 0)  # a slow beginning is over after the first quarter
    is_one_way = goes_on and np.sign(steps[0]) == np.sign(steps[1])
    if not is_one_way or abs(levels[-1] - levels[1]) < least / 2 or abs(levels[-1] - levels[0]) < least:
        return None
    return Drift(float(levels[0]), float(levels[-1]))


def warmup_findings(judged: list[WarmupDiagnosis]) -> list[Finding]:
    """What the user should know of the loops."""
    findings = []
    for loop in judged:
        name = path_text(loop.loop)
        if loop.state == "too-short":
            message = (
                f"{name}: the first {loop.steady_from} of {loop.batches} batches are slower; -w {loop.warmup_batches} "
                f"drops {loop.warmup_batches}."
            )
            hint = f"Analyze again with -w {loop.steady_from}."
            findings.append(Finding("warmup-too-short", Severity.WARNING, message, hint))
        elif loop.state == "never-steady":
            message = f"{name}: the run never becomes steady: {loop.reason}."
            hint = "Look at what grows or changes: caches, memory, clocks, other processes, the input."
            findings.append(Finding("never-steady", Severity.WARNING, message, hint))
    return findings


def _level(reference: Float64) -> tuple[float, float]:
    level = float(np.median(reference))
    return level, max(DEVIATIONS * _sigma(reference), MIN_TOLERANCE * level)


def _sigma(values: Float64) -> float:
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def _first_steady(is_steady: np.typing.NDArray[np.bool_]) -> int | None:
    runs = np.lib.stride_tricks.sliding_window_view(is_steady, STEADY_RUN).all(axis=1)
    return int(np.argmax(runs)) if runs.any() else None
