"""Which stage spent the energy: simulated sensors over loads whose truth is known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfharness.analysis.energy.attribution import WAITING, Attribution, ClassEnergy, attribute
from perfharness.analysis.energy.kinds import BusyShares, KnownWork
from perfharness.analysis.energy.sensors import Explained, energy_within
from perfharness.analysis.energy.steps import Readings, Steps, counter_steps, power_steps
from perfharness.model.trace import Int64
from perfharness.testing.simulated_sensors import Load, Sensor

MS = 1_000_000
S = 1_000 * MS
T0 = 1_700_000_000 * S
IDLE_W = 75.0
LIMIT_W = 700.0


@dataclass(frozen=True)
class Pipeline:
    """Batches of stages, each of a duration (ms, with a relative spread) at a power; `wait` ones are no GPU work."""

    stages: dict[str, tuple[float, float]]
    spread: float = 0.1
    seconds: float = 40.0
    seed: int = 1

    def run(self) -> tuple[Load, list[str], BusyShares, tuple[int, int]]:
        random = np.random.default_rng(self.seed)
        names = list(self.stages)
        batches = int(self.seconds * 1e3 / sum(ms for ms, _ in self.stages.values()))
        mean = np.tile([ms for ms, _ in self.stages.values()], batches)
        lengths = np.round(mean * (1 + self.spread * random.uniform(-1, 1, len(mean))) * MS).astype(np.int64)
        edges = T0 + 3 * S + np.r_[0, np.cumsum(lengths)]
        power = np.tile([watts for _, watts in self.stages.values()], batches)
        load = Load(np.r_[edges[0] - 3 * S, edges, edges[-1] + 3 * S], np.r_[IDLE_W, power, IDLE_W])
        work = [(edges[:-1][at :: len(names)], edges[1:][at :: len(names)]) for at in range(len(names))]
        at_work = [place for place, name in enumerate(names) if not name.startswith("wait")]
        shares = BusyShares([work[place] for place in at_work])
        return load, [names[place] for place in at_work], shares, (int(edges[0]), int(edges[-1]))


def observe(load: Load, sensor: Sensor, until_ns: int, poll_ms: float = 50.0) -> Steps:
    polls = np.arange(T0, until_ns + 2 * S, round(poll_ms * MS), dtype=np.int64)
    values = sensor.counter_mj(load, polls)
    steps = counter_steps(Readings(polls, values, np.r_[True, np.diff(values) != 0], float(sensor.period_ns)))
    assert isinstance(steps, Steps)
    return steps


def attributed(pipeline: Pipeline, sensor: Sensor) -> tuple[Attribution, dict[str, float]]:
    """The attribution, and the true energy of each class."""
    load, names, shares, window = pipeline.run()
    found = attribute(observe(load, sensor, window[1]), names, shares, window, idle_w=IDLE_W, limit_w=LIMIT_W)
    busy = shares.within(np.asarray([window[0]]), np.asarray([window[1]]))[:, 0]
    truth = {name: seconds * pipeline.stages[name][1] for name, seconds in zip(names, busy, strict=True)}
    truth[WAITING] = float(load.energy_j(*window)) - sum(truth.values())
    return found, truth


def test_moments_are_shared_by_those_at_work() -> None:
    #   a  ████████____████      b  ____████████____      of 4 s each mark: shared from 4 to 8
    def times(*pairs: tuple[int, int]) -> tuple[Int64, Int64]:
        return np.asarray([s for s, _ in pairs]) * S + T0, np.asarray([e for _, e in pairs]) * S + T0

    shares = BusyShares([times((0, 8), (2, 5), (12, 16)), times((4, 12)), times()])
    edges = T0 + np.asarray([0, 4, 8, 12, 16, 20]) * S
    assert shares.within(edges[:-1], edges[1:]).tolist() == [[4, 2, 0, 4, 0], [0, 2, 4, 0, 0], [0, 0, 0, 0, 0]]
    assert BusyShares([]).within(edges[:-1], edges[1:]).shape == (0, 5)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=5).map(
            lambda pairs: [(start, start + length) for start, length in pairs]
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(-5, 70),
    st.integers(0, 40),
)
def test_shares_of_any_work_are_those_counted_second_by_second(
    work: list[list[tuple[int, int]]], start: int, length: int
) -> None:
    columns = [
        (
            np.asarray([s for s, _ in spans], dtype=np.int64) * S + T0,
            np.asarray([e for _, e in spans], dtype=np.int64) * S + T0,
        )
        for spans in work
    ]
    edges = np.asarray([start, start + length]) * S + T0
    found = BusyShares(columns).within(edges[:1], edges[1:])[:, 0]
    expected = np.zeros(len(work))
    for second in range(start, start + length):
        active = [any(s <= second < e for s, e in spans) for spans in work]
        if any(active):
            expected += np.asarray(active) / sum(active)
    assert found == pytest.approx(expected)


def holds(one: ClassEnergy, truth: float) -> bool:
    assert one.low_j is not None
    assert one.high_j is not None
    return one.low_j <= truth <= one.high_j


def test_two_stages_by_hand() -> None:
    # 1 s at 500 W, then 1 s at 200 W, then 1 s of waiting at 100 W; ten times: 5 kJ, 2 kJ, 1 kJ.
    pipeline = Pipeline({"matmul": (1000, 500), "copy": (1000, 200), "wait": (1000, 100)}, spread=0, seconds=30)
    found, truth = attributed(pipeline, Sensor(phase_ns=40 * MS))
    assert truth == pytest.approx({"matmul": 5000, "copy": 2000, WAITING: 1000})
    assert all(holds(one, truth[one.name]) for one in found.classes)
    assert found.joules == pytest.approx(8000, rel=0.01)


@pytest.mark.parametrize("lag_ms", [0, 30, 100, 170])
@pytest.mark.parametrize("duty", [1.0, 0.25])
def test_what_the_sensor_looked_at_is_found_from_the_log(lag_ms: int, duty: float) -> None:
    pipeline = Pipeline({"matmul": (370, 550), "copy": (290, 250), "wait": (210, 110)}, seconds=40)
    found, truth = attributed(pipeline, Sensor(duty=duty, lag_ns=lag_ms * MS, noise=0.01, phase_ns=17 * MS))
    assert found.lag_ns is not None
    assert abs(found.lag_ns / MS - lag_ms) <= 40
    assert found.duty == duty
    assert all(holds(one, truth[one.name]) for one in found.classes)


@pytest.mark.parametrize(("period_ms", "averaged_ms"), [(20, 20), (20, 100), (100, 100)])
def test_power_samples_that_average_over_more_than_their_period(period_ms: int, averaged_ms: int) -> None:
    """The driver's buffer has a value every 20 ms; what it reaches back over is not documented."""
    pipeline = Pipeline({"matmul": (370, 550), "copy": (290, 250), "wait": (210, 110)}, spread=0.3, seconds=40)
    load, names, shares, window = pipeline.run()
    sensor = Sensor(period_ns=period_ms * MS, duty=averaged_ms / period_ms, noise=0.01)
    times = np.arange(T0, window[1] + S, period_ms * MS, dtype=np.int64)
    readings = Readings(times, sensor.power_mw(load, times), np.ones(len(times), dtype=np.bool_), period_ms * 1e6)
    steps = power_steps(readings, averaged_ms * 1e6, edge_error_ns=1e6)
    found = attribute(steps, names, shares, window, idle_w=IDLE_W, limit_w=LIMIT_W)
    for one, (_, watts) in zip(found.classes, pipeline.stages.values(), strict=True):
        assert holds(one, watts * one.busy_s)


def test_the_classes_add_up_to_the_counter() -> None:
    pipeline = Pipeline({"matmul": (370, 550), "copy": (290, 250), "wait": (210, 110)}, spread=0.4, seconds=40)
    found, truth = attributed(pipeline, Sensor(lag_ns=40 * MS, noise=0.01))
    assert [one.method for one in found.classes] == ["regression"] * 3
    together = sum(one.joules or 0.0 for one in found.classes)
    assert together == pytest.approx(found.joules, rel=1e-6)
    assert found.joules == pytest.approx(sum(truth.values()), rel=0.01)


def test_stages_of_milliseconds_have_one_number_together() -> None:
    pipeline = Pipeline({"matmul": (4, 600), "copy": (3, 250), "wait": (2, 110)}, spread=0.02, seconds=20)
    found, truth = attributed(pipeline, Sensor(noise=0.01, phase_ns=33 * MS))
    (joint,) = found.joint
    assert set(joint.names) == {"matmul", "copy", WAITING}
    assert joint.joules == pytest.approx(sum(truth.values()), rel=0.01)
    assert joint.low_j <= sum(truth.values()) <= joint.high_j
    assert all(holds(one, truth[one.name]) for one in found.classes)
    assert {(one.method, one.joules) for one in found.classes} == {("bounds", None)}
    assert found.awake.joules is None


AWAKE_W = 123.0
"""What a card draws between kernels that draws 75 W before a run: about as an H200 does (docs/guides/energy.md)."""


def rarely_busy(stages: dict[str, tuple[float, float]], jitter_ms: float = 40.0) -> Pipeline:
    """Two processes' worth of a few milliseconds of GPU work among much waiting, as an image pipeline has it."""
    return Pipeline({"wait": (85.0 - jitter_ms, AWAKE_W), "wait more": (jitter_ms, AWAKE_W), **stages}, spread=0.5)


def sampled(pipeline: Pipeline, noise: float = 0.004, lag_ms: int = 4) -> tuple[Attribution, dict[str, float]]:
    """By the driver's buffer of 20 ms samples."""
    load, names, shares, window = pipeline.run()
    times = np.arange(T0, window[1] + S, 20 * MS, dtype=np.int64)
    sensor = Sensor(period_ns=20 * MS, noise=noise, lag_ns=lag_ms * MS)
    readings = Readings(times, sensor.power_mw(load, times), np.ones(len(times), dtype=np.bool_), 2e7)
    steps = power_steps(readings, None, edge_error_ns=1e6)
    found = attribute(steps, names, shares, window, idle_w=IDLE_W, limit_w=LIMIT_W)
    busy = shares.within(np.asarray([window[0]]), np.asarray([window[1]]))[:, 0]
    truth = {name: seconds * pipeline.stages[name][1] for name, seconds in zip(names, busy, strict=True)}
    truth[WAITING] = float(load.energy_j(*window)) - sum(truth.values())
    return found, truth


@pytest.mark.parametrize(("work_w", "lag_ms"), [(150.0, 0), (350.0, 20), (650.0, 35)])
def test_a_gpu_that_is_rarely_busy_has_its_awake_power_apart(work_w: float, lag_ms: int) -> None:
    found, truth = sampled(
        rarely_busy({"preprocess": (1.75, work_w), "inference": (0.5, work_w), "postprocess": (0.01, work_w)}),
        lag_ms=lag_ms,
    )
    assert found.awake.mean_power_w == pytest.approx(AWAKE_W, abs=0.5)
    waiting = found.classes[-1]
    assert waiting.joules == pytest.approx(truth[WAITING], rel=0.01)
    assert all(holds(one, truth[one.name]) for one in found.classes)
    assert not [one for one in found.classes if one.joules is not None and one.joules > 0.99 * LIMIT_W * one.busy_s]


def test_one_stage_beside_waiting() -> None:
    found, truth = sampled(rarely_busy({"inference": (2.5, 600.0)}))
    assert all(holds(one, truth[one.name]) for one in found.classes)
    assert found.joules == pytest.approx(sum(truth.values()), rel=0.01)


def test_where_no_time_is_quiet_the_power_of_a_sleeping_gpu_is_not_taken_for_waiting() -> None:
    """With 100 ms steps only, nothing lies apart from work: bounds, and no number at the most a GPU can draw."""
    pipeline = rarely_busy({"preprocess": (1.75, 350.0), "inference": (0.5, 350.0)})
    found, truth = attributed(pipeline, Sensor(noise=0.01))
    for one in found.classes[:-1]:
        assert (one.method, one.joules) == ("bounds", None)
        assert holds(one, truth[one.name])


def test_two_that_go_together_and_one_that_does_not() -> None:
    """Short stages in turns inside a long phase are one; the phase is separated from the rest."""
    random = np.random.default_rng(3)
    edge, spans, kinds = T0 + 3 * S, [], []
    for _ in range(30):
        for _ in range(40):
            spans += [7 * MS, 5 * MS]
            kinds += [0, 1]
        spans += [round(random.uniform(0.4, 0.8) * S), round(random.uniform(0.3, 0.6) * S)]
        kinds += [2, 3]
    edges = np.r_[0, np.cumsum(spans)] + edge
    kind = np.asarray(kinds)
    watts = np.asarray([500.0, 300.0, 200.0, 100.0])
    load = Load(np.r_[T0, edges, edges[-1] + 3 * S], np.r_[IDLE_W, watts[kind], IDLE_W])
    shares = BusyShares([(edges[:-1][kind == number], edges[1:][kind == number]) for number in range(3)])
    window = (int(edges[0]), int(edges[-1]))
    steps = observe(load, Sensor(noise=0.01), window[1])
    found = attribute(steps, ["a", "b", "long"], shares, window, idle_w=IDLE_W, limit_w=LIMIT_W)
    assert [one.method for one in found.classes][:2] == ["bounds", "bounds"]
    assert {"a", "b"} <= set(found.joint[0].names)
    for one, truth in zip(found.classes, watts, strict=True):
        assert holds(one, truth * one.busy_s)


def test_a_stage_without_gpu_work_spent_nothing_and_no_sensor_is_null() -> None:
    load, names, shares, window = Pipeline({"matmul": (900, 500), "wait": (600, 100)}).run()
    del shares
    nothing = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    edges = load.edge_ns[1:-1]
    shares = BusyShares([(edges[:-1][::2], edges[1:][::2]), nothing])
    found = attribute(observe(load, Sensor(), window[1]), [*names, "decode"], shares, window)
    assert (found.classes[1].joules, found.classes[1].method) == (0.0, "no_gpu_work")
    missing = attribute("the counter cannot be read", [*names, "decode"], shares, window)
    assert {one.joules for one in missing.classes} == {None}
    assert {one.reason for one in missing.classes} == {"the counter cannot be read"}
    short = attribute(observe(load, Sensor(), window[1]), [*names, "decode"], shares, (window[0], window[0] + S))
    assert "20 are needed" in (short.reason or "")


def test_without_idle_power_or_limit_a_share_is_only_bounded() -> None:
    load, names, shares, window = Pipeline({"matmul": (4, 600), "copy": (3, 250), "wait": (2, 110)}).run()
    found = attribute(observe(load, Sensor(), window[1]), names, shares, window)
    assert all(one.joules is None for one in found.classes)
    for one, watts in zip(found.classes, (600, 250, 110), strict=True):
        assert holds(one, watts * one.busy_s)


@pytest.mark.slow
def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Made-up pipelines and sensors; of 95 % intervals a few may miss."""
    random = np.random.default_rng(20)
    hits, width = [], []
    for seed in range(16):
        stages = {
            "one": (random.uniform(150, 900), random.uniform(300, 650)),
            "two": (random.uniform(150, 900), random.uniform(120, 450)),
            "wait": (random.uniform(80, 500), random.uniform(80, 120)),
        }
        sensor = Sensor(
            duty=float(random.choice([1.0, 0.25])), lag_ns=int(random.integers(0, 120)) * MS, noise=0.015,
            phase_ns=int(random.integers(0, 100)) * MS, jitter_ns=2 * MS, seed=seed,
        )  # fmt: skip
        found, truth = attributed(Pipeline(stages, spread=0.2, seconds=30, seed=seed), sensor)
        for one in found.classes:
            assert one.low_j is not None
            assert one.high_j is not None
            hits.append(one.low_j <= truth[one.name] <= one.high_j)
            width.append((one.high_j - one.low_j) / 2 / truth[one.name])
    assert np.mean(hits) >= 0.95
    assert np.median(width) < 0.5  # intervals that cover by being endless would say nothing


@pytest.mark.slow
@given(
    matmul_w=st.floats(300, 690), copy_w=st.floats(90, 300), matmul_ms=st.floats(1, 2000), copy_ms=st.floats(1, 2000),
    wait_ms=st.floats(1, 1000), seed=st.integers(0, 10),
)  # fmt: skip
@settings(max_examples=10, deadline=None)
def test_whatever_the_lengths_the_sum_is_the_counters_and_no_number_is_impossible(
    matmul_w: float, copy_w: float, matmul_ms: float, copy_ms: float, wait_ms: float, seed: int
) -> None:
    stages = {"matmul": (matmul_ms, matmul_w), "copy": (copy_ms, copy_w), "wait": (wait_ms, 85.0)}
    found, truth = attributed(Pipeline(stages, seconds=30, seed=seed), Sensor(noise=0.01, phase_ns=seed * 9 * MS))
    assert found.joules is None or found.joules == pytest.approx(sum(truth.values()), rel=0.1)
    for one in found.classes:
        assert one.low_j is None or holds(one, truth[one.name])
        if one.joules is not None:
            assert one.low_j is not None
            assert one.high_j is not None
            assert one.low_j <= one.joules <= one.high_j
            assert 0.89 * IDLE_W * one.busy_s <= one.joules <= 1.01 * LIMIT_W * one.busy_s


BATCHES_MS = [100.0, 100.1, 100.3, 50.1, 200.3, 20.02, 300.4, 93.0]


def alternating(period_ms: float, jitter_ms: float, seed: int, seconds: float = 30.0) -> tuple[Load, BusyShares]:
    """30 % of each batch at 650 W, the rest at 110 W."""
    random = np.random.default_rng(seed)
    count = int(seconds * 1e3 / period_ms)
    rest = np.maximum(0.7 * period_ms + jitter_ms * random.standard_normal(count), 1.0)
    lengths = np.round(np.stack([np.full(count, 0.3 * period_ms), rest], axis=1).ravel() * MS).astype(np.int64)
    edges = T0 + 3 * S + np.r_[0, np.cumsum(lengths)]
    load = Load(
        np.r_[edges[0] - 3 * S, edges, edges[-1] + 3 * S], np.r_[IDLE_W, np.tile([650.0, 110.0], count), IDLE_W]
    )
    return load, BusyShares([(edges[:-1:2], edges[1::2])])


MORE_BATCHES = [
    pytest.param(period, jitter, marks=pytest.mark.slow)
    for period, jitter in ((100.05, 0.0), (100.08, 0.0), (100.5, 0.0), (100.0, 1.0), (100.0, 4.0))
]


@pytest.mark.parametrize(
    ("period_ms", "jitter_ms"),
    [*((period, 0.0) for period in BATCHES_MS), (100.0, 0.3), (100.0, 2.0), *MORE_BATCHES],
)
def test_a_sensor_that_looks_a_quarter_of_the_time_is_not_believed(period_ms: float, jitter_ms: float) -> None:
    """Batches of about its period, or a ratio of it, drifting slowly: it showed up to 78 % too much, and +- 1 %."""
    held: list[bool] = []
    for seed in range(2):
        load, busy = alternating(period_ms, jitter_ms, seed)
        window = (int(load.edge_ns[1]), int(load.edge_ns[-2]))
        sensor = Sensor(phase_ns=seed * 37 * MS, noise=0.01, duty=0.25, seed=seed)
        steps = observe(load, sensor, window[1])
        explained = Explained(steps, window, KnownWork(busy), low_w=0.9 * IDLE_W, high_w=LIMIT_W)
        total = explained.total
        truth = float(load.energy_j(*window))
        found = attribute(steps, ["a"], busy, window, idle_w=IDLE_W, limit_w=LIMIT_W, explained=explained)
        of_stage = 650.0 * float(busy.within(np.asarray([window[0]]), np.asarray([window[1]]))[0, 0])
        true_classes = {"a": of_stage, WAITING: truth - of_stage}
        held += [holds(one, true_classes[one.name]) for one in found.classes if one.low_j is not None]
        if total.joules is None:
            assert total.reason
            assert found.joules is None
        else:
            assert total.error_j is not None
            assert abs(total.joules - truth) <= total.error_j < 0.34 * truth
    assert held.count(False) <= 1, "of 95 % intervals"
    if period_ms == 93.0:
        assert total.joules is not None
    if (period_ms, jitter_ms) == (100.0, 0.0):
        assert total.joules is None


def test_without_knowing_when_the_gpu_worked_there_is_no_energy() -> None:
    load, busy = alternating(170.0, 5.0, 0, seconds=10)
    window = (int(load.edge_ns[1]), int(load.edge_ns[-2]))
    steps = observe(load, Sensor(), window[1])
    assert energy_within(steps, *window).joules is None
    edges = load.edge_ns[1:-1:2]
    only_batches = KnownWork(BusyShares([]), [(edges[:-1], edges[1:])])
    for work in (KnownWork(busy), only_batches):
        found = energy_within(steps, *window, work, high_w=LIMIT_W)
        assert found.joules == pytest.approx(float(load.energy_j(*window)), abs=found.error_j)


def test_two_stages_of_milliseconds_in_one_order_and_power_between_kernels_have_bounds_only() -> None:
    random = np.random.default_rng(1)
    # A pause at 90 W, but 160 W between the kernels: the plain model once said +52 %, +- 2 %.
    lengths, watts, at_work = [], [], []
    for _ in range(12):
        for _ in range(60):
            lengths += [5 * random.uniform(0.9, 1.1), 15 * random.uniform(0.9, 1.1)]
            watts += [400.0, 160.0]
            at_work += [True, False]
        lengths.append(1500 * random.uniform(0.9, 1.1))
        watts.append(90.0)
        at_work.append(False)
    edges = T0 + 3 * S + np.r_[0, np.cumsum(np.round(np.asarray(lengths) * MS).astype(np.int64))]
    load = Load(np.r_[edges[0] - 3 * S, edges, edges[-1] + 3 * S], np.r_[IDLE_W, watts, IDLE_W])
    worked = np.asarray(at_work)
    busy = BusyShares([(edges[:-1][worked], edges[1:][worked])])
    window = (int(edges[0]), int(edges[-1]))
    found = attribute(observe(load, Sensor(noise=0.01), window[1]), ["infer"], busy, window, idle_w=IDLE_W, limit_w=700)
    seconds = np.diff(edges) / S
    assert holds(found.classes[0], float((seconds * watts)[worked].sum()))
    assert holds(found.classes[1], float((seconds * watts)[~worked].sum()))


def test_power_that_falls_at_once_while_a_stage_runs() -> None:
    """As by a power limit that acts after 62 ms; taken for a lag of the sensor, waiting was 11 % off."""
    random = np.random.default_rng(3)
    lengths, watts, label = [], [], []
    for _ in range(28):
        length = float(random.choice([80, 200, 400]))
        lengths += [62.2, length - 62.2, random.uniform(200, 300), random.uniform(105, 195)]
        watts += [650.0, 420.0, 265.0, 110.0]
        label += [0, 0, 1, 2]
    edges = T0 + 3 * S + np.r_[0, np.cumsum(np.round(np.asarray(lengths) * MS).astype(np.int64))]
    load = Load(np.r_[edges[0] - 3 * S, edges, edges[-1] + 3 * S], np.r_[IDLE_W, watts, IDLE_W])
    owner, power, seconds = np.asarray(label), np.asarray(watts), np.diff(edges) / S
    busy = BusyShares([(edges[:-1][owner == at], edges[1:][owner == at]) for at in range(2)])
    window = (int(edges[0]), int(edges[-1]))
    sensor = Sensor(period_ns=20 * MS, lag_ns=9 * MS, noise=0.005, seed=3)
    moments = np.arange(T0, window[1] + 2 * S, sensor.period_ns, dtype=np.int64)
    read = Readings(moments, sensor.power_mw(load, moments), np.ones(len(moments), dtype=np.bool_), 20.0 * MS)
    found = attribute(power_steps(read, None, 1e6), ["one", "two"], busy, window, idle_w=IDLE_W, limit_w=LIMIT_W)
    for at, one in enumerate(found.classes):
        truth = float((seconds * power)[owner == at].sum())
        assert holds(one, truth)
        assert one.joules == pytest.approx(truth, rel=0.1)


Pieces = list[tuple[str | None, float, float]]
"""Stage (None: waiting), milliseconds, watts."""


def uniform(random: np.random.Generator, value: float, spread: float) -> float:
    return float(value * random.uniform(1 - spread, 1 + spread))


def constant_power(random: np.random.Generator) -> Pieces:
    """As the plain model has it."""
    stages: Pieces = [("a", 370, 550.0), ("b", 290, 250.0), (None, 210, 110.0)]
    return [(name, uniform(random, ms, 0.1), watts) for _ in range(80) for name, ms, watts in stages]


def rising_power(random: np.random.Generator) -> Pieces:
    """The power of `a` rises over 100 ms."""
    pieces: Pieces = []
    for _ in range(100):
        parts = int(uniform(random, 400, 0.6) / 20)
        pieces += [("a", 20.0, 600 - 350 * float(np.exp(-at * 20 / 100))) for at in range(parts)]
        pieces += [("b", uniform(random, 200, 0.5), 300.0), (None, uniform(random, 150, 0.5), 110.0)]
    return pieces


def power_between_kernels(random: np.random.Generator) -> Pieces:
    """160 W between kernels, 90 W in pauses."""
    pieces: Pieces = []
    for _ in range(20):
        for _ in range(60):
            pieces += [("infer", uniform(random, 5, 0.1), 400.0), (None, uniform(random, 15, 0.1), 160.0)]
        pieces.append((None, uniform(random, 1500, 0.1), 90.0))
    return pieces


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "is_counter", "low_pass_ms"),
    [
        *((made, is_counter, 0) for made in (constant_power, rising_power, power_between_kernels)
          for is_counter in (True, False)),
        *((constant_power, False, low_pass_ms) for low_pass_ms in (50, 100, 200, 300)),
    ],
)  # fmt: skip
def test_what_is_given_holds_where_the_plain_model_does_not_fit(
    made: Callable[[np.random.Generator], Pieces], is_counter: bool, low_pass_ms: int
) -> None:
    held: list[bool] = []
    for seed in range(4):
        pieces = made(np.random.default_rng(seed))
        names = list(dict.fromkeys(name for name, _, _ in pieces if name))
        lengths = np.asarray([round(ms * MS) for _, ms, _ in pieces], dtype=np.int64)
        watts = np.asarray([power for _, _, power in pieces])
        label = np.asarray([names.index(name) if name else -1 for name, _, _ in pieces])
        edges = T0 + 3 * S + np.r_[0, np.cumsum(lengths)]
        load = Load(np.r_[edges[0] - 3 * S, edges, edges[-1] + 3 * S], np.r_[IDLE_W, watts, IDLE_W])
        busy = BusyShares([(edges[:-1][label == at], edges[1:][label == at]) for at in range(len(names))])
        window = (int(edges[0]), int(edges[-1]))
        truth = {name: float((lengths / S * watts)[label == at].sum()) for at, name in enumerate(names)}
        truth[WAITING] = float((lengths / S * watts)[label < 0].sum())
        steps: Steps | str
        if is_counter:
            steps = observe(load, Sensor(phase_ns=30 * MS, noise=0.01, seed=seed), window[1])
        else:
            sensor = Sensor(period_ns=20 * MS, noise=0.01, seed=seed, smoothed_ns=low_pass_ms * MS)
            moments = np.arange(T0, window[1] + 2 * S, sensor.period_ns, dtype=np.int64)
            read = Readings(moments, sensor.power_mw(load, moments), np.ones(len(moments), dtype=np.bool_), 2e7)
            steps = power_steps(read, None, 1e6)
        assert isinstance(steps, Steps)
        explained = Explained(steps, window, KnownWork(busy), low_w=0.9 * IDLE_W, high_w=LIMIT_W)
        total = explained.total
        assert total.joules is not None
        assert abs(total.joules - sum(truth.values())) <= (total.error_j or 0.0)
        found = attribute(steps, names, busy, window, idle_w=IDLE_W, limit_w=LIMIT_W, explained=explained)
        held += [holds(one, truth[one.name]) for one in found.classes if one.low_j is not None]
    assert held
    assert held.count(False) <= 1, "of 95 % intervals"


def test_a_small_part_of_the_coverage_simulation() -> None:
    """`scripts/energy_coverage` runs 2,000; its exit code tells whether intervals hold as often as they say."""
    script = Path(__file__).parents[2] / "scripts" / "energy_coverage"
    done = subprocess.run([sys.executable, str(script), "--runs", "13", "--seed", "7"], check=False, timeout=600)
    assert done.returncode == 0
