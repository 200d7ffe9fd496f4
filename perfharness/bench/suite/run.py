"""A suite from its first case to its last: what is done is kept, what is left is run, and after each all is on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from perfharness.analysis.recommendation import recommend
from perfharness.bench.process import CaseEnd
from perfharness.bench.spec import CaseSpec
from perfharness.bench.suite.accuracy_step import AccuracyStep
from perfharness.bench.suite.case_run import MEMORY_ENDS, CaseRunner, why_again
from perfharness.bench.suite.equality_step import EqualityStep
from perfharness.bench.suite.matrix import PlannedCase, shuffled
from perfharness.bench.suite.store import CASES, results_on_disk, update_result, write_suite
from perfharness.bench.suite.suite import Suite
from perfharness.model.bench import BenchCase, CaseResult, CaseStatus, MachineRecord
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.processes.supervise import Patience

INTERRUPTED = "the suite was interrupted before it was run; --resume goes on"


class SuiteObserver(Protocol):
    """Is told of what goes on."""

    def begin(self, order: Sequence[PlannedCase], kept: Sequence[CaseResult], again: Mapping[str, str]) -> None:
        """What will be run, what is kept of an earlier run, and which cases are run again, by id, and why."""

    def started(self, case: BenchCase, what: str) -> None:
        """A process is about to be started: `measured`, or `asked for its outputs`."""

    def look(self) -> None:
        """Called about 20 times a second while one runs."""

    def done(self, result: CaseResult) -> None:
        """A case is over and on disk."""

    def say(self, line: str) -> None:
        """Anything else worth a line."""


@dataclass
class SuiteRun:
    """All that one run of a suite needs.

    Args:
        planned: all cases, in the suite's order.
        retry_failed: try everything again that is not `ok`, not what failed for a passing reason only.
        command: of perfharness, for the results.
    """

    suite: Suite
    planned: Sequence[PlannedCase]
    out: Path
    baseline: str
    machine: MachineRecord
    interrupts: Interrupts
    observer: SuiteObserver
    retry_failed: bool = False
    command: Sequence[str] = ()
    patience: Patience | None = None
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    results: dict[str, CaseResult] = field(default_factory=dict, init=False)
    _accuracy: AccuracyStep = field(init=False)
    _runner: CaseRunner = field(init=False)

    def __post_init__(self) -> None:
        told = self.observer
        self._runner = CaseRunner(self.out, self.suite.run, self.interrupts, told.look, told.say, self.patience)

    def run(self) -> BenchSuiteResult:
        """Run what is left; returns what is in `bench.json` then. An interrupt ends the case that runs, and the run."""
        on_disk = results_on_disk(self.out)
        again = self._sort_out(on_disk)
        order = [case for case in self._order() if case.case_id not in self.results]
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
        self._name_others(on_disk)
        return self._write()

    def _measured(self, case: PlannedCase, step: EqualityStep, on_disk: Mapping[str, CaseResult]) -> CaseResult | None:
        """The result of a case, on disk and told; None where the user ended it."""
        result = self._run_case(case, step, on_disk.get(case.case_id))
        if result is not None:
            self.results[case.case_id] = result
            self._write()
            self.observer.done(result)
        return result

    def _name_others(self, on_disk: Mapping[str, CaseResult]) -> None:
        gone = sorted(set(on_disk) - {case.case_id for case in self.planned})
        if gone:
            self._runner.remark(f"in {CASES}/ and no longer in the suite, so not in these results: {', '.join(gone)}")

    def _known_end(self, planned: PlannedCase) -> tuple[CaseStatus, str] | None:
        """What is known without a process: a refusal, or what another batch size of the same cell became."""
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
        """Results of an earlier run, whose suite may have had no or another `[equality]`."""
        for planned in self.planned:
            case_id = planned.case_id
            if (result := self.results.get(case_id)) is None:
                continue
            found = {"equality": step.record(planned), "accuracy": self._accuracy.record(planned)}
            changed = {name: one for name, one in found.items() if one is not None and one != getattr(result, name)}
            if changed:
                self.results[case_id] = result.model_copy(update=changed)
                update_result(self.out / CASES / case_id, self.results[case_id])

    def _order(self) -> list[PlannedCase]:
        run = self.suite.run
        return shuffled(self.planned, run.seed) if run.shuffle else list(self.planned)

    def _sort_out(self, on_disk: Mapping[str, CaseResult]) -> dict[str, str]:
        """Keep what need not be run again; returns why others are, by case id."""
        again = {}
        for case in self.planned:
            result = on_disk.get(case.case_id)
            if result is None:
                continue
            if (why := why_again(case, result, retry_failed=self.retry_failed)) is not None:
                again[case.case_id] = why
            else:
                self.results[case.case_id] = result
        return again

    def _run_case(self, planned: PlannedCase, step: EqualityStep, before: CaseResult | None) -> CaseResult | None:
        """What became of it; None where the user ended it."""
        self.observer.started(planned.case, "measured")
        beside = {"equality": step.record(planned), "accuracy": self._accuracy.record(planned)}
        if (known := self._known_end(planned)) is not None:
            return self._runner.refuse(planned, *known, before, beside)
        return self._runner.measure(planned, before, beside)

    def _process(self, spec: CaseSpec, folder: Path, what: str) -> CaseEnd:
        self.observer.started(spec.case, what)
        return self._runner.process(spec, folder)

    def _write(self) -> BenchSuiteResult:
        """All that is known, on disk."""
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
            order=[case.case_id for case in self._order()],
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
    """What holds for all cases, flat, by `table.key`."""
    found: dict[str, str | int | float | bool | None] = {}
    for table in ("latency", "telemetry", "measure", "run"):
        for key, value in getattr(suite, table).model_dump(mode="json").items():
            found[f"{table}.{key}"] = ",".join(map(str, value)) if isinstance(value, list) else value
    return found
