"""Load tests that are made, not run: the files that workers write, of requests whose moments are given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from perfharness.load.profile import checked_profile
from perfharness.load.record import NEVER_NS, SCHEMA, Done, rows_of
from perfharness.load.stress import read_load
from perfharness.load.worker import WorkerSpec
from perfharness.model.load import STREAM_NAME, WINDOWS_NAME, LoadResult
from perfharness.model.manifest import LOAD_NAME

S, MS = 1_000_000_000, 1_000_000
START = 5000 * S
"""Begin of the load: 0 on the monotonic clock is no moment of a request."""

FOLDER = "proc_0_gpu_0"


def answered(number: int, due_ns: int, ms: float, *, wait_ms: float = 0.0, late_ms: float = 0.0, **more: Any) -> Done:
    """A request that took so long, a part of it before service began; the generator sent it so late."""
    begun_ns = due_ns + round(wait_ms * MS)
    sent_ns = due_ns + round(late_ms * MS)
    moments = {"intended_ns": due_ns, "ready_ns": due_ns, "sent_ns": sent_ns, "begun_ns": begun_ns}
    return Done(**{"id": number, "input": None, "items": 1, **moments, "done_ns": due_ns + round(ms * MS), **more})


def given_up(number: int, due_ns: int) -> Done:
    return Done(number, None, 1, due_ns, NEVER_NS, NEVER_NS, NEVER_NS, NEVER_NS, "unanswered")


def write_process(
    folder: Path,
    profile: dict[str, Any],
    phases: Sequence[Sequence[Done]],
    *,
    workers: int = 1,
    grace_s: int = 0,
    memory: Callable[[int], int | None] = lambda second: None,
    status: str | None = "ok",
    missing: int = 0,
) -> None:
    """Write the files of a process.

    Args:
        phases: the requests of each phase.
        grace_s: seconds after the last phase in which late answers came.
        memory: by second of the load.
        status: None: the process was killed.
        missing: requests of the last second that were due and have no row.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = [{"kind": "run", "start_ns": START}]
    begin_ns, second = START, 0
    with (
        (folder / STREAM_NAME).open("wb") as file,
        pa.ipc.new_stream(file, SCHEMA) as stream,
    ):
        for index, (asked, records) in enumerate(zip(profile["phases"], phases, strict=True)):
            seconds = asked["duration"]
            end_ns = begin_ns + seconds * S
            name = asked.get("name", f"phase {index + 1}")
            lines.append({"kind": "phase", "index": index, "name": name, "start_ns": begin_ns, "end_ns": end_ns}
                         | {"concurrency": workers})  # fmt: skip
            stream.write_batch(rows_of(name, records))
            count = seconds + (grace_s if index == len(phases) - 1 else 0)
            for number in range(count):
                from_ns, is_last = begin_ns + number * S, number == count - 1
                until_ns = 1 << 62 if is_last else from_ns + S
                own = [one for one in records if from_ns <= (one.done_ns or 1 << 61) < until_ns]
                errors = Counter(one.error for one in own if one.error is not None)
                well = [one for one in own if one.error is None]
                came = sum(from_ns <= one.intended_ns < from_ns + S for one in records)
                lines.append({
                    "kind": "window", "phase": index, "index": number, "start_ns": from_ns, "end_ns": from_ns + S,
                    "arrivals": came + (missing if is_last else 0), "completed": len(own) - errors["unanswered"],
                    "ok": len(well), "items": sum(one.items for one in well), "errors": dict(errors), "open": 0,
                    "rss_bytes": memory(second), "p50_ms": None, "p99_ms": None,
                })  # fmt: skip
                second += 1
            lines.append({"kind": "phase-end", "index": index, "stopped_ns": None})
            begin_ns = end_ns
    if status is not None:
        lines.append({"kind": "end", "status": status, "reason": None})
    (folder / WINDOWS_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))


def made_result(
    folder: Path,
    profile: dict[str, Any],
    processes: int = 1,
    *,
    kind: Literal["callable", "http"] = "callable",
    tracer: str | None = None,
    target: str = "made",
) -> LoadResult:
    """The result of the files that were written; `load.json` has it."""
    spec = WorkerSpec(kind=kind, target=target, profile=checked_profile(profile))
    found = read_load(folder, spec, [f"proc_{number}_gpu_0" for number in range(processes)], tracer=tracer)
    (folder / LOAD_NAME).write_text(found.model_dump_json())
    return found


def made_load(folder: Path, profile: dict[str, Any], phases: Sequence[Sequence[Done]], **more: Any) -> LoadResult:
    """The result of one process with these requests; further arguments are those of both functions."""
    own = {name: more.pop(name) for name in ("kind", "tracer", "target") if name in more}
    write_process(folder / FOLDER, profile, phases, **more)
    return made_result(folder, profile, **own)
