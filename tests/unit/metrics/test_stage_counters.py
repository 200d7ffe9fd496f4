"""Counters of stages from windows that hold many of them: made-up GPUs whose every moment is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.counters.fits import WorkInWindows
from perfharness.analysis.counters.readings import GpmReadings, gpm_readings, on_trace_clock
from perfharness.analysis.diagnosis import ALONE, OtherProcesses, diagnose
from perfharness.analysis.diagnosis.gpu.sampled_counters import _unclear_ends
from perfharness.analysis.energy.kinds import BusyShares
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.diagnosis import Diagnosis, GpuCounters
from perfharness.model.telemetry import GPM_EDGE_ERROR, GPM_WINDOW
from perfharness.model.trace import TraceMeta
from perfharness.model.trace_clock import TraceClock
from perfharness.trace import open_trace
from tests.support.made_batches import stage_of
from tests.support.sample_builder import SampleBuilder
from tests.support.trace_builder import H200
from tests.unit.made_counters import ELEMENTWISE, GEMM, METRIC_OF, MS, T0, UUID, Made, MadeUpGpu


def counters_of(diagnosis: Diagnosis, name: str) -> GpuCounters:
    [found] = stage_of(diagnosis, name).counters
    assert (found.gpu, found.source) == (0, "gpm")
    return found


def holds(found: GpuCounters, truth: Mapping[str, float], within: float = 0.02) -> None:
    for name, value in truth.items():
        assert getattr(found, name) == pytest.approx(value, abs=within), name
        assert abs(getattr(found, name) - value) <= max(found.errors[name], 0.004), name


@pytest.mark.parametrize("lengths", [(3.0, 2.0), (20.0, 12.0), (200.0, 120.0)])
def test_stages_shorter_and_longer_than_a_window_are_separated(tmp_path: Path, lengths: tuple[float, float]) -> None:
    product, add = lengths
    made = Made(tmp_path).batches(
        round(8000 / sum(lengths)), {"product": (product, [GEMM]), "add": (add, [ELEMENTWISE])}
    )
    found = made.diagnosed()
    holds(counters_of(found, "product"), GEMM | {"fp32": 0.0})
    holds(counters_of(found, "add"), ELEMENTWISE | {"tensor": 0.0})
    whole = counters_of(found, "batch")
    share = product / sum(lengths)
    assert whole.tensor == pytest.approx(0.91 * share, abs=0.02)
    assert whole.dram == pytest.approx(0.23 * share + 0.87 * (1 - share), abs=0.02)
    assert whole.seconds == pytest.approx(8.0, rel=0.1)
    assert whole.sm_clock_mhz == pytest.approx(1755.0)
    assert not whole.missing


def test_shares_of_cycles_are_not_taken_for_shares_of_time(tmp_path: Path) -> None:
    """What runs at a lower clock has fewer cycles in a window: plain sums of time would give 0.87 instead of 0.94."""
    slow, fast = GEMM | {"tensor": 0.94, "clock": 1500.0}, ELEMENTWISE | {"clock": 1980.0}
    made = Made(tmp_path).batches(60, {"product": (60.0, [slow]), "add": (60.0, [fast])}, jitter=0.3)
    found = made.diagnosed()
    for name, truth in (("product", slow), ("add", fast)):
        counters = counters_of(found, name)
        holds(counters, {each: value for each, value in truth.items() if each != "clock"})
        assert counters.sm_clock_mhz == pytest.approx(truth["clock"], rel=0.03)
    whole = counters_of(found, "batch")
    part = 1500 / (1500 + 1980)
    assert whole.tensor == pytest.approx(0.94 * part, abs=0.02)
    assert whole.dram == pytest.approx((0.23 + 0.87) / 2, abs=0.02)


def test_copies_beside_kernels_take_nothing_from_them(tmp_path: Path) -> None:
    made = Made(tmp_path).batches(300, {"product": (20.0, [GEMM])}, copy_ms=8.0, gap_ms=6.0)
    whole = counters_of(made.diagnosed(), "batch")
    holds(whole, GEMM)
    assert whole.pcie_bytes_per_s == pytest.approx(55e9 * 8 / 20, rel=0.12)


def test_stages_that_rise_and_fall_together_are_not_separated(tmp_path: Path) -> None:
    """Every window holds the same part of each: 25 batches of exactly 2 ms, which begin with the window."""
    made = Made(tmp_path, MadeUpGpu(noise=0.0))
    stages = {"product": (1.2, [GEMM]), "add": (0.8, [ELEMENTWISE])}
    made.batches(4000, stages, gap_ms=0.0, jitter=0.0)
    log = SampleBuilder()
    edges = np.arange(0, made.end + 1, 50 * MS, dtype=np.int64)
    log.readings(UUID, GPM_WINDOW, (edges[1:] + T0).tolist(), [50.0 * MS] * (len(edges) - 1))
    for name, metric in METRIC_OF.items():
        log.readings(UUID, metric, (edges[1:] + T0).tolist(), (100 * made.gpu.mean(name, edges)).tolist())
    readings = gpm_readings(log.build(), UUID)
    assert readings is not None
    trace = open_trace(made.builder.write(tmp_path / "t.sqlite"))
    found = diagnose(Analysis(trace, AnalysisOptions(0)), ALONE, {H200["uuid"]: readings})
    for name in ("product", "add"):
        assert counters_of(found, name).tensor is None
        assert any(reason.startswith("tensor: ") for reason in counters_of(found, name).missing)
    assert counters_of(found, "batch").tensor == pytest.approx(0.6 * 0.91, abs=0.01)


def test_somebody_else_on_the_gpu_makes_all_of_them_null(tmp_path: Path) -> None:
    made = Made(tmp_path).batches(60, {"product": (100.0, [GEMM])}, gap_ms=150.0)
    made.gpu.runs(0, made.end, {"sm_active": 0.3})
    found = made.diagnosed()
    assert stage_of(found, "product").counters == []
    assert [reason for reason in found.missing if "another program" in reason]


def test_another_process_of_the_run_is_a_class_of_its_own(tmp_path: Path) -> None:
    """It runs other work, half of the time between the batches of this one."""
    made = Made(tmp_path).batches(100, {"product": (40.0, [GEMM])}, gap_ms=60.0)
    ends = np.asarray([end for _, end, _ in made.gpu.pieces], dtype=np.int64)
    random = np.random.default_rng(3)
    start = ends + random.integers(1, 20, len(ends)) * MS
    stop = start + random.integers(5, 30, len(ends)) * MS
    for first, last in zip(start.tolist(), stop.tolist(), strict=True):
        made.gpu.runs(first, last, ELEMENTWISE)
    others = OtherProcesses(BusyLine(start, stop), 1, gpu_uuid=H200["uuid"])
    holds(counters_of(made.diagnosed(others), "product"), GEMM)
    unknown = made.diagnosed(OtherProcesses(None, 1, "its trace is lost"))
    assert stage_of(unknown, "product").counters == []
    assert [reason for reason in unknown.missing if "counters" in reason and "its trace is lost" in reason]


def test_warmup_is_no_part_of_the_readings(tmp_path: Path) -> None:
    made = Made(tmp_path).batches(20, {"product": (60.0, [ELEMENTWISE])})
    made.batches(100, {"product": (60.0, [GEMM])}).batches(20, {"product": (60.0, [ELEMENTWISE])})
    holds(counters_of(made.diagnosed(warmup=20), "product"), GEMM)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """300 random pairs of stages with structure in them; at 95 % fewer than 5 % misses, 15 and three deviations: 26."""
    random, misses, none = np.random.default_rng(5), 0, np.empty(0, dtype=np.int64)
    for _ in range(150):
        lengths = random.uniform(1, 60, 2) * MS
        profiles = [random.uniform(0, 1, random.integers(1, 4)) for _ in range(2)]
        count = int(6e9 / lengths.sum())
        long = np.stack([length * random.uniform(0.8, 1.2, count) for length in lengths], axis=1)
        edge = np.r_[0, np.cumsum(long.ravel())]
        windows = np.cumsum(50 * MS * random.uniform(0.97, 1.03, int(edge[-1] / 50 / MS)))
        windows = windows[windows < edge[-1]].astype(np.int64)
        moments, values = [0.0], []
        for row in range(count):
            for which, profile in enumerate(profiles):
                begin, length = edge[2 * row + which], long[row, which]
                moments += [begin + length * (part + 1) / len(profile) for part in range(len(profile))]
                values += profile.tolist()
        done = np.r_[0.0, np.cumsum(np.diff(moments) * values)]
        read = np.diff(np.interp(windows, moments, done)) / np.diff(windows) + random.normal(0, 0.003, len(windows) - 1)
        spans = [(edge[which:-1:2].astype(np.int64), edge[which + 1 :: 2].astype(np.int64)) for which in range(2)]
        fits = WorkInWindows(windows[:-1], windows[1:], BusyShares(spans), (none, none), 50_000).fit(read, 1.0)
        for which, profile in enumerate(profiles):
            found = fits.of([which])
            misses += not found.low <= profile.mean() <= found.high
    assert misses <= 26


@pytest.mark.parametrize(
    ("seen_ms", "clock_ns", "figures"),
    [(11.7, 500, ("50 ms", "11.7 ms", "0.5 µs")), (0.2, 9_000_000, ("0.2 ms", "9000.0 µs")), (4.9, 500, None)],
)
def test_what_is_not_known_of_the_windows_is_told_by_its_parts(
    seen_ms: float, clock_ns: int, figures: tuple[str, ...] | None
) -> None:
    log = SampleBuilder()
    ends = [T0 + 100 * MS, T0 + 150 * MS, T0 + 200 * MS]
    log.readings(UUID, GPM_WINDOW, ends, [50.0 * MS] * 3, read_ns=80_000)
    log.readings(UUID, GPM_EDGE_ERROR, ends, [seen_ms * MS] * 3)
    read = gpm_readings(log.build(), UUID)
    assert read is not None
    origin = np.zeros(1, dtype=np.int64)
    meta = TraceMeta("nsys", None, "traced", "", T0, clock=TraceClock("marks", origin, origin + T0, clock_ns))
    found = on_trace_clock({UUID: read}, meta)[UUID]
    assert (found.edge_error_ns, found.clock_error_ns) == (round(seen_ms * MS) + clock_ns, clock_ns)
    unclear = _unclear_ends(found)
    assert (unclear is None) == (figures is None)
    assert all(figure in (unclear or "") for figure in figures or ())


def test_readings_are_shares_bytes_per_second_and_windows_by_hand() -> None:
    log = SampleBuilder()
    log.readings(UUID, GPM_WINDOW, [T0 + 100 * MS, T0 + 150 * MS], [50.0 * MS, 49.0 * MS], read_ns=80_000)
    log.readings(UUID, "gpm_dram_percent", [T0 + 100 * MS, T0 + 150 * MS], [23.0, None])
    log.readings(UUID, "gpm_pcie_rx_mib_per_s", [T0 + 150 * MS], [2.0])
    log.readings(UUID, "sm_clock_mhz", [T0 + 90 * MS, T0 + 120 * MS], [345.0, 1980.0])
    found = gpm_readings(log.build(), UUID)
    assert isinstance(found, GpmReadings)
    assert found.start_ns.tolist() == [T0 + 50 * MS, T0 + 101 * MS]
    assert np.nan_to_num(found.values["gpm_dram_percent"], nan=-1).tolist() == [0.23, -1]
    assert np.nan_to_num(found.values["gpm_pcie_rx_mib_per_s"], nan=-1).tolist() == [-1, 2097152.0]
    assert found.sm_clock_mhz.tolist() == [345.0, 1980.0]
    assert found.edge_error_ns == 40_000
    assert found.missing["gpm_tensor_percent"] == "it was not sampled"
