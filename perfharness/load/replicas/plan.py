"""Which launches a comparison of replicas makes: each number of replicas, in each way to share a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import lcm
from pathlib import Path
from typing import Any, get_args

from perfharness.errors import UsageError
from perfharness.load.profile import Phase, Profile
from perfharness.load.replicas.result import Sharing
from perfharness.load.stress import StressPlan, plan_stress
from perfharness.load.targets.backend import ModelSpec
from perfharness.load.targets.http.settings import is_url
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.companions.mps import PIPES, PROGRAM, MpsCompanion, MpsFacts, find_mps
from perfharness_launcher.plan.gpus import GpuFacts, find_gpus
from perfharness_launcher.plan.launch_plan import LaunchPlan
from perfharness_launcher.plan.options import split_names

SHARINGS: tuple[Sharing, ...] = get_args(Sharing)
EXCLUSIVE_PROCESS = 3
"""NVML's compute mode in which one process, or MPS, has the GPU to itself."""


@dataclass(frozen=True)
class PlannedCase:
    """One number of replicas in one way.

    Args:
        plan: of each of its launches, but for the folder.
        mps: control program and pipes of the daemon that its processes are clients of; None: they are none's.
        starts_mps: whether each launch starts that daemon, and ends it.
    """

    sharing: Sharing
    replicas: int
    plan: StressPlan
    mps: tuple[str, Path] | None = None
    starts_mps: bool = False

    @property
    def name(self) -> str:
        """Also of its folder."""
        return f"{self.sharing}_{self.replicas}"

    def companions(self) -> list[MpsCompanion]:
        """What runs beside each launch."""
        return [] if self.mps is None else [MpsCompanion(*self.mps, starts=self.starts_mps)]


def parse_replicas(text: str) -> tuple[int, ...]:
    """`1,2,4`. Raises `UsageError`."""
    parts = [part.strip() for part in text.split(",")]
    numbers = tuple(int(part) for part in parts if part.isdecimal())
    if len(numbers) < len(parts) or len(set(numbers)) < len(numbers) or min(numbers, default=0) < 1:
        raise UsageError(f"--replicas {text}: must be different numbers of processes, as in 1,2,4")
    return numbers


def parse_sharing(text: str) -> tuple[Sharing, ...]:
    """`plain,mps`. Raises `UsageError`."""
    parts = [part.strip() for part in text.split(",")]
    if any(part not in SHARINGS for part in parts) or len(set(parts)) < len(parts):
        raise UsageError(f"--sharing {text}: must be some of {', '.join(SHARINGS)}, each once")
    return tuple(one for one in SHARINGS if one in parts)


def plan_replicas(
    target: str,
    profile: Profile,
    settings: Mapping[str, Any],
    model: ModelSpec | None = None,
    *,
    numbers: Sequence[int],
    sharings: Sequence[Sharing] = ("plain",),
    starts_mps: bool = False,
    script_arguments: Sequence[str] = (),
    folder: Path,
) -> list[PlannedCase]:
    """All cases, in the order of their cost.

    Args:
        settings: of the launches.
        folder: exists as long as the launches are made: for the pipes of MPS.

    Raises:
        UsageError: what was asked for is not possible here, or contradicts itself.
    """
    _check(target, profile, settings, numbers)
    facts = GpuFacts() if tuple(sharings) == ("plain",) else find_gpus()
    mps = _mps(facts, starts_mps=starts_mps) if "mps" in sharings else None
    closed = any(phase.loop == "closed" for phase in profile.phases)
    if closed and "concurrency" not in profile.model_fields_set:
        profile = profile.model_copy(update={"concurrency": lcm(*numbers) * _gpu_count(settings)})
    cases = []
    for sharing, number in sorted(product(sharings, numbers), key=lambda case: (case[1], SHARINGS.index(case[0]))):
        own = dict(settings)
        if sharing == "mig":
            own |= {"gpus": _instances(facts, number, settings), "num_processes": 1}
        else:
            own["num_processes"] = number
        processes = number if sharing == "mig" else number * _gpu_count(settings)
        plan = plan_stress(target, _share(profile, processes), own, model, script_arguments=script_arguments)
        if sharing == "plain":
            _check_compute_mode(plan.launch.gpus, number)
        pipes: Path | None = folder / "no-mps"
        if sharing == "mps":
            pipes = folder / "mps" if starts_mps or mps is None else mps.pipes
        launch = plan.launch if pipes is None or not plan.launch.gpus else _with_pipes(plan.launch, pipes)
        program = None if mps is None or sharing != "mps" else mps.program
        daemon = None if program is None or pipes is None else (program, pipes)
        cases.append(
            PlannedCase(sharing, number, replace(plan, launch=launch), daemon, starts_mps and sharing == "mps")
        )
    return cases


def _check(target: str, profile: Profile, settings: Mapping[str, Any], numbers: Sequence[int]) -> None:
    if is_url(target):
        raise UsageError(
            f"{target} is a URL, and --replicas starts the replicas itself; let the server's own command start several "
            "workers, and compare the runs with `perfharness compare`"
        )
    if "num_processes" in settings:
        raise UsageError("--replicas sets the number of processes of each launch, so -np cannot; leave one away")
    if settings.get("gpus_per_process", 1) > 1:
        raise UsageError("--replicas: replicas share one GPU, so --gpus-per-process cannot go with it")
    if profile.knee is not None:
        raise UsageError("--find-knee looks for a load, and --replicas compares one load; leave one of the two away")
    if not numbers:
        raise UsageError("--replicas needs numbers of processes, as in 1,2,4")


def _gpu_count(settings: Mapping[str, Any]) -> int:
    """Of how many GPUs each has so many replicas; a machine without one counts as one."""
    return len(split_names(settings.get("gpus") or ())) or settings.get("num_gpus") or 1


def _share(profile: Profile, processes: int) -> Profile:
    """What each of so many processes is told; the rate of an open loop is divided where it is sent.

    Raises `UsageError` where users of a closed loop cannot be divided.
    """

    def part(users: int, where: str) -> int:
        if users % processes:
            raise UsageError(
                f"--replicas: the {users} users of {where} cannot be shared evenly by {processes} processes; give a "
                f"--concurrency that {processes} divides"
            )
        return users // processes

    def of_phase(phase: Phase) -> Phase:
        if phase.concurrency is None:
            return phase
        return phase.model_copy(update={"concurrency": part(phase.concurrency, phase.name)})

    if all(phase.loop == "open" for phase in profile.phases):
        return profile
    users = part(profile.concurrency, "the closed loop")
    return profile.model_copy(update={"concurrency": users, "phases": tuple(map(of_phase, profile.phases))})


def _mps(facts: GpuFacts, *, starts_mps: bool) -> MpsFacts:
    """Raises `UsageError`."""
    if not facts.gpus:
        raise UsageError(f"--sharing mps: no GPU can be used here ({facts.problem or 'none was found'})")
    found = find_mps()
    if found.program is None or (found.problem is not None and not starts_mps):
        start = "" if found.program is None else "; start one, or give --start-mps, which ends it again"
        raise UsageError(f"--sharing mps: {found.problem}{start}")
    if starts_mps and found.pipes is not None:
        raise UsageError(
            f"--start-mps: an MPS daemon runs already ({PIPES}={found.pipes}); leave --start-mps away to use it, or "
            f"end it with `echo quit | {PROGRAM}`"
        )
    return found


def _instances(facts: GpuFacts, number: int, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """UUIDs of so many MIG instances of one GPU. Raises `UsageError`."""
    if not facts.gpus:
        raise UsageError(f"--sharing mig: no GPU can be used here ({facts.problem or 'none was found'})")
    named = set(split_names(settings.get("gpus") or ()))
    by_gpu: dict[tuple[int | None, int | None], list[str]] = {}
    for gpu in facts.gpus:
        if gpu.mig and (not named or gpu.uuid in named):
            by_gpu.setdefault((gpu.index, gpu.memory_total_bytes), []).append(gpu.uuid)
    most = max(by_gpu.values(), key=len, default=[])
    if len(most) < number:
        there = f"the most that one GPU has, all alike, is {len(most)}" if most else "there is none"
        raise UsageError(
            f"--sharing mig: {number} replicas need as many MIG instances of one GPU, and {there}; perfharness makes "
            "none, `nvidia-smi mig` does"
        )
    return tuple(most[:number])


def _check_compute_mode(gpus: Sequence[GpuRecord], number: int) -> None:
    """Raises `UsageError` where a GPU takes one process only."""
    if number < 2 or not gpus:
        return
    used = {gpu.uuid for gpu in gpus}
    with open_nvml() as nvml:
        for device in nvml.devices if nvml.opened.ok else ():
            if device.uuid in used and device.ask("nvmlDeviceGetComputeMode").value == EXCLUSIVE_PROCESS:
                raise UsageError(
                    f"--replicas: {device.uuid} is in the compute mode EXCLUSIVE_PROCESS, in which {number} processes "
                    "share it through MPS only; give --sharing mps, or have its mode set to DEFAULT"
                )


def _with_pipes(launch: LaunchPlan, pipes: Path) -> LaunchPlan:
    processes = (replace(spec, environment={**spec.environment, PIPES: str(pipes)}) for spec in launch.processes)
    return replace(launch, processes=tuple(processes))
