"""What limits a stage: rules over shares of its time (docs/guides/causes.md).

The first rule that holds, and takes enough of the stage, is the verdict. Others that take half as much as would make
them the verdict, and 5 %, are further causes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfharness.analysis.diagnosis.rules import calls, gpu, host, machine, waits
from perfharness.analysis.diagnosis.rules.evidence import FURTHER_SHARE, Figures, Match, percent
from perfharness.model.diagnosis import Cause, StageVerdict, Verdict

RULES: tuple[Callable[[Figures], Match | None], ...] = (
    gpu.recompilation,
    gpu.first_use,
    gpu.shared_gpu,
    gpu.gpu_bound,
    calls.small_copies,
    gpu.copy_bound,
    calls.pageable_copies,
    gpu.waiting_on_gpu_work,
    machine.cpu_quota,
    machine.cpu_steal,
    host.garbage_collection,
    waits.gil_contention,
    waits.read_by_helper,
    waits.fewer_cpus,
    waits.locked_by_stage,
    waits.worker_start,
    waits.connection_wait,
    waits.exchange,
    waits.data_loader,
    waits.worker_wait,
    waits.process_wait,
    waits.file_wait,
    waits.network_wait,
    waits.blocked,
    waits.cpu_contention,
    calls.allocator_churn,
    calls.synchronization,
    calls.hidden_waits,
    calls.launching,
    waits.handover,
    waits.not_computing,
    host.recording,
    host.cpu_bound,
)
"""In order: what makes the other figures meaningless comes first, what only fills the rest of the time last."""


DESCRIPTIONS = (Verdict.CPU_BOUND, Verdict.GPU_BOUND, Verdict.CANNOT_TELL)
"""What fills the rest of a stage's time."""


NAMED_WAITS = (
    Verdict.WAITING_ON_STAGE, Verdict.WAITING_ON_PROCESS, Verdict.DATA_LOADER_STARVATION, Verdict.FILE_WAIT,
    Verdict.NETWORK_WAIT,
)  # fmt: skip
COVERED_SHARE = 0.80
"""Of a wait without a name. With less than a fifth left, it says again what others have said."""


OF_A_PASS = machine.OF_MACHINE | {Verdict.FIRST_USE}
"""What one pass may have, and another of the same program not."""


@dataclass(frozen=True)
class Judgement:
    """The verdict of a stage, and its causes: that of the verdict first, then those that take most."""

    verdict: StageVerdict
    causes: list[Cause]


def judge(f: Figures) -> Judgement:
    """The verdict of a stage whose numbers are all known but those that its tracer does not record."""
    found = [match for rule in RULES if (match := rule(f)) is not None]
    main = _main(found)
    steady = _otherwise(found, main)
    if main is None:
        verdict = _nothing(f)
    else:
        limits_steady = None if steady is None else steady.verdict
        verdict = StageVerdict(main.verdict, main.evidence, main.try_this, main.missing, main.limit, limits_steady)
    stage_ns = max(f.wall, f.span)
    worth = [match for match in found if match is main or match is steady or _is_worth(match, stage_ns)]
    further = [
        match.cause(f.batches, stage_ns)
        for match in worth
        if match is steady or (match is not main and not _is_covered(match, worth, f))
    ]
    further.sort(key=lambda cause: -cause.share)
    named = main is not None and main.verdict is not Verdict.CANNOT_TELL
    first = [main.cause(f.batches, stage_ns)] if main is not None and named else []
    return Judgement(verdict, _distinct([*first, *further]))


def _main(found: list[Match]) -> Match | None:
    """The first that limits the stage; a slow beginning only where no cause with a name takes more than it."""
    main = next((match for match in found if match.is_verdict), None)
    if main is None or main.verdict is not Verdict.FIRST_USE:
        return main
    larger = (each for each in found if each.is_verdict and each.verdict not in DESCRIPTIONS)
    return next((each for each in larger if each.lost_ns > main.lost_ns), main)


def _otherwise(found: list[Match], main: Match | None) -> Match | None:
    """What the verdict would be in another pass, without a slow beginning, and without CPUs that the machine keeps."""
    if main is None or main.verdict not in OF_A_PASS:
        return None
    others = (match for match in found if match.is_verdict and match.verdict not in OF_A_PASS)
    return next((match for match in others if match.verdict is not Verdict.CANNOT_TELL), None)


def _is_worth(match: Match, stage_ns: float) -> bool:
    if match.verdict is Verdict.CANNOT_TELL or not match.is_cause:
        return False
    return match.saves_ns is None or match.saves_ns >= FURTHER_SHARE * stage_ns


def _is_covered(match: Match, worth: list[Match], f: Figures) -> bool:
    """Whether a wait for the system is the waits that others have a name for."""
    named = sum(other.lost_ns for other in worth if other.verdict in NAMED_WAITS)
    if any(other.verdict is Verdict.RECOMPILATION for other in worth):
        named += f.waiting_for_compiler_ns
    return match.verdict is Verdict.WAITING_ON_SYSTEM and named >= COVERED_SHARE * match.lost_ns


def _distinct(causes: list[Cause]) -> list[Cause]:
    """One of each code, the first."""
    codes = [cause.code for cause in causes]
    return [cause for position, cause in enumerate(causes) if cause.code not in codes[:position]]


def _nothing(f: Figures) -> StageVerdict:
    made = f.issuing
    shares = (
        f"GPU {percent(f.gpu_busy, f.span)}, waiting {percent(made.reading_ns + made.synchronizing_ns, f.wall)}, "
        f"launching {percent(made.launching_ns, f.wall)}, outside of CUDA {percent(f.outside, f.wall)}"
    )
    if not f.uses_gpu:
        shares = "no part of its time has a name"
    return StageVerdict(
        Verdict.CANNOT_TELL,
        [f"No single cause reaches its threshold: {shares}."],
        "Look at the stages inside it; annotate smaller stages where there are none.",
        f.missing_calls,
    )


def cannot_tell(missing: list[str], next_step: str) -> StageVerdict:
    """The verdict where the trace does not hold what a verdict needs."""
    return StageVerdict(Verdict.CANNOT_TELL, [], next_step, missing)
