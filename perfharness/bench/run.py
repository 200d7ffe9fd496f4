"""Run a suite: each case in its own process. Finished cases are kept; all results are written after each case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from perfharness.analysis.suites.bench_figures import (
    baseline_of,
    cases_exit_code,
    cell_of,
    gives_wrong_answers,
)
from perfharness.analysis.suites.recommend import is_any_unmet, recommend
from perfharness.backends.arrays import read_arrays
from perfharness.bench.accuracy.outputs import Tolerance, compare_outputs
from perfharness.bench.plan import Cell, Plan, PlannedCase, in_order, plan_suite
from perfharness.bench.process import result_of, run_process
from perfharness.bench.results import (
    CASES,
    cases_on_disk,
    measuring,
    prepare,
    put_in_place,
    running_folder,
    write_suite,
)
from perfharness.bench.search import MEMORY_ENDS, search_batches
from perfharness.bench.spec import OUTPUTS_FOLDER, OUTPUTS_NAME, CaseSpec
from perfharness.bench.suite import Suite, load_suite
from perfharness.errors import ResultError, UsageError
from perfharness.model.bench import AccuracyRecord, BenchCase, CaseProcess, CaseResult, CaseStatus, EqualityRecord
from perfharness.model.bench_suite import BatchSearch, BenchSuiteResult, Constraints
from perfharness_launcher.conditions import cool_down
from perfharness_launcher.interrupts import Interrupts

LARGEST_BATCH = 1024
INTERRUPTED = "the suite was interrupted; continue with --resume"
PASSING = ("timeout", "not-run", "unavailable")
"""Statuses that may be temporary: the cause may have been removed since."""


class BenchObserver:
    """Called while a suite is measured; override what is needed."""

    def begin(self, order: Sequence[PlannedCase], kept: Sequence[CaseResult]) -> None:
        """The cases that will run (with --find-batch one per cell), and the kept results."""

    def started(self, case: BenchCase) -> None:
        """A process is about to be started."""

    def poll(self, interrupts: int) -> None:
        """Called about 20 times a second while a case runs, with the number of interrupts so far."""

    def again(self, case: BenchCase, why: str) -> None:
        """A case of an earlier run is measured again."""

    def done(self, result: CaseResult, *, is_kept: bool = False) -> None:
        """A case has ended and is on disk, or an earlier run measured it."""

    def say(self, line: str) -> None:
        """Any other message."""


def run_suite(
    suite: Suite | Path,
    output_dir: Path,
    *,
    find_batch: bool = False,
    resume: bool = False,
    retry_failed: bool = False,
    observer: BenchObserver | None = None,
    command: Sequence[str] = (),
    history: bool = True,
    metrics: str | None = None,
) -> BenchSuiteResult:
    """Measure every case of a suite, each in its own process; writes `bench.json` and the cases to `output_dir`.

    Args:
        suite: a suite from `load_suite`, or a suite file.
        find_batch: search for the largest batch of each cell that fits in memory, or that meets `max_latency_ms`. The
            range is that of the suite's batch sizes; 1 to 1024 if the suite has only one.
        resume: keep finished cases in the folder.
        retry_failed: run all cases again that are not `ok`, not only those with a temporary failure.
        observer: called during the run.
        command: the command line, for the results.
        history: add the run to the history; if that fails, the last remark of the returned result gives the reason.
        metrics: `HOST:PORT` at which the readings of the running case are served to Prometheus.

    Raises `UsageError` if the suite cannot be run or the folder holds other results, `LaunchError` if another process
    writes to it. An interrupt ends the running case; `complete` is False then.
    """
    suite = load_suite(suite) if isinstance(suite, Path) else suite
    if find_batch:
        suite = suite.model_copy(update={"equality": None, "accuracy": None})
    if metrics is not None and "telemetry" not in suite.measure.passes:
        raise UsageError("--metrics serves the readings of the telemetry pass; add telemetry to the passes")
    plan = plan_suite(suite)
    with measuring(output_dir) as interrupts, _served(metrics, output_dir):
        prepare(output_dir, resume=resume)
        run = (SearchRun if find_batch else SuiteRun)(
            suite, output_dir, plan, interrupts, observer or BenchObserver(), retry_failed=retry_failed, command=command
        )
        result = run.run()
    if not history:
        return result
    from perfharness.runs.history import record, suite_entry  # its library takes long to load

    found = record(lambda: suite_entry(result, output_dir, suite_exit_code(result)))
    return result.model_copy(update={"remarks": [*result.remarks, *(one.message for one in found)]})


def _served(metrics: str | None, output_dir: Path) -> AbstractContextManager[None]:
    if metrics is None:
        return nullcontext()
    from perfharness.metrics.exposed_run import serving  # its library may be missing

    return serving(metrics, output_dir)


def suite_exit_code(result: BenchSuiteResult) -> int:
    """0: all passed; 1: failed case or interrupted; 3: no measurement, wrong answers, or constraints not met.

    A timeout ends a search like an out-of-memory error, and is no failure of the search.
    """
    bad = any(gives_wrong_answers(case) for case in result.cases) or is_any_unmet(result)
    bad = bad or any(one.target_ms is not None and one.batch_size is None for one in result.searches)
    statuses = [case.status for case in result.cases if not result.searches or case.status != "timeout"]
    return cases_exit_code(statuses, interrupted=not result.complete, check_failed=bad)


class MeasuringRun(ABC):
    """Runs cases one after the other, and keeps valid results of an earlier run."""

    def __init__(
        self,
        suite: Suite,
        out: Path,
        plan: Plan,
        interrupts: Interrupts,
        observer: BenchObserver,
        *,
        retry_failed: bool = False,
        command: Sequence[str] = (),
    ) -> None:
        self.suite, self.out, self.plan, self.interrupts, self.observer = suite, out, plan, interrupts, observer
        self.retry_failed, self.command = retry_failed, command
        self.on_disk = cases_on_disk(out)
        self.results: dict[str, CaseResult] = {}
        self.remarks: list[str] = []
        self._equality: dict[str, EqualityRecord] = {}

    def kept(self, planned: PlannedCase) -> CaseResult | None:
        """The result of this run, or a valid one of an earlier run; None if there is neither."""
        before = self.on_disk.get(planned.case_id)
        if planned.case_id not in self.results and before is not None and self.rerun_reason(planned, before) is None:
            self.results[planned.case_id] = before
        return self.results.get(planned.case_id)

    def rerun_reason(self, planned: PlannedCase, result: CaseResult) -> str | None:
        """Why a case with a result is run again; None: the result is kept."""
        if result.spec_sha256 != planned.sha256:
            return "the suite, a file of the model or its inputs, or the GPU has changed"
        if is_passing(result) or (self.retry_failed and result.status != "ok"):
            return f"it was {result.status}: {result.reason}"
        return None

    def measure(self, planned: PlannedCase) -> CaseResult | None:
        """Run the case, unless it is refused, and store its result; None after an interrupt."""
        before = self.on_disk.get(planned.case_id)
        if before is not None and (why := self.rerun_reason(planned, before)) is not None:
            self.observer.again(planned.case, why)
        self.observer.started(planned.case)
        if (known := self.known_end(planned)) is not None:
            running_folder(self.out, planned.case_id).mkdir()
            return self._stored(planned, CaseResult(case=planned.case, status=known[0], reason=known[1]))
        self._cool_down(planned)
        running, timeout_s = running_folder(self.out, planned.case_id), self.suite.run.timeout_s
        end = run_process(
            self._with_baseline(planned),
            running,
            self.interrupts,
            timeout_s=timeout_s,
            poll=lambda: self.observer.poll(self.interrupts.count),
        )
        if end.interrupted:
            return None
        if end.leftovers:
            self.remark(f"{planned.case_id} left processes running; they were ended: {'; '.join(end.leftovers)}")
        return self._stored(planned, result_of(end, planned.case, running, timeout_s))

    @abstractmethod
    def _write(self) -> BenchSuiteResult:
        """Write the results so far."""

    def step(self, planned: PlannedCase) -> CaseResult | None:
        """A case's result, measured and written now unless known; None after an interrupt."""
        known = self.kept(planned)
        result = known or (None if self.interrupts else self.measure(planned))
        if result is not None:
            self._write()
            self.observer.done(result, is_kept=known is not None)
        return result

    def known_end(self, planned: PlannedCase) -> tuple[CaseStatus, str] | None:
        """The outcome if it is known without a process."""
        return None if planned.refusal is None else ("unavailable", planned.refusal)

    def remark(self, text: str) -> None:
        """Add a remark, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def write(self, **fields: Any) -> BenchSuiteResult:
        """Write all results. A killed run leaves the same files as an interrupted one."""
        if fields["complete"] and (gone := sorted(set(self.on_disk) - set(self.results))):
            self.remark(f"not in these results: cases in {CASES}/ that are not in this suite: {', '.join(gone)}")
        settings: dict[str, Any] = {}
        for table in ("latency", "telemetry", "measure", "run"):
            for key, value in getattr(self.suite, table).model_dump(mode="json").items():
                settings[f"{table}.{key}"] = ",".join(map(str, value)) if isinstance(value, list) else value
        result = BenchSuiteResult(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=list(self.command),
            name=self.suite.name,
            machine=self.plan.machine,
            settings=settings,
            constraints=Constraints.model_validate(self.suite.constraints.model_dump()),
            remarks=list(self.remarks),
            **fields,
        )
        write_suite(self.out, result)
        return result

    def _with_baseline(self, planned: PlannedCase) -> CaseSpec:
        """The spec, with the folder of the baseline's outputs for the samples."""
        if planned.spec.accuracy is None or planned.baseline is None:
            return planned.spec
        folder = (self.out / CASES / planned.baseline.case_id / OUTPUTS_FOLDER).absolute()
        return planned.with_spec(accuracy=planned.spec.accuracy.model_copy(update={"baseline": folder})).spec

    def _stored(self, planned: PlannedCase, result: CaseResult) -> CaseResult:
        before = self.on_disk.get(planned.case_id)
        attempts = 1 + (before.process.attempts if before is not None and before.process is not None else 0)
        process = (result.process or CaseProcess()).model_copy(update={"attempts": attempts})
        update = {"case": planned.case, "spec_sha256": planned.sha256, "process": process}
        self.results[planned.case_id] = stored = result.model_copy(update=update)
        put_in_place(self.out, stored)
        return stored

    def _cool_down(self, planned: PlannedCase) -> None:
        run, uuids = self.suite.run, planned.spec.telemetry.gpu_uuids
        if run.cool_down_c is None:
            return
        if not uuids:
            self.remark("--cool-down had no effect: no case uses a GPU")
        results = cool_down(
            dict.fromkeys(uuids, run.cool_down_c),
            limit_s=run.cool_down_limit_s,
            interrupted=lambda: bool(self.interrupts),
            say=self.observer.say,
        )
        for one in results:
            if one.reason is not None:
                self.remark(f"--cool-down had no effect: {one.reason}")
            elif not one.reached:
                self.remark(f"{planned.case_id} began at {one.end_c} °C after {one.waited_s:.0f} s of cool-down")


def is_passing(result: CaseResult) -> bool:
    """Whether the failure may be temporary.

    The process was killed, ended without a report (for example, disk full), or exceeded its time limit.
    """
    if result.status in PASSING:
        return True
    process = result.process
    return result.status == "failed" and process is not None and (process.signal is not None or not process.reported)


class SuiteRun(MeasuringRun):
    """One run of a suite."""

    def run(self) -> BenchSuiteResult:
        """Run the remaining cases and return the content of `bench.json`. An interrupt ends the case and the run."""
        kept = [result for planned in self.plan.cases if (result := self.kept(planned)) is not None]
        order = [one for one in in_order(self.suite, self.plan.cases) if one.case_id not in self.results]
        self.observer.begin(order, kept)
        self._write()
        for planned in order:
            if self.step(planned) is None:
                break
        return self._write()

    def known_end(self, planned: PlannedCase) -> tuple[CaseStatus, str] | None:
        """The outcome if it is known without a process: a refusal, or that of another batch size of the same cell."""
        for one in self.plan.cases:
            other = self.results.get(one.case_id)
            if other is None or one.cell != planned.cell:
                continue
            if other.status == "unavailable":
                return "unavailable", other.reason or "other batch sizes of the cell are unavailable"
            if other.status in MEMORY_ENDS and other.case.batch_size < planned.case.batch_size:
                return other.status, f"not run: status of a batch of {other.case.batch_size}: {other.reason}"
        return super().known_end(planned)

    def _write(self) -> BenchSuiteResult:
        planned, baseline = self.plan.cases, self.plan.baseline
        cases = [
            self.results.get(one.case_id) or CaseResult(case=one.case, status="not-run", reason=INTERRUPTED)
            for one in planned
        ]
        accuracy: dict[Cell, AccuracyRecord] = {
            one.cell: record
            for one, result in zip(planned, cases, strict=True)
            if one.spec.accuracy is not None and (record := _accuracy_of(one, result)) is not None
        }
        cases = [
            result.model_copy(update={"accuracy": accuracy.get(one.cell), "equality": self._equality_of(result, cases)})
            for one, result in zip(planned, cases, strict=True)
        ]
        return self.write(
            seed=self.suite.run.seed,
            order=[case.case_id for case in in_order(self.suite, planned)],
            baseline=baseline,
            cases=cases,
            recommendations=recommend(cases, self.suite.constraints, baseline),
            complete=len(self.results) == len(planned),
        )

    def _equality_of(self, result: CaseResult, cases: Sequence[CaseResult]) -> EqualityRecord | None:
        """The outputs compared with the baseline's at the same batch size; None until both are measured."""
        table, case_id = self.suite.equality, result.case.case_id
        base = baseline_of(result, cases, self.plan.baseline)
        if table is None or result.status == "not-run" or (base is not None and base.status == "not-run"):
            return None
        if case_id not in self._equality:
            self._equality[case_id] = self._compared(result, base, table.tolerance(result.case.precision or "fp32"))
        return self._equality[case_id]

    def _compared(self, result: CaseResult, base: CaseResult | None, tolerance: Tolerance) -> EqualityRecord:
        name = self.plan.baseline if base is None else cell_of(base.case)
        try:
            if base is None:
                raise ResultError(f"{name} was not run with this model")
            expected, outputs = (
                read_arrays(self.out / CASES / one.case.case_id / OUTPUTS_NAME, ResultError) for one in (base, result)
            )
        except ResultError as error:
            return EqualityRecord(
                reference=name,
                equal=None,
                absolute_tolerance=tolerance.absolute,
                relative_tolerance=tolerance.relative,
                reason=result.reason or (base and base.reason) or str(error),
            )
        return compare_outputs(name, expected, outputs, tolerance)


def _accuracy_of(planned: PlannedCase, result: CaseResult) -> AccuracyRecord | None:
    """Record of the samples, or the reason for none if the case ended before them."""
    if result.accuracy is not None or result.status == "not-run":
        return result.accuracy
    assert planned.spec.accuracy is not None
    reason = result.reasons.get("accuracy") or result.reason or result.status
    return AccuracyRecord(against=planned.spec.accuracy.against, samples=0, metrics={}, reasons={"samples": reason})


class SearchRun(MeasuringRun):
    """One search for the largest batch of each cell."""

    def run(self) -> BenchSuiteResult:
        """Search every cell and return the content of `bench.json`. An interrupt ends the case and the run."""
        sizes = {one.case.batch_size for one in self.plan.cases}
        self._range = min(sizes), max(sizes) if len(sizes) > 1 else max(LARGEST_BATCH, *sizes)
        self._cells = list({one.cell: one for one in reversed(self.plan.cases)}.values())[::-1]
        self.observer.begin(self._cells, [])
        self._write()
        for cell in self._cells:
            self._search(cell, self.step)
        return self._write()

    def _search(self, cell: PlannedCase, measure: Callable[[PlannedCase], CaseResult | None]) -> BatchSearch:
        limits = self.suite.constraints
        return search_batches(
            lambda size: measure(cell.at_batch(size)),
            cell.case.model_dump(exclude={"case_id", "batch_size"}),
            *self._range,
            limits.max_latency_ms,
            limits.latency_percentile,
        )

    def _write(self) -> BenchSuiteResult:
        searches = [self._search(cell, self.kept) for cell in self._cells]
        complete = all(one.ended_by != "interrupted" for one in searches)
        return self.write(cases=list(self.results.values()), searches=searches, complete=complete)
