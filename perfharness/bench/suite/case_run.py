"""Run a case: cool down, start its process, move its result to the results' folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from perfharness.bench.process import CaseEnd, has_reported, result_of, run_process
from perfharness.bench.spec import CaseSpec
from perfharness.bench.suite.matrix import PlannedCase
from perfharness.bench.suite.store import CASES, put_in_place, running_folder
from perfharness.bench.suite.suite import RunTable
from perfharness.model.bench import BenchCase, CaseProcess, CaseResult, CaseStatus
from perfharness.telemetry.cool_down import cool_down
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.processes.supervise import Patience

Fields = Mapping[str, object]
NOTHING: Fields = MappingProxyType({})


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
class CaseRunner:
    """Runs the cases of a suite or a sweep, one after the other.

    Args:
        remarks: caveats on the results; grows.
    """

    out: Path
    run: RunTable
    interrupts: Interrupts
    observer: BenchObserver
    patience: Patience | None = None
    remarks: list[str] = field(default_factory=list, init=False)

    def measure(
        self, planned: PlannedCase, before: CaseResult | None, comparisons: Fields = NOTHING
    ) -> CaseResult | None:
        """Run the case and store its result; None where the user interrupted it.

        Args:
            before: result of an earlier attempt.
            comparisons: fields of the result that come from comparison steps.
        """
        running = running_folder(self.out / CASES / planned.case_id)
        self._cool_down(planned)
        end = self.process(planned.spec, running)
        if end.interrupted:
            return None
        return self._put(planned, self._outcome(planned, running, end), end, before, comparisons)

    def refuse(
        self,
        planned: PlannedCase,
        status: CaseStatus,
        reason: str,
        before: CaseResult | None,
        comparisons: Fields = NOTHING,
    ) -> CaseResult:
        """Store and return the result of a case that cannot run."""
        running_folder(self.out / CASES / planned.case_id).mkdir()
        result = CaseResult(case=planned.case, status=status, reason=reason)
        return self._put(planned, result, CaseEnd(None), before, comparisons)

    def process(self, spec: CaseSpec, folder: Path) -> CaseEnd:
        """Run it in that folder, which is created."""
        return run_process(
            spec,
            folder,
            self.interrupts,
            timeout_s=self.run.timeout_s,
            poll=lambda: self.observer.poll(self.interrupts.count),
            patience=self.patience,
        )

    def remark(self, text: str) -> None:
        """Add a remark, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def _put(
        self, planned: PlannedCase, result: CaseResult, end: CaseEnd, before: CaseResult | None, comparisons: Fields
    ) -> CaseResult:
        folder = self.out / CASES / planned.case_id
        running = folder.with_name(f".{folder.name}.running")
        attempts = 1 + (before.process.attempts if before is not None and before.process is not None else 0)
        result = result.model_copy(
            update={
                "case": planned.case,
                **comparisons,
                "spec_sha256": planned.sha256,
                "started_unix_ns": end.started_unix_ns,
                "duration_s": end.duration_s,
                "process": CaseProcess(
                    exit_code=end.return_code if end.return_code is not None and end.return_code >= 0 else None,
                    signal=end.signal,
                    timed_out=end.timed_out,
                    reported=end.return_code is None or has_reported(running),
                    attempts=attempts,
                ),
            }
        )
        put_in_place(running, folder, result)
        return result

    def _outcome(self, planned: PlannedCase, folder: Path, end: CaseEnd) -> CaseResult:
        result = result_of(end, planned.case, folder, self.run.timeout_s)
        update: dict[str, object] = {}
        if result.memory.host_peak_bytes is None and end.max_rss_bytes is not None:
            update["memory"] = result.memory.model_copy(update={"host_peak_bytes": end.max_rss_bytes})
        if end.leftovers:
            self.remark(f"{planned.case_id} left processes running, which were ended: {'; '.join(end.leftovers)}")
        return result.model_copy(update=update)

    def _cool_down(self, planned: PlannedCase) -> None:
        target_c, uuids = self.run.cool_down_c, planned.spec.telemetry.gpu_uuids
        if target_c is None:
            return
        with open_nvml() as nvml:
            devices = [device for uuid in uuids if (device := nvml.device(uuid))]
            if not devices:
                self.remark(f"--cool-down waited for no GPU: {nvml.opened.reason or 'the cases use none'}")
                return
            results = cool_down(
                devices,
                target_c,
                limit_s=self.run.cool_down_limit_s,
                interrupted=lambda: bool(self.interrupts),
                say=self.observer.say,
            )
        for one in results:
            if not one.reached:
                self.remark(f"{planned.case_id} began at {one.end_c} °C after {one.waited_s:.0f} s of cooling down")


RESUME_HINT = "--resume goes on with what is left"
MEMORY_ENDS: tuple[CaseStatus, ...] = ("out-of-memory", "memory-limit")
PASSING = ("timeout", "not-run", "unavailable")
"""Statuses that may be temporary: something may have been installed, freed or repaired since."""


def rerun_reason(case: PlannedCase, result: CaseResult, *, retry_failed: bool = False) -> str | None:
    """Why a case with a result is run again; None: the result is kept."""
    if result.spec_sha256 != case.sha256:
        return "the suite, a file of the model or of its inputs, or the GPU has changed since"
    if is_passing(result) or (retry_failed and result.status != "ok"):
        return f"it was {result.status}: {result.reason}"
    return None


def is_passing(result: CaseResult) -> bool:
    """Whether the failure may be temporary.

    Its process was killed, ended without a report (a full disk, say), or exceeded its time limit.
    """
    if result.status in PASSING:
        return True
    process = result.process
    return result.status == "failed" and process is not None and (process.signal is not None or not process.reported)
