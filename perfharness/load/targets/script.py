"""A script with batches as a target: the recorder in it begins its outermost batches when requests are due."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.errors import ResultError, UsageError
from perfharness.load.arrivals import arrivals_of
from perfharness.load.profile import Profile
from perfharness.load.request import TIMEOUT, UNANSWERED
from perfharness.load.requests import RequestTable
from perfharness.load.windows import NEVER_NS, Done, WindowLog
from perfharness.model import environment
from perfharness.model.load import Capacity, Status
from perfharness.model.manifest import ProcessRecord
from perfharness.recorder.pacing import NO_ITEMS, PACED_NAME
from perfharness_launcher.plan.launch_plan import LaunchPlan

THINK_TIMES = 4096
STATUS: dict[str, Status] = {"ok": "ok", "interrupted": "interrupted"}
"""By how the process of the script ended; else `killed`."""

DELETED = "deleted"
"""Kind of error of a batch that the script deleted, or that an exception left."""


def check_script(script: str, profile: Profile) -> None:
    """Raises `UsageError` where there is no such script, or the profile asks for what a script decides itself."""
    if not Path(script).is_file():
        raise UsageError(f"there is no script {script}")
    if profile.mix:
        raise UsageError("a script decides itself what its batches hold; leave the mix, --batch-size and --input away")
    if profile.concurrency > 1:
        raise UsageError("of a script one loop is paced, so --concurrency cannot be given; use -np")
    if profile.knee is not None:
        raise UsageError("of a script the moments of all batches are fixed before it starts; leave --find-knee away")
    if profile.max_error_rate is not None:
        raise UsageError("a script ends by its own errors; leave --max-error-rate away")


def paced(plan: LaunchPlan, profile: Profile, folder: Path) -> LaunchPlan:
    """The plan, with the moments at which the batches of each process begin in a file of the folder."""
    processes = len(plan.processes)
    specs = []
    for number, spec in enumerate(plan.processes):
        file = folder / f"pace_{number}.json"
        file.write_text(pace_text(profile, number, processes), "utf-8")
        specs.append(replace(spec, environment={**spec.environment, environment.PACE: str(file)}))
    return replace(plan, processes=tuple(specs))


def pace_text(profile: Profile, process: int, processes: int) -> str:
    """What the recorder of a process reads."""
    phases = [_moments(profile, index, process, processes) for index in range(len(profile.phases))]
    return json.dumps({"grace_ns": round(profile.grace_s * 1e9), "phases": phases})


def _moments(profile: Profile, index: int, process: int, processes: int) -> dict[str, Any]:
    phase = profile.phases[index]
    duration_ns = round(phase.duration_s * 1e9)
    if phase.loop == "open":
        arrivals = arrivals_of(profile, index, 0, process, processes)
        return {"duration_ns": duration_ns, "offsets_ns": arrivals.offsets_ns.tolist()}
    think_ns = [round(phase.think_s * 1e9)]
    if phase.think_times == "exponential":
        random = np.random.default_rng([profile.seed, index, process])
        think_ns = np.round(random.exponential(phase.think_s * 1e9, THINK_TIMES)).astype(np.int64).tolist()
    return {"duration_ns": duration_ns, "think_ns": think_ns}


def count_batches(folder: Path, profile: Profile, process: int, processes: int, status: Status) -> bool:
    """Write the windows and the table of requests of a process, from what its recorder wrote; False where that is
    nothing.

    Args:
        status: `ok` where the script ended by itself.

    Raises `ResultError` where the file is damaged.
    """
    file = folder / PACED_NAME
    if not file.is_file():
        return False
    lines = _lines(file)
    begun = {line[1]: line for line in lines if line[0] == "phase"}
    ended = {line[1]: line[2] for line in lines if line[0] == "phase-end"}
    if not begun:
        return False
    last_ns = max(
        (line[5] if line[0] == "batch" else line[-1] for line in lines if line[0] != "phase"), default=begun[0][2]
    )
    table = RequestTable(seed=profile.seed)
    objective = profile.objective
    log = WindowLog(folder, None if objective is None else round(objective.latency_ms * 1e6), table.add, lambda: None)
    capacity = Capacity(how="not measured: the script waits for its requests itself")
    log.begin(begun[0][2], process=process, processes=processes, capacity=capacity.model_dump())
    if len(ended) < len(profile.phases):
        # A script that ended had no batch for what was due next; of one that was killed it is open.
        served = [line[2] + 1 for line in lines if line[0] == "batch"]
        log.stop.at_ns = max(served, default=last_ns) if status == "ok" else last_ns
    for index, (_, _, start_ns, end_ns) in sorted(begun.items()):
        phase, until_ns = profile.phases[index], ended.get(index, last_ns)
        done = [_record(line, profile) for line in lines if line[0] == "batch" and line[1] == index]
        due = np.empty(0, np.int64)
        if phase.loop == "open":
            due = start_ns + arrivals_of(profile, index, 0, process, processes).offsets_ns
            left = due[len(done) :]
            if index not in ended and status == "ok":  # the script ended: N requests take N periods
                until_ns = max(until_ns, int(left[0]) if len(left) else end_ns)
                if not len(left):
                    ended[index] = until_ns
            done += [_given_up(int(moment)) for moment in left[left < min(until_ns, log.stop.at_ns)] if status == "ok"]
        log.count_phase(
            index, phase.name, start_ns, end_ns, due, done, max(until_ns, start_ns + 1), loop=phase.loop,
            is_warmup=phase.warmup, concurrency=1,
        )  # fmt: skip
    table.write(folder)
    reason = _early(profile, begun, ended, last_ns) if status == "ok" else None
    log.close(status, reason, requests_kept=table.kept)
    return True


def count_scripts(folder: Path, profile: Profile, processes: Sequence[ProcessRecord]) -> None:
    """Write the windows and the tables of requests of all processes of a run. Raises `ResultError`."""
    for number, record in enumerate(processes):
        status = STATUS.get(record.ended, "killed")
        count_batches(folder / record.folder, profile, number, len(processes), status)


def _early(profile: Profile, begun: dict[int, Any], ended: dict[int, int], last_ns: int) -> str | None:
    """Why not all of the profile was sent, where the script had fewer batches."""
    if max(begun) == len(profile.phases) - 1 and (max(begun) in ended or last_ns >= begun[max(begun)][3]):
        return None
    took_s = (last_ns - begun[0][2]) / 1e9
    return f"the script had no more batches after {took_s:.1f} s of {profile.duration_s:.1f} s"


def _lines(file: Path) -> list[tuple[Any, ...]]:
    """Words and numbers of each whole line. Raises `ResultError`."""
    text = file.read_text("utf-8")
    try:
        return [
            (words[0], *map(int, words[1:]))
            for line in text[: text.rfind("\n") + 1].splitlines()
            if (words := line.split())
        ]
    except ValueError as error:
        raise ResultError(f"{file} is damaged: {error}") from error


def _record(line: Sequence[Any], profile: Profile) -> Done:
    _, _, due_ns, ready_ns, sent_ns, done_ns, index, items, deleted = line
    error, message = (DELETED, "the batch was deleted, or left by an exception") if deleted else (None, None)
    limit_s = profile.request_timeout_s
    if error is None and limit_s is not None and done_ns - sent_ns > limit_s * 1e9:
        error, message = TIMEOUT, f"took {(done_ns - sent_ns) / 1e9:.3f} s"
    return Done(
        index, None, 1 if items == NO_ITEMS else items, due_ns, ready_ns, sent_ns, sent_ns, done_ns, error, message
    )


def _given_up(due_ns: int) -> Done:
    message = "not sent: the script was not ready in time"
    return Done(-1, None, 1, due_ns, NEVER_NS, NEVER_NS, NEVER_NS, NEVER_NS, UNANSWERED, message)


def is_script(target: str) -> bool:
    """Whether a target is a script: a `.py` file without a name in it."""
    return target.endswith(".py")
