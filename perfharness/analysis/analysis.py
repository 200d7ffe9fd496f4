"""Results derived from the trace of one process, each computed once, on first use."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from perfharness.analysis.stages.checks import stage_findings
from perfharness.analysis.stages.roles import StageTable, find_stages
from perfharness.analysis.stages.times import StageTimes, stage_times
from perfharness.analysis.timeline.projection import Launches, RangeTable, build_range_table, find_launches
from perfharness.model.findings import Finding
from perfharness.model.host_samples import HostProbe
from perfharness.model.trace import Trace


@dataclass(frozen=True)
class AnalysisOptions:
    """How to read a trace: warm-up batches to drop, and the meaning of plain NVTX ranges."""

    warmup_batches: int = 0
    """Dropped at each end of every loop."""

    domain: str | None = None
    batch_pattern: str | None = None
    parallel: Literal["auto", "data", "model"] = "auto"
    """Whether ranks process items of their own (data) or share them (model); auto: detect."""


@dataclass
class Analysis:
    """A trace and the tables derived from it, on which results, diagnosis, energy and exports are built."""

    trace: Trace
    options: AnalysisOptions = field(default_factory=AnalysisOptions)
    host_probe: HostProbe | None = None
    """Samples of the process's threads, on the trace's clock; None if this is not a profiling pass."""

    @cached_property
    def launches(self) -> Launches:
        """The call that started each GPU operation."""
        return find_launches(self.trace.api, self.trace.operations)

    @cached_property
    def table(self) -> RangeTable:
        """All ranges, nested and projected onto the GPU."""
        return build_range_table(self.trace, self.launches)

    @cached_property
    def stages(self) -> StageTable:
        """The ranges that become results."""
        return find_stages(self.trace, self.table.nesting, self.options.domain, self.options.batch_pattern)

    @cached_property
    def stage_times(self) -> StageTimes:
        """Times, batches and loops of the stages."""
        return stage_times(self.stages, self.table, self.options.warmup_batches)

    @property
    def runs_batches(self) -> bool:
        """Whether any range is a batch."""
        return bool(self.stages.is_batch.any())

    @property
    def findings(self) -> list[Finding]:
        """Findings about the numbers."""
        uses_gpu = bool(len(self.trace.operations))
        judged = stage_findings(self.stages, self.stage_times, self.options.warmup_batches, uses_gpu=uses_gpu)
        return [*self.table.findings, *self.stages.findings, *judged]
