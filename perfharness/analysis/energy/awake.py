"""Power of a GPU that is awake and does nothing: clocks up, a context there, between kernels.

It is not idle power: an H200 that nobody uses drew 81 W at 345 MHz before a run, and 123 W at 1980 MHz between the
kernels of it (docs/guides/energy.md). What the work itself took is what is above *this* power.
"""

from __future__ import annotations

import numpy as np

from perfharness.analysis.energy.busy import BusyShares
from perfharness.analysis.energy.sensors import MIN_UPDATES
from perfharness.analysis.energy.steps import NS_PER_S, Energy, Steps
from perfharness.model.trace import Int64

BEFORE_PERIODS = 2.0
AFTER_PERIODS = 0.5
"""No traced work so far before a step and after it: as late, and as early, as sensors are taken to be."""

PARTS = 3
"""A step is needed in each of so many equal parts of the window: power between kernels changes with temperature."""

BLOCKS = 10
T95_BLOCKS = 2.262
"""Student's t for 95 % and 9 degrees of freedom."""


def awake_power(steps: Steps, inside: Int64, busy: BusyShares, beyond_ns: float) -> Energy:
    """Energy of the steps in whose neighbourhood no traced work ran, from which awake power follows; or why not known.

    The error is from means of ten successive blocks of these steps (batch means), so that drift is in it.

    Args:
        steps: of a sensor.
        inside: numbers of those in the window.
        busy: traced work.
        beyond_ns: how much further back than its period a value reaches.
    """
    reach = BEFORE_PERIODS * steps.period_ns + beyond_ns
    start = steps.edge_ns[inside] - round(reach)
    end = steps.edge_ns[inside + 1] + round(AFTER_PERIODS * steps.period_ns)
    quiet = inside[busy.within(start, end).sum(axis=0) <= 0]
    if len(quiet) < MIN_UPDATES:
        return Energy(
            None,
            reason=f"{len(quiet)} updates of the sensor lie apart from all traced GPU work; {MIN_UPDATES} are needed "
            "for the power of the GPU while it is awake and does nothing",
        )
    part = (np.searchsorted(inside, quiet) * PARTS) // len(inside)
    if len(np.unique(part)) < PARTS:
        return Energy(None, reason="the GPU was without work in a part of the window only")
    energy, seconds = steps.energy_j[quiet], np.diff(steps.edge_ns)[quiet] / NS_PER_S
    means = [
        float(energy[block].sum() / seconds[block].sum()) for block in np.array_split(np.arange(len(quiet)), BLOCKS)
    ]
    half = T95_BLOCKS * float(np.std(means, ddof=1)) / np.sqrt(BLOCKS)
    total = float(seconds.sum())
    return Energy(float(energy.sum()), half * total, total)
