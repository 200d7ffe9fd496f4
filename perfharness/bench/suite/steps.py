"""Steps before any timing: compare outputs of each cell with the reference's, and run the user's samples through it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from perfharness.analysis.suites.bench_figures import cell_of, is_named
from perfharness.bench.accuracy.settings import AccuracyPass
from perfharness.bench.process import Run, result_of
from perfharness.bench.spec import OUTPUTS_FOLDER, OUTPUTS_NAME, LatencySettings
from perfharness.bench.suite.matrix import Cell, PlannedCase, with_ids
from perfharness.bench.suite.store import (
    ACCURACY,
    EQUALITY,
    put_in_place,
    read_outputs,
    results_on_disk,
    running_folder,
)
from perfharness.bench.suite.suite import AccuracyTable, EqualityTable, Suite, accuracy_settings
from perfharness.bench.worker.equality import Outputs, compare_outputs
from perfharness.errors import ResultError
from perfharness.model.bench import AccuracyRecord, CaseResult, EqualityRecord

GROUND_TRUTH = "ground truth"
ONE_ROUND = LatencySettings(warmup=0, iterations=1)
Record = TypeVar("Record", EqualityRecord, AccuracyRecord)


class _CellStep(Generic[Record]):
    """A pass that every cell runs once, in its own process, at one batch size.

    Args:
        table: of the suite; None: the step is off.
        planned: all cases; those that differ in the batch size only are one cell.
        kind: folder of its results.
        reference: name of the cell with which the others are compared.
    """

    def __init__(
        self,
        suite: Suite,
        planned: Sequence[PlannedCase],
        out: Path,
        table: EqualityTable | AccuracyTable | None,
        kind: str,
        reference: str,
    ) -> None:
        self._suite, self._out, self._kind, self._reference = suite, out, kind, reference
        self._kept = results_on_disk(out, kind)
        cells: dict[Cell, PlannedCase] = {}
        for one in planned if table is not None else ():
            if one.cell not in cells or one.case.batch_size < cells[one.cell].case.batch_size:
                cells[one.cell] = one
        asked = table.batch_size if table is not None else None
        self._cells = with_ids([_changed(one, batch_size=asked or one.case.batch_size) for one in cells.values()])
        self._results: dict[Cell, CaseResult] = {}
        self._records: dict[Cell, Record] = {}

    def record(self, one: PlannedCase) -> Record | None:
        """Record of the case's cell; None where the step is off."""
        return self._records.get(one.cell)

    def _is_reference(self, one: PlannedCase) -> bool:
        return is_named(one.case, self._reference)

    def _reference_of(self, one: PlannedCase) -> PlannedCase | None:
        same_model = (cell for cell in self._cells if cell.case.model == one.case.model)
        return next(filter(self._is_reference, same_model), None)

    def _has_result(self, one: PlannedCase, run: Run, what: str) -> bool:
        """Keep the result of an earlier run or of a new process; False after an interrupt."""
        kept = self._kept.get(one.case_id)
        if one.refusal is not None:
            kept = CaseResult(case=one.case, status="unavailable", reason=one.refusal)
        elif kept is None or kept.status != "ok" or kept.spec_sha256 != one.sha256:
            folder = self._out / self._kind / one.case_id
            folder.parent.mkdir(exist_ok=True)
            running = running_folder(folder)
            end = run(one.spec, running, what)
            if end.interrupted:
                return False
            found = result_of(end, one.case, running, self._suite.run.timeout_s)
            kept = found.model_copy(update={"case": one.case, "spec_sha256": one.sha256})
            put_in_place(running, folder, kept)
        self._results[one.cell] = kept
        return True


def _changed(one: PlannedCase, batch_size: int, **spec: Any) -> PlannedCase:
    case = one.case.model_copy(update={"batch_size": batch_size})
    return replace(one, spec=one.spec.model_copy(update={"case": case, **spec}))


class EqualityStep(_CellStep[EqualityRecord]):
    """Outputs of all cells, compared with the reference, which is the baseline unless `[equality]` names one."""

    def __init__(self, suite: Suite, planned: Sequence[PlannedCase], out: Path, baseline: str) -> None:
        table = suite.equality
        super().__init__(suite, planned, out, table, EQUALITY, (table.reference if table else None) or baseline)

    def run(self, run: Run) -> None:
        """Get missing outputs and compare. Does nothing without `[equality]`, or after an interrupt."""
        for one in self._cells:
            asked = _changed(one, one.case.batch_size, passes=("outputs",), latency=ONE_ROUND)
            if not self._has_result(asked, run, "asked for its outputs"):
                return
        self._records = {one.cell: self._compare(one) for one in self._cells}

    def _compare(self, one: PlannedCase) -> EqualityRecord:
        assert self._suite.equality is not None, "asked for"
        tolerance = self._suite.equality.tolerance(one.case.precision)
        reference = self._reference_of(one)
        name = cell_of(reference.case) if reference is not None else self._reference
        try:
            if reference is None:
                raise ResultError(f"{self._reference} is no cell of this model")
            expected = self._outputs(reference, "the reference's outputs")
            return compare_outputs(name, expected, self._outputs(one, "its outputs"), tolerance)
        except ResultError as error:
            return EqualityRecord(
                reference=name,
                equal=None,
                absolute_tolerance=tolerance.absolute,
                relative_tolerance=tolerance.relative,
                reason=str(error),
            )

    def _outputs(self, one: PlannedCase, whose: str) -> Outputs:
        result = self._results[one.cell]
        if result.status != "ok":
            raise ResultError(f"{whose} are not known: {result.reason or result.status}")
        return read_outputs(self._out / EQUALITY / one.case_id, OUTPUTS_NAME)


class AccuracyStep(_CellStep[AccuracyRecord]):
    """Accuracy of each cell against ground truth and the outputs of the baseline: `[accuracy]`'s, or the suite's."""

    def __init__(self, suite: Suite, planned: Sequence[PlannedCase], out: Path, baseline: str) -> None:
        table = suite.accuracy
        super().__init__(suite, planned, out, table, ACCURACY, (table.baseline if table else None) or baseline)

    def run(self, run: Run) -> None:
        """Run missing cells, the baseline's first. Does nothing without `[accuracy]`."""
        for one in sorted(self._cells, key=lambda one: not self._is_reference(one)):
            baseline = self._reference_of(one)
            if baseline is not None and (baseline is one or self._results[baseline.cell].status != "ok"):
                baseline = None
            if not self._has_result(self._asked(one, baseline), run, "compared on samples"):
                return
            self._records[one.cell] = self._record_of(one, baseline)

    def _asked(self, one: PlannedCase, baseline: PlannedCase | None) -> PlannedCase:
        folder = None if baseline is None else self._out / ACCURACY / baseline.case_id / OUTPUTS_FOLDER
        given = AccuracyPass(
            settings=accuracy_settings(self._suite),
            against=_against(baseline),
            baseline=None if folder is None else folder.absolute(),
            store=self._is_reference(one),
        )
        asked = _changed(one, one.case.batch_size, passes=("accuracy",), accuracy=given, latency=ONE_ROUND)
        digested = one.sha256 + given.model_dump_json() + ("" if baseline is None else baseline.sha256)
        return replace(asked, sha256=hashlib.sha256(digested.encode()).hexdigest())

    def _record_of(self, one: PlannedCase, baseline: PlannedCase | None) -> AccuracyRecord:
        result = self._results[one.cell]
        if result.accuracy is None:
            reason = result.reasons.get("accuracy") or result.reason or result.status
            return AccuracyRecord(against=_against(baseline), samples=0, metrics={}, reasons={"samples": reason})
        if baseline is not None or self._is_reference(one):
            return result.accuracy
        why, reference = f"{self._reference} is no cell of this model", self._reference_of(one)
        if reference is not None:
            before = self._results[reference.cell]
            why = f"the baseline has no outputs: {before.reason or before.status}"
        return result.accuracy.model_copy(update={"reasons": {**result.accuracy.reasons, "baseline": why}})


def _against(baseline: PlannedCase | None) -> str:
    return GROUND_TRUTH if baseline is None else cell_of(baseline.case)
