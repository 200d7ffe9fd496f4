"""A sweep over batch sizes, or the search for the largest within a latency target, of each cell of a suite.

Each batch size is a real process, and all that was measured is on disk after each; an earlier run's is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from perfharness.bench.search.sweep import Measure, SweepInterruptedError, largest_batch, sweep
from perfharness.bench.suite.case_run import CaseRunner, why_again
from perfharness.bench.suite.matrix import PlannedCase, at_batch
from perfharness.bench.suite.run import settings_of
from perfharness.bench.suite.store import CASES, results_on_disk, write_sweep
from perfharness.bench.suite.suite import Suite, doubling_sizes
from perfharness.model.bench import BenchCase, CaseResult, MachineRecord
from perfharness.model.bench_search import CellSweep, SweepFile, TargetFigure
from perfharness.report.sweep import CELL
from perfharness_launcher.interrupts import Interrupts


class SweepObserver(Protocol):
    """Is told of what goes on."""

    def look(self) -> None:
        """Called about 20 times a second while a case runs."""

    def again(self, case: BenchCase, why: str) -> None:
        """A case of an earlier run is measured again."""

    def done(self, result: CaseResult, *, is_kept: bool) -> None:
        """A case is over and on disk, or was measured by an earlier run."""

    def say(self, line: str) -> None:
        """Anything else worth a line."""


@dataclass
class SweepRun:
    """Everything that a sweep needs.

    Args:
        cells: one planned case of each, of whatever batch size.
        out: where `sweep.json` and the cases come to lie, or do lie.
        retry_failed: try everything again that is not `ok`, not what failed for a passing reason only.
        target_ms: milliseconds; None: sweep without a target.
        command: of perfharness, for the results.
    """

    suite: Suite
    cells: Sequence[PlannedCase]
    out: Path
    smallest: int
    largest: int
    machine: MachineRecord
    interrupts: Interrupts
    observer: SweepObserver
    retry_failed: bool = False
    target_ms: float | None = None
    figure: TargetFigure = "p99"
    command: Sequence[str] = ()
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    results: dict[str, CaseResult] = field(default_factory=dict, init=False)
    _runner: CaseRunner = field(init=False)

    def __post_init__(self) -> None:
        self._runner = CaseRunner(self.out, self.suite.run, self.interrupts, self.observer.look, self.observer.say)

    def run(self) -> SweepFile:
        """Cell after cell. An interrupt ends it; what was measured is on disk and in the answer."""
        on_disk = results_on_disk(self.out)
        for cell in self.cells:
            self._outcome(cell, self._known_of(cell, on_disk))
        self._write()
        for cell in self.cells:
            if self._outcome(cell, self._measure_of(cell, on_disk)).ended_by == "interrupted":
                break
        gone = sorted(set(on_disk) - set(self.results))
        if gone and not self.interrupts:
            self._runner.remark(f"in {CASES}/ and not part of this sweep, so not in these results: {', '.join(gone)}")
        return self._write()

    def _outcome(self, cell: PlannedCase, measure: Measure) -> CellSweep:
        name = {name: getattr(cell.case, name) for name in CELL}
        if self.target_ms is None:
            swept = sweep(measure, doubling_sizes(self.largest, self.smallest))
            return CellSweep(
                **name,
                batch_sizes=[case.case.batch_size for case in swept.cases],
                case_ids=[case.case.case_id for case in swept.cases],
                ended_by=swept.ended_by,
                ended_at_batch=swept.ended_at_batch,
                reason=swept.reason,
            )
        target = largest_batch(
            measure, self.target_ms, figure=self.figure, smallest=self.smallest, largest=self.largest
        )
        return CellSweep(
            **name,
            batch_sizes=[point.batch_size for point in target.points],
            case_ids=[at_batch(cell, point.batch_size).case_id for point in target.points],
            ended_by="interrupted" if target.ended_by == "interrupted" else None,
            target=target,
            reason=target.reason,
        )

    def _measure_of(self, cell: PlannedCase, on_disk: Mapping[str, CaseResult]) -> Measure:
        """How to measure a batch size of a cell, unless that was done."""
        known = self._known_of(cell, on_disk)

        def measure(batch_size: int) -> CaseResult:
            try:
                result = known(batch_size)
            except SweepInterruptedError:
                return self._measured(at_batch(cell, batch_size), on_disk)
            self.observer.done(result, is_kept=True)
            return result

        return measure

    def _measured(self, planned: PlannedCase, on_disk: Mapping[str, CaseResult]) -> CaseResult:
        if self.interrupts:
            raise SweepInterruptedError
        before = on_disk.get(planned.case_id)
        if before is not None and (why := self._why_again(planned, before)) is not None:
            self.observer.again(planned.case, why)
        result = self._run(planned, before)
        self.results[result.case.case_id] = result
        self._write()
        self.observer.done(result, is_kept=False)
        return result

    def _run(self, planned: PlannedCase, before: CaseResult | None) -> CaseResult:
        if planned.refusal is not None:
            return self._runner.refuse(planned, "unavailable", planned.refusal, before)
        result = self._runner.measure(planned, before)
        if result is None:
            raise SweepInterruptedError
        return result

    def _known_of(self, cell: PlannedCase, on_disk: Mapping[str, CaseResult]) -> Measure:
        """What is known of a cell, an earlier run's included; as if the user ended the sweep where it is not."""

        def look_up(batch_size: int) -> CaseResult:
            planned = at_batch(cell, batch_size)
            before = on_disk.get(planned.case_id)
            if before is not None and planned.case_id not in self.results and not self._why_again(planned, before):
                self.results[planned.case_id] = before
            if planned.case_id not in self.results:
                raise SweepInterruptedError
            return self.results[planned.case_id]

        return look_up

    def _why_again(self, planned: PlannedCase, before: CaseResult) -> str | None:
        return why_again(planned, before, retry_failed=self.retry_failed)

    def _write(self) -> SweepFile:
        """All that is known, on disk; a sweep that is killed leaves what one leaves that is interrupted."""
        cells = [self._outcome(cell, self._known_of(cell, {})) for cell in self.cells]
        file = SweepFile(
            created=self.now().isoformat(timespec="seconds"),
            command=list(self.command),
            machine=self.machine,
            settings=settings_of(self.suite),
            smallest=self.smallest,
            largest=self.largest,
            memory_limit_bytes=self.suite.measure.memory_limit,
            target_ms=self.target_ms,
            figure=None if self.target_ms is None else self.figure,
            complete=all(cell.ended_by != "interrupted" for cell in cells),
            cells=cells,
            cases=list(self.results.values()),
            remarks=list(self._runner.remarks),
        )
        write_sweep(self.out, file)
        return file
