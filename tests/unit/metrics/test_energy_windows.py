"""The energy of batches is that of their loops' own windows: with each batch's gap, without pauses between loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.energy.account import account
from perfharness.analysis.energy.work import Batches, MeasuredProcess, OnGpu
from perfharness.analysis.stages.throughput import throughput
from perfharness.model.result import BatchLoop, GpuWork
from tests.support.sample_builder import SampleBuilder
from tests.support.simulated_sensors import Load, Sensor

MS = 1_000_000
S = 1_000 * MS
T0 = 1_700_000_000 * S
BUSY_W, GAP_W, PAUSE_W = 600.0, 120.0, 350.0


def loop(start_ns: list[int], length_ns: int, warmup: int = 1) -> BatchLoop:
    start = np.asarray(start_ns, dtype=np.int64)
    place = np.arange(len(start))
    excluded = (place < warmup) | (place >= len(start) - warmup)
    return BatchLoop(("t", "batch"), start, start + length_ns, np.full(len(start), 4.0), excluded)


@pytest.mark.parametrize(
    ("loops", "windows", "count"),
    [
        ([loop([0, 10, 20, 30, 40], 6)], ((10, 40),), 3),  # the gap of the third of three is in it
        ([loop([0, 10, 20, 30, 40], 6, warmup=0)], ((0, 46),), 5),  # the last one's ends with it
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


@pytest.mark.parametrize("loops", [1, 2])
def test_energy_per_item_has_the_gaps_and_not_the_pause(loops: int) -> None:
    """Batches of 1.2 s and gaps of 0.8 s, about; 20 s between two calls, in which others used the GPU."""
    random = np.random.default_rng(5)
    edges, power, found, busy = [T0], [], [], []
    for _ in range(loops):
        starts, lengths = [], []
        for _ in range(12):
            starts.append(edges[-1])
            lengths.append(round(1.2 * S * random.uniform(0.9, 1.1)))
            edges += [edges[-1] + lengths[-1], edges[-1] + lengths[-1] + round(0.8 * S * random.uniform(0.9, 1.1))]
            power += [BUSY_W, GAP_W]
        start, end = np.asarray(starts), np.asarray(starts) + np.asarray(lengths)
        excluded = np.r_[True, np.zeros(10, dtype=np.bool_), True]
        found.append(BatchLoop(("t", "batch"), start, end, np.full(12, 4.0), excluded))
        busy.append((start, end))
        edges.append(edges[-1] + 20 * S)
        power.append(PAUSE_W)
    load = Load(np.r_[T0 - 9 * S, edges, edges[-1] + 9 * S], np.r_[75.0, power, 75.0])
    polls = np.arange(T0 - 8 * S, edges[-1], 20 * MS, dtype=np.int64)
    sensor = Sensor(phase_ns=13 * MS, noise=0.001)
    log = SampleBuilder()
    log.subject("GPU-a", "gpu")
    updated = np.r_[True, np.diff((polls - T0 - sensor.phase_ns) // sensor.period_ns) > 0].tolist()
    log.readings(
        "GPU-a", "energy_total_mj", polls.tolist(), sensor.counter_mj(load, polls).tolist(), is_new=updated,
        update_period_ns=100 * MS,
    )  # fmt: skip
    work = GpuWork(("t/batch",), ((np.concatenate([b for b, _ in busy]), np.concatenate([e for _, e in busy])),))
    process = MeasuredProcess("p", (OnGpu("GPU-a", "GPU-a", work),), Batches.of(found), (T0, edges[-1]))
    energy, _ = account(log.build(), [process])
    joules = sum(
        watts * (end - start) / S
        for start, end, watts in zip(edges[:-1], edges[1:], power, strict=True)
        if any(one.start_ns[1] <= start < one.start_ns[-1] for one in found)
    )
    assert energy.processes["p"].items == 40 * loops
    assert energy.energy_per_item_j == pytest.approx(joules / (40 * loops), rel=0.03)
    assert energy.energy_j is not None
    assert energy.error_j is not None
    assert abs(energy.energy_j - joules) <= energy.error_j


@pytest.mark.parametrize(("period_ms", "known", "codes"), [(100, False, []), (97, True, ["energy-sensors-disagree"])])
def test_sensors_that_differ_by_less_than_they_may_miss_do_not_disagree(
    period_ms: int, known: bool, codes: list[str]
) -> None:
    """Requests at 100 a second on an H100: the buffer of power showed 1769 ± 231 J, the counter 1803 J.

    Batches as long as the sensors' period may be seen at the same moment each: what differs may be what was missed.
    """
    times = np.arange(T0 - S, T0 + 14 * S, 20 * MS, dtype=np.int64)
    updates = (times - T0) // (100 * MS)
    is_new = np.r_[True, np.diff(updates) > 0].tolist()
    log = SampleBuilder()
    log.subject("GPU-a", "gpu")
    for metric, values in (("energy_total_mj", updates * 100 * 150.0), ("power_instant_mw", updates * 0 + 141_000.0)):
        log.readings("GPU-a", metric, times.tolist(), values.tolist(), is_new=is_new, update_period_ns=100 * MS)
    start = T0 + np.arange(120, dtype=np.int64) * period_ms * MS
    found = BatchLoop(("t", "batch"), start, start + period_ms * MS, np.full(120, 1.0), np.zeros(120, dtype=np.bool_))
    work = GpuWork(("t/batch",), ((start, start + 10 * MS),))
    process = MeasuredProcess("p", (OnGpu("GPU-a", "GPU-a", work),), Batches.of([found]), (T0, T0 + 13 * S))
    energy, findings = account(log.build(), [process])
    gpu = energy.gpus[0]
    assert (gpu.window[0].energy_j is not None) == known
    assert bool(gpu.disagreement_j) == known
    assert [one.code for one in findings if one.code == "energy-sensors-disagree"] == codes
    assert all(one.reason is None or one.reason.startswith("in the measured window alone") for one in gpu.run[:1])


def test_the_energy_is_that_of_the_sensor_that_errs_least() -> None:
    """On an H100 the counter had 7504 ± 1026 J and the driver's samples 7498 ± 228 J: the former was reported."""
    random = np.random.default_rng(3)
    length = np.round(random.uniform(0.1, 0.3, 80) * S).astype(np.int64)
    start = T0 + np.concatenate([[0], np.cumsum(length)[:-1]])
    edges = np.stack([start, start + length // 2], axis=1).ravel()
    load = Load(np.r_[T0 - 9 * S, edges, T0 + 25 * S], np.r_[75.0, np.tile([BUSY_W, GAP_W], 80)])
    times = np.arange(T0 - 8 * S, T0 + 24 * S, 10 * MS, dtype=np.int64)
    log = SampleBuilder()
    log.subject("GPU-a", "gpu")
    for metric, period_ms in (("energy_total_mj", 100), ("power_sample_mw", 20)):
        sensor = Sensor(period_ns=period_ms * MS, phase_ns=13 * MS, noise=0.001)
        updated = np.r_[True, np.diff((times - T0 - sensor.phase_ns) // sensor.period_ns) > 0].tolist()
        shown = sensor.counter_mj(load, times) if metric == "energy_total_mj" else sensor.power_mw(load, times)
        log.readings(
            "GPU-a", metric, times.tolist(), shown.tolist(), is_new=updated, update_period_ns=period_ms * MS
        )  # fmt: skip
    found = BatchLoop(("t", "batch"), start, start + length, np.full(80, 1.0), np.zeros(80, dtype=np.bool_))
    work = GpuWork(("t/batch",), ((start, start + length // 2),))
    process = MeasuredProcess("p", (OnGpu("GPU-a", "GPU-a", work),), Batches.of([found]), (T0 - S, T0 + 22 * S))
    energy, _ = account(log.build(), [process])
    errors = {one.source: one.error_j for one in energy.gpus[0].window if one.error_j is not None}
    assert errors["power_sample_mw"] < errors["energy_total_mj"]
    assert energy.error_j == energy.processes["p"].error_j == errors["power_sample_mw"]
