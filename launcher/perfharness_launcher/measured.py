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

_LARGEST_GAP = 1 << 14
"""So many pids are not given within a tick; the smallest limit of pids (/proc/sys/kernel/pid_max) is twice that."""


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
    measured = {pid: one for pid, one in found.items() if one.has_measured}
    _remove_empty(folder, [one for pid, one in found.items() if pid != launched_pid and pid not in measured])
    itself = measured.pop(launched_pid, None)
    ranks = _ranks(measured if itself is None else {**measured, launched_pid: itself})
    names = _names(measured, {pid: rank for pid, rank in ranks.items() if pid in measured})
    listed = []
    if itself is not None or not measured:
        itself = itself or found.get(launched_pid) or _Process(launched_pid)
        listed.append(_record(record, record.folder, itself, record.trace, ranks.get(launched_pid)))
    traces = {pid: _trace_name(folder, name, measured[pid]) for pid, name in names.items()}
    _move(folder, {pid: (name, measured[pid]) for pid, name in names.items()})
    for pid, name in names.items():
        listed.append(_record(record, f"{record.folder}/{name}", measured[pid], traces[pid], ranks.get(pid)))
    return listed


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


def _find(folder: Path, launched_pid: int, trace: str | None) -> dict[int, _Process]:
    """All processes that left a journal or a trace, by the pid that a trace has of them."""
    found: dict[int, _Process] = {}

    def process(pid: int) -> _Process:
        return found.setdefault(pid & ID_MASK, _Process(pid))

    below = [one for one in sorted(folder.iterdir()) if CHILD_FOLDER.fullmatch(one.name) and is_plain_folder(one)]
    journals = [
        folder / JOURNAL_NAME,
        *sorted(folder.glob(JOURNALS_OF_CHILDREN)),
        *(one / JOURNAL_NAME for one in below),
    ]
    for path in journals:
        with contextlib.suppress(OSError, ValidationError):
            journal = RecorderJournal.model_validate_json(read_regular(path, follow=False))
            one = process(journal.pid)
            one.journal, one.journal_path = journal, path
    own = [path for path in sorted(folder.iterdir()) if CHILD_TRACE.fullmatch(path.name)]
    own += [path for one in below if (path := one / TRACE_NAME).exists()]
    for path in [*([folder / trace] if trace is not None else []), *own]:
        if not is_plain(path):
            continue
        with contextlib.suppress(TraceError):
            in_it = find_processes(path)
            counted = [one for one in found.values() if one.has_measured]
            is_launched = trace is not None and path == folder / trace
            if is_launched and len(in_it) == len(counted) == 1 and in_it[0].pid not in (*found, launched_pid):
                counted[0].trace, counted[0].traced = path, in_it[0]  # in a container, pids may differ
                continue
            for traced in in_it:
                one = process(traced.pid)
                one.trace, one.traced = path, traced
            if not in_it and (of_child := CHILD_TRACE.fullmatch(path.name)):
                process(int(of_child[1])).trace = path
    return found


def _ranks(measured: Mapping[int, _Process]) -> dict[int, RankRecord]:
    """The rank of each process that is one, by pid.

    What a rank starts inherits its environment, so of the processes that claim one rank it is the one above the others;
    of several of which none is, as workers of a rank that measured nothing itself, it is none. Where ranks failed and
    were started again, they are those of the last start.
    """
    last = max((one.rank.attempt for one in measured.values() if one.rank is not None), default=0)
    measured = {pid: one for pid, one in measured.items() if one.rank is not None and one.rank.attempt == last}
    claims: dict[int, list[int]] = {}
    for pid, one in measured.items():
        if one.rank is not None and not _is_below(one, _claiming(measured, one.rank.rank)):
            claims.setdefault(one.rank.rank, []).append(pid)
    alone = [pids[0] for pids in claims.values() if len(pids) == 1]
    return {pid: rank for pid in alone if (rank := measured[pid].rank) is not None}


def _claiming(measured: Mapping[int, _Process], rank: int) -> set[int]:
    return {pid for pid, one in measured.items() if one.rank is not None and one.rank.rank == rank}


def _is_below(process: _Process, pids: Collection[int]) -> bool:
    return any(pid & ID_MASK in pids for pid in process.facts.above)


def _remove_empty(folder: Path, processes: Sequence[_Process]) -> None:
    """Remove what processes left that measured nothing, as workers that only made the recorder of their module."""
    for one in processes:
        own_trace = None if one.trace is None or one.trace == folder / TRACE_NAME else one.trace
        for path in (one.journal_path, own_trace):
            if path is not None:
                path.unlink(missing_ok=True)


def _names(measured: Mapping[int, _Process], ranks: Mapping[int, RankRecord]) -> dict[int, str]:
    """Folders of the processes by pid: ranks by number, then the others by start."""
    names = {pid: f"rank_{ranks[pid].rank}" for pid in sorted(ranks, key=lambda pid: ranks[pid].rank)}
    others = _in_order_of_start({pid: one for pid, one in measured.items() if pid not in ranks})
    return {**names, **{pid: f"child_{number}" for number, pid in enumerate(others)}}


def _in_order_of_start(processes: Mapping[int, _Process]) -> list[int]:
    """Their pids. A process stamps itself once it runs, so of two that start within milliseconds either may be first.

    The kernel counts their starts in ticks of 10 ms, and gives pids in turn to those of one tick. The processes of
    which that is known are in this order among themselves, the others by their stamps.
    """
    order = sorted(processes, key=lambda pid: (processes[pid].started_ns or 0, pid))
    ticks: dict[int, list[int]] = {}
    for pid in order:
        if (tick := processes[pid].start_ticks) is not None:
            ticks.setdefault(tick, []).append(pid)
    known = iter([pid for tick in sorted(ticks) for pid in _in_turn(ticks[tick])])
    return [pid if processes[pid].start_ticks is None else next(known) for pid in order]


def _in_turn(pids: Collection[int]) -> list[int]:
    """Pids as the kernel gave them within a tick: the smallest may follow the largest that there is."""
    ordered = sorted(pids)
    first = next((place for place in range(1, len(ordered)) if ordered[place] - ordered[place - 1] > _LARGEST_GAP), 0)
    return ordered[first:] + ordered[:first]


def _trace_name(folder: Path, name: str, process: _Process) -> str | None:
    """What its trace is called once it is in its folder, relative to the folder of the launched process."""
    if process.trace is None:
        return None
    return TRACE_NAME if process.trace == folder / TRACE_NAME else f"{name}/{TRACE_NAME}"


def _move(folder: Path, processes: Mapping[int, tuple[str, _Process]]) -> None:
    """Have the files of each process in its folder; in two steps, for one may be where another's belong."""
    moves = []
    for pid, (name, process) in processes.items():
        (folder / name).mkdir(exist_ok=True)
        own_trace = None if process.trace == folder / TRACE_NAME else process.trace
        for path, file in ((process.journal_path, JOURNAL_NAME), (own_trace, TRACE_NAME)):
            if path is not None and path != folder / name / file:
                aside = folder / f".{pid}.{file}"
                path.replace(aside)
                moves.append((aside, folder / name / file))
    for aside, target in moves:
        aside.replace(target)
