"""Which processes of a launched process's tree measured something, and a folder for each.

All of them write into the folder of the launched process: only when it has ended is it known which of them made ranges
or GPU work, and which rank each is. May be done again at any time, for what a killed launcher left half done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from perfharness.errors import TraceError
from perfharness.files import is_plain, is_plain_folder, read_regular
from perfharness.model.checks import CHILD_FOLDER
from perfharness.model.conventions import printable
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import JOURNAL_NAME, JOURNALS_OF_CHILDREN, RecorderJournal
from perfharness.model.manifest import ProcessRecord
from perfharness.model.measured import MeasuredProcess, ProcessFacts, RankRecord
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness.model.trace import ID_MASK
from perfharness.trace.processes import TracedProcess, find_processes
from perfharness.tracer.output import CHILD_TRACE

UNFOLLOWED = ".unfollowed_"
"""How the notes begin that `perfharness/boot/follow/sitecustomize.py` leaves."""

_Key = tuple[int, int]
"""The pid that a trace has of a process, and how many processes of that pid were found before it."""


_DECLARED_BEFORE_NS = 1_000_000
"""A process stamps its start as its first recorder, which it has declared in the trace, is registered."""


@dataclass
class _Process:
    """What is known of one process; `traced`: what a trace holds of it."""

    pid: int
    journal: RecorderJournal | None = None
    journal_path: Path | None = None
    trace: Path | None = None
    traced: TracedProcess | None = None

    @property
    def has_measured(self) -> bool:
        counted = self.journal is not None and any(record.recorded_ranges for record in self.journal.recorders)
        return counted or self.traced is not None

    @property
    def facts(self) -> ProcessFacts:
        of_trace = None if self.traced is None else self.traced.facts
        return self.journal or of_trace or ProcessFacts(pid=self.pid)

    @property
    def rank(self) -> RankRecord | None:
        of_trace = None if self.traced is None or self.traced.facts is None else self.traced.facts.rank
        return self.facts.rank or of_trace

    @property
    def start_ticks(self) -> int | None:
        of_trace = None if self.traced is None or self.traced.facts is None else self.traced.facts.start_ticks
        return of_trace if self.facts.start_ticks is None else self.facts.start_ticks

    @property
    def started_ns(self) -> int | None:
        return self.facts.started_unix_ns or (None if self.traced is None else self.traced.first_unix_ns)


def with_measured(run_dir: Path, record: ProcessRecord, *, share_trace: bool) -> ProcessRecord:
    """The record of a launched process with its measured processes, whose files are moved into their folders.

    In order: itself, ranks by number, others by start; itself alone where nothing was measured. Raises `OSError` where
    a file cannot be moved; it is found where it is when this is done again.

    Args:
        share_trace: whether all of them are in the trace of the launched one (nsys).
    """
    return record.model_copy(update={"measured": _arrange(run_dir, record, share_trace=share_trace)})


def unfollowed(folder: Path, process: str, tracer: str) -> list[Finding]:
    """What the start-up hook left of interpreters that it could not follow; the notes are removed."""
    reasons: dict[str, int] = {}
    for path in sorted(folder.glob(f"{UNFOLLOWED}*")):
        with contextlib.suppress(OSError):
            reason = printable(read_regular(path, follow=False).decode("utf-8", "replace"))[:300]
            reasons[reason] = reasons.get(reason, 0) + 1
            path.unlink()
    return [
        Finding(
            "child-not-followed",
            Severity.WARNING,
            f"{count} Python process(es) that it started could not be followed: {reason}. Their NVTX ranges and GPU "
            "work are not in the results."
            if tracer != "nsys"  # which follows them by itself
            else f"{count} Python process(es) that it started could not be followed: {reason}. Which ranks they are "
            "and what nsys lost of them is not known, and nothing in them is annotated.",
            "Install perfharness for that interpreter too, or have it keep the variables PERFHARNESS_….",
            process,
        )
        for reason, count in reasons.items()
    ]


def missing_ranks(record: ProcessRecord) -> list[Finding]:
    """The finding that the only rank that measured something has others; of several, their comparison has it."""
    ranks = {one.rank: one for one in record.measured or () if one.rank is not None}
    world_size = max((one.world_size or 0 for one in ranks.values()), default=0)
    missing = [str(rank) for rank in range(world_size) if rank not in ranks]
    if not missing or len(ranks) > 1:
        return []
    message = (
        f"Of {world_size} ranks, {len(missing)} never started, or made no ranges and no GPU work: "
        f"{', '.join(missing[:8])}{', …' if len(missing) > 8 else ''}."
    )
    hint = f"{record.folder}/stderr.log has what the program said; ranks on other machines are not measured"
    return [Finding("ranks-missing", Severity.WARNING, message, hint, record.folder)]


def restarted_ranks(record: ProcessRecord) -> list[Finding]:
    """The finding that ranks were started again, where those before measured something too."""
    attempts = {one.folder: one.attempt for one in record.measured or () if one.attempt is not None}
    last = max(attempts.values(), default=0)
    before = [folder.removeprefix(f"{record.folder}/") for folder, attempt in attempts.items() if attempt < last]
    if not before:
        return []
    message = (
        f"The ranks were started again ({last} time(s)): what those before measured is in {', '.join(before[:8])}"
        f"{', …' if len(before) > 8 else ''}, and means and throughput are over both."
    )
    hint = f"{record.folder}/stderr.log has why they failed; rank_R is of the last start"
    return [Finding("ranks-restarted", Severity.WARNING, message, hint, record.folder)]


def _arrange(run_dir: Path, record: ProcessRecord, *, share_trace: bool) -> list[MeasuredProcess]:
    folder = run_dir / record.folder
    launched_pid = -1 if record.pid is None else record.pid & ID_MASK
    found = _find(folder, launched_pid, record.trace)
    if share_trace and record.trace is not None:
        for one in found.values():
            one.trace = folder / record.trace
    launched = (launched_pid, 0)
    measured = {key: one for key, one in found.items() if one.has_measured}
    _remove_empty(folder, [one for key, one in found.items() if key != launched and key not in measured])
    itself = measured.pop(launched, None)
    ranks = _ranks(measured if itself is None else {**measured, launched: itself})
    names = _names(measured, {key: rank for key, rank in ranks.items() if key in measured})
    listed = []
    if itself is not None or not measured:
        itself = itself or found.get(launched) or _Process(launched_pid)
        listed.append(_record(record, record.folder, itself, record.trace, ranks.get(launched)))
    traces = {key: _trace_name(folder, name, measured[key]) for key, name in names.items()}
    _move(folder, {key: (name, measured[key]) for key, name in names.items()})
    for key, name in names.items():
        listed.append(_record(record, f"{record.folder}/{name}", measured[key], traces[key], ranks.get(key)))
    return _with_own_times(listed)


def _with_own_times(listed: Sequence[MeasuredProcess]) -> list[MeasuredProcess]:
    """Of processes that had one pid, one after another, when the rows of a trace that they share are whose."""
    found = []
    for one in listed:
        same = [
            other.started_ns
            for other in listed
            if other is not one and (other.trace, other.pid) == (one.trace, one.pid) and one.trace is not None
        ]
        starts = [start for start in same if start is not None]
        if starts and one.started_ns is not None:
            later = [start for start in starts if start > one.started_ns]
            own_times = {
                "trace_from_ns": None if len(later) == len(starts) else one.started_ns - _DECLARED_BEFORE_NS,
                "trace_until_ns": min(later) - _DECLARED_BEFORE_NS if later else None,
            }
            found.append(one.model_copy(update=own_times))
        else:
            found.append(one)
    return found


def _record(
    launched: ProcessRecord, folder: str, process: _Process, trace: str | None, rank: RankRecord | None
) -> MeasuredProcess:
    facts, traced = process.facts, process.traced
    return MeasuredProcess(
        folder=folder,
        launched_index=launched.index,
        pid=facts.pid if process.journal or traced else launched.pid or 0,
        trace_pid=None if traced is None or traced.pid == facts.pid & ID_MASK else traced.pid,
        parent_pid=facts.above[0] if facts.above else None,
        rank=None if rank is None else rank.rank,
        local_rank=None if rank is None else rank.local_rank,
        world_size=None if rank is None else rank.world_size,
        rank_source=None if rank is None else rank.source,
        attempt=None if process.rank is None else process.rank.attempt,
        started_ns=process.started_ns,
        gpus=[] if traced is None else list(traced.gpus),
        trace=trace,
    )


def _find(folder: Path, launched_pid: int, trace: str | None) -> dict[_Key, _Process]:
    """All processes that left a journal or a trace. Those of one pid are told by when the kernel started them."""
    of_pid: dict[int, list[_Process]] = {}

    def process(pid: int, facts: ProcessFacts | None) -> _Process:
        there, ticks = of_pid.setdefault(pid & ID_MASK, []), None if facts is None else facts.start_ticks
        same = [one for one in there if None in (ticks, one.start_ticks) or one.start_ticks == ticks]
        if not same:
            same = [_Process(pid)]
            there += same
        return max(same, key=lambda one: one.start_ticks == ticks)  # one that is known to be it, rather than any

    below = [one for one in sorted(folder.iterdir()) if CHILD_FOLDER.fullmatch(one.name) and is_plain_folder(one)]
    journals = [
        folder / JOURNAL_NAME,
        *sorted(folder.glob(JOURNALS_OF_CHILDREN)),
        *(one / JOURNAL_NAME for one in below),
    ]
    for path in journals:
        with contextlib.suppress(OSError, ValidationError):
            journal = RecorderJournal.model_validate_json(read_regular(path, follow=False))
            one = process(journal.pid, journal)
            one.journal, one.journal_path = journal, path
    own = [path for path in sorted(folder.iterdir()) if CHILD_TRACE.fullmatch(path.name)]
    own += [path for one in below if (path := one / TRACE_NAME).exists()]
    for path in [*([folder / trace] if trace is not None else []), *own]:
        if not is_plain(path):
            continue
        with contextlib.suppress(TraceError):
            in_it = find_processes(path)
            counted = [one for there in of_pid.values() for one in there if one.has_measured]
            is_launched = trace is not None and path == folder / trace
            if is_launched and len(in_it) == len(counted) == 1 and in_it[0].pid not in (*of_pid, launched_pid):
                counted[0].trace, counted[0].traced = path, in_it[0]  # in a container, pids may differ
                continue
            for traced in in_it:
                owners = [one for one in of_pid.get(traced.pid, ()) if one.has_measured] if is_launched else []
                for one in owners or [process(traced.pid, traced.facts)]:  # in a trace of all, a pid may have several
                    one.trace, one.traced = path, traced
            if not in_it and (of_child := CHILD_TRACE.fullmatch(path.name)):
                process(int(of_child[1]), None).trace = path
    return {
        (pid, number): one
        for pid, there in of_pid.items()
        for number, one in enumerate(sorted(there, key=lambda one: (one.start_ticks or 0, one.started_ns or 0)))
    }


def _ranks(measured: Mapping[_Key, _Process]) -> dict[_Key, RankRecord]:
    """The rank of each process that is one.

    What a rank starts inherits its environment, so of the processes that claim one rank it is the one above the others;
    of several of which none is, as workers of a rank that measured nothing itself, it is none. Where ranks failed and
    were started again, they are those of the last start.
    """
    last = max((one.rank.attempt for one in measured.values() if one.rank is not None), default=0)
    measured = {key: one for key, one in measured.items() if one.rank is not None and one.rank.attempt == last}
    claims: dict[int, list[_Key]] = {}
    for key, one in measured.items():
        if one.rank is not None and not _is_below(one, _claiming(measured, one.rank.rank)):
            claims.setdefault(one.rank.rank, []).append(key)
    alone = [keys[0] for keys in claims.values() if len(keys) == 1]
    return {key: rank for key in alone if (rank := measured[key].rank) is not None}


def _claiming(measured: Mapping[_Key, _Process], rank: int) -> set[int]:
    """Their pids."""
    return {pid for (pid, _), one in measured.items() if one.rank is not None and one.rank.rank == rank}


def _is_below(process: _Process, pids: Collection[int]) -> bool:
    return any(pid & ID_MASK in pids for pid in process.facts.above)


def _remove_empty(folder: Path, processes: Sequence[_Process]) -> None:
    """Remove what processes left that measured nothing, as workers that only made the recorder of their module."""
    for one in processes:
        own_trace = None if one.trace is None or one.trace == folder / TRACE_NAME else one.trace
        for path in (one.journal_path, own_trace):
            if path is not None:
                path.unlink(missing_ok=True)


def _names(measured: Mapping[_Key, _Process], ranks: Mapping[_Key, RankRecord]) -> dict[_Key, str]:
    """Folders of the processes: ranks by number, then the others by start."""
    names = {key: f"rank_{ranks[key].rank}" for key in sorted(ranks, key=lambda key: ranks[key].rank)}
    others = _in_order_of_start({key: one for key, one in measured.items() if key not in ranks})
    return {**names, **{key: f"child_{number}" for number, key in enumerate(others)}}


def _in_order_of_start(processes: Mapping[_Key, _Process]) -> list[_Key]:
    """By the kernel's count of 10 ms where it is known, for a process stamps itself only once it runs."""
    order = sorted(processes, key=lambda key: (processes[key].started_ns or 0, key))
    known = iter(
        sorted(
            (key for key in order if processes[key].start_ticks is not None),
            key=lambda key: (processes[key].start_ticks, key),
        )
    )
    return [key if processes[key].start_ticks is None else next(known) for key in order]


def _trace_name(folder: Path, name: str, process: _Process) -> str | None:
    """What its trace is called once it is in its folder, relative to the folder of the launched process."""
    if process.trace is None:
        return None
    return TRACE_NAME if process.trace == folder / TRACE_NAME else f"{name}/{TRACE_NAME}"


def _move(folder: Path, processes: Mapping[_Key, tuple[str, _Process]]) -> None:
    """Have the files of each process in its folder; in two steps, for one may be where another's belong."""
    moves = []
    for (pid, number), (name, process) in processes.items():
        (folder / name).mkdir(exist_ok=True)
        own_trace = None if process.trace == folder / TRACE_NAME else process.trace
        for path, file in ((process.journal_path, JOURNAL_NAME), (own_trace, TRACE_NAME)):
            if path is not None and path != folder / name / file:
                aside = folder / f".{pid}_{number}.{file}"
                path.replace(aside)
                moves.append((aside, folder / name / file))
    for aside, target in moves:
        aside.replace(target)
