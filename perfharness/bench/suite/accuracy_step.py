"""The user's samples through each cell, each in its own process, before any speed is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfharness.analysis.bench_figures import cell_of, is_named
from perfharness.bench.accuracy.settings import AccuracyPass
from perfharness.bench.process import Run, result_of
from perfharness.bench.spec import OUTPUTS_FOLDER, LatencySettings
from perfharness.bench.suite.matrix import Cell, PlannedCase, with_ids
from perfharness.bench.suite.store import ACCURACY, put_in_place, results_on_disk, running_folder
from perfharness.bench.suite.suite import Suite, accuracy_settings
from perfharness.model.bench import AccuracyRecord, CaseResult

GROUND_TRUTH = "ground truth"


class AccuracyStep:
    """What each cell gets right, and how far its outputs are from the baseline's.

    Args:
        planned: all cases; those that differ in the batch size only are one cell, run at one batch size.
        baseline: whose outputs others are compared with where `[accuracy]` names none.
    """

    def __init__(self, suite: Suite, planned: Sequence[PlannedCase], out: Path, baseline: str) -> None:
        self._suite, self._out = suite, out
        self._baseline = (suite.accuracy.baseline if suite.accuracy is not None else None) or baseline
        cells: dict[Cell, PlannedCase] = {}
        for one in sorted(planned, key=lambda one: one.case.batch_size):
            cells.setdefault(one.cell, self._at_batch_size(one))
        ordered = sorted(with_ids(list(cells.values())), key=lambda one: not is_named(one.case, self._baseline))
        self._cells = ordered if suite.accuracy is not None else []
        self._records: dict[Cell, AccuracyRecord] = {}

    def record(self, one: PlannedCase) -> AccuracyRecord | None:
        """Of the case's cell; None where nothing was asked for."""
        return self._records.get(one.cell)

    def run(self, run: Run) -> None:
        """Run the cells that are missing, the baseline's first. Does nothing without `[accuracy]`."""
        kept = results_on_disk(self._out, ACCURACY)
        done: dict[str, CaseResult] = {}
        for one in self._cells:
            reference = self._reference(one, done)
            planned = self._planned(one, reference)
            result = kept.get(planned.case_id)
            if result is None or result.status != "ok" or result.spec_sha256 != planned.sha256:
                asked = self._ask(planned, run)
                if asked is None:  # the user ended it
                    return
                result = asked
            done[planned.case_id] = result
            self._records[one.cell] = self._concluded(one, result, reference, done)

    def _reference(self, one: PlannedCase, done: dict[str, CaseResult]) -> PlannedCase | None:
        """The baseline of the same model, where its outputs are there; None for the baseline itself."""
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
        """The case with nothing measured but this."""
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
        told = one.sha256 + given.model_dump_json() + ("" if reference is None else reference.sha256)
        return PlannedCase(spec, hashlib.sha256(told.encode()).hexdigest(), one.refusal)

    def _ask(self, planned: PlannedCase, run: Run) -> CaseResult | None:
        """Run the process of a cell; None where the user ended it."""
        if planned.refusal is not None:
            return CaseResult(case=planned.case, status="unavailable", reason=planned.refusal)
        folder = self._out / ACCURACY / planned.case_id
        folder.parent.mkdir(exist_ok=True)
        running = running_folder(folder)
        end = run(planned.spec, running, "compared on samples")
        if end.interrupted:
            return None
        found = result_of(end, planned.case, running, self._suite.run.timeout_s)
        result = found.model_copy(update={"case": planned.case, "spec_sha256": planned.sha256})
        put_in_place(running, folder, result)
        return result

    def _concluded(
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
