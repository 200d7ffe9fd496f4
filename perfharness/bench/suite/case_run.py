"""What a run of a suite and one of a sweep share: run a case (cool down, process, result to the folder), or keep it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from perfharness.bench.process import CaseEnd, has_reported, result_of, run_process
from perfharness.bench.spec import CaseSpec
from perfharness.bench.suite.matrix import Plan, PlannedCase
from perfharness.bench.suite.store import CASES, put_in_place, results_on_disk, running_folder
from perfharness.bench.suite.suite import Suite
from perfharness.model.bench import BenchCase, CaseProcess, CaseResult, CaseStatus
from perfharness_launcher.conditions import cool_down
from perfharness_launcher.interrupts import Interrupts

RESUME_HINT = "--resume goes on with what is left"
MEMORY_ENDS: tuple[CaseStatus, ...] = ("out-of-memory", "memory-limit")
PASSING = ("timeout", "not-run", "unavailable")
"""Statuses that may be temporary: something may have been installed, freed or repaired since."""

Fields = Mapping[str, object]


class BenchObserver:
    """Called while a suite or a sweep is measured; override what is needed."""

    def begin(self, order: Sequence[PlannedCase], kept: Sequence[CaseResult], again: Mapping[str, str]) -> None:
        """The cases that will run (of a sweep one case per cell), the kept results, and by id why cases run again."""

    def started(self, case: BenchCase, what: str) -> None:
        """A process is about to be started: `measured`, or `asked for its outputs`."""

    def poll(self, interrupts: int) -> None:
        """Called about 20 times a second while one runs, with the number of interrupts so far."""

    def again(self, case: BenchCase, why: str) -> None:
        """A case of an earlier sweep is measured again."""

    def done(self, result: CaseResult, *, is_kept: bool = False) -> None:
        """A case has ended and is on disk, or was measured by an earlier run."""

    def say(self, line: str) -> None:
        """Any other message."""


@dataclass
class MeasuringRun:
    """Runs cases one after the other, and keeps valid results of an earlier run.

    Args:
        retry_failed: run everything again that is not `ok`, not only what failed for a temporary reason.
        command: the command line, for the results.
        results: known ones, by case id; grows.
        on_disk: those of an earlier run.
        remarks: caveats on the results; grows.
    """

    suite: Suite
    out: Path
    plan: Plan
    interrupts: Interrupts
    observer: BenchObserver
    _: KW_ONLY
    retry_failed: bool = False
    command: Sequence[str] = ()
    results: dict[str, CaseResult] = field(default_factory=dict, init=False)
    on_disk: Mapping[str, CaseResult] = field(init=False)
    remarks: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.on_disk = results_on_disk(self.out)

    def measure(self, planned: PlannedCase, comparisons: Fields | None = None) -> CaseResult | None:
        """Run the case and store its result; None where the user interrupted it.

        Args:
            comparisons: fields of the result that come from comparison steps.
        """
        running = running_folder(self.out / CASES / planned.case_id)
        self._cool_down(planned)
        end = self.process(planned.spec, running)
        if end.interrupted:
            return None
        result = result_of(end, planned.case, running, self.suite.run.timeout_s)
        if result.memory.host_peak_bytes is None and end.max_rss_bytes is not None:
            memory = result.memory.model_copy(update={"host_peak_bytes": end.max_rss_bytes})
            result = result.model_copy(update={"memory": memory})
        if end.leftovers:
            self.remark(f"{planned.case_id} left processes running, which were ended: {'; '.join(end.leftovers)}")
        return self._stored(planned, result, end, comparisons)

    def refuse(
        self, planned: PlannedCase, status: CaseStatus, reason: str, comparisons: Fields | None = None
    ) -> CaseResult:
        """Store and return the result of a case that cannot run."""
        running_folder(self.out / CASES / planned.case_id).mkdir()
        return self._stored(
            planned, CaseResult(case=planned.case, status=status, reason=reason), CaseEnd(None), comparisons
        )

    def process(self, spec: CaseSpec, folder: Path) -> CaseEnd:
        """Run it in that folder, which is created."""
        return run_process(
            spec,
            folder,
            self.interrupts,
            timeout_s=self.suite.run.timeout_s,
            poll=lambda: self.observer.poll(self.interrupts.count),
        )

    def remark(self, text: str) -> None:
        """Add a remark, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def remark_unused(self, used: Iterable[str], what: str) -> None:
        """Name results on disk that are none of the used ones."""
        if gone := sorted(set(self.on_disk) - set(used)):
            self.remark(f"in {CASES}/ and {what}, so not in these results: {', '.join(gone)}")

    def rerun_reason(self, case: PlannedCase, result: CaseResult) -> str | None:
        """Why a case with a result is run again; None: the result is kept."""
        if result.spec_sha256 != case.sha256:
            return "the suite, a file of the model or of its inputs, or the GPU has changed since"
        if is_passing(result) or (self.retry_failed and result.status != "ok"):
            return f"it was {result.status}: {result.reason}"
        return None

    def common(self) -> dict[str, Any]:
        """Fields of the results of suites and sweeps."""
        settings: dict[str, Any] = {}
        for table in ("latency", "telemetry", "measure", "run"):
            for key, value in getattr(self.suite, table).model_dump(mode="json").items():
                settings[f"{table}.{key}"] = ",".join(map(str, value)) if isinstance(value, list) else value
        return {
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": list(self.command),
            "machine": self.plan.machine,
            "settings": settings,
            "remarks": list(self.remarks),
        }

    def _stored(self, planned: PlannedCase, result: CaseResult, end: CaseEnd, comparisons: Fields | None) -> CaseResult:
        folder = self.out / CASES / planned.case_id
        running = folder.with_name(f".{folder.name}.running")
        before = self.on_disk.get(planned.case_id)
        process = CaseProcess(
            exit_code=end.return_code if end.return_code is not None and end.return_code >= 0 else None,
            signal=end.signal,
            timed_out=end.timed_out,
            reported=end.return_code is None or has_reported(running),
            attempts=1 + (before.process.attempts if before is not None and before.process is not None else 0),
        )
        result = result.model_copy(
            update={
                "case": planned.case,
                **(comparisons or {}),
                "spec_sha256": planned.sha256,
                "started_unix_ns": end.started_unix_ns,
                "duration_s": end.duration_s,
                "process": process,
            }
        )
        put_in_place(running, folder, result)
        return result

    def _cool_down(self, planned: PlannedCase) -> None:
        run, uuids = self.suite.run, planned.spec.telemetry.gpu_uuids
        if run.cool_down_c is None:
            return
        if not uuids:
            self.remark("--cool-down waited for no GPU: the cases use none")
        results = cool_down(
            dict.fromkeys(uuids, run.cool_down_c),
            limit_s=run.cool_down_limit_s,
            interrupted=lambda: bool(self.interrupts),
            say=self.observer.say,
        )
        for one in results:
            if one.reason is not None:
                self.remark(f"--cool-down waited for no GPU: {one.reason}")
            elif not one.reached:
                self.remark(f"{planned.case_id} began at {one.end_c} °C after {one.waited_s:.0f} s of cooling down")


def is_passing(result: CaseResult) -> bool:
    """Whether the failure may be temporary.

    Its process was killed, ended without a report (a full disk, say), or exceeded its time limit.
    """
    if result.status in PASSING:
        return True
    process = result.process
    return result.status == "failed" and process is not None and (process.signal is not None or not process.reported)
