"""Run a suite: finished cases are kept, the others are run, and all results are on disk after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfharness.analysis.suites.bench_figures import (
    cases_exit_code,
    cell_of,
    direction_of,
    gives_wrong_answers,
    is_named,
)
from perfharness.analysis.suites.recommend import is_any_unmet, recommend
from perfharness.bench.process import CaseEnd
from perfharness.bench.spec import RESULT_NAME, CaseSpec
from perfharness.bench.suite.case_run import MEMORY_ENDS, BenchObserver, MeasuringRun
from perfharness.bench.suite.check import error_text, load_suite
from perfharness.bench.suite.matrix import PlannedCase, default_baseline, plan_suite, shuffled
from perfharness.bench.suite.steps import AccuracyStep, EqualityStep
from perfharness.bench.suite.store import CASES, SUITE, measuring
from perfharness.bench.suite.suite import ConstraintsTable, Suite
from perfharness.errors import UsageError
from perfharness.files import write_model
from perfharness.model.bench import CaseResult, CaseStatus
from perfharness.model.bench_suite import BenchSuiteResult, Constraints

INTERRUPTED = "the suite was interrupted before it was run; --resume goes on"


def run_suite(
    suite: Suite | Path,
    output_dir: Path,
    *,
    resume: bool = False,
    retry_failed: bool = False,
    observer: BenchObserver | None = None,
    command: Sequence[str] = (),
    history: bool = True,
) -> BenchSuiteResult:
    """Measure every case of a suite, each in its own process; writes `bench.json` and the cases to `output_dir`.

    Args:
        suite: as `load_suite` makes it, or its file.
        resume: keep finished cases in the folder.
        retry_failed: run everything again that is not `ok`, not only what failed for a temporary reason.
        observer: called during the run.
        command: the command line, for the results.
        history: add it to the history; if that fails, the last remark of the returned result says why.

    Raises `UsageError` where the suite cannot be run or the folder holds other results, `LaunchError` where another
    process writes to it. An interrupt ends the running case: `complete` is False then.
    """
    suite = load_suite(suite) if isinstance(suite, Path) else suite
    plan = plan_suite(suite)
    with measuring(output_dir) as interrupts:
        SUITE.prepare(output_dir, resume=resume)
        seen = observer or BenchObserver()
        run = SuiteRun(suite, output_dir, plan, interrupts, seen, retry_failed=retry_failed, command=command)
        result = run.run()
    if not history:
        return result
    from perfharness.runs.history import record, suite_entry  # its library takes long to load

    found = record(lambda: suite_entry(result, output_dir, suite_exit_code(result)))
    return result.model_copy(update={"remarks": [*result.remarks, *(one.message for one in found)]})


def suite_exit_code(result: BenchSuiteResult) -> int:
    """0: all well; 1: a case failed, or it was interrupted; 3: nothing measured, wrong answers, constraints not met."""
    bad = any(gives_wrong_answers(case) for case in result.cases) or is_any_unmet(result)
    return cases_exit_code([case.status for case in result.cases], interrupted=not result.complete, check_failed=bad)


def case_order(suite: Suite) -> list[PlannedCase]:
    """The cases on this machine in the order in which `run_suite` runs them. Raises `UsageError`."""
    return in_order(suite, plan_suite(suite).cases)


def in_order(suite: Suite, planned: Sequence[PlannedCase]) -> list[PlannedCase]:
    """In shuffled order, unless the suite turns that off."""
    return shuffled(planned, suite.run.seed) if suite.run.shuffle else list(planned)


def recommend_again(result: BenchSuiteResult, *, baseline: str | None = None, **constraints: Any) -> BenchSuiteResult:
    """Recommendations of the same results against another baseline, or under other constraints.

    Args:
        baseline: `backend[/mode][/precision]`; None: unchanged.
        constraints: keys of `[constraints]` in a suite; None: unchanged.

    Raises `UsageError`.
    """
    if baseline is not None and not any(is_named(case.case, baseline) for case in result.cases):
        cells = ", ".join(dict.fromkeys(cell_of(case.case) for case in result.cases))
        raise UsageError(f"--baseline {baseline!r} is no cell of these results; there are: {cells}")
    base, limits = baseline or result.baseline, _constraints(result.constraints, constraints)
    recommendations = recommend(result.cases, limits, base)
    update = {"constraints": limits, "baseline": base, "recommendations": recommendations}
    return result.model_copy(update=update)


def _constraints(known: Constraints, given: Mapping[str, Any]) -> Constraints:
    """The suite's constraints, overridden."""
    kept = known.model_dump(exclude={"memory_limit_bytes"}) | {"memory_limit": known.memory_limit_bytes}
    if given.get("accuracy_metric") not in (None, known.accuracy_metric):
        kept["accuracy_direction"] = None
    try:
        table = ConstraintsTable.model_validate(
            kept | {key: value for key, value in given.items() if value is not None}
        )
    except ValidationError as error:
        raise UsageError(error_text(error.errors()[0])) from error
    metric = table.accuracy_metric
    if metric is not None and direction_of(metric, table.accuracy_direction) is None:
        raise UsageError(
            f"it is not known whether higher or lower values of {metric!r} are better; say it with --accuracy-direction"
        )
    return table.constraints()


@dataclass
class SuiteRun(MeasuringRun):
    """One run of a suite."""

    _steps: dict[str, EqualityStep | AccuracyStep] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._planned = self.plan.cases
        self._baseline = self.suite.baseline or default_baseline(self.suite, self.plan.gpu)

    def run(self) -> BenchSuiteResult:
        """Run the remaining cases; returns what `bench.json` holds. An interrupt ends the case and the run."""
        again = self._keep_finished()
        order = [case for case in in_order(self.suite, self._planned) if case.case_id not in self.results]
        self.observer.begin(order, list(self.results.values()), again)
        self._write()
        own = (self.suite, self._planned, self.out, self._baseline)
        self._steps = {"equality": EqualityStep(*own), "accuracy": AccuracyStep(*own)}
        for step in self._steps.values():
            step.run(self._process)
        self._compare_kept()
        for case in order:
            result = None if self.interrupts else self._run_case(case)
            if result is None:
                break
            self.results[case.case_id] = result
            self._write()
            self.observer.done(result)
        self.remark_unused((case.case_id for case in self._planned), "no longer in the suite")
        return self._write()

    def _keep_finished(self) -> dict[str, str]:
        """Keep results that are still valid; returns by case id why others are run again."""
        again = {}
        for case in self._planned:
            result = self.on_disk.get(case.case_id)
            if result is None:
                continue
            if (why := self.rerun_reason(case, result)) is not None:
                again[case.case_id] = why
            else:
                self.results[case.case_id] = result
        return again

    def _comparisons(self, planned: PlannedCase) -> dict[str, object]:
        return {name: step.record(planned) for name, step in self._steps.items()}

    def _compare_kept(self) -> None:
        """Compare kept results again: their suite may have had no `[equality]`, or another one."""
        for planned in self._planned:
            if (result := self.results.get(planned.case_id)) is None:
                continue
            found = {name: one for name, one in self._comparisons(planned).items() if one is not None}
            changed = {name: one for name, one in found.items() if one != getattr(result, name)}
            if changed:
                self.results[planned.case_id] = result.model_copy(update=changed)
                write_model(self.out / CASES / planned.case_id / RESULT_NAME, self.results[planned.case_id])

    def _run_case(self, planned: PlannedCase) -> CaseResult | None:
        """The case's result; None after an interrupt."""
        self.observer.started(planned.case, "measured")
        if (known := self._known_end(planned)) is not None:
            return self.refuse(planned, *known, self._comparisons(planned))
        return self.measure(planned, self._comparisons(planned))

    def _known_end(self, planned: PlannedCase) -> tuple[CaseStatus, str] | None:
        """Outcome that is known without a process: a refusal, or that of another batch size of the same cell."""
        if planned.refusal is not None:
            return "unavailable", planned.refusal
        for one in self._planned:
            other = self.results.get(one.case_id)
            if other is None or one.cell != planned.cell:
                continue
            if other.status == "unavailable":
                return "unavailable", other.reason or "as the other batch sizes"
            if other.status in MEMORY_ENDS and other.case.batch_size < planned.case.batch_size:
                return other.status, f"not run, for a batch of {other.case.batch_size} is so already: {other.reason}"
        return None

    def _process(self, spec: CaseSpec, folder: Path, what: str) -> CaseEnd:
        self.observer.started(spec.case, what)
        return self.process(spec, folder)

    def _write(self) -> BenchSuiteResult:
        cases = [
            self.results.get(planned.case_id) or CaseResult(case=planned.case, status="not-run", reason=INTERRUPTED)
            for planned in self._planned
        ]
        constraints = self.suite.constraints.constraints()
        result = BenchSuiteResult(
            **self.common(),
            name=self.suite.name,
            seed=self.suite.run.seed,
            order=[case.case_id for case in in_order(self.suite, self._planned)],
            baseline=self._baseline,
            constraints=constraints,
            cases=cases,
            recommendations=recommend(cases, constraints, self._baseline),
            complete=len(self.results) == len(self._planned),
        )
        SUITE.write(self.out, result)
        return result
