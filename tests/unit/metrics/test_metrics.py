"""What the samplers saw over a window: figures, clocks, throttling, memory, two GPUs and MIG; from readings by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from perfharness.analysis.energy.work import Batches, MeasuredProcess, OnGpu
from perfharness.analysis.metrics.clocks import (
    LOW_CLOCK,
    RequestedClocks,
    Throttling,
    clock_events,
    clock_hold,
    of_any,
    throttling_of,
)
from perfharness.analysis.metrics.figures import counter_total, held, window_figures
from perfharness.analysis.metrics.findings import metric_findings
from perfharness.analysis.metrics.memory import batch_peak, growth
from perfharness.analysis.metrics.results import RunMetrics
from perfharness.analysis.metrics.summary import summarise_metrics
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.columns import Float64
from perfharness.model.result import BatchLoop, GpuWork
from perfharness.model.telemetry import CLOCK_EVENT_REASONS, SampleLog, Series, process_subject
from tests.support.sample_builder import SampleBuilder

MS = 1_000_000
S = 1_000 * MS
T0 = 1_700_000_000 * S
MIB = 1 << 20
GPU = "GPU-a"


def steps(text: str) -> list[float | None]:
    """`VALUE*TIMES …`; `-` is a failed reading."""
    pairs = [part.partition("*") for part in text.split()]
    return [None if value == "-" else float(value) for value, _, times in pairs for _ in range(int(times or 1))]


def log_of(**metrics: str) -> SampleLog:
    """Readings of a GPU every 100 ms."""
    builder = SampleBuilder()
    for metric, text in metrics.items():
        values = steps(text)
        builder.readings(GPU, metric, [T0 + place * 100 * MS for place in range(len(values))], values)
    return builder.build()


def series(values: str | Sequence[float | None], new: str = "", first: int = 0) -> Series:
    """Readings every 100 ms, the first after so many of them; `new`: `x` where it is new."""
    values = steps(values) if isinstance(values, str) else values
    times = [T0 + (first + place) * 100 * MS for place in range(len(values))]
    is_new = [one == "x" for one in new.ljust(len(values), ".")] if new else None
    found = SampleBuilder().readings(GPU, "x", times, values, is_new=is_new).build().get(GPU, "x")
    assert found is not None
    return found


def window(start_s: float, end_s: float) -> tuple[int, int]:
    return T0 + round(start_s * S), T0 + round(end_s * S)


# -- figures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "new", "span", "expected"),
    [
        # 100 W for 0.3 s, 400 W for 0.1 s, then 200 W: repeats add nothing to the count, and their time counts
        (
            "100*3 400 200*3", "x..xx", (0, 0.7),
            {"mean": 1300 / 7, "min": 100, "max": 400, "new_readings": 3, "p50": 200, "p95": None},
        ),
        # only the window counts, and what held when it began
        ("100*2 500*2 900", "", (0.15, 0.35), {"mean": 400, "new_readings": 2}),
        # a clock that never changes is known without a new reading
        ("1980*50", "x", (2, 4), {"mean": 1980, "new_readings": 0, "reason": None}),
        # failed readings are not zero
        ("100 -*2 300*2", "", (0, 0.5), {"mean": 700 / 3}),
        ("100 -*4", "", (0, 0.5), {"mean": None, "reason": "it was read in only 20 % of the measured window"}),
        ("-*2", "", (0, 1), {"mean": None, "reason": "it was not sampled"}),
        ("1 2", "", None, {"mean": None, "reason": "there is no measured window"}),
        # percentiles by time
        ("5 1*29", "", (0, 3), {"p50": 1, "p95": 1, "max": 5}),
    ],
)  # fmt: skip
def test_values_count_for_as_long_as_they_hold(
    values: str, new: str, span: tuple[float, float] | None, expected: dict[str, Any]
) -> None:
    readings = series(values, new)
    found = asdict(window_figures(readings, span and window(*span)))
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    if (mean := expected.get("mean")) is not None:
        assert window_figures(readings, span and window(*span), scale=1e-3).mean == pytest.approx(mean / 1000, abs=1e-6)


def test_a_mean_since_the_reading_before_counts_there() -> None:
    """One core idle until 1.0 s, busy until 1.2 s, idle after: readings at 0.1, 0.2, … are of the tenth before each."""
    log = series("0*10 100*2 0*8", first=1)
    busy, idle, both = (window_figures(log, window(*span), since_last=True) for span in ((1, 1.2), (0, 1), (0.9, 1.3)))
    assert (busy.mean, busy.min, idle.max, both.mean) == pytest.approx((100, 100, 0, 50))
    failed = window_figures(series("10 - 30*2", first=1), window(0.0, 0.4), since_last=True)
    assert failed.mean == pytest.approx((10 + 30 + 30) / 3)


def test_a_gap_in_the_readings_is_not_filled() -> None:
    times = [T0, T0 + 100 * MS, T0 + 200 * MS, T0 + 5 * S, T0 + 5 * S + 100 * MS]
    found = SampleBuilder().readings(GPU, "x", times, [10, 10, 10, 90, 90]).build().get(GPU, "x")
    assert found is not None
    assert held(found).within(window(0, 5.1)).weight.sum() == pytest.approx(0.5 * S + 0.1 * S, rel=0.01)


@pytest.mark.parametrize(("values", "total"), [([0, 10, 20, 30], 20), ([0, 10, 20, 5], None), ([0, 10], None)])
def test_counters_are_read_on_a_straight_line(values: list[float], total: float | None) -> None:
    assert counter_total(series(values), window(0.05, 0.25)) == (None if total is None else pytest.approx(total))


# -- clocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reasons", "mhz", "requested", "is_at_work", "seconds"),
    [
        ("0*20 4*10 0*20 1*10", "", None, False, {"sw_power_cap": 1.0}),
        (f"0*20 {0x8000 | 2}*10 0*30", "", None, False, {"0x8000": 1.0}),
        # a clock below the request, unless the GPU idles; 4 % below is held
        ("0*40 1*20", "1980*20 1700*10 1980*10 345*20", 1980.0, False, {LOW_CLOCK: 1.0}),
        ("", "1980*20 1901*40", 1980.0, False, {}),
        # without a request the clock that it could run at is the measure
        ("", "1980*20 1700*10 1980*30", None, True, {LOW_CLOCK: 1.0}),
    ],
)
def test_when_the_clocks_were_throttled(
    reasons: str, mhz: str, requested: float | None, is_at_work: bool, seconds: dict[str, float]
) -> None:
    texts = {name: text for name, text in (("clock_event_reasons", reasons), ("sm_clock_mhz", mhz)) if text}
    found = throttling_of(log_of(**texts), GPU, RequestedClocks(requested), window(0, 6) if is_at_work else None)
    assert found.within(window(0, 6)) == pytest.approx(seconds, abs=0.01)


def test_batches_that_a_reason_touched() -> None:
    found = throttling_of(log_of(clock_event_reasons="0*20 4*10 0*20"), GPU, RequestedClocks(), None)
    start = T0 + np.arange(10, dtype=np.int64) * 500 * MS
    touched = found.touched(start, start + 400 * MS)
    assert {name: np.flatnonzero(hit).tolist() for name, hit in touched.items()} == {"sw_power_cap": [4, 5]}


def test_seconds_of_each_reason() -> None:
    """Power cap for the readings 3, 4, 5 and hardware slowdown with the last; a state is seen in its middle."""
    events = clock_events(series("0*3 4*2 12 0 1*3"), window(0, 1))
    assert {event.reason: (event.throttles, round(event.seconds, 2)) for event in events or []} == {
        "sw_power_cap": (True, 0.3),
        "hw_slowdown": (True, 0.1),
        "gpu_idle": (False, 0.35),
    }
    harmless = {reason.name for reason in CLOCK_EVENT_REASONS if not reason.slows}
    assert harmless == {"gpu_idle", "applications_clocks_setting", "display_clock_setting"}
    assert clock_events(None, window(0, 1)) is None


def test_a_drop_from_before_to_after() -> None:
    clock = series("1980*50 1800*50")
    hold = clock_hold(clock, window(0, 10), 1980.0, work=None, low_s=5.0)
    assert (hold.before_mhz, hold.after_mhz, hold.low_s) == (1980, 1800, 5)
    assert hold.drop_percent == pytest.approx(9.091)
    for nothing in (clock_hold(None, window(0, 10), work=None), clock_hold(clock, window(0, 0.5), work=None)):
        assert (nothing.before_mhz, bool(nothing.reason)) == (None, True)


# -- memory ------------------------------------------------------------------------------------------------------------

RAMP, JITTER = np.linspace(0, 200, 300), np.random.default_rng(1).uniform(0, 30, 300)
"""MiB; the jitter is each batch's own, comes and goes."""


@pytest.mark.parametrize(
    ("mib", "is_on_gpu", "grows"),
    [
        (RAMP + JITTER, False, True),
        (np.minimum(RAMP * 4, 200) + JITTER, False, False),  # a cache fills up
        (JITTER, False, False),
        (RAMP / 20, False, False),
        (np.arange(7) * 400.0, True, True),  # 0.7 s: too short for 20 parts
        (np.arange(7) * 400.0, False, None),
        (np.minimum(np.arange(8), 3) * 400.0, True, False),
        (np.arange(4) * 400.0, True, None),
    ],
)
def test_a_leak_grows_to_the_end_and_a_cache_does_not(mib: Float64, is_on_gpu: bool, grows: bool | None) -> None:
    seconds = len(mib) / 10
    found = growth(series(((1000 + mib) * MIB).tolist()), window(0, seconds), 10, is_on_gpu=is_on_gpu)
    assert found.grows is grows
    assert found.peak_bytes == pytest.approx((1000 + mib.max()) * MIB, abs=1)
    assert (found.bytes_per_s is None) == (grows is None) == bool(found.reason)
    if grows:
        step = float(np.polyfit(np.arange(len(mib)), mib, 1)[0]) * 10 * MIB
        assert (found.bytes_per_s_low or 0) - 1 <= step <= (found.bytes_per_s_high or 0) + 1
        assert found.bytes_per_batch == pytest.approx(step * seconds / 10, rel=0.05)


def test_peaks_of_batches_long_enough() -> None:
    readings = series(range(10, 110, 10))
    start = T0 + np.asarray([0, 300, 600], dtype=np.int64) * MS
    found = batch_peak(readings, start, start + 290 * MS)
    assert (found.batches, found.max_bytes, found.mean_bytes) == (3, 90, 60)
    short = batch_peak(readings, start, start + 50 * MS)
    assert (short.max_bytes, bool(short.reason)) == (None, True)


# -- a run -------------------------------------------------------------------------------------------------------------


def process(folder: str, *gpus: str, sensor: str | None = None, shift_s: float = 0) -> MeasuredProcess:
    """Ten batches of a second, the first and the last warm-up; half of each is GPU work, on each GPU half as much."""
    start = T0 + np.arange(10, dtype=np.int64) * S + round(shift_s * S)
    kept = np.asarray([False] + [True] * 8 + [False])
    loop = BatchLoop(("toy", "batch"), start, start + S, np.full(10, 4.0), ~kept)
    works = [GpuWork(("toy/batch",), ((start, start + 500 * MS // (place + 1)),)) for place in range(len(gpus))]
    given = tuple(OnGpu(gpu, sensor or gpu, work) for gpu, work in zip(gpus, works, strict=True))
    return MeasuredProcess(folder, given, Batches.of([loop]), (T0 - S, T0 + 11 * S))


TIMES: list[int] = (T0 - S + np.arange(0, 13_000, 100, dtype=np.int64) * MS).tolist()
"""From a second before the first batch to two after the last."""


class Log(SampleBuilder):
    """Readings of subjects at `TIMES`."""

    def constant(self, subject: str, **values: float) -> Log:
        for metric, value in values.items():
            self.readings(subject, metric, TIMES, [value] * len(TIMES))
        return self

    def growing(self, subject: str, metric: str, per_s: float, start: float = 0.0) -> Log:
        self.readings(subject, metric, TIMES, [start + per_s * (time - TIMES[0]) / S for time in TIMES])
        return self

    def gpu(self, uuid: str, load: float, **facts: Any) -> Log:
        self.subject(uuid, "gpu", name="NVIDIA H200", **facts)
        return self.constant(
            uuid,
            gpu_utilization_percent=load,
            power_instant_mw=70e3 + 5e3 * load,
            sm_clock_mhz=1980.0 if load else 345.0,
            clock_event_reasons=4 if load else 1,
            gpm_tensor_percent=load / 2,
        )


def summary(builder: SampleBuilder, *processes: MeasuredProcess) -> RunMetrics:
    log = builder.build()
    uuids = {gpu.sensor_uuid for one in processes for gpu in one.gpus}
    throttling = {uuid: throttling_of(log, uuid, RequestedClocks(), None) for uuid in uuids}
    return summarise_metrics(log, processes, throttling, {})


def codes(metrics: RunMetrics, nsys_bytes: dict[str, int] | None = None) -> list[str]:
    return [finding.code for finding in metric_findings(metrics, nsys_bytes)]


def test_load_on_one_gpu_and_nothing_on_the_other() -> None:
    metrics = summary(Log().gpu("GPU-busy", 95, gpu_index=1).gpu("GPU-idle", 0, gpu_index=0), process("p", "GPU-busy"))
    busy, idle = metrics.gpus
    assert (busy.processes, busy.gpu_index, busy.figures["gpu_utilization_percent"].mean) == (["p"], 1, 95)
    assert (idle.processes, idle.gpu_index, idle.figures["gpu_utilization_percent"].mean) == ([], 0, 0)
    assert (busy.figures["power_instant_w"].mean, idle.figures["power_instant_w"].mean) == (545, 70)
    assert busy.figures["gpm_tensor_percent"].mean == 47.5
    assert busy.busy_share == pytest.approx(0.5)
    assert idle.busy_share is None
    assert (busy.throttled_batches, busy.batches, idle.throttled_batches) == (8, 8, 0)
    assert (busy.figures["temperature_c"].mean, bool(busy.figures["temperature_c"].reason)) == (None, True)
    assert metrics.processes["p"].throttled_batches == 8
    assert codes(metrics) == ["clocks-throttled"]


def test_each_process_has_its_own_gpus_window() -> None:
    builder = SampleBuilder()
    times = (T0 + np.arange(0, 30_000, 100, dtype=np.int64) * MS).tolist()
    for uuid in ("GPU-a", "GPU-b"):
        builder.readings(uuid, "power_instant_mw", times, [100e3] * 150 + [300e3] * 150)
    metrics = summary(builder, process("p", "GPU-a"), process("q", "GPU-b", shift_s=15))
    assert [gpu.figures["power_instant_w"].mean for gpu in metrics.gpus] == [100, 300]
    assert metrics.host.window_s == pytest.approx(23)


def test_a_mig_instance_has_its_memory_and_its_gpu_the_rest() -> None:
    builder = Log().gpu("GPU-whole", 50)
    builder.subject("MIG-1", "mig", parent_uuid="GPU-whole", name="1g")
    metrics = summary(builder.constant("MIG-1", memory_used_bytes=3.0 * MIB), process("p", "MIG-1", sensor="GPU-whole"))
    whole, instance = metrics.gpus
    assert (whole.mig_uuids, whole.figures["power_instant_w"].mean) == (["MIG-1"], 320)
    assert instance.figures["memory_used_bytes"].mean == 3 * MIB
    assert (instance.figures["power_instant_w"].mean, instance.throttled_batches) == (None, None)
    assert "GPU-whole" in (instance.reason or "")
    assert metrics.processes["p"].throttled_batches == 8


@pytest.mark.parametrize(
    ("lost", "stolen", "found"), [(0.06, 2.0, ["cpu-quota-throttled", "cpu-shared"]), (0.05, 1.9, [])]
)
def test_host_and_process_figures(lost: float, stolen: float, found: list[str]) -> None:
    """A process that used one CPU all the time, and a machine that wanted 40 % of its CPUs."""
    subject = process_subject("p")
    builder = Log().subject(subject, "process", pid=5).subject("host", "host")
    assert isinstance(builder, Log)
    builder.constant(subject, cpu_percent=150.0, rss_bytes=2.0 * MIB, quota_cpus=1.0)
    builder.growing(subject, "context_switches", 100).growing(subject, "cpu_time_ns", 1e9)
    builder.growing(subject, "quota_throttled_ns", lost * 1e9).growing(subject, "quota_throttled_periods", 5)
    metrics = summary(builder.constant("host", cpu_percent=40.0, steal_percent=stolen), process("p", GPU))
    mine = metrics.processes["p"]
    assert (mine.figures["cpu_percent"].mean, mine.figures["quota_cpus"].mean) == (150, 1)
    totals = {"context_switches": 800, "quota_throttled_s": 8 * lost, "quota_throttled_periods": 40, "read_bytes": None}
    assert {name: mine.totals[name] for name in totals} == pytest.approx(totals)
    assert (mine.resident_memory.peak_bytes, mine.resident_memory_per_batch.batches) == (2 * MIB, 8)
    assert (mine.gpu_memory.reason, mine.throttled_batches) == ("it was not sampled", None)
    assert (metrics.host.figures["cpu_percent"].mean, metrics.host.figures["steal_percent"].mean) == (40, stolen)
    assert codes(metrics) == found


@pytest.mark.parametrize(
    ("metric", "nsys_mib", "found"),
    [
        ("rss_bytes", 0, ["memory-grows"]),
        ("rss_bytes", 9, ["memory-grows"]),
        ("rss_bytes", 11, ["memory-grows-under-nsys"]),
        ("process_memory_bytes", 11, ["memory-grows"]),
        ("memory_used_bytes", 0, ["memory-grows"]),  # of the GPU, where the driver does not list the process
    ],
)
def test_memory_that_grows_is_a_finding(metric: str, nsys_mib: int, found: list[str]) -> None:
    """5 MiB/s in batches of a second; what nsys records stays in the process."""
    subject = GPU if metric == "memory_used_bytes" else process_subject("p")
    builder = Log().growing(subject, metric, 5 * MIB, 100 * MIB)
    metrics = summary(builder, process("p", GPU))
    assert codes(metrics, {"p": nsys_mib * MIB}) == found
    assert "5.24 MB per batch" in metric_findings(metrics)[0].message
    if metric == "memory_used_bytes":
        assert codes(summary(builder, process("p", GPU), process("q", GPU))) == [], "whose it is is not known"


def test_a_process_that_never_got_to_a_batch_has_no_leak_and_no_slower_clock() -> None:
    """A load on an H100 that ended while it started: 96 MiB/s of libraries, and a clock that fell."""
    builder = Log().growing(process_subject("p"), "rss_bytes", 96 * MIB, 100 * MIB)
    builder.readings(GPU, "sm_clock_mhz", TIMES, [1980.0 if time < T0 + 2 * S else 1755.0 for time in TIMES])
    metrics = summary(builder, replace(process("p", GPU), batches=Batches.of([]), reason="no batch"))
    grown = metrics.processes["p"].resident_memory
    assert (grown.grows, grown.bytes_per_s, bool(grown.reason)) == (None, None, True)
    assert grown.peak_bytes == pytest.approx((100 + 96 * 12) * MIB, rel=0.01)
    assert codes(metrics) == []


def test_a_process_of_two_gpus_is_on_both_and_throttled_where_any_was() -> None:
    log, both = Log().gpu("GPU-a", 50).gpu("GPU-b", 25).build(), process("p", "GPU-a", "GPU-b")
    start = both.batches.start_ns

    def hot(*batches: int) -> Throttling:
        return Throttling({"thermal": BusyLine(start[list(batches)], start[list(batches)] + MS)})

    metrics = summarise_metrics(log, [both], {"GPU-a": hot(2, 3), "GPU-b": hot(3, 5)}, {})
    first, second = metrics.gpus
    assert first.busy_share == pytest.approx(2 * (second.busy_share or 0), rel=1e-6)
    assert (metrics.processes["p"].gpu_uuid, metrics.processes["p"].gpu_uuids) == (None, ["GPU-a", "GPU-b"])
    assert [first.throttled_batches, second.throttled_batches, metrics.processes["p"].throttled_batches] == [2, 2, 3]
    assert of_any([hot(2, 3), hot(3, 5)]).within(window(0, 10)) == {"thermal": pytest.approx(0.003)}
    unknown = summarise_metrics(log, [both], {"GPU-a": hot(2)}, {})
    assert unknown.processes["p"].throttled_batches is None, "of the other GPU it is not known"


@pytest.mark.parametrize(
    ("changes", "kind", "seconds", "power_w"),
    [
        ({"lifetime": None, "reason": "no start time"}, None, None, None),
        ({"batches": Batches.of([]), "reason": "no trace"}, "run", 12, 320),
    ],
)
def test_without_batches_on_utc_the_figures_are_those_of_the_run(
    changes: dict[str, Any], kind: str | None, seconds: float | None, power_w: float | None
) -> None:
    metrics = summary(Log().gpu(GPU, 50), replace(process("p", GPU), **changes))
    [gpu] = metrics.gpus
    assert (gpu.window, gpu.window_s, gpu.figures["power_instant_w"].mean) == (kind, seconds, power_w)
    assert (gpu.reason, metrics.reason, gpu.throttled_batches) == (changes["reason"], changes["reason"], None)
    assert metrics.processes["p"].window == kind
