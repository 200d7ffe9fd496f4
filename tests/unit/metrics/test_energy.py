"""Energy from simulated sensors whose truth is known, and from a minute of a real H200."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.energy.account import account
from perfharness.analysis.energy.results import GpuEnergy
from perfharness.analysis.energy.work import Batches, MeasuredProcess, OnGpu
from perfharness.analysis.stages.throughput import throughput
from perfharness.model.result import BatchLoop, GpuWork
from perfharness.model.telemetry import SampleLog
from tests.support.nvml_record import read_record
from tests.support.sample_builder import SampleBuilder
from tests.support.simulated_sensors import Load, Sensor

MS = 1_000_000
S = 1_000 * MS
T0 = 1_700_000_000 * S
GPU = "GPU-a"
IDLE_W, LIMIT_W = 75.0, 700.0
RECORD = Path(__file__).parents[2] / "nvml" / "h200.json.gz"


# -- simulated loads and sensors ---------------------------------------------------------------------------------------

Piece = tuple[str, float, float]
"""Stage (`waiting`: none), milliseconds, watts."""


class Draw:
    """Powers, lengths and the sensor of one simulated run; half of the periods are near a ratio to the sensor's."""

    def __init__(self, seed: int, ratio: float | None = None) -> None:
        self.random = random = np.random.default_rng(seed)
        self.is_counter = bool(random.random() < 0.6)
        self.update_ms = int(random.choice([20, 50, 100, 200] if self.is_counter else [10, 20, 50, 100]))
        near = random.choice([0.2, 0.25, 1 / 3, 0.5, 2 / 3, 1, 1.5, 2, 3, 4, 5]) * random.choice([1, 1.001, 1.01])
        near, far = self.update_ms * (ratio or near), 10 ** random.uniform(0.7, 2.8)
        self.period_ms = min(max(float(near if ratio or random.random() < 0.5 else far), 4.0), 600.0)
        self.ms = max(random.uniform(8, 20) * 1e3, 25.0 * self.update_ms)
        self.one, self.two, self.wait = (random.uniform(*span) for span in ((350, 690), (150, 400), (80, 130)))
        share = random.uniform(0.2, 0.9)
        self.parts = [self.period_ms * part for part in (share * 0.6, share * 0.4, 1 - share)]
        self.constant_ms = random.uniform(20, 200)

    def about(self, ms: float, spread: float) -> float:
        return float(ms * (1 + spread * self.random.uniform(-1, 1)))

    def batch(self, one: float, two: float, wait: float, factor: float = 1.0) -> list[Piece]:
        return [("one", one, self.one * factor), ("two", two, self.two * factor), ("waiting", wait, self.wait * factor)]

    def settling(self, name: str, ms: float, start_w: float, end_w: float) -> list[Piece]:
        """Power that goes from one value to another, in pieces of 10 ms."""
        times = np.arange(5.0, ms, 10.0)
        return [(name, 10.0, float(end_w + (start_w - end_w) * math.exp(-at / self.constant_ms))) for at in times]


def jittered(draw: Draw, spread: float, part: float) -> list[Piece]:
    return draw.batch(draw.parts[0], draw.parts[1], draw.about(draw.parts[2], 10 ** (-3 + 2.5 * spread)))


def bursts(draw: Draw, spread: float, part: float) -> list[Piece]:
    busy = [(("one", draw.about(5, 0.1), draw.one), ("waiting", draw.about(15, 0.1), draw.wait)) for _ in range(30)]
    return [*(piece for pair in busy for piece in pair), ("waiting", draw.about(700, 0.5), draw.wait)]


def capped(draw: Draw, spread: float, part: float) -> list[Piece]:
    one, two, wait = draw.batch(float(draw.random.choice([0, 100, 300])), draw.about(250, 0.2), draw.about(150, 0.3))
    return [("one", 100.0, draw.one), (one[0], one[1], 0.65 * draw.one), two, wait]


def decays(draw: Draw, spread: float, part: float) -> list[Piece]:
    one, two, _ = draw.batch(draw.about(300, 0.3), draw.about(200, 0.5), 0)
    return [two, one, *draw.settling("waiting", draw.about(400, 0.5), draw.one / 2, draw.wait)]


def ramps(draw: Draw, spread: float, part: float) -> list[Piece]:
    _, two, wait = draw.batch(0, draw.about(200, 0.5), draw.about(200, 0.5))
    return [*draw.settling("one", draw.about(400, 0.6), draw.one / 2, draw.one), two, wait]


FAMILIES: dict[str, Callable[[Draw, float, float], list[Piece]]] = {
    "periodic": lambda draw, spread, part: draw.batch(*draw.parts),
    "jittered": jittered,
    "drifting": lambda draw, spread, part: draw.batch(
        draw.parts[0], draw.parts[1], draw.parts[2] * (1 + 0.1 * spread * part)
    ),
    "spread out": lambda draw, spread, part: draw.batch(*(draw.about(ms, 0.3) for ms in draw.parts)),
    "irregular": lambda draw, spread, part: draw.batch(*draw.random.exponential(draw.period_ms / 3, 3) + 0.1),
    "bursts": bursts,
    "milliseconds": lambda draw, spread, part: draw.batch(*(draw.about(ms, 0.1) for ms in (3, 5, 4))),
    "ramps": ramps,
    "decays": decays,
    "capped": capped,
    "warming": lambda draw, spread, part: draw.batch(
        draw.about(200, 0.5), draw.about(200, 0.5), draw.about(100, 0.5), 1.2 - 0.2 * math.exp(-4 * part)
    ),
    "long stages": lambda draw, spread, part: draw.batch(*(draw.about(ms, 0.3) for ms in (2000, 1500, 1000))),
}


def simulated(family: str, seed: int, ratio: float | None = None) -> tuple[GpuEnergy, dict[str, float]]:
    """The energy of one simulated run, and the true joules by stage.

    Args:
        ratio: of the batch to the sensor's period; None: drawn.
    """
    draw, pieces, at = Draw(seed, ratio), list[Piece](), 0.0
    spread = draw.random.uniform(-1, 1)
    while at < draw.ms:
        more = FAMILIES[family](draw, spread, at / draw.ms)
        pieces += more
        at += sum(ms for _, ms, _ in more)
    length = np.asarray([max(round(ms * MS), 1) for _, ms, _ in pieces], dtype=np.int64)
    watts, names = np.asarray([power for *_, power in pieces]), np.asarray([name for name, *_ in pieces])
    edge = T0 + 5 * S + np.r_[0, np.cumsum(length)]
    load = Load(np.r_[edge[0] - 9 * S, edge, edge[-1] + 9 * S], np.r_[IDLE_W, watts, IDLE_W])
    smoothed = 0 if draw.is_counter or draw.random.random() < 0.6 else draw.random.uniform(20, 300)
    sensor = Sensor(
        period_ns=draw.update_ms * MS,
        duty=float(draw.random.choice([1.0, 0.5, 0.25])),
        lag_ns=int(draw.random.uniform(0, 1) * min(draw.update_ms, 100) * MS),
        phase_ns=int(draw.random.integers(0, draw.update_ms)) * MS,
        noise=float(draw.random.choice([0.0, 0.005, 0.02])),
        jitter_ns=int(draw.random.choice([0, MS])),
        smoothed_ns=int(smoothed * MS),
        seed=seed,
    )
    own = {
        name: (edge[:-1][names == name], edge[1:][names == name]) for name in dict.fromkeys(names) if name != "waiting"
    }
    begin = edge[:-1][(names == "one") & (np.roll(names, 1) != "one")]
    batches = Batches(
        begin,
        np.r_[begin[1:], edge[-1]],
        np.ones(len(begin)),
        np.zeros(len(begin), dtype=np.bool_),
        ((int(edge[0]), int(edge[-1])),),
    )
    work = GpuWork(tuple(own), tuple(own.values()))
    process = MeasuredProcess("p", (OnGpu(GPU, GPU, work),), batches, (int(edge[0]), int(edge[-1])))
    energy, _ = account(sampled(sensor, load, draw, int(edge[-1])), [process])
    truth = {name: float((length / S * watts)[names == name].sum()) for name in (*own, "waiting")}
    return energy.gpus[0], truth


def sampled(sensor: Sensor, load: Load, draw: Draw, end: int) -> SampleLog:
    """A counter as it is polled, or the driver's own power samples; four idle seconds first."""
    log = SampleBuilder(idle_start_unix_ns=T0 + S // 2, idle_end_unix_ns=T0 + 9 * S // 2)
    step = round(min(50, draw.update_ms / 2) * MS) if draw.is_counter else sensor.period_ns
    polls = np.arange(T0 + sensor.phase_ns, end + 2 * S, step, dtype=np.int64)
    if draw.is_counter:
        polls += draw.random.integers(0, MS, len(polls))
    values = sensor.counter_mj(load, polls) if draw.is_counter else sensor.power_mw(load, polls)
    is_new = np.r_[True, np.diff(values) != 0] if draw.is_counter else np.ones(len(polls), dtype=np.bool_)
    metric = "energy_total_mj" if draw.is_counter else "power_sample_mw"
    log.readings(GPU, metric, polls, values, is_new=is_new, update_period_ns=sensor.period_ns)  # type: ignore[arg-type]
    log.readings(GPU, "gpu_utilization_percent", polls.tolist(), np.where(polls > T0 + 5 * S, 50.0, 0.0).tolist())
    return log.readings(GPU, "power_limit_mw", polls.tolist(), [LIMIT_W * 1e3] * len(polls)).build()


@dataclass
class Score:
    """How many runs and stages; whether each number, or pair of bounds, holds the truth."""

    runs: int = 0
    stages: int = 0
    totals: list[bool] = field(default_factory=list)
    numbers: list[bool] = field(default_factory=list)
    bounds: list[bool] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)

    def add(self, gpu: GpuEnergy, truth: dict[str, float]) -> None:
        self.runs += 1
        self.stages += len(truth)
        total = sum(truth.values())
        if gpu.energy_j is not None and gpu.error_j is not None:
            self.totals.append(abs(gpu.energy_j - total) <= gpu.error_j)
            self.errors.append(gpu.error_j / total)
        for one in gpu.stages:
            if one.energy_j_low is None or one.energy_j_high is None:
                continue
            holds = one.energy_j_low <= 1.00001 * truth[one.stage] and 0.99999 * truth[one.stage] <= one.energy_j_high
            (self.bounds if one.energy_j is None else self.numbers).append(holds)
            if one.energy_j is not None:
                self.widths.append((one.energy_j_high - one.energy_j_low) / 2 / truth[one.stage])

    def row(self, name: str) -> str:
        """Of the table in docs/internals/statistics.md."""

        def hold(which: list[bool]) -> str:
            return f"{sum(which)}/{len(which)} ({np.mean(which):.1%})" if which else "-"

        null, without = 1 - len(self.totals) / self.runs, 1 - len(self.numbers) / self.stages
        middle, width = (f"{np.median(of):.1%}" if of else "-" for of in (self.errors, self.widths))
        return (
            f"| {name} | {hold(self.totals)} | {null:.0%} | {middle} | {hold(self.numbers)} | {without:.0%} | {width} "
            f"| {hold(self.bounds)} |"
        )


def scored(family: str, runs: int) -> Score:
    score = Score()
    for seed in range(runs):
        score.add(*simulated(family, 1000 * list(FAMILIES).index(family) + seed))
    return score


def test_intervals_hold_the_truth() -> None:
    scores = [scored(family, 6) for family in FAMILIES]
    for name in ("totals", "numbers", "bounds"):
        assert np.mean([hit for score in scores for hit in getattr(score, name)]) >= 0.93, name
    assert scores[-1].numbers, "long stages have numbers"


@pytest.mark.parametrize("ratio", [1 / 7, 1 / 5, 1 / 3, 0.4, 2 / 3, 1, 1.003, 1.01, 1.5, 2.01])
def test_intervals_hold_the_truth_where_batches_keep_in_step(ratio: float) -> None:
    score = Score()
    for seed in range(6):
        score.add(*simulated("periodic", seed, ratio))
    assert sum(score.totals) >= 0.93 * len(score.totals)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_intervals_of_each_family_hold_the_truth(family: str) -> None:
    score = scored(family, 100)
    print(score.row(family))
    for which in (score.totals, score.numbers, score.bounds):
        assert sum(which) >= 0.93 * len(which)


# -- by hand -----------------------------------------------------------------------------------------------------------


def loop(start_ns: list[int], length_ns: int, warmup: int = 1) -> BatchLoop:
    start = np.asarray(start_ns, dtype=np.int64)
    place = np.arange(len(start))
    excluded = (place < warmup) | (place >= len(start) - warmup)
    return BatchLoop(("t", "batch"), start, start + length_ns, np.full(len(start), 4.0), excluded)


def gpu_of(batch_ms: int, *, lost: tuple[int, int] = (0, 0), backwards: bool = False) -> GpuEnergy:
    """Batches with a kernel of half their length; the counter reads 150 W, 100 ms by 100 ms."""
    times = np.arange(T0 - S, T0 + 14 * S, 20 * MS, dtype=np.int64)
    times = times[(times < T0 + lost[0] * S) | (times >= T0 + lost[1] * S)]
    updates = (times - T0) // (100 * MS)
    values = updates * 100 * 150.0 * (-1 if backwards else 1)
    is_new = np.r_[True, np.diff(updates) > 0].tolist()
    log, read = SampleBuilder(), (times.tolist(), values.tolist())
    log.readings(GPU, "energy_total_mj", *read, update_period_ns=100 * MS, is_new=is_new)
    start = T0 + np.arange(12_000 // batch_ms, dtype=np.int64) * batch_ms * MS
    batches = Batches.of([loop(start.tolist(), batch_ms * MS, warmup=0)])
    work = GpuWork(("t/batch",), ((start, start + batch_ms * MS // 2),))
    energy, _ = account(log.build(), [MeasuredProcess("p", (OnGpu(GPU, GPU, work),), batches, (T0, T0 + 13 * S))])
    return energy.gpus[0]


@pytest.mark.parametrize("batch_ms", [100, 50, 300, 20])
def test_batches_that_keep_pace_with_the_sensor_have_no_energy(batch_ms: int) -> None:
    gpu = gpu_of(batch_ms)
    assert gpu.energy_j is None
    assert "same part of each batch" in (gpu.reason or "")


@pytest.mark.parametrize("batch_ms", [110, 33, 1070])
def test_the_power_of_other_batches(batch_ms: int) -> None:
    gpu = gpu_of(batch_ms)
    assert gpu.energy_j is not None
    assert gpu.power_mean_w == pytest.approx(150, rel=0.02)


@pytest.mark.parametrize(
    ("facts", "word"),
    [({"lost": (4, 6)}, "whole time"), ({"backwards": True}, "backwards"), ({"lost": (3, 14)}, "whole")],
)
def test_what_was_not_measured_is_null_with_a_reason(facts: dict[str, object], word: str) -> None:
    gpu = gpu_of(110, **facts)  # type: ignore[arg-type]
    assert (gpu.energy_j, gpu.error_j, gpu.power_mean_w) == (None, None, None)
    assert word in (gpu.reason or "")


@pytest.mark.parametrize(
    ("loops", "windows", "count"),
    [
        ([loop([0, 10, 20, 30, 40], 6)], ((10, 40),), 3),  # the gap of the third of three is in it
        ([loop([0, 10, 20, 30, 40], 6, warmup=0)], ((0, 46),), 5),  # to the end of the last
        ([loop([0, 10, 20, 30, 40], 6), loop([100, 110, 120, 130], 6)], ((10, 40), (110, 130)), 5),
        ([loop([0, 10, 20, 30, 40], 6), loop([5, 15, 25, 35, 45], 6)], ((10, 45),), 7),  # threads
        ([loop([0, 10, 20], 6)], ((10, 20),), 1),
        ([loop([0], 6, warmup=0)], ((0, 6),), 1),
        ([loop([0, 10], 6)], (), 0),
        ([], (), 0),
    ],
)
def test_windows_by_hand(loops: list[BatchLoop], windows: tuple[tuple[int, int], ...], count: int) -> None:
    batches = Batches.of(loops)
    assert batches.windows == windows
    assert batches.counts(windows) == (count, 4.0 * count or None)


@given(
    counts=st.lists(st.integers(5, 30), min_size=1, max_size=4),
    period_ms=st.integers(2, 50),
    pause_ms=st.integers(100, 5000),
)
def test_windows_are_those_of_the_throughput(counts: list[int], period_ms: int, pause_ms: int) -> None:
    loops, at = [], 0
    for count in counts:
        loops.append(loop([at + number * period_ms * MS for number in range(count)], MS))
        at += (count * period_ms + pause_ms) * MS
    batches, rate = Batches.of(loops), throughput({"p": loops}, clock_is_utc=True)
    if rate["window_ms"] is not None:
        assert sum(end - start for start, end in batches.windows) / MS == pytest.approx(rate["window_ms"])
        assert batches.counts(batches.windows)[1] == pytest.approx(rate["items"])


# -- a real H200 -------------------------------------------------------------------------------------------------------


@cache
def recorded(metric: str) -> SampleLog:
    """A minute, idle and under bursts of matrix products: one of its sensors."""
    record = read_record(RECORD)
    counter = next(call for call in record.calls if call.function == "nvmlDeviceGetTotalEnergyConsumption")
    ring = next(samples for samples in record.samples if samples.kind == pynvml.NVML_TOTAL_POWER_SAMPLES)
    instant = next(one for one in record.fields if one.field == pynvml.NVML_FI_DEV_POWER_INSTANT and one.scope == 0)
    times, values, period_ms = {
        "energy_total_mj": (counter.at_ns, [answer.value for answer in counter.answers], 100),
        "power_sample_mw": ([us * 1000 for us in ring.at_us], list(ring.values), 20),
        "power_instant_mw": (instant.at_ns, [answer.value for answer in instant.answers], 100),
    }[metric]
    return SampleBuilder().readings(GPU, metric, times, values, update_period_ns=period_ms * MS).build()


@pytest.mark.parametrize("window", [(2, 9), (2, 13), (12, 58), (14, 45), (20, 30), (30, 45), (52, 58)])
def test_the_counter_and_mean_power_of_an_h200_agree(window: tuple[int, int]) -> None:
    """Seconds: idle, ends in the middle of a burst, all of it, idle again."""
    start, end = window[0] * S, window[1] * S
    batches = Batches.of([loop([start], end - start, warmup=0)])
    found = []
    for metric in ("energy_total_mj", "power_sample_mw", "power_instant_mw"):
        process = MeasuredProcess("p", (OnGpu(GPU, GPU, GpuWork()),), batches, (start, end))
        [gpu] = account(recorded(metric), [process])[0].gpus
        assert gpu.source == metric
        found.append((gpu.energy_j or 0.0, gpu.error_j or 0.0))
    (counter, error), (samples, of_samples), (instant, of_instant) = found
    assert counter == pytest.approx(samples, rel=0.003)
    assert abs(counter - samples) <= error + of_samples
    assert abs(counter - instant) <= error + of_instant
    assert 0 < error < 0.05 * counter
    assert window != (2, 9) or counter / 7 == pytest.approx(86, abs=0.5)
