"""A sweep over batch sizes, or the search for the largest within a latency target, of each cell of a suite.

Each batch size is a real process, and all that was measured is on disk after each cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfharness.bench.matrix import PlannedCase
from perfharness.bench.outcome import case_outcome
from perfharness.bench.process import run_process
from perfharness.bench.runner import case_environment
from perfharness.bench.store import CASES, put_in_place, running_folder
from perfharness.bench.sweep import doubling_sizes, largest_batch, sweep
from perfharness.model.bench import CaseResult
from perfharness.model.bench_search import SWEEP_NAME, CellSweep, SweepFile, TargetFigure
from perfharness.report.files import replacing
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.outcome import log_tail
from perfharness_launcher.spawn import STDERR_LOG


class SweepInterruptedError(Exception):
    """The user has asked for the end."""


@dataclass
class SweepRun:
    """Everything that a sweep needs.

    Args:
        cells: one planned case of each, of whatever batch size.
        out: where `sweep.json` and the cases come to lie.
        target_ms: milliseconds; None: sweep without a target.
        look: called about 20 times a second while a case runs.
        done: told of each result.
    """

    cells: Sequence[PlannedCase]
    out: Path
    smallest: int
    largest: int
    timeout_s: float
    interrupts: Interrupts
    target_ms: float | None = None
    figure: TargetFigure = "p99"
    command: Sequence[str] = ()
    look: Callable[[], None] = lambda: None
    done: Callable[[CaseResult], None] = lambda _: None
    results: list[CaseResult] = field(default_factory=list, init=False)
    found: list[CellSweep] = field(default_factory=list, init=False)

    def run(self) -> SweepFile:
        """Cell after cell. An interrupt ends it; what was measured is on disk and in the answer."""
        complete = True
        try:
            for cell in self.cells:
                self._cell(cell)
                self._write(complete=False)
        except SweepInterruptedError:
            complete = False
        return self._write(complete=complete)

    def _cell(self, cell: PlannedCase) -> None:
        def measure(batch: int) -> CaseResult:
            return self._measure(cell, batch)

        name = {name: getattr(cell.case, name) for name in ("model", "backend", "mode", "precision", "device")}
        if self.target_ms is None:
            swept = sweep(measure, doubling_sizes(self.largest, self.smallest))
            batches = [case.case.batch_size for case in swept.cases]
            outcome = CellSweep(
                **name, batch_sizes=batches, ended_by=swept.ended_by, ended_at_batch=swept.ended_at_batch,
                reason=swept.reason,
            )  # fmt: skip
        else:
            target = largest_batch(
                measure, self.target_ms, figure=self.figure, smallest=self.smallest, largest=self.largest
            )
            batches = [point.batch_size for point in target.points]
            outcome = CellSweep(**name, batch_sizes=batches, target=target, reason=target.reason)
        self.found.append(outcome)

    def _measure(self, cell: PlannedCase, batch: int) -> CaseResult:
        base = cell.case_id.removesuffix(f"-b{cell.case.batch_size}")
        case = cell.case.model_copy(update={"batch_size": batch, "case_id": f"{base}-b{batch}"})
        planned = replace(cell, spec=cell.spec.model_copy(update={"case": case}))
        if planned.refusal is not None:
            result = CaseResult(case=case, status="unavailable", reason=planned.refusal)
        else:
            result = self._run(planned)
        self.results.append(result)
        self.done(result)
        return result

    def _run(self, planned: PlannedCase) -> CaseResult:
        folder = self.out / CASES / planned.case_id
        running = running_folder(folder)
        end = run_process(
            planned.spec,
            running,
            self.interrupts,
            timeout_s=self.timeout_s,
            environment=case_environment(planned.spec),
            look=self.look,
        )
        if end.interrupted or self.interrupts:
            raise SweepInterruptedError
        stderr = log_tail(running / STDERR_LOG)
        late = self.timeout_s if end.timed_out else None
        result = case_outcome(running, planned.case, end.return_code, timed_out_s=late, stderr=stderr)
        result = result.model_copy(
            update={
                "started_unix_ns": end.started_unix_ns,
                "duration_s": end.duration_s,
                "reason": end.reason or result.reason,
            }
        )
        put_in_place(running, folder, result)
        return result

    def _write(self, *, complete: bool) -> SweepFile:
        file = SweepFile(command=list(self.command), complete=complete, cells=self.found, cases=self.results)

        text = file.model_dump_json(indent=2) + "\n"
        with replacing(self.out / SWEEP_NAME) as hidden:
            hidden.write_text(text, encoding="utf-8")
        return file
