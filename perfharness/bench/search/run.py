"""A sweep over batch sizes, or the search for the largest within a latency target, of each cell of a suite.

Each batch size is a separate process, and all results are on disk after each; those of an earlier run are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from perfharness.analysis.suites.bench_figures import cases_exit_code
from perfharness.bench.search.sweep import SweepInterruptedError, largest_batch, sweep
from perfharness.bench.suite.case_run import BenchObserver, MeasuringRun
from perfharness.bench.suite.check import load_suite
from perfharness.bench.suite.matrix import PlannedCase, at_batch, plan_suite
from perfharness.bench.suite.store import SWEEP, measuring
from perfharness.bench.suite.suite import Suite, doubling_sizes, read_suite
from perfharness.bench.suite.table import as_suite
from perfharness.model.bench import CaseResult
from perfharness.model.bench_suite import CellSweep, SweepFile, TargetFigure


def load_sweep(
    path: Path | None, options: Mapping[str, Any], *, smallest: int = 1, target_ms: float | None = None
) -> Suite:
    """A suite for `run_sweep`, like `load_suite`, with the passes that a sweep needs. Raises `UsageError`."""
    measure = {} if path is None else read_suite(path).get("measure", {})
    known = measure.get("passes") if isinstance(measure, dict) else None
    default = ["latency"] if target_ms else ["latency", "telemetry"]
    passes = options.get("measure.passes") or (known if isinstance(known, list) else None) or default
    return load_suite(path, {**options, "batch_sizes": [smallest], "measure.passes": passes}, equality=False)


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
    history: bool = True,
) -> SweepFile:
    """Measure growing batch sizes of each cell until memory ends them, or search for the largest within a target.

    Args:
        suite: as `load_sweep` makes it; its batch sizes are not used.
        target_ms: of the latency's `figure`, milliseconds; None: sweep without a target.
        resume, retry_failed, observer, command, history: see `run_suite`.

    Raises `UsageError` and `LaunchError` as `run_suite` does. `output_dir` then has `sweep.json` and the cases.
    """
    doubling_sizes(largest, smallest)
    plan = plan_suite(suite)
    with measuring(output_dir) as interrupts:
        SWEEP.prepare(output_dir, resume=resume)
        result = SweepRun(
            suite,
            output_dir,
            plan,
            interrupts,
            observer or BenchObserver(),
            smallest=smallest,
            largest=largest,
            target_ms=target_ms,
            figure=figure,
            retry_failed=retry_failed,
            command=command,
        ).run()
    if not history:
        return result
    from perfharness.runs.history import record, suite_entry  # its library takes long to load

    found = record(lambda: suite_entry(as_suite(result), output_dir, search_exit_code(result)))
    return result.model_copy(update={"remarks": [*result.remarks, *(one.message for one in found)]})


def search_exit_code(found: SweepFile) -> int:
    """0: done; 1: a case failed, or it was interrupted; 3: nothing was measured, or no size is known to meet a target.

    A case that takes too long ends a sweep as memory does.
    """
    missed = any(cell.target is not None and cell.target.batch_size is None for cell in found.cells)
    statuses = [case.status for case in found.cases if case.status != "timeout"]
    return cases_exit_code(statuses, interrupted=not found.complete, check_failed=missed)


@dataclass
class SweepRun(MeasuringRun):
    """One run of a sweep.

    Args:
        target_ms: milliseconds; None: sweep without a target.
    """

    _: KW_ONLY
    smallest: int
    largest: int
    target_ms: float | None
    figure: TargetFigure

    def __post_init__(self) -> None:
        super().__post_init__()
        cells = {one.cell: one for one in reversed(self.plan.cases)}  # the batch sizes of the suite are not used
        self.cells = list(cells.values())[::-1]

    def run(self) -> SweepFile:
        """Run all cells. An interrupt ends the run; what was measured is on disk and returned."""
        self.observer.begin(self.cells, [], {})
        self._write()
        for cell in self.cells:
            if self._outcome(cell, self._measure).ended_by == "interrupted":
                break
        if not self.interrupts:
            self.remark_unused(self.results, "not part of this sweep")
        return self._write()

    def _outcome(self, cell: PlannedCase, measure: Callable[[PlannedCase], CaseResult | None]) -> CellSweep:
        """What the results of `measure` say of a cell; it returns None where there is none."""

        def at(batch_size: int) -> CaseResult:
            result = measure(at_batch(cell, batch_size))
            if result is None:
                raise SweepInterruptedError
            return result

        if self.target_ms is None:
            swept = sweep(at, doubling_sizes(self.largest, self.smallest))
            found: dict[str, Any] = {
                "ended_by": swept.ended_by,
                "ended_at_batch": swept.ended_at_batch,
                "reason": swept.reason,
            }
            sizes = [case.case.batch_size for case in swept.cases]
        else:
            target = largest_batch(at, self.target_ms, figure=self.figure, smallest=self.smallest, largest=self.largest)
            ended_by = "interrupted" if target.ended_by == "interrupted" else None
            found = {"target": target, "reason": target.reason, "ended_by": ended_by}
            sizes = [point.batch_size for point in target.points]
        ids = [at_batch(cell, size).case_id for size in sizes]
        return CellSweep(**vars(cell.case), batch_sizes=sizes, case_ids=ids, **found)

    def _known(self, planned: PlannedCase) -> CaseResult | None:
        before = self.on_disk.get(planned.case_id)
        if before is not None and planned.case_id not in self.results and not self.rerun_reason(planned, before):
            self.results[planned.case_id] = before
        return self.results.get(planned.case_id)

    def _measure(self, planned: PlannedCase) -> CaseResult | None:
        """A known result or that of a new process; None after an interrupt."""
        if (known := self._known(planned)) is not None:
            self.observer.done(known, is_kept=True)
            return known
        if self.interrupts:
            return None
        before = self.on_disk.get(planned.case_id)
        if before is not None and (why := self.rerun_reason(planned, before)) is not None:
            self.observer.again(planned.case, why)
        refused = planned.refusal
        result = self.measure(planned) if refused is None else self.refuse(planned, "unavailable", refused)
        if result is not None:
            self.results[planned.case_id] = result
            self._write()
            self.observer.done(result)
        return result

    def _write(self) -> SweepFile:
        """Write all results; a killed sweep leaves the same files as an interrupted one."""
        cells = [self._outcome(cell, self._known) for cell in self.cells]
        file = SweepFile(
            **self.common(),
            smallest=self.smallest,
            largest=self.largest,
            memory_limit_bytes=self.suite.measure.memory_limit,
            target_ms=self.target_ms,
            figure=None if self.target_ms is None else self.figure,
            complete=all(cell.ended_by != "interrupted" for cell in cells),
            cells=cells,
            cases=list(self.results.values()),
        )
        SWEEP.write(self.out, file)
        return file
