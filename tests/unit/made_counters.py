"""GPUs whose every moment is known, and the windows that the counters of such a GPU are read in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.counters.readings import gpm_readings
from perfharness.analysis.diagnosis import ALONE, OtherProcesses, diagnose
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.result import Float64
from perfharness.model.telemetry import GPM_EDGE_ERROR, GPM_RATES, GPM_SHARES, GPM_WINDOW
from perfharness.model.trace import Int64
from perfharness.trace import open_trace
from tests.support.made_batches import Batch
from tests.support.sample_builder import SampleBuilder
from tests.support.trace_builder import H200, TraceBuilder

MS = 1_000_000
T0 = 1_700_000_000_000_000_000
UUID = "GPU-" + H200["uuid"]
GEMM = {"tensor": 0.91, "dram": 0.23, "occupancy": 0.14, "sm_active": 1.0}
ELEMENTWISE = {"fp32": 0.01, "dram": 0.87, "occupancy": 0.82, "sm_active": 1.0}
"""As an H100 showed them (DESIGN, section 4)."""

CLOCK_MHZ = 1755.0
METRIC_OF = {
    "tensor": "gpm_tensor_percent", "dram": "gpm_dram_percent", "occupancy": "gpm_sm_occupancy_percent",
    "sm_active": "gpm_sm_active_percent", "fp32": "gpm_fp32_percent", "fp64": "gpm_fp64_percent",
    "pcie": "gpm_pcie_rx_mib_per_s",
}  # fmt: skip


@dataclass
class MadeUpGpu:
    """Pieces of time with the counters in them; a window's reading is the integral over it, and some noise.

    The counter `clock` of a piece is that of the multiprocessors, where it is not 1755 MHz: shares are of cycles then.
    """

    seed: int = 1
    noise: float = 0.002
    refresh_ms: float | None = None
    """How often the driver refreshes what is sampled, found to 0.7 ms either way; None: at each window's end."""
    edge_error_ms: float = 0.7
    """What is stated of how far the ends of windows may be off, where the driver refreshes by itself."""
    delay_ms: float = 0.0
    """How much later the driver hands a refresh out."""
    pieces: list[tuple[int, int, Mapping[str, float]]] = field(default_factory=list)

    def runs(self, start: int, end: int, counters: Mapping[str, float]) -> None:
        self.pieces.append((start, end, counters))

    def mean(self, name: str, edges: Int64) -> Float64:
        """By brute force over the pieces."""
        total, whole = np.zeros(len(edges) - 1), np.diff(edges) * CLOCK_MHZ
        of_cycles = name not in {"dram", "pcie"}
        for start, end, counters in self.pieces:
            clock = counters.get("clock", CLOCK_MHZ)
            value = counters.get(name, 0.0)
            if value or clock != CLOCK_MHZ:
                inside = np.maximum(np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1]), 0)
                total += value * inside * (clock if of_cycles else CLOCK_MHZ)
                whole += inside * (clock - CLOCK_MHZ) * of_cycles
        return np.asarray(total / whole)

    def clock_mhz(self, moments: Int64) -> list[float]:
        """At some moments."""
        clock = np.full(len(moments), CLOCK_MHZ)
        for start, end, counters in self.pieces:
            clock[(moments >= start) & (moments < end)] = counters.get("clock", CLOCK_MHZ)
        return [float(each) for each in clock]

    def sample(self, log: SampleBuilder, window_ms: float = 50.0) -> None:
        random = np.random.default_rng(self.seed)
        end = max(end for _, end, _ in self.pieces)
        count = int(end / MS / window_ms) + 4
        edges = np.cumsum(window_ms * MS * random.uniform(0.98, 1.02, count)).astype(np.int64) - 100 * MS
        found = edges
        if self.refresh_ms is not None:
            edges = np.arange(7 * MS, end + 200 * MS, round(self.refresh_ms * MS), dtype=np.int64)
            found = edges + random.uniform(-0.7 * MS, 0.7 * MS, len(edges)).astype(np.int64)
        found = found + round(self.delay_ms * MS)
        times = (found[1:] + T0).tolist()
        log.readings(UUID, GPM_WINDOW, times, np.diff(found).tolist())
        if self.refresh_ms is not None:
            log.readings(UUID, GPM_EDGE_ERROR, times, [self.edge_error_ms * MS] * len(times))
        for name, metric in METRIC_OF.items():
            scale = 100.0 if metric in GPM_SHARES else 1.0 / (1 << 20)
            values = self.mean(name, edges)
            values += self.noise * random.standard_normal(len(values)) * (1.0 if name != "pcie" else 1e9)
            log.readings(UUID, metric, times, (np.maximum(values, 0) * scale).tolist())
        for metric in {*GPM_SHARES, *GPM_RATES} - set(METRIC_OF.values()):
            log.readings(UUID, metric, times, [0.0] * len(times))
        log.readings(UUID, "sm_clock_mhz", times, self.clock_mhz(edges[1:]))


@dataclass
class Made:
    """A trace of batches of two stages, and the GPU beside it."""

    path: Path
    gpu: MadeUpGpu = field(default_factory=MadeUpGpu)
    builder: TraceBuilder = field(default_factory=lambda: TraceBuilder(gpu=False))
    end: int = 0
    kernel: str = "kernel"

    def __post_init__(self) -> None:
        self.builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=T0)
        self.builder.row("TARGET_INFO_GPU", **({"id": 0} | H200))

    def batches(
        self, count: int, stages: Mapping[str, tuple[float, Sequence[Mapping[str, float]]]], *, gap_ms: float = 1.0,
        jitter: float = 0.1, copy_ms: float = 0.0,
    ) -> Made:  # fmt: skip
        """Stages (milliseconds, counters in equal parts of it); a pinned copy may run beside the last one."""
        random = np.random.default_rng(7)

        def about(ms: float) -> int:
            return round(ms * MS * (1 + jitter * random.uniform(-1, 1)))

        for index in range(count):
            begin = self.end + about(gap_ms)
            each, now = Batch(self.builder, begin), begin
            for name, (length, parts) in stages.items():
                stop = now + about(length)
                edges = np.linspace(now, stop, len(parts) + 1).astype(np.int64).tolist()
                self.builder.range(name, now + 1, stop - 1)
                self.builder.kernel((now + 10, now + 20), (now, stop), name=self.kernel, grid=100_000)
                for start, end, counters in zip(edges[:-1], edges[1:], parts, strict=True):
                    self.gpu.runs(start, end, counters)
                now = stop
            if copy_ms:
                first = now - round(copy_ms * MS)
                each.copy(
                    ((first - begin) / 1e3, (first - begin) / 1e3 + 1), ((first - begin) / 1e3, (now - begin) / 1e3)
                )
                self.gpu.runs(first, now, {"pcie": 55e9})
            self.builder.range(f"batch_{index}", begin, now)
            self.end = now
        return self

    def diagnosed(self, others: OtherProcesses = ALONE, *, warmup: int = 0) -> Diagnosis:
        log = SampleBuilder()
        self.gpu.sample(log)
        readings = gpm_readings(log.build(), UUID)
        assert readings is not None
        trace = open_trace(self.builder.write(self.path / "t.sqlite"))
        return diagnose(Analysis(trace, AnalysisOptions(warmup)), others, {H200["uuid"]: readings})
