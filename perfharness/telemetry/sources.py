"""All sources of telemetry."""

from __future__ import annotations

from perfharness.telemetry.cpu_frequency import CpuFrequencySource
from perfharness.telemetry.cpu_quota import CpuQuotaSource
from perfharness.telemetry.gpm import GpmSource
from perfharness.telemetry.gpu import GpuEnergySource, GpuLinkSource, GpuMemorySource, GpuPowerSamples, GpuSource
from perfharness.telemetry.host import HostSource, ProcessSource, ThreadSource
from perfharness.telemetry.source import Metric, SamplerContext, Source

SOURCES: tuple[type[Source], ...] = (
    GpuSource,
    GpuEnergySource,
    GpuPowerSamples,
    GpuMemorySource,
    GpuLinkSource,
    GpmSource,
    HostSource,
    CpuFrequencySource,
    ProcessSource,
    ThreadSource,
    CpuQuotaSource,
)

METRICS: tuple[Metric, ...] = tuple(metric for source in SOURCES for metric in source.metrics)


def make_sources(context: SamplerContext) -> list[Source]:
    """Those that there is something to read of."""
    return [source(context) for source in SOURCES if source.applies(context)]
