"""Run a suite: finished cases are kept, the others are run, and all results are on disk after each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfharness.analysis.bench_figures import cell_of, direction_of, is_named
from perfharness.analysis.recommendation import recommend
from perfharness.bench.process import CaseEnd
from perfharness.bench.spec import CaseSpec
from perfharness.bench.suite.case_run import MEMORY_ENDS, BenchObserver, CaseRunner, rerun_reason
from perfharness.bench.suite.check import error_text, load_suite
from perfharness.bench.suite.machine import gpu_of, machine_of
from perfharness.bench.suite.matrix import PlannedCase, default_baseline, plan_cases, shuffled
from perfharness.bench.suite.steps import AccuracyStep, EqualityStep
from perfharness.bench.suite.store import CASES, measuring, prepare, results_on_disk, update_result, write_suite
from perfharness.bench.suite.suite import ConstraintsTable, Suite
from perfharness.errors import UsageError
from perfharness.model.bench import CaseResult, CaseStatus, MachineRecord
from perfharness.model.bench_suite import BenchSuiteResult, Constraints
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.plan.gpus import find_gpus
from perfharness_launcher.processes.supervise import Patience

INTERRUPTED = "the suite was interrupted before it was run; --resume goes on"


def run_suite(
    suite: Suite | Path,
    output_dir: Path,
    *,
    resume: bool = False,
    retry_failed: bool = False,
    observer: BenchObserver | None = None,
    command: Sequence[str] = (),
) -> BenchSuiteResult:
    """Measure every case of a suite, each in its own process; writes `bench.json` and the cases to `output_dir`.

    Args:
        suite: as `load_suite` makes it, or its file.
        resume: keep finished cases in the folder.
        retry_failed: run everything again that is not `ok`, not only what failed for a temporary reason.
        observer: called during the run.
        command: the command line, for the results.

    Raises `UsageError` where the suite cannot be run or the folder holds other results, `LaunchError` where another
    process writes to it. An interrupt ends the running case: `complete` is False then.
    """
    suite = load_suite(suite) if isinstance(suite, Path) else suite
    facts = find_gpus()
    gpu = gpu_of(suite, facts)
    planned = plan_cases(suite, gpu)
    with measuring(output_dir) as interrupts:
        prepare(output_dir, resume=resume)
        return SuiteRun(
            suite,
            planned,
            output_dir,
            suite.baseline or default_baseline(suite, gpu),
            machine_of(facts, gpu.uuid if gpu is not None else None),
            interrupts,
            observer or BenchObserver(),
            retry_failed=retry_failed,
            command=command,
        ).run()


def case_order(suite: Suite) -> list[PlannedCase]:
    """The cases on this machine in the order in which `run_suite` runs them. Raises `UsageError`."""
    return in_order(suite, plan_cases(suite, gpu_of(suite, find_gpus())))


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
class SuiteRun:
    """One run of a suite.

    Args:
        planned: all cases, in the suite's order.
        retry_failed: run everything again that is not `ok`, not only what failed for a temporary reason.
        command: the command line, for the results.
    """

    suite: Suite
    planned: Sequence[PlannedCase]
    out: Path
    baseline: str
    machine: MachineRecord
    interrupts: Interrupts
    observer: BenchObserver
    retry_failed: bool = False
    command: Sequence[str] = ()
    patience: Patience | None = None
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    results: dict[str, CaseResult] = field(default_factory=dict, init=False)
    _accuracy: AccuracyStep = field(init=False)
    _runner: CaseRunner = field(init=False)

    def __post_init__(self) -> None:
        self._runner = CaseRunner(self.out, self.suite.run, self.interrupts, self.observer, self.patience)

    def run(self) -> BenchSuiteResult:
        """Run the remaining cases; returns what `bench.json` holds. An interrupt ends the case and the run."""
        on_disk = results_on_disk(self.out)
        again = self._load_finished(on_disk)
        order = [case for case in in_order(self.suite, self.planned) if case.case_id not in self.results]
        self.observer.begin(order, list(self.results.values()), again)
        self._write()
        step = EqualityStep(self.suite, self.planned, self.out, self.baseline)
        step.run(self._process)
        self._accuracy = AccuracyStep(self.suite, self.planned, self.out, self.baseline)
        self._accuracy.run(self._process)
        self._compare_kept(step)
        for case in order:
            if self.interrupts or self._measured(case, step, on_disk) is None:
                break
        self._remark_others(on_disk)
        return self._write()

    def _measured(self, case: PlannedCase, step: EqualityStep, on_disk: Mapping[str, CaseResult]) -> CaseResult | None:
        """Run a case, write and report its result; None after an interrupt."""
        result = self._run_case(case, step, on_disk.get(case.case_id))
        if result is not None:
            self.results[case.case_id] = result
            self._write()
            self.observer.done(result)
        return result

    def _remark_others(self, on_disk: Mapping[str, CaseResult]) -> None:
        gone = sorted(set(on_disk) - {case.case_id for case in self.planned})
        if gone:
            self._runner.remark(f"in {CASES}/ and no longer in the suite, so not in these results: {', '.join(gone)}")

    def _known_end(self, planned: PlannedCase) -> tuple[CaseStatus, str] | None:
        """Outcome that is known without a process: a refusal, or that of another batch size of the same cell."""
        if planned.refusal is not None:
            return "unavailable", planned.refusal
        for one in self.planned:
            other = self.results.get(one.case_id)
            if other is None or one.cell != planned.cell:
                continue
            if other.status == "unavailable":
                return "unavailable", other.reason or "as the other batch sizes"
            if other.status in MEMORY_ENDS and other.case.batch_size < planned.case.batch_size:
                return other.status, f"not run, for a batch of {other.case.batch_size} is so already: {other.reason}"
        return None

    def _compare_kept(self, step: EqualityStep) -> None:
        """Compare kept results again: their suite may have had no `[equality]`, or another one."""
        for planned in self.planned:
            case_id = planned.case_id
            if (result := self.results.get(case_id)) is None:
                continue
            found = {"equality": step.record(planned), "accuracy": self._accuracy.record(planned)}
            changed = {name: one for name, one in found.items() if one is not None and one != getattr(result, name)}
            if changed:
                self.results[case_id] = result.model_copy(update=changed)
                update_result(self.out / CASES / case_id, self.results[case_id])

    def _load_finished(self, on_disk: Mapping[str, CaseResult]) -> dict[str, str]:
        """Keep results that are still valid; returns by case id why others are run again."""
        again = {}
        for case in self.planned:
            result = on_disk.get(case.case_id)
            if result is None:
                continue
            if (why := rerun_reason(case, result, retry_failed=self.retry_failed)) is not None:
                again[case.case_id] = why
            else:
                self.results[case.case_id] = result
        return again

    def _run_case(self, planned: PlannedCase, step: EqualityStep, before: CaseResult | None) -> CaseResult | None:
        """The case's result; None after an interrupt."""
        self.observer.started(planned.case, "measured")
        comparisons = {"equality": step.record(planned), "accuracy": self._accuracy.record(planned)}
        if (known := self._known_end(planned)) is not None:
            return self._runner.refuse(planned, *known, before, comparisons)
        return self._runner.measure(planned, before, comparisons)

    def _process(self, spec: CaseSpec, folder: Path, what: str) -> CaseEnd:
        self.observer.started(spec.case, what)
        return self._runner.process(spec, folder)

    def _write(self) -> BenchSuiteResult:
        """Write all results."""
        cases = [
            self.results.get(planned.case_id) or CaseResult(case=planned.case, status="not-run", reason=INTERRUPTED)
            for planned in self.planned
        ]
        constraints = self.suite.constraints.constraints()
        result = BenchSuiteResult(
            created=self.now().isoformat(timespec="seconds"),
            command=list(self.command),
            name=self.suite.name,
            seed=self.suite.run.seed,
            order=[case.case_id for case in in_order(self.suite, self.planned)],
            baseline=self.baseline,
            constraints=constraints,
            machine=self.machine,
            settings=settings_of(self.suite),
            cases=cases,
            recommendations=recommend(cases, constraints, self.baseline),
            complete=len(self.results) == len(self.planned),
            remarks=list(self._runner.remarks),
        )
        write_suite(self.out, result)
        return result


def settings_of(suite: Suite) -> dict[str, str | int | float | bool | None]:
    """Settings of all cases, flat, by `table.key`."""
    found: dict[str, str | int | float | bool | None] = {}
    for table in ("latency", "telemetry", "measure", "run"):
        for key, value in getattr(suite, table).model_dump(mode="json").items():
            found[f"{table}.{key}"] = ",".join(map(str, value)) if isinstance(value, list) else value
    return found
