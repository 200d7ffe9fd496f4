"""Energy: totals where a sensor looks at a quarter of the time, stages where the plain model does not fit."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from perfharness.analysis.energy.attribution import WAITING, attribute
from perfharness.analysis.energy.busy import BusyShares
from perfharness.analysis.energy.kinds import KnownWork
from perfharness.analysis.energy.sensors import Explained, Readings, counter_steps, power_steps
from perfharness.testing.simulated_sensors import Load, Sensor

MS = 1_000_000
S = 1_000 * MS
T0 = 1_700_000_000 * S
RUNS = 4
Pieces = list[tuple[str | None, float, float]]


def run(pieces: Pieces, sensor: Sensor, *, counter: bool) -> tuple[bool | None, list[tuple[bool, bool]]]:
    """Whether the total's interval holds the truth (None: null); of each class with an interval, that and a number."""
    names = list(dict.fromkeys(name for name, _, _ in pieces if name))
    length = np.asarray([round(ms * MS) for _, ms, _ in pieces], dtype=np.int64)
    watts = np.asarray([power for _, _, power in pieces])
    label = np.asarray([names.index(name) if name else -1 for name, _, _ in pieces])
    edge = T0 + 3 * S + np.r_[0, np.cumsum(length)]
    load = Load(np.r_[edge[0] - 3 * S, edge, edge[-1] + 3 * S], np.r_[75.0, watts, 75.0])
    busy = BusyShares([(edge[:-1][label == at], edge[1:][label == at]) for at in range(len(names))])
    window = (int(edge[0]), int(edge[-1]))
    truth = {name: float((length / S * watts)[label == at].sum()) for at, name in enumerate(names)}
    truth[WAITING] = float((length / S * watts)[label < 0].sum())
    period = 50 * MS if counter else sensor.period_ns
    polls = np.arange(T0, window[1] + 2 * S, period, dtype=np.int64)
    if counter:
        values = sensor.counter_mj(load, polls)
        steps = counter_steps(Readings(polls, values, np.r_[True, np.diff(values) != 0], float(sensor.period_ns)))
    else:
        values = sensor.power_mw(load, polls)
        steps = power_steps(Readings(polls, values, np.ones(len(polls), dtype=np.bool_), float(period)), None, 1e6)
    explained = Explained(steps, window, KnownWork(busy), low_w=67.5, high_w=700.0)
    total = explained.total
    held = None
    if total.joules is not None and total.error_j is not None:
        held = bool(abs(total.joules - sum(truth.values())) <= total.error_j)
    found = attribute(steps, names, busy, window, idle_w=75.0, limit_w=700.0, explained=explained)
    return held, [
        (one.low_j <= truth[one.name] <= one.high_j, one.joules is not None)
        for one in found.classes
        if one.low_j is not None and one.high_j is not None
    ]


def alternating(period_ms: float, jitter_ms: float = 0.0, seconds: float = 40.0) -> Callable[[int], Pieces]:
    """30 % of each batch at 650 W."""

    def made(seed: int) -> Pieces:
        random = np.random.default_rng(seed)
        pieces: Pieces = []
        for _ in range(int(seconds * 1e3 / period_ms)):
            rest = max(1.0, 0.7 * period_ms + jitter_ms * random.standard_normal())
            pieces += [("a", 0.3 * period_ms, 650.0), (None, rest, 110.0)]
        return pieces

    return made


def base(seed: int) -> Pieces:
    """As the plain model has it."""
    random = np.random.default_rng(seed)
    return [
        (name, ms * random.uniform(0.9, 1.1), watts)
        for _ in range(80)
        for name, ms, watts in (("a", 370, 550.0), ("b", 290, 250.0), (None, 210, 110.0))
    ]


def rising(seed: int) -> Pieces:
    """The power of a rises over 100 ms."""
    random = np.random.default_rng(seed)
    pieces: Pieces = []
    for _ in range(100):
        steps = int(400 * random.uniform(0.4, 1.6) / 20)
        pieces += [("a", 20.0, 600 - 350 * float(np.exp(-at * 20 / 100))) for at in range(steps)]
        pieces += [("b", 200 * random.uniform(0.5, 1.5), 300.0), (None, 150 * random.uniform(0.5, 1.5), 110.0)]
    return pieces


def between_kernels(seed: int) -> Pieces:
    """160 W between kernels, 90 W in pauses."""
    random = np.random.default_rng(seed)
    pieces: Pieces = []
    for _ in range(20):
        for _ in range(60):
            pieces += [("infer", 5 * random.uniform(0.9, 1.1), 400.0), (None, 15 * random.uniform(0.9, 1.1), 160.0)]
        pieces.append((None, 1500 * random.uniform(0.9, 1.1), 90.0))
    return pieces


def check(row: str, made: Callable[[int], Pieces], sensor: Callable[[int], Sensor], *, counter: bool = True) -> bool:
    """One line of the table; whether all that is given holds."""
    totals: list[bool | None] = []
    classes: list[tuple[bool, bool]] = []
    for seed in range(RUNS):
        total, mine = run(made(seed), sensor(seed), counter=counter)
        totals.append(total)
        classes += mine
    ok = all(total is not False for total in totals) and sum(not hit for hit, _ in classes) <= 1
    print(
        f"{'ok ' if ok else 'BAD'}  {row:<42}  totals hold {totals.count(True)}, null {totals.count(None)} of {RUNS}; "
        f"stages hold {sum(hit for hit, _ in classes)}/{len(classes)}, with a number {sum(n for _, n in classes)}"
        "  (right: what is given holds)",
        flush=True,
    )
    return ok


def quarter(seed: int) -> Sensor:
    """A counter that looks at a quarter of the time."""
    return Sensor(phase_ns=seed * 23 * MS, noise=0.01, duty=0.25, seed=seed)


def main() -> int:
    """All rows; 1 if any is bad."""
    periods = (100.0, 100.05, 100.08, 100.1, 100.3, 100.5, 50.1, 200.3, 20.02, 300.4, 93.0)
    good = [check(f"energy_alias: batches of {ms} ms", alternating(ms), quarter) for ms in periods]
    good += [check(f"energy_alias2: 100 ms +- {ms}", alternating(100.0, ms), quarter) for ms in (0.3, 1.0, 2.0, 4.0)]
    full = {"phase_ns": 30 * MS, "noise": 0.01}
    for name, made in (("base", base), ("power rises", rising), ("160 W between kernels", between_kernels)):
        good.append(check(f"energy_cov: {name}, counter", made, lambda seed: Sensor(seed=seed, **full)))
        good.append(
            check(
                f"energy_cov: {name}, power",
                made,
                lambda seed: Sensor(period_ns=20 * MS, noise=0.01, seed=seed),
                counter=False,
            )
        )
    for low_pass_ms in (50, 100, 200, 300):
        good.append(
            check(
                f"energy_sim: low-pass of {low_pass_ms} ms",
                base,
                lambda seed, ms=low_pass_ms: Sensor(period_ns=20 * MS, noise=0.01, seed=seed, smoothed_ns=ms * MS),
                counter=False,
            )
        )
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
