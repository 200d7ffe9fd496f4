"""Before any speed: outputs of each cell on the same inputs, from a process of its own, against the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfharness.analysis.bench_figures import cell_of, is_named
from perfharness.bench.process import Run, result_of
from perfharness.bench.spec import OUTPUTS_NAME, LatencySettings
from perfharness.bench.suite.matrix import Cell, PlannedCase, with_ids
from perfharness.bench.suite.store import EQUALITY, put_in_place, read_outputs, results_on_disk, running_folder
from perfharness.bench.suite.suite import Suite
from perfharness.bench.worker.equality import Outputs, compare_outputs
from perfharness.errors import ResultError
from perfharness.model.bench import EqualityRecord


class EqualityStep:
    """Outputs of all cells, and what the comparison says of each.

    Args:
        planned: all cases; those that differ in the batch size only are one cell, asked at one batch size.
        baseline: the reference where `[equality]` names none.
    """

    def __init__(self, suite: Suite, planned: Sequence[PlannedCase], out: Path, baseline: str) -> None:
        self._suite = suite
        self._out = out
        self._reference = (suite.equality.reference if suite.equality is not None else None) or baseline
        self._cells = {one.cell: one for one in with_ids(_asked(suite, planned))}
        self._problems: dict[Cell, str] = {}
        self._records: dict[Cell, EqualityRecord] = {}

    def record(self, one: PlannedCase) -> EqualityRecord | None:
        """Of the case's cell; None where nothing was asked for."""
        return self._records.get(one.cell)

    def run(self, run: Run) -> None:
        """Get the outputs that are missing and compare. Does nothing without `[equality]`, or after an interrupt."""
        if self._suite.equality is None:
            return
        for one in self._cells.values():
            if not self._is_done(one) and self._ask(one, run):
                return
        self._records = {cell: self._compare(one) for cell, one in self._cells.items()}

    def _is_reference(self, one: PlannedCase) -> bool:
        return is_named(one.case, self._reference)

    def _folder(self, one: PlannedCase) -> Path:
        return self._out / EQUALITY / one.case_id

    def _is_done(self, one: PlannedCase) -> bool:
        found = results_on_disk(self._out, EQUALITY).get(one.case_id)
        return found is not None and found.status == "ok" and found.spec_sha256 == one.sha256

    def _ask(self, one: PlannedCase, run: Run) -> bool:
        """Run the process of a cell; returns whether the user ended it."""
        folder = self._folder(one)
        folder.parent.mkdir(exist_ok=True)
        running = running_folder(folder)
        if one.refusal is not None:
            self._problems[one.cell] = one.refusal
            return False
        end = run(one.spec, running, "asked for its outputs")
        if end.interrupted:
            return True
        result = result_of(end, one.case, running, self._suite.run.timeout_s)
        if result.status != "ok":
            self._problems[one.cell] = result.reason or result.status
        put_in_place(running, folder, result.model_copy(update={"case": one.case, "spec_sha256": one.sha256}))
        return False

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
        return read_outputs(self._folder(one), OUTPUTS_NAME)


def _asked(suite: Suite, planned: Sequence[PlannedCase]) -> list[PlannedCase]:
    """A case of each cell, with nothing measured, at the batch size of the step."""
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
