"""What a GPU can do at most, and how much of it counters saw: floating point operations, bytes, and the roofline.

Throughput per multiprocessor and clock is fixed by the compute capability; multiprocessors, clocks and the memory's
bandwidth are what the device reports, so that H100 PCIe, H100 SXM and H200 differ as they should.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfharness.model.diagnosis import GpuCounters, RooflinePoint
from perfharness.model.trace import GpuDevice

FLOPS_PER_CLOCK: Mapping[tuple[int, int], Mapping[str, int]] = {
    (7, 0): {"fp32": 128, "fp64": 64, "fp16": 256, "tensor": 1024},
    (7, 5): {"fp32": 128, "fp64": 4, "fp16": 256, "tensor": 1024},
    (8, 0): {"fp32": 128, "fp64": 64, "fp16": 512, "tensor": 2048, "dmma": 128},
    (8, 6): {"fp32": 256, "fp64": 4, "fp16": 256, "tensor": 1024},
    (8, 9): {"fp32": 256, "fp64": 4, "fp16": 256, "tensor": 1024},
    (9, 0): {"fp32": 256, "fp64": 128, "fp16": 512, "tensor": 4096, "dmma": 256},
    (10, 0): {"fp32": 256, "fp64": 128, "fp16": 512, "tensor": 8192},
}
"""Of one multiprocessor, a multiply-add counted as two, by pipe: CUDA C++ Programming Guide, "Throughput of Native
Arithmetic Instructions", and for tensor cores (16-bit types without sparsity; `dmma`: fp64) NVIDIA's architecture white
papers: 989.4 TFLOP/s of an H100 SXM are 132 multiprocessors at 1.83 GHz times 4096."""

PIPES = ("tensor", "fp32", "fp16", "fp64")


@dataclass(frozen=True)
class Shares:
    """Counters of a stage or kernel on one GPU, of all sources: shares of the peak; None: not counted."""

    tensor: float | None
    fp32: float | None
    fp16: float | None
    fp64: float | None
    dram: float | None
    sm_active: float | None
    occupancy: float | None
    double_tensor: float
    """Part of `tensor` that is double precision."""
    sm_clock_mhz: float | None
    sources: tuple[str, ...]
    seconds: float

    @property
    def pipes(self) -> dict[str, float]:
        """The pipes that were counted."""
        found = {"tensor": self.tensor, "fp32": self.fp32, "fp16": self.fp16, "fp64": self.fp64}
        return {name: share for name, share in found.items() if share is not None}

    @property
    def busiest(self) -> tuple[str, float] | None:
        """The pipe with the highest share; None where none was counted."""
        return max(self.pipes.items(), key=lambda pipe: pipe[1], default=None)


def joined(counters: Sequence[GpuCounters]) -> Shares | None:
    """Counters of one GPU: nsys's, which are of finer windows, and what they lack from GPM's; None without any."""
    known = sorted((one for one in counters if one.seconds), key=lambda one: one.source != "nsys")
    if not known:
        return None

    def first(name: str) -> float | None:
        return next((value for one in known if (value := getattr(one, name)) is not None), None)

    types = next((one.tensor_types for one in known if one.tensor_types), {})
    double, every = types.get("dmma", 0.0) + types.get("dfma", 0.0), sum(types.values())
    return Shares(
        **{name: first(name) for name in (*PIPES, "dram", "sm_active", "occupancy", "sm_clock_mhz")},
        double_tensor=double / every if every > 0.01 else 0.0,
        sources=tuple(one.source for one in known),
        seconds=max(one.seconds for one in known),
    )


def roofline_point(gpu: int, shares: Shares | None, device: GpuDevice) -> RooflinePoint | None:
    """Achieved operations and bytes per second against the GPU's ceilings; None where a peak or a counter is missing.

    Every instruction of a pipe counts as a multiply-add and every tensor operation that is not double as one of 16-bit
    types, so a rate is at most that; shares of the ceiling are not affected where one pipe does the work.
    """
    rates = FLOPS_PER_CLOCK.get(device.compute_capability or (0, 0))
    busiest = None if shares is None else shares.busiest
    if shares is None or rates is None or busiest is None or shares.dram is None:
        return None
    clock_hz = device.clock_hz if shares.sm_clock_mhz is None else shares.sm_clock_mhz * 1e6
    if device.sm_count is None or clock_hz is None or device.memory_bytes_per_s is None:
        return None
    tensor = rates["tensor"] + shares.double_tensor * (rates.get("dmma", rates["tensor"]) - rates["tensor"])
    peaks = {name: device.sm_count * clock_hz * rate for name, rate in {**rates, "tensor": tensor}.items()}
    flop_per_s = sum(share * peaks[name] for name, share in shares.pipes.items())
    bytes_per_s = shares.dram * device.memory_bytes_per_s
    pipe, share = busiest
    intensity = flop_per_s / bytes_per_s if bytes_per_s else None
    peak = flop_per_s / share if share else peaks[pipe]  # more of the same mix, until its busiest pipe is at its peak
    reachable = peak if not intensity else min(peak, intensity * device.memory_bytes_per_s)
    return RooflinePoint(
        gpu=gpu,
        pipe=pipe,
        pipe_share=share,
        flop_per_s=flop_per_s,
        peak_flop_per_s=peak,
        bytes_per_s=bytes_per_s,
        peak_bytes_per_s=float(device.memory_bytes_per_s),
        flop_per_byte=intensity,
        ceiling_flop_per_s=reachable,
        counted_pipes=sorted(shares.pipes),
    )
