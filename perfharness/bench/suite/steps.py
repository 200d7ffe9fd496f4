"""Steps before any timing: compare outputs of each cell with the reference's, and run the user's samples through it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfharness.analysis.bench_figures import cell_of, is_named
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
from perfharness.bench.suite.suite import Suite, accuracy_settings
from perfharness.bench.worker.equality import Outputs, compare_outputs
from perfharness.errors import ResultError
from perfharness.model.bench import AccuracyRecord, CaseResult, EqualityRecord

GROUND_TRUTH = "ground truth"


class _CellStep:
    """A pass that every cell runs once, in its own process.

    Args:
        kind: folder of its results.
    """

    def __init__(self, suite: Suite, out: Path, kind: str) -> None:
        self._suite, self._out, self._kind = suite, out, kind
        self._kept = results_on_disk(out, kind)

    def _result(self, one: PlannedCase, run: Run, what: str) -> CaseResult | None:
        """The result of an earlier run or of a new process; None after an interrupt."""
        if one.refusal is not None:
            return CaseResult(case=one.case, status="unavailable", reason=one.refusal)
        kept = self._kept.get(one.case_id)
        if kept is not None and kept.status == "ok" and kept.spec_sha256 == one.sha256:
            return kept
        folder = self._out / self._kind / one.case_id
        folder.parent.mkdir(exist_ok=True)
        running = running_folder(folder)
        end = run(one.spec, running, what)
        if end.interrupted:
            return None
        found = result_of(end, one.case, running, self._suite.run.timeout_s)
        result = found.model_copy(update={"case": one.case, "spec_sha256": one.sha256})
        put_in_place(running, folder, result)
        return result


class EqualityStep(_CellStep):
    """Outputs of all cells, compared with the reference.

    Args:
        planned: all cases; those that differ in the batch size only are one cell, run at one batch size.
        baseline: the reference where `[equality]` names none.
    """

    def __init__(self, suite: Suite, planned: Sequence[PlannedCase], out: Path, baseline: str) -> None:
        super().__init__(suite, out, EQUALITY)
        self._reference = (suite.equality.reference if suite.equality is not None else None) or baseline
        self._cells = {one.cell: one for one in with_ids(_asked(suite, planned))}
        self._problems: dict[Cell, str] = {}
        self._records: dict[Cell, EqualityRecord] = {}

    def record(self, one: PlannedCase) -> EqualityRecord | None:
        """Record of the case's cell; None where the step is off."""
        return self._records.get(one.cell)

    def run(self, run: Run) -> None:
        """Get missing outputs and compare. Does nothing without `[equality]`, or after an interrupt."""
        if self._suite.equality is None:
            return
        for one in self._cells.values():
            result = self._result(one, run, "asked for its outputs")
            if result is None:
                return
            if result.status != "ok":
                self._problems[one.cell] = result.reason or result.status
        self._records = {cell: self._compare(one) for cell, one in self._cells.items()}

    def _is_reference(self, one: PlannedCase) -> bool:
        return is_named(one.case, self._reference)

    def _compare(self, one: PlannedCase) -> EqualityRecord:
        assert self._suite.equality is not None, "asked for"
        tolerance = self._suite.equality.tolerance(one.case.precision)
        same_model = [cell for cell in self._cells.values() if cell.case.model == one.case.model]
        reference = next(filter(self._is_reference, same_model), None)
        name = cell_of(reference.case) if reference is not None else self._reference
        try:
            if reference is None:
                raise ResultError(f"{self._reference} is no cell of this model")
            expected = self._outputs(reference, "the reference's outputs")
            found = self._outputs(one, "its outputs")
        except ResultError as error:
            return EqualityRecord(
                reference=name,
                equal=None,
                absolute_tolerance=tolerance.absolute,
                relative_tolerance=tolerance.relative,
                reason=str(error),
            )
        return compare_outputs(name, expected, found, tolerance)

    def _outputs(self, one: PlannedCase, whose: str) -> Outputs:
        if (problem := self._problems.get(one.cell)) is not None:
            raise ResultError(f"{whose} are not known: {problem}")
        return read_outputs(self._out / EQUALITY / one.case_id, OUTPUTS_NAME)


def _asked(suite: Suite, planned: Sequence[PlannedCase]) -> list[PlannedCase]:
    """One case per cell, without passes, at the batch size of the step."""
    asked = suite.equality.batch_size if suite.equality is not None else None
    cells: dict[Cell, PlannedCase] = {}
    smallest: dict[str, int] = {}
    for one in planned:
        cells.setdefault(one.cell, one)
        smallest[one.case.model] = min(one.case.batch_size, smallest.get(one.case.model, one.case.batch_size))
    return [_outputs_only(one, asked or smallest[one.case.model]) for one in cells.values()]


def _outputs_only(one: PlannedCase, batch_size: int) -> PlannedCase:
    case = one.case.model_copy(update={"batch_size": batch_size})
    spec = one.spec.model_copy(
        update={"case": case, "passes": ("outputs",), "latency": LatencySettings(warmup=0, iterations=1)}
    )
    return replace(one, spec=spec)


class AccuracyStep(_CellStep):
    """Accuracy of each cell against ground truth and against the baseline's outputs.

    Args:
        planned: all cases; those that differ in the batch size only are one cell, run at one batch size.
        baseline: whose outputs others are compared with where `[accuracy]` names none.
    """

    def __init__(self, suite: Suite, planned: Sequence[PlannedCase], out: Path, baseline: str) -> None:
        super().__init__(suite, out, ACCURACY)
        self._baseline = (suite.accuracy.baseline if suite.accuracy is not None else None) or baseline
        cells: dict[Cell, PlannedCase] = {}
        for one in sorted(planned, key=lambda one: one.case.batch_size):
            cells.setdefault(one.cell, self._at_batch_size(one))
        ordered = sorted(with_ids(list(cells.values())), key=lambda one: not is_named(one.case, self._baseline))
        self._cells = ordered if suite.accuracy is not None else []
        self._records: dict[Cell, AccuracyRecord] = {}

    def record(self, one: PlannedCase) -> AccuracyRecord | None:
        """Record of the case's cell; None where the step is off."""
        return self._records.get(one.cell)

    def run(self, run: Run) -> None:
        """Run missing cells, the baseline's first. Does nothing without `[accuracy]`."""
        done: dict[str, CaseResult] = {}
        for one in self._cells:
            reference = self._reference(one, done)
            planned = self._planned(one, reference)
            result = self._result(planned, run, "compared on samples")
            if result is None:
                return
            done[planned.case_id] = result
            self._records[one.cell] = self._summarized(one, result, reference, done)

    def _reference(self, one: PlannedCase, done: dict[str, CaseResult]) -> PlannedCase | None:
        """The baseline of the same model, where its outputs exist; None for the baseline itself."""
        same = [cell for cell in self._cells if cell.case.model == one.case.model]
        found = next((cell for cell in same if is_named(cell.case, self._baseline)), None)
        if found is None or found is one:
            return None
        before = done.get(found.case_id)
        return found if before is not None and before.status == "ok" else None

    def _at_batch_size(self, one: PlannedCase) -> PlannedCase:
        asked = self._suite.accuracy.batch_size if self._suite.accuracy is not None else None
        case = one.case.model_copy(update={"batch_size": asked or one.case.batch_size})
        return replace(one, spec=one.spec.model_copy(update={"case": case}))

    def _planned(self, one: PlannedCase, reference: PlannedCase | None) -> PlannedCase:
        """The case with this pass only."""
        folder = None if reference is None else self._out / ACCURACY / reference.case_id / OUTPUTS_FOLDER
        given = AccuracyPass(
            settings=accuracy_settings(self._suite),
            against=GROUND_TRUTH if reference is None else cell_of(reference.case),
            baseline=None if folder is None else folder.absolute(),
            store=is_named(one.case, self._baseline),
        )
        spec = one.spec.model_copy(
            update={
                "passes": ("accuracy",),
                "accuracy": given,
                "latency": LatencySettings(warmup=0, iterations=1),
            }
        )
        digested = one.sha256 + given.model_dump_json() + ("" if reference is None else reference.sha256)
        return PlannedCase(spec, hashlib.sha256(digested.encode()).hexdigest(), one.refusal)

    def _summarized(
        self, one: PlannedCase, result: CaseResult, reference: PlannedCase | None, done: dict[str, CaseResult]
    ) -> AccuracyRecord:
        against = GROUND_TRUTH if reference is None else cell_of(reference.case)
        if result.accuracy is None:
            reason = result.reasons.get("accuracy") or result.reason or result.status
            return AccuracyRecord(against=against, samples=0, metrics={}, reasons={"samples": reason})
        if reference is not None or is_named(one.case, self._baseline):
            return result.accuracy
        why = f"{self._baseline} is no cell of this model"
        for cell in self._cells:
            if cell.case.model == one.case.model and is_named(cell.case, self._baseline):
                before = done[cell.case_id]
                why = f"the baseline has no outputs: {before.reason or before.status}"
        return result.accuracy.model_copy(update={"reasons": {**result.accuracy.reasons, "baseline": why}})
