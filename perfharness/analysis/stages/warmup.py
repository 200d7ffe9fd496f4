"""Find where the steady state of a loop of batches begins, and whether its batches drift.

The reference is the second half of the loop: batches within three scaled median absolute deviations of its median are
steady (Hampel, JASA 69, 1974). Single slow batches are normal and unrelated to warm-up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.model.columns import Float64
from perfharness.model.diagnosis import Path, WarmupDiagnosis, WarmupState
from perfharness.model.findings import Finding, Severity
from perfharness.model.result import path_text

MIN_BATCHES = 12
DEVIATIONS = 3.0
MAD_TO_SIGMA = 1.4826
"""Ratio of standard deviation to median absolute deviation of normal values."""
MIN_TOLERANCE = 0.10
"""Share of the level: a loaded GPU changes its clock by 5 % from one second to the next."""
UNSTEADY_HINT = "Means and throughput are not those of a steady state. Check caches, memory, clocks and the input"
STEADY_RUN = 3
LATEST_START = 0.5
"""Share of the loop; with a later steady state there is no reference."""


@dataclass(frozen=True)
class Drift:
    """Change of a loop's batches over its whole length: medians of the first and last quarter, ms."""

    first_ms: float
    last_ms: float

    def __str__(self) -> str:
        how = "slower" if self.last_ms > self.first_ms else "faster"
        return f"batches get {how} throughout, from {self.first_ms:.3g} to {self.last_ms:.3g} ms"


def judge_warmup(loop: Path, times_ms: Float64, warmup_batches: int) -> WarmupDiagnosis:
    """Find the start of the steady state: the first of three consecutive batches that are not slower than the level.
    `times_ms`: all batches, by start; `warmup_batches`: the chosen cut.
    """
    count = len(times_ms)
    if count < MIN_BATCHES:
        reason = f"{count} batches are too few, at least {MIN_BATCHES} are needed"
        return WarmupDiagnosis(loop, count, warmup_batches, None, "cannot-tell", None, None, reason)
    reference = times_ms[count // 2 : count - min(warmup_batches, count // 4)]
    level = float(np.median(reference))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(reference - level)))
    tolerance = max(DEVIATIONS * sigma, MIN_TOLERANCE * level)
    if (drift := find_drift(times_ms)) is not None:
        return WarmupDiagnosis(loop, count, warmup_batches, None, "never-steady", level, tolerance, str(drift))
    start = _first_steady(times_ms <= level + tolerance)
    if start is None or start > count * LATEST_START:
        reason = f"no {STEADY_RUN} consecutive batches in the first half within {tolerance:.3f} ms of {level:.3f} ms"
        return WarmupDiagnosis(loop, count, warmup_batches, None, "never-steady", level, tolerance, reason)
    state: WarmupState = "enough" if start <= warmup_batches else "too-short"
    return WarmupDiagnosis(loop, count, warmup_batches, start, state, level, tolerance, None)


def find_drift(times_ms: Float64) -> Drift | None:
    """Detect batches that get slower, or faster, throughout; None if they do not. Uses Spearman's rank correlation of
    times and positions, without the first quarter, which may be a slow start.
    """
    if len(times_ms) < MIN_BATCHES:
        return None
    quarters = [float(np.median(one)) for one in np.array_split(times_ms, 4)]
    later = times_ms[len(times_ms) // 4 :]
    if np.ptp(later) <= MIN_TOLERANCE * quarters[1]:
        return None
    ranks = np.argsort(np.argsort(later, kind="stable"), kind="stable")
    correlation = float(np.corrcoef(ranks, np.arange(len(later)))[0, 1])
    is_sure = abs(correlation) * np.sqrt(len(later) - 1) >= DEVIATIONS
    change, steps = quarters[3] - quarters[1], np.diff(quarters[1:])
    if not is_sure or abs(change) <= MIN_TOLERANCE * quarters[1] or (steps * change < change**2 / 4).any():
        return None
    return Drift(quarters[0], quarters[3])


def judge_loops(analysis: Analysis) -> list[tuple[WarmupDiagnosis, Float64]]:
    """Start of each loop's steady state, with the times of its batches, ms."""
    stages, times, cut = analysis.stages, analysis.stage_times, analysis.options.warmup_batches
    loops = [(stages.paths.of_row(int(rows[0])), times.times["cpu_time"][rows]) for rows in times.rows_of_loops]
    return [(judge_warmup(loop, times_ms, cut), times_ms) for loop, times_ms in loops]


def warmup_findings(loops: Iterable[tuple[WarmupDiagnosis, Float64]]) -> list[Finding]:
    """Warn about each loop whose cut is too short or that never becomes steady, once for all threads."""
    found = {(loop.loop, loop.state): _warning(loop, times_ms) for loop, times_ms in loops}
    return [one for one in found.values() if one is not None]


def _warning(loop: WarmupDiagnosis, times_ms: Float64) -> Finding | None:
    name, start = path_text(loop.loop), loop.steady_from
    if loop.state == "too-short" and start is not None:
        message = f"{name}: the first {start} of {loop.batches} batches are slower; -w {loop.warmup_batches} drops "
        message += f"{loop.warmup_batches}."
        needed = 2 * start + MIN_BATCHES  # -w drops at both ends
        is_enough = loop.batches >= needed
        hint = f"Analyze again with -w {start}." if is_enough else f"Run {needed} batches or more, with -w {start}."
        return Finding("warmup-too-short", Severity.WARNING, message, hint)
    if loop.state == "never-steady":
        code = "never-steady" if find_drift(times_ms) is None else "batches-drift"
        return Finding(code, Severity.WARNING, f"{name}: {loop.reason}.", UNSTEADY_HINT)
    return None


def _first_steady(is_steady: np.typing.NDArray[np.bool_]) -> int | None:
    """First batch of a run of steady ones; ignores a single slow batch before it, unless that is the first."""
    runs = np.lib.stride_tricks.sliding_window_view(is_steady, STEADY_RUN).all(axis=1)
    if not runs.any():
        return None
    start = int(np.argmax(runs))
    slow = np.flatnonzero(~is_steady[:start])
    return 0 if len(slow) == 1 and slow[0] > 0 else start
