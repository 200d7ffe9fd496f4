"""What the samplers saw over a window: figures, clocks, throttling, memory, two GPUs and MIG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from perfharness.analysis.energy.work import Batches, MeasuredProcess, OnGpu
from perfharness.analysis.metrics.clocks import (
    LOW_CLOCK,
    Throttling,
    clock_events,
    clock_hold,
    find_throttling,
    of_any,
    reasons_in,
)
from perfharness.analysis.metrics.figures import counter_total, held, window_figures
from perfharness.analysis.metrics.memory import NO_BATCHES, batch_peak, growth
from perfharness.analysis.metrics.summary import (
    RequestedClocks,
    metric_findings,
    summarise_metrics,
    throttled_batches,
    throttling_of,
)
from perfharness.analysis.statistics import weighted_quantile
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.result import BatchLoop, Float64, GpuWork
from perfharness.model.telemetry import CLOCK_EVENT_REASONS, SampleLog, Series, process_subject
from tests.support.sample_builder import SampleBuilder

MS = 1_000_000
S = 1_000 * MS
T0 = 1_700_000_000 * S
MIB = 1 << 20


def series(values: Sequence[float | None], is_new: list[bool] | None = None, first: int = 0) -> Series:
    """Readings every 100 ms, the first after so many of them."""
    times = [T0 + (first + place) * 100 * MS for place in range(len(values))]
    found = SampleBuilder().readings("GPU-a", "x", times, values, is_new=is_new).build().get("GPU-a", "x")
    assert found is not None
    return found


def window(start_s: float, end_s: float) -> tuple[int, int]:
    return T0 + round(start_s * S), T0 + round(end_s * S)


NEW = [True, False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("readings", "span", "scale", "expected"),
    [
        # 100 W for 0.3 s, 400 W for 0.1 s, then 200 W: the repeats add nothing to the count, and their time counts;
        # of three updates there is no p95
        (series([100, 100, 100, 400, 200, 200, 200], is_new=NEW), (0, 0.7), 1,
         {"mean": 1300 / 7, "min": 100, "max": 400, "new_readings": 3, "p50": 200, "p95": None}),
        # only the window counts, and what held when it began
        (series([100, 100, 500, 500, 900]), (0.15, 0.35), 1e-3, {"mean": 0.4, "new_readings": 2}),
        # a clock that never changes is known without a new reading
        (series([1980.0] * 50, is_new=[True] + [False] * 49), (2, 4), 1,
         {"mean": 1980, "new_readings": 0, "reason": None}),
        # failed readings are not zero
        (series([100, None, None, 300, 300]), (0, 0.5), 1, {"mean": 700 / 3}),
        (series([100, None, None, None, None]), (0, 0.5), 1,
         {"mean": None, "reason": "it was read in 20% of the measured window only"}),
        (series([None, None]), (0, 1), 1, {"mean": None, "reason": "it was not sampled"}),
        (series([1, 2]), None, 1, {"mean": None, "reason": "there is no measured window"}),
    ],
)  # fmt: skip
def test_values_count_for_as_long_as_they_hold(
    readings: Series, span: tuple[float, float] | None, scale: float, expected: dict[str, Any]
) -> None:
    found = asdict(window_figures(readings, span and window(*span), scale=scale))
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_what_a_reading_says_of_the_time_before_it_counts_there() -> None:
    # One core idle until 1.0 s, busy until 1.2 s, idle after: readings at 0.1, 0.2, ... are of the tenth before each.
    log = series([0.0] * 10 + [100.0, 100.0] + [0.0] * 8, first=1)
    busy, idle, both = (window_figures(log, window(*span), since_last=True) for span in ((1, 1.2), (0, 1), (0.9, 1.3)))
    assert (busy.mean, busy.min, idle.max, both.mean) == pytest.approx((100, 100, 0, 50))
    failed = series([10.0, None, 30.0, 30.0], first=1)
    assert window_figures(failed, window(0.0, 0.4), since_last=True).mean == pytest.approx((10 + 30 + 30) / 3)
    assert window_figures(None, window(0, 1), reason="no permission").reason == "no permission"


def test_a_gap_in_the_readings_is_not_filled() -> None:
    times = [T0, T0 + 100 * MS, T0 + 200 * MS, T0 + 5 * S, T0 + 5 * S + 100 * MS]
    found = SampleBuilder().readings("GPU-a", "x", times, [10, 10, 10, 90, 90]).build().get("GPU-a", "x")
    assert found is not None
    assert held(found).within(window(0, 5.1)).weight.sum() == pytest.approx(0.5 * S + 0.1 * S, rel=0.01)


def test_counters_are_read_on_a_straight_line() -> None:
    assert counter_total(series([0, 10, 20, 30]), window(0.05, 0.25)) == pytest.approx(20)
    assert counter_total(series([0, 10, 20, 5]), window(0.05, 0.25)) is None
    assert counter_total(series([0, 10]), window(0.05, 0.25)) is None
    assert counter_total(None, window(0, 1)) is None


def test_quantiles_weigh_by_time() -> None:
    assert weighted_quantile(np.asarray([5.0, 1.0]), np.asarray([1.0, 9.0]), 0.5) == 1
    assert weighted_quantile(np.asarray([5.0, 1.0]), np.asarray([1.0, 9.0]), 0.95) == 5


def test_which_reasons_are_throttling() -> None:
    harmless = {"gpu_idle", "applications_clocks_setting", "display_clock_setting"}
    for reason in CLOCK_EVENT_REASONS:
        assert reasons_in(reason.bit) == [(reason.name, reason.name not in harmless)]
    assert reasons_in(0x1 | 0x8000) == [("gpu_idle", False), ("0x8000", True)], "one that is not known yet counts"
    assert reasons_in(0) == []


def test_seconds_of_each_reason() -> None:
    # power cap for the readings 3, 4, 5 and hardware slowdown with the last of them; a state is seen in its middle
    masks = series([0, 0, 0, 4, 4, 4 | 8, 0, 1, 1, 1])
    events = clock_events(masks, window(0, 1))
    assert events is not None
    assert {(event.reason, event.throttles): event.seconds for event in events} == pytest.approx(
        {("sw_power_cap", True): 0.3, ("hw_slowdown", True): 0.1, ("gpu_idle", False): 0.3 + 0.05 + 0.0}, abs=0.11
    )
    assert clock_events(None, window(0, 1)) is None


def test_batches_that_a_reason_touched() -> None:
    masks = series([0] * 20 + [4] * 10 + [0] * 20 + [1] * 10)
    found = find_throttling(masks, None, None)
    start = T0 + np.arange(10, dtype=np.int64) * 500 * MS
    touched = found.touched(start, start + 400 * MS)
    assert list(touched) == ["sw_power_cap"]
    assert touched["sw_power_cap"].tolist() == [False, False, False, False, True, True, False, False, False, False]
    assert found.within(window(2, 2.5)) == pytest.approx({"sw_power_cap": 0.5})


def test_a_clock_below_the_request_marks_unless_the_gpu_idles() -> None:
    clock = series([1980.0] * 20 + [1700.0] * 10 + [1980.0] * 10 + [345.0] * 20)
    masks = series([0] * 40 + [1] * 20)
    found = find_throttling(masks, clock, None, (1980.0, None))
    assert found.within(window(0, 6)) == pytest.approx({LOW_CLOCK: 1.0})
    # 4 % below is held
    assert find_throttling(masks, series([1980.0] * 20 + [1901.0] * 40), None, (1980.0, None)).lines == {}
    # without a request the clock that it could run at is the measure
    assert find_throttling(masks, clock, None, work=window(0, 6)).within(window(0, 6)) == pytest.approx(
        {LOW_CLOCK: 1.0}
    )


def test_a_drop_from_before_to_after() -> None:
    clock = series([1980.0] * 50 + [1800.0] * 50)
    throttling = find_throttling(None, clock, None, (1980.0, None))
    hold = clock_hold(clock, window(0, 10), throttling, LOW_CLOCK, 1980.0, None)
    assert (hold.before_mhz, hold.after_mhz) == (1980, 1800)
    assert hold.drop_percent == pytest.approx(9.091)
    assert hold.low_s == pytest.approx(5, abs=0.2)
    assert clock_hold(None, window(0, 10), throttling, LOW_CLOCK, None, None).reason == "the clock was not sampled"
    assert clock_hold(clock, window(0, 0.5), throttling, LOW_CLOCK, None, None).reason


RAMP, JITTER = np.linspace(0, 200, 300), np.random.default_rng(1).uniform(0, 30, 300)
"""MiB; the jitter is each batch's own, comes and goes."""


@pytest.mark.parametrize(
    ("mib", "grows"),
    [(RAMP + JITTER, True), (np.minimum(RAMP * 4, 200) + JITTER, False), (JITTER, False), (RAMP / 20, False)],
    ids=["leak", "cache", "jitter", "small"],
)
def test_a_leak_grows_to_the_end_and_a_cache_does_not(mib: Float64, grows: bool) -> None:
    found = growth(series(((1000 + mib) * MIB).tolist()), window(0, 30))
    assert found.grows is grows
    assert found.peak_bytes == pytest.approx((1000 + mib.max()) * MIB, abs=1)
    if grows:
        assert found.bytes_per_s_low is not None
        assert found.bytes_per_s_high is not None
        assert found.bytes_per_s_low <= 200 * MIB / 30 <= found.bytes_per_s_high


def test_what_cannot_be_told_of_memory_is_null() -> None:
    few = growth(series([1.0, 2.0, 3.0]), window(0, 0.3))
    assert (few.peak_bytes, few.bytes_per_s) == (3, None)
    assert few.reason
    assert growth(None, window(0, 1)).peak_bytes is None
    assert growth(series([1.0]), None).peak_bytes is None


def test_peaks_of_batches_long_enough() -> None:
    readings = series([10, 20, 30, 40, 50, 60, 70, 80, 90, 100])
    start = T0 + np.asarray([0, 300, 600], dtype=np.int64) * MS
    found = batch_peak(readings, start, start + 290 * MS)
    assert (found.batches, found.max_bytes, found.mean_bytes) == (3, 90, 60)
    short = batch_peak(readings, start, start + 50 * MS)
    assert short.max_bytes is None
    assert short.reason
    assert batch_peak(None, start, start).reason == "it was not sampled"


def process(folder: str, gpu: str, sensor: str | None = None, shift_s: float = 0) -> MeasuredProcess:
    start = T0 + np.arange(10, dtype=np.int64) * S + round(shift_s * S)
    kept = np.asarray([False] + [True] * 8 + [False])
    busy = (start, start + 500 * MS)
    loop = BatchLoop(("toy", "batch"), start, start + S, np.full(10, 4.0), ~kept)
    return MeasuredProcess(
        folder, (OnGpu(gpu, sensor or gpu, GpuWork(("toy/batch",), (busy,))),), Batches.of([loop]),
        (T0 - S, T0 + 11 * S),
    )  # fmt: skip


def gpu_log(builder: SampleBuilder, uuid: str, load: float, **facts: Any) -> None:
    times = times_every(100)
    builder.subject(uuid, "gpu", name="NVIDIA H200", **facts)
    builder.readings(uuid, "gpu_utilization_percent", times, [load] * len(times))
    builder.readings(uuid, "power_instant_mw", times, [70e3 + 5e3 * load] * len(times))
    builder.readings(uuid, "sm_clock_mhz", times, [1980.0 if load else 345.0] * len(times))
    builder.readings(uuid, "clock_event_reasons", times, [4 if load else 1] * len(times))


def times_every(period_ms: int) -> list[int]:
    """From a second before the process's first batch to two after its last."""
    times: list[int] = (T0 - S + np.arange(0, 13_000, period_ms, dtype=np.int64) * MS).tolist()
    return times


def summary(log: SampleLog, *processes: MeasuredProcess) -> Any:
    uuids = {gpu.sensor_uuid for one in processes for gpu in one.gpus}
    throttling = {uuid: throttling_of(log, uuid, RequestedClocks(), None) for uuid in uuids}
    return summarise_metrics(log, processes, throttling, {})


def test_load_on_one_gpu_and_nothing_on_the_other() -> None:
    builder = SampleBuilder()
    gpu_log(builder, "GPU-busy", 95, gpu_index=1)
    gpu_log(builder, "GPU-idle", 0, gpu_index=0)
    metrics = summary(builder.build(), process("proc_0_gpu_1", "GPU-busy"))
    by_uuid = {gpu.uuid: gpu for gpu in metrics.gpus}
    busy, idle = by_uuid["GPU-busy"], by_uuid["GPU-idle"]
    assert (busy.processes, busy.gpu_index, busy.figures["gpu_utilization_percent"].mean) == (["proc_0_gpu_1"], 1, 95)
    assert (idle.processes, idle.gpu_index, idle.figures["gpu_utilization_percent"].mean) == ([], 0, 0)
    assert busy.figures["power_instant_w"].mean == pytest.approx(545)
    assert idle.figures["power_instant_w"].mean == pytest.approx(70)
    assert busy.busy_share == pytest.approx(0.5)
    assert idle.busy_share is None
    assert busy.throttled_batches == 8
    assert idle.throttled_batches == 0
    assert busy.figures["temperature_c"].mean is None
    assert busy.figures["temperature_c"].reason == "it was not sampled"
    assert metrics.processes["proc_0_gpu_1"].throttled_batches == 8
    (finding,) = metric_findings(metrics)
    assert (finding.code, busy.batches) == ("clocks-throttled", 8)


def test_each_process_has_its_own_gpus_window() -> None:
    builder = SampleBuilder()
    times = (T0 + np.arange(0, 30_000, 100, dtype=np.int64) * MS).tolist()
    for uuid in ("GPU-a", "GPU-b"):
        builder.subject(uuid, "gpu")
        builder.readings(uuid, "power_instant_mw", times, [100e3] * 150 + [300e3] * 150)
    metrics = summary(builder.build(), process("proc_0_gpu_0", "GPU-a"), process("proc_0_gpu_1", "GPU-b", shift_s=15))
    means = {gpu.uuid: gpu.figures["power_instant_w"].mean for gpu in metrics.gpus}
    assert means == {"GPU-a": 100, "GPU-b": 300}
    assert metrics.host.window_s == pytest.approx(23)


def test_a_mig_instance_has_its_memory_and_its_gpu_the_rest() -> None:
    builder = SampleBuilder()
    gpu_log(builder, "GPU-whole", 50)
    times = times_every(100)
    builder.subject("MIG-1", "mig", parent_uuid="GPU-whole", name="1g")
    builder.readings("MIG-1", "memory_used_bytes", times, [3.0 * MIB] * len(times))
    metrics = summary(builder.build(), process("proc_0_gpu_0", "MIG-1", "GPU-whole"))
    by_uuid = {gpu.uuid: gpu for gpu in metrics.gpus}
    assert by_uuid["GPU-whole"].mig_uuids == ["MIG-1"]
    assert by_uuid["GPU-whole"].figures["power_instant_w"].mean == pytest.approx(320)
    assert by_uuid["MIG-1"].figures["memory_used_bytes"].mean == 3 * MIB
    assert by_uuid["MIG-1"].figures["power_instant_w"].mean is None
    assert "GPU-whole" in (by_uuid["MIG-1"].reason or "")
    assert metrics.processes["proc_0_gpu_0"].throttled_batches == 8


def test_host_and_process_figures() -> None:
    builder = SampleBuilder()
    times = times_every(200)
    subject = process_subject("proc_0_gpu_0")
    builder.subject(subject, "process", pid=5, gpu_uuid="GPU-a").subject("host", "host")
    builder.readings(subject, "cpu_percent", times, [150.0] * len(times))
    builder.readings(subject, "rss_bytes", times, [2.0 * MIB] * len(times))
    builder.readings(subject, "context_switches", times, [float(place * 20) for place in range(len(times))])
    builder.readings("host", "cpu_percent", times, [30.0] * len(times))
    metrics = summary(builder.build(), process("proc_0_gpu_0", "GPU-a"))
    mine = metrics.processes["proc_0_gpu_0"]
    assert mine.figures["cpu_percent"].mean == 150
    assert mine.totals["context_switches"] == pytest.approx(8 * 100)
    assert mine.totals["read_bytes"] is None
    assert mine.resident_memory.peak_bytes == 2 * MIB
    assert mine.resident_memory_per_batch.batches == 8
    assert mine.gpu_memory.reason == "it was not sampled"
    assert mine.throttled_batches is None
    assert metrics.host.figures["cpu_percent"].mean == 30


@pytest.mark.parametrize(
    ("nsys_bytes", "codes"),
    [({}, ["memory-grows"]), ({"p": 9 * MIB}, ["memory-grows"]), ({"p": 11 * MIB}, ["memory-grows-under-nsys"])],
)
def test_memory_that_may_be_the_tracer_s_own(nsys_bytes: dict[str, int], codes: list[str]) -> None:
    """5 MiB/s for 8 s."""
    builder, subject = SampleBuilder(), process_subject("p")
    times = times_every(100)
    builder.subject(subject, "process", pid=5)
    builder.readings(subject, "rss_bytes", times, [float(100 * MIB + 5 * MIB * (time - T0) / S) for time in times])
    metrics = summary(builder.build(), process("p", "GPU-a"))
    assert [one.code for one in metric_findings(metrics, nsys_bytes)] == codes


def test_a_process_that_never_got_to_a_batch_has_no_leak_and_no_slower_clock() -> None:
    """A load on an H100 that ended while it started: 96 MiB/s of libraries, and a clock that rose from idle."""
    builder, subject = SampleBuilder(), process_subject("p")
    times = times_every(100)
    builder.subject(subject, "process", pid=5)
    builder.readings(subject, "rss_bytes", times, [float(100 * MIB + 96 * MIB * (time - T0 + S) / S) for time in times])
    builder.subject("GPU-a", "gpu", name="NVIDIA H100")
    builder.readings("GPU-a", "sm_clock_mhz", times, [1980.0 if time < T0 + 2 * S else 1755.0 for time in times])
    metrics = summary(builder.build(), replace(process("p", "GPU-a"), batches=Batches.of([]), reason="no batch"))
    grown = metrics.processes["p"].resident_memory
    assert (grown.grows, grown.bytes_per_s, grown.reason) == (None, None, NO_BATCHES)
    assert grown.peak_bytes == pytest.approx((100 + 96 * 12) * MIB, rel=0.01)
    assert metric_findings(metrics) == []


@pytest.mark.parametrize(
    ("lost", "stolen", "codes"), [(0.06, 2.0, ["cpu-quota-throttled", "cpu-stolen"]), (0.05, 1.9, [])]
)
def test_cpus_that_were_kept_from_a_run(lost: float, stolen: float, codes: list[str]) -> None:
    """A process that used one CPU all the time, and a machine that wanted 40 % of its CPUs."""
    builder, subject = SampleBuilder(), process_subject("proc_0_gpu_0")
    times = times_every(200)
    builder.subject(subject, "process", pid=5).subject("host", "host")
    builder.readings(subject, "cpu_time_ns", times, [float(time - times[0]) for time in times])
    builder.readings(subject, "quota_throttled_ns", times, [lost * float(time - times[0]) for time in times])
    builder.readings(subject, "quota_throttled_periods", times, [float(place) for place in range(len(times))])
    builder.readings(subject, "quota_cpus", times, [1.0] * len(times))
    builder.readings("host", "cpu_percent", times, [40.0] * len(times))
    builder.readings("host", "steal_percent", times, [stolen] * len(times))
    metrics = summary(builder.build(), process("proc_0_gpu_0", "GPU-a"))
    mine = metrics.processes["proc_0_gpu_0"]
    assert mine.totals["quota_throttled_s"] == pytest.approx(8 * lost)
    assert mine.totals["quota_throttled_periods"] == 40
    assert mine.figures["quota_cpus"].mean == 1.0
    assert metrics.host.figures["steal_percent"].mean == pytest.approx(stolen)
    assert [finding.code for finding in metric_findings(metrics)] == codes


def test_a_process_of_two_gpus_is_on_both_with_what_ran_on_each() -> None:
    builder = SampleBuilder()
    for uuid, load in (("GPU-a", 50.0), ("GPU-b", 25.0)):
        gpu_log(builder, uuid, load)
    one, other = process("p", "GPU-a"), process("p", "GPU-b")
    start, _ = other.work.busy[0]
    quarter = OnGpu("GPU-b", "GPU-b", GpuWork(("toy/batch",), ((start, start + 250 * MS),)))
    metrics = summary(builder.build(), replace(one, gpus=(*one.gpus, quarter)))
    assert [gpu.processes for gpu in metrics.gpus] == [["p"], ["p"]]
    first, second = metrics.gpus
    # eight batches of one second count, less half a second of the last: 4 s and 2 s of the same window
    assert first.busy_share == pytest.approx(2 * second.busy_share, rel=1e-6)
    mine = metrics.processes["p"]
    assert (mine.gpu_uuid, mine.gpu_uuids) == (None, ["GPU-a", "GPU-b"])


def test_a_batch_is_throttled_where_any_of_its_gpus_was() -> None:
    builder = SampleBuilder()
    gpu_log(builder, "GPU-a", 50)
    gpu_log(builder, "GPU-b", 50)
    one = process("p", "GPU-a")
    both = replace(one, gpus=(*one.gpus, OnGpu("GPU-b", "GPU-b", one.work)))
    start = one.batches.start_ns

    def hot(*batches: int) -> Throttling:
        at = start[list(batches)]
        return Throttling({"thermal": BusyLine(at, at + MS)})

    assert throttled_batches(both, of_any([hot(2, 3), hot(3, 5)])) == 3
    metrics = summarise_metrics(builder.build(), [both], {"GPU-a": hot(2, 3), "GPU-b": hot(3, 5)}, {})
    assert metrics.processes["p"].throttled_batches == 3
    assert [gpu.throttled_batches for gpu in metrics.gpus] == [2, 2]
    unknown = summarise_metrics(builder.build(), [both], {"GPU-a": hot(2)}, {})
    assert unknown.processes["p"].throttled_batches is None, "of the other GPU it is not known"


def test_nothing_on_utc_is_said() -> None:
    lost = replace(process("p", "GPU-a"), lifetime=None, reason="no start time")
    builder = SampleBuilder()
    gpu_log(builder, "GPU-a", 50)
    metrics = summary(builder.build(), lost)
    assert (metrics.reason, metrics.gpus[0].reason) == ("no start time", "no start time")
    assert metrics.gpus[0].figures["power_instant_w"].reason == "there is no measured window"
    assert metrics.gpus[0].window is None


def test_without_batches_the_figures_are_those_of_the_run() -> None:
    builder = SampleBuilder()
    gpu_log(builder, "GPU-a", 50)
    one = process("p", "GPU-a")
    metrics = summary(builder.build(), replace(one, batches=Batches.of([]), reason="no trace"))
    gpu = metrics.gpus[0]
    assert (gpu.window, gpu.window_s, gpu.reason) == ("run", 12, "no trace")
    assert gpu.figures["power_instant_w"].mean == pytest.approx(320)
    assert gpu.throttled_batches is None
    assert metrics.processes["p"].window == "run"
    assert Throttling().within(window(0, 1)) == {}
