"""A sweep over batch sizes, or the search for the largest within a latency target, of each cell of a suite.

Each batch size is a separate process, and all results are on disk after each; those of an earlier run are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from perfharness.bench.search.sweep import Measure, SweepInterruptedError, largest_batch, sweep
from perfharness.bench.suite.case_run import BenchObserver, CaseRunner, rerun_reason
from perfharness.bench.suite.check import load_suite
from perfharness.bench.suite.machine import gpu_of, machine_of
from perfharness.bench.suite.matrix import PlannedCase, at_batch, plan_cases
from perfharness.bench.suite.run import settings_of
from perfharness.bench.suite.store import CASES, measuring, prepare, results_on_disk, write_sweep
from perfharness.bench.suite.suite import Suite, doubling_sizes, read_suite
from perfharness.bench.suite.table import CELL
from perfharness.model.bench import CaseResult, MachineRecord
from perfharness.model.bench_search import SWEEP_NAME, CellSweep, SweepFile, TargetFigure
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.plan.gpus import find_gpus


def load_sweep(
    path: Path | None, options: Mapping[str, Any], *, smallest: int = 1, target_ms: float | None = None
) -> Suite:
    """A suite for `run_sweep`, like `load_suite`, with the passes that a sweep needs. Raises `UsageError`."""
    measure = {} if path is None else read_suite(path).get("measure", {})
    known = measure.get("passes") if isinstance(measure, dict) else None
    default = ["latency"] if target_ms else ["latency", "telemetry"]
    passes = options.get("measure.passes") or (known if isinstance(known, list) else None) or default
    more = [name for name in ("instances", "streams") if options.get(f"measure.{name}") and name not in passes]
    return load_suite(path, {**options, "batch_sizes": [smallest], "measure.passes": [*passes, *more]}, equality=False)


def run_sweep(
    suite: Suite,
    output_dir: Path,
    *,
    smallest: int = 1,
    largest: int = 1024,
    target_ms: float | None = None,
    figure: TargetFigure = "p99",
    resume: bool = False,
    retry_failed: bool = False,
    observer: BenchObserver | None = None,
    command: Sequence[str] = (),
) -> SweepFile:
    """Measure growing batch sizes of each cell until memory ends them, or search for the largest within a target.

    Args:
        suite: as `load_sweep` makes it; its batch sizes are not used.
        target_ms: of the latency's `figure`, milliseconds; None: sweep without a target.
        resume, retry_failed, observer, command: see `run_suite`.

    Raises `UsageError` and `LaunchError` as `run_suite` does. `output_dir` then has `sweep.json` and the cases.
    """
    doubling_sizes(largest, smallest)
    facts = find_gpus()
    gpu = gpu_of(suite, facts)
    cells = {one.cell: one for one in reversed(plan_cases(suite, gpu))}  # replaces the batch sizes of each model
    with measuring(output_dir) as interrupts:
        prepare(output_dir, resume=resume, name=SWEEP_NAME)
        return SweepRun(
            suite=suite,
            cells=list(cells.values())[::-1],
            out=output_dir,
            smallest=smallest,
            largest=largest,
            machine=machine_of(facts, gpu.uuid if gpu is not None else None),
            interrupts=interrupts,
            observer=observer or BenchObserver(),
            retry_failed=retry_failed,
            target_ms=target_ms,
            figure=figure,
            command=command,
        ).run()


@dataclass
class SweepRun:
    """One run of a sweep.

    Args:
        cells: one planned case per cell, of any batch size.
        out: folder of `sweep.json` and the cases.
        retry_failed: run everything again that is not `ok`, not only what failed for a temporary reason.
        target_ms: milliseconds; None: sweep without a target.
        command: the command line, for the results.
    """

    suite: Suite
    cells: Sequence[PlannedCase]
    out: Path
    smallest: int
    largest: int
    machine: MachineRecord
    interrupts: Interrupts
    observer: BenchObserver
    retry_failed: bool = False
    target_ms: float | None = None
    figure: TargetFigure = "p99"
    command: Sequence[str] = ()
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    results: dict[str, CaseResult] = field(default_factory=dict, init=False)
    _runner: CaseRunner = field(init=False)

    def __post_init__(self) -> None:
        self._runner = CaseRunner(self.out, self.suite.run, self.interrupts, self.observer)

    def run(self) -> SweepFile:
        """Run all cells. An interrupt ends the run; what was measured is on disk and returned."""
        on_disk = results_on_disk(self.out)
        self.observer.begin(self.cells, [], {})
        for cell in self.cells:
            self._outcome(cell, self._known_results(cell, on_disk))
        self._write()
        for cell in self.cells:
            if self._outcome(cell, self._measure_cell(cell, on_disk)).ended_by == "interrupted":
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

    def _measure_cell(self, cell: PlannedCase, on_disk: Mapping[str, CaseResult]) -> Measure:
        """A function that measures a batch size of a cell, unless it has a result."""
        known = self._known_results(cell, on_disk)

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
        if before is not None and (why := self._rerun_reason(planned, before)) is not None:
            self.observer.again(planned.case, why)
        result = self._run(planned, before)
        self.results[result.case.case_id] = result
        self._write()
        self.observer.done(result)
        return result

    def _run(self, planned: PlannedCase, before: CaseResult | None) -> CaseResult:
        if planned.refusal is not None:
            return self._runner.refuse(planned, "unavailable", planned.refusal, before)
        result = self._runner.measure(planned, before)
        if result is None:
            raise SweepInterruptedError
        return result

    def _known_results(self, cell: PlannedCase, on_disk: Mapping[str, CaseResult]) -> Measure:
        """A function that returns known results of a cell, an earlier run's too; `SweepInterruptedError` for others."""

        def look_up(batch_size: int) -> CaseResult:
            planned = at_batch(cell, batch_size)
            before = on_disk.get(planned.case_id)
            if before is not None and planned.case_id not in self.results and not self._rerun_reason(planned, before):
                self.results[planned.case_id] = before
            if planned.case_id not in self.results:
                raise SweepInterruptedError
            return self.results[planned.case_id]

        return look_up

    def _rerun_reason(self, planned: PlannedCase, before: CaseResult) -> str | None:
        return rerun_reason(planned, before, retry_failed=self.retry_failed)

    def _write(self) -> SweepFile:
        """Write all results; a killed sweep leaves the same files as an interrupted one."""
        cells = [self._outcome(cell, self._known_results(cell, {})) for cell in self.cells]
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
