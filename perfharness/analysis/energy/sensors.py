"""What the sensors measure over a stretch of time: the energy counter, and power integrated, each with its error.

The sensors are slow. A counter that moves every 100 ms knows nothing of what lies between two moves, so every figure
comes with the error that follows from the update period found in the log.
"""

from __future__ import annotations

import numpy as np

from perfharness.analysis.energy.fits import Fit, Readout, explanations
from perfharness.analysis.energy.kinds import KnownWork
from perfharness.analysis.energy.steps import NS_PER_S, Energy, Readings, Steps
from perfharness.analysis.statistics import student_t
from perfharness.model.trace import Int64

MIN_UPDATES = 20
"""Updates inside the shortest stretch that gets a number: at its two ends one update may be on the wrong side, a
tenth of it in all."""

MIN_GROUPS = 10
"""Of several steps together, whose differences show what the sensor may have missed."""

EDGES_SHARE = 0.2
"""Steps differ mostly by the positions of their edges: an edge moved by e at power P makes 3 (P e)² of the variance."""

BLURRED = 0.15
"""Edges with an error of more than this part of a period are not derived from the differences of the steps."""

NEIGHBOURS = 2
"""How many updates around the end of a stretch may have seen what happened there: sensors lag by about one period."""


def shortest_window_ns(period_ns: float) -> float:
    """The shortest stretch of time that gets a number of its own."""
    return MIN_UPDATES * period_ns


TOO_WIDE = 1 / 3
"""Of an energy: a larger error makes it null, for the truth may then be twice what it may be at least."""


class Explained:
    """A sensor's steps over a window with all that they may mean (`fits`), from which errors of energies follow.

    Args:
        steps: of the sensor; or why there are none.
        window: UTC ns.
        work: when the GPU was at work; None: not known, which makes every energy null.
        low_w, high_w: between which the GPU's power must lie; None: not known.
    """

    def __init__(
        self,
        steps: Steps | str,
        window: tuple[int, int],
        work: KnownWork | None,
        *,
        low_w: float = 0.0,
        high_w: float | None = None,
    ) -> None:
        self.steps = steps
        self.window = window
        self.fits: list[Fit] = []
        self.shown = self.total = shown_within(steps, *window)
        if self.shown.joules is None:
            return
        assert isinstance(steps, Steps)
        if work is None:
            self.total = Energy(None, reason=UNKNOWN_WORK)
            return
        if not work.steady:
            self.fits = explanations(Readout(steps, window, low_w, high_w), work)
        self.total = self._checked(self.shown, self._off(self.shown.joules, window))

    def energy(self, start_ns: int, end_ns: int) -> Energy:
        """Of a stretch of time; what the sensor may miss outside of the window is as much as inside."""
        read = shown_within(self.steps, start_ns, end_ns)
        if read.joules is None:
            return read
        is_inside = self.window[0] <= start_ns and end_ns <= self.window[1]
        if self.total.joules is None:
            reason = self.total.reason
            return Energy(None, reason=reason if is_inside else f"in the measured window alone, {reason}")
        if is_inside:
            return self._checked(read, self._off(read.joules, (start_ns, end_ns)))
        assert self.shown.joules is not None
        times = (end_ns - start_ns) / (self.window[1] - self.window[0])
        return self._checked(read, times * self._off(self.shown.joules, self.window))

    def _off(self, joules: float, stretch: tuple[int, int]) -> float:
        """How far the energy may be from what the sensor shows, for all that its readings do not rule out."""
        moments = np.asarray(stretch, dtype=np.int64)
        models = {id(fit.kinds): fit.kinds for fit in self.fits}
        seconds = {key: np.diff(kinds.until(moments), axis=1)[:, 0] for key, kinds in models.items()}
        found = 0.0
        for fit in self.fits:
            energy, half = fit.energy(seconds[id(fit.kinds)])
            found = max(found, abs(energy - joules) + half)
        return found

    @staticmethod
    def _checked(read: Energy, off: float) -> Energy:
        assert read.joules is not None
        assert read.error_j is not None
        error = max(read.error_j, off)
        if error > TOO_WIDE * abs(read.joules):
            return Energy(
                None,
                reason=f"the sensor may have seen the same part of each batch and never the rest: what it shows, "
                f"{read.joules:.1f} J, may be off by {error:.1f} J",
            )
        return Energy(read.joules, error, read.seconds)


UNKNOWN_WORK = "when the GPU was at work is not known, so whether its sensor saw all of the work is unknown"


def shown_within(steps: Steps | str, start_ns: int, end_ns: int) -> Energy:
    """What a sensor shows for a stretch of time, as if it had seen all of it.

    The error has two parts, added in squares: what may have happened on which side of the two ends (the spread of
    power among the updates around them, for as long as an update and the sensor's averaging last, and how badly the
    places of updates are known), and what the sensor may have missed by chance because it samples only part of the time
    (from how much successive updates differ, after von Neumann's mean square successive difference).
    """
    if isinstance(steps, str):
        return Energy(None, reason=steps)
    if end_ns - start_ns < shortest_window_ns(steps.period_ns):
        return Energy(
            None,
            reason=f"{(end_ns - start_ns) / 1e6:.0f} ms is shorter than {MIN_UPDATES} updates of the sensor "
            f"({steps.period_ns / 1e6:.0f} ms each)",
        )
    if start_ns < steps.edge_ns[0] - steps.period_ns or end_ns > steps.edge_ns[-1] + steps.period_ns:
        return Energy(None, reason="the sensor was not read over the whole time")
    inside = np.flatnonzero((steps.edge_ns[1:] > start_ns) & (steps.edge_ns[:-1] < end_ns))
    if (np.diff(steps.edge_ns)[inside] > 10 * steps.period_ns).any():
        return Energy(None, reason="the sensor was not read for a while during that time")
    joules = _until(steps, end_ns) - _until(steps, start_ns)
    ends = sum(_end_error(steps, moment) for moment in (start_ns, end_ns))
    ends += joules * steps.drift_ns / float(steps.edge_ns[-1] - steps.edge_ns[0])
    return Energy(float(joules), float(np.hypot(ends, _missed(steps, inside))), (end_ns - start_ns) / NS_PER_S)


def _missed(steps: Steps, inside: Int64) -> float:
    """Error from looking only part of the time: how much the sum would differ if each step had seen its neighbour's.

    Where edges are known so badly that most of the difference between steps is theirs (what one has too much the next
    one lacks), the differences of several steps together are compared too, and the smallest estimate is taken: each
    of them is too large where the load itself changes. Elsewhere the smallest would be small by chance. Student's t
    allows for how few there are, with (n - 1)² / (1.5 n - 2) degrees of freedom for the differences of n.
    """
    found: list[float] = []
    for together in (1, 5, 10):
        first = np.arange(0, len(inside) - together + 1, together)
        groups = len(first)
        if groups < (3 if together == 1 else MIN_GROUPS):
            break
        energy = np.add.reduceat(steps.energy_j[inside], first)[:groups]
        seconds = np.add.reduceat(steps.seconds[inside], first)[:groups]
        variance = float(np.sum(np.diff(energy / seconds) ** 2 / 2 * seconds[1:] ** 2)) * groups / (groups - 1)
        found.append(student_t(round((groups - 1) ** 2 / (1.5 * groups - 2))) * float(np.sqrt(variance)))
        of_edges = groups * (float(steps.power_w[inside].mean()) * steps.edge_error_ns / NS_PER_S) ** 2
        if together == 1 and of_edges < EDGES_SHARE * variance:
            break
    return min(found, default=0.0)


def _until(steps: Steps, moment_ns: int) -> float:
    """Energy from the first edge to a moment; beyond the edges by the power of the outermost step."""
    edges = (steps.edge_ns - steps.edge_ns[0]) / NS_PER_S
    total = np.r_[0.0, np.cumsum(steps.energy_j)]
    moment = (moment_ns - int(steps.edge_ns[0])) / NS_PER_S
    if moment < 0:
        return moment * float(steps.power_w[0])
    if moment > edges[-1]:
        return float(total[-1]) + (moment - float(edges[-1])) * float(steps.power_w[-1])
    return float(np.interp(moment, edges, total))


def _end_error(steps: Steps, moment_ns: int) -> float:
    reach = NEIGHBOURS * steps.period_ns + max(steps.window_ns - steps.period_ns, 0)
    at = (steps.edge_ns[1:] > moment_ns - reach) & (steps.edge_ns[:-1] < moment_ns + reach)
    near = steps.power_w[at]
    if not len(near):
        return 0.0
    if steps.edge_error_ns > BLURRED * steps.period_ns and len(near) >= 3:
        # Edges so badly known make steps of one power differ: what one has too much the next one lacks.
        energy, seconds = (np.convolve(values[at], np.ones(3), "valid") for values in (steps.energy_j, steps.seconds))
        near = energy / seconds
    spread = float(near.max() - near.min())
    return (
        spread * max(steps.period_ns, steps.window_ns) / NS_PER_S + float(near.max()) * steps.edge_error_ns / NS_PER_S
    )


def disagreement(counter: Energy, power: Energy) -> float | None:
    """How far integrated power is from the counter beyond both errors, in J; 0 where they agree; None: not both."""
    if counter.joules is None or power.joules is None:
        return None
    return max(0.0, abs(counter.joules - power.joules) - (counter.error_j or 0.0) - (power.error_j or 0.0))


def idle_power(steps: Steps | str, window: tuple[int, int] | None, utilization: Readings | None) -> Energy:
    """Energy of the idle time before the run, from which idle power follows; null where the GPU was not idle.

    Args:
        steps: of the counter, or of power.
        window: the stated idle time, UTC ns; None where there was none.
        utilization: share of time with a kernel, percent; 0 where nothing ran.
    """
    if window is None:
        return Energy(None, reason="no idle time was waited for before the run (measure-idle)")
    if utilization is None:
        return Energy(None, reason="the GPU does not report its utilisation, so whether it was idle is unknown")
    inside = (utilization.time_ns >= window[0]) & (utilization.time_ns <= window[1])
    if not inside.any():
        return Energy(None, reason="the GPU's utilisation was not read in the idle time before the run")
    highest = float(utilization.value[inside].max())
    if highest > 0:
        return Energy(None, reason=f"the GPU was not idle before the run: utilisation up to {highest:.0f} %")
    return shown_within(steps, *window)
