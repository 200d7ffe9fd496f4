"""Find the processes of a launched process's tree that measured something, and give each a folder.

All write into the folder of the launched process, because their ranges, GPU work and ranks are known only at its end.
A second run continues the work of a killed launcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from perfharness.errors import TraceError
from perfharness.model.checks import CHILD_FOLDER
from perfharness.model.conventions import printable
from perfharness.model.findings import Finding, Severity, listed
from perfharness.model.journal import JOURNAL_NAME, JOURNALS_OF_CHILDREN, RecorderJournal
from perfharness.model.manifest import MeasuredProcess, ProcessFacts, ProcessRecord, RankRecord
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness.model.trace import ID_MASK
from perfharness.trace.processes import TracedProcess, find_processes
from perfharness.tracer.output import CHILD_TRACE

UNFOLLOWED = ".unfollowed_"
"""Prefix of the notes of `perfharness/boot/follow/sitecustomize.py`."""

LISTED = 8


@dataclass
class _Process:
    """A process and its files; `traced` is its part of a trace."""

    pid: int
    journal: RecorderJournal | None = None
    journal_path: Path | None = None
    trace: Path | None = None
    traced: TracedProcess | None = None
    rank: RankRecord | None = None

    @property
    def has_measured(self) -> bool:
        counted = self.journal is not None and any(record.recorded_ranges for record in self.journal.recorders)
        return counted or self.traced is not None

    @property
    def facts(self) -> ProcessFacts:
        of_trace = None if self.traced is None else self.traced.facts
        return self.journal or of_trace or ProcessFacts(pid=self.pid)

    @property
    def claimed_rank(self) -> RankRecord | None:
        """Rank in its environment, which may be that of a parent."""
        of_trace = None if self.traced is None or self.traced.facts is None else self.traced.facts.rank
        return self.facts.rank or of_trace

    @property
    def started_ns(self) -> int | None:
        return self.facts.started_unix_ns or (None if self.traced is None else self.traced.first_unix_ns)

    def own_trace(self, folder: Path) -> Path | None:
        """Its trace, or None if it is the shared one of the launched process."""
        return None if self.trace == folder / TRACE_NAME else self.trace


def with_measured(run_dir: Path, record: ProcessRecord, *, share_trace: bool) -> ProcessRecord:
    """Add the measured processes to the record of a launched one, and move their files into their folders.

    Order: the launched process, ranks by number, others by start. If nothing was measured, the launched process only.
    Raises `OSError` if a file cannot be moved; a second call continues there.

    Args:
        share_trace: whether all are in the trace of the launched process (nsys).
    """
    folder = run_dir / record.folder
    launched_pid = -1 if record.pid is None else record.pid & ID_MASK
    found = _find(folder, launched_pid, record.trace)
    if share_trace and record.trace is not None:
        for one in found:
            one.trace = folder / record.trace
    itself = next((one for one in found if one.pid == launched_pid), _Process(launched_pid))
    measured = [one for one in found if one.has_measured]
    for one in found:
        if one is not itself and not one.has_measured:  # a worker that only created its module's recorder
            for path in filter(None, (one.journal_path, one.own_trace(folder))):
                path.unlink(missing_ok=True)
    _find_ranks(measured)
    listed = [_record(record, record.folder, itself, record.trace)] if itself.has_measured or not measured else []
    named = _named([one for one in measured if one is not itself])
    for name, one in named.items():
        trace = TRACE_NAME if one.trace == folder / TRACE_NAME else f"{name}/{TRACE_NAME}"
        listed.append(_record(record, f"{record.folder}/{name}", one, None if one.trace is None else trace))
    _move(folder, named)
    return record.model_copy(update={"measured": listed})


def _record(launched: ProcessRecord, folder: str, process: _Process, trace: str | None) -> MeasuredProcess:
    facts, traced, rank = process.facts, process.traced, process.rank
    of_rank = {} if rank is None else {**rank.model_dump(exclude={"source"}), "rank_source": rank.source}
    return MeasuredProcess(
        folder=folder,
        launched_index=launched.index,
        pid=facts.pid if process.journal or traced else launched.pid or 0,
        trace_pid=None if traced is None or traced.pid == facts.pid & ID_MASK else traced.pid,
        parent_pid=facts.above[0] if facts.above else None,
        started_ns=process.started_ns,
        gpus=[] if traced is None else list(traced.gpus),
        trace=trace,
        **of_rank,
    )


def _find(folder: Path, launched_pid: int, trace: str | None) -> list[_Process]:
    """Processes with a journal or a trace."""
    entries = sorted(folder.iterdir())
    below = [one for one in entries if CHILD_FOLDER.fullmatch(one.name) and one.is_dir()]
    journals = [folder / JOURNAL_NAME, *sorted(folder.glob(JOURNALS_OF_CHILDREN))]
    found = []
    for path in (*journals, *(one / JOURNAL_NAME for one in below)):
        with suppress(OSError, ValidationError):
            journal = RecorderJournal.model_validate_json(path.read_bytes())
            found.append(_Process(journal.pid & ID_MASK, journal, path))
    counted = [one for one in found if one.has_measured]
    shared = None if trace is None else folder / trace
    own = [path for path in entries if CHILD_TRACE.fullmatch(path.name)]
    for path in filter(Path.is_file, (*filter(None, [shared]), *own, *(one / TRACE_NAME for one in below))):
        with suppress(TraceError):
            in_it = find_processes(path)
            known = {launched_pid, *(one.pid for one in found)}
            if path == shared and len(in_it) == len(counted) == 1 and in_it[0].pid not in known:
                counted[0].trace, counted[0].traced = path, in_it[0]  # pids differ in a container
                continue
            for traced in in_it:
                one = _of_pid(found, traced.pid)
                one.trace, one.traced = path, traced
            if not in_it and (of_child := CHILD_TRACE.fullmatch(path.name)):
                _of_pid(found, int(of_child[1])).trace = path
    return found


def _of_pid(found: list[_Process], pid: int) -> _Process:
    """Return the process of a pid without a trace, or add one."""
    for one in found:
        if one.pid == pid & ID_MASK and one.trace is None:
            return one
    found.append(_Process(pid & ID_MASK))
    return found[-1]


def _find_ranks(measured: Sequence[_Process]) -> None:
    """Set the ranks of processes.

    Children inherit the environment of a rank, so the topmost process that claims a rank gets it. Nobody does if there
    are several (workers of a rank that measured nothing, restarted ranks).
    """
    claims: dict[int, list[_Process]] = {}
    for one in measured:
        if one.claimed_rank is not None:
            claims.setdefault(one.claimed_rank.rank, []).append(one)
    for claiming in claims.values():
        pids = {one.pid for one in claiming}
        on_top = [one for one in claiming if not any(pid & ID_MASK in pids for pid in one.facts.above)]
        if len(on_top) == 1:
            on_top[0].rank = on_top[0].claimed_rank


def _named(measured: Sequence[_Process]) -> dict[str, _Process]:
    """Processes by folder name: ranks by number, then others by start."""
    ranks = {one.rank.rank: one for one in measured if one.rank is not None}
    others = sorted((one for one in measured if one.rank is None), key=lambda one: (one.started_ns or 0, one.pid))
    return {
        **{f"rank_{number}": ranks[number] for number in sorted(ranks)},
        **{f"child_{number}": one for number, one in enumerate(others)},
    }


def _move(folder: Path, named: dict[str, _Process]) -> None:
    """Move files into the folders of their processes, in two steps because names may be taken."""
    moves = []
    for name, process in named.items():
        (folder / name).mkdir(exist_ok=True)
        for path, file in ((process.journal_path, JOURNAL_NAME), (process.own_trace(folder), TRACE_NAME)):
            if path is not None and path != folder / name / file:
                aside = folder / f".{name}.{file}"
                path.replace(aside)
                moves.append((aside, folder / name / file))
    for aside, target in moves:
        aside.replace(target)


# ---- findings ----


def unfollowed(folder: Path, process: str, tracer: str) -> list[Finding]:
    """Turn the start-up hook's notes about interpreters that it could not follow into findings."""
    reasons: Counter[str] = Counter()
    for path in sorted(folder.glob(f"{UNFOLLOWED}*")):
        with suppress(OSError):
            reasons[printable(path.read_bytes().decode("utf-8", "replace"))[:300]] += 1
            path.unlink()
    lost = "Their NVTX ranges and GPU work are not in the results."
    if tracer == "nsys":  # follows them itself
        lost = "Their ranges are not known, and nothing in them is annotated."
    hint = "Install perfharness for that interpreter too, or pass on the variables PERFHARNESS_…."
    messages = (
        f"{count} Python child process(es) could not be followed: {why}. {lost}" for why, count in reasons.items()
    )
    return [Finding("child-not-followed", Severity.WARNING, message, hint, process) for message in messages]


def rank_findings(record: ProcessRecord) -> Iterator[Finding]:
    """Report ranks that measured nothing if only one did; otherwise the comparison of ranks does."""
    ranks = {one.rank: one.world_size or 0 for one in record.measured if one.rank is not None}
    missing = [str(rank) for rank in range(max(ranks.values(), default=0)) if rank not in ranks]
    if missing and len(ranks) == 1:
        ranks_text = listed(missing, LISTED)
        message = f"{len(missing)} of {len(missing) + 1} ranks made no ranges and no GPU work: {ranks_text}."
        yield Finding("ranks-missing", Severity.WARNING, message, f"See {record.folder}/stderr.log.", record.folder)
