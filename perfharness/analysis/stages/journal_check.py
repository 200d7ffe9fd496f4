"""A trace against the recorders' own counts: what they made in each process, and what is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from perfharness.analysis.stages.roles import Recorders, find_recorders
from perfharness.analysis.timeline.grouping import group_rows
from perfharness.model import conventions
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import RecorderJournal, RecorderRecord
from perfharness.model.trace import ID_MASK, Int64, Trace, pid_of

CAPTURED = "batches-captured"
MISSING_RANGES = "trace-missing-ranges"

HALF_BITS = 32

PerRecorder = dict[tuple[str, int], int]
"""A count by recorder name and pid."""

NVTX_THAT_OLD_NSYS_IGNORES = (0, 2, 12)
NSYS_THAT_KNOWS_NEW_NVTX = (2024, 1)
"""nsys 2023.4 records no range of nvtx 0.2.12 or newer without a warning; 2025.3 does. Between: not tried."""


ENDINGS = {
    "exit": "the process came to its end",
    "exception": "the process ended by an exception",
    "exec": "the process became another program",
    "running": "the process was killed",
}


def check_journals(journals: Sequence[RecorderJournal], trace: Trace, *, of_child: bool = False) -> list[Finding]:
    """Findings where the trace lacks what recorders counted, or they were not finalized.

    Args:
        journals: of all processes that the trace is of, the measured one first.
        trace: what they are checked against, process by process.
        of_child: whether the launched process started this one, whose recorders nobody need finalize: each worker that
            is spawned makes those of its module anew.
    """
    missing = _less_than(_ranges_found(journals, trace), _made(journals, "recorded_ranges"))
    findings = [
        _missing_ranges(name, {pid: counts for (of, pid), counts in missing.items() if of == name}, journals[0], trace)
        for name in dict.fromkeys(name for name, _ in missing)
    ]
    recorders = find_recorders(trace)
    if recorders is not None:
        lost = _less_than(_items_found(recorders, journals, trace), _made(journals, "recorded_items"))
        findings += [_missing_items(name, pid, *counts) for (name, pid), counts in lost.items()]
    for journal in journals:
        for name in dict.fromkeys(record.name for record in journal.recorders):
            records = [record for record in journal.recorders if record.name == name]
            findings += _not_finalized(name, records, journal, of_child=of_child or journal.is_forked)
        findings += [*_failed(journal), *_open_at_end(journal, trace)]
    if of_child:
        findings += [_killed(journal, trace) for journal in journals if journal.ended == "running"]
    return [
        *findings,
        *_compiled(journals),
        *_captured(journals),
        *_instruments(journals),
        *_untraced_cuda(journals, trace),
    ]


def with_checks(findings: Sequence[Finding], checked: Sequence[Finding]) -> list[Finding]:
    """Findings of a trace, then those of its check, without `no-ranges` where ranges were made and are missing."""
    unmade = "no-ranges" if any(finding.code == MISSING_RANGES for finding in checked) else None
    return [*(finding for finding in findings if finding.code != unmade), *checked]


def _compiled(journals: Sequence[RecorderJournal]) -> Iterator[Finding]:
    names = sorted({name for journal in journals for name in journal.compiled_ranges})
    if names:
        yield Finding(
            "ranges-in-compiled-code",
            Severity.WARNING,
            f"Range(s) {', '.join(repr(name) for name in names[:5])}{' ...' if names[5:] else ''} are missing where "
            "torch.compile compiled the code around them.",
            "What is compiled is one piece: put ranges around the call of the compiled function, or measure without "
            "torch.compile.",
        )


def _failed(journal: RecorderJournal) -> Iterator[Finding]:
    """Count the batches that an exception ended."""
    for record in journal.recorders:
        if record.failed_batches:
            yield Finding(
                "batches-failed",
                Severity.WARNING,
                f"{record.failed_batches} of {record.batches} batches of recorder '{record.name}' ended by an "
                "exception and are not in these results.",
                "Their time is not in any mean; throughput has the items of the other batches.",
            )


def _open_at_end(journal: RecorderJournal, trace: Trace) -> Iterator[Finding]:
    """Name what nsys closes at the end of the process by itself; the embedded tracer leaves it open."""
    names = [name for record in journal.recorders if record.finalized for name in record.open_ranges]
    if names and trace.meta.tracer == "nsys":
        yield Finding(
            "range-open-at-end",
            Severity.NOTE,
            f"{len(names)} range(s) were open when the process ended ({', '.join(names[:5])}); nsys ends them there.",
        )


def _instruments(journals: Sequence[RecorderJournal]) -> Iterator[Finding]:
    """Name what slowed the processes down."""
    names = [*dict.fromkeys(name for journal in journals for name in journal.instruments)]
    if names:
        yield Finding(
            "process-slowed-down",
            Severity.WARNING,
            f"These settings or instruments slow the process down: {', '.join(names)}.",
            "Switch them off and measure again.",
        )


def _killed(journal: RecorderJournal, trace: Trace) -> Finding:
    """The finding of a process that left no last counts. The embedded tracer writes each range as it is made."""
    ended = f"Process {journal.pid} was killed"
    if trace.meta.tracer != "nsys":
        return Finding(
            "child-killed",
            Severity.WARNING,
            f"{ended}: what it recorded until then is kept.",
            "A pool of workers kills them where it is left without close() and join(), a DataLoader with "
            "persistent_workers at the end of the program.",
        )
    return Finding(
        "child-killed",
        Severity.ERROR,
        f"{ended}: nsys may have lost ranges of it, and how many is not known.",
        "close() and join() the pool, delete the DataLoader before the end; or --tracer embedded, which keeps them.",
    )


def _captured(journals: Sequence[RecorderJournal]) -> Iterator[Finding]:
    """How many of the batches are in the trace, where not all were to be."""
    for name in dict.fromkeys(record.name for journal in journals for record in journal.recorders):
        records = [record for journal in journals for record in journal.recorders if record.name == name]
        captured = sum(record.captured.batches for record in records if record.captured is not None)
        if all(record.captured is None for record in records):
            continue
        batches = sum(record.batches for record in records)
        if not batches and any(record.batches for journal in journals for record in journal.recorders):
            continue  # it has only ranges, as that of annotated functions
        yield Finding(
            CAPTURED,
            Severity.NOTE if captured else Severity.ERROR,
            f"{captured} of {batches} batches of recorder '{name}' were captured (--capture-batches); the others are "
            "not in these results.",
            "" if captured else "Name batches that there are: the first one is 0.",
        )


def _made(journals: Sequence[RecorderJournal], what: Literal["recorded_ranges", "recorded_items"]) -> PerRecorder:
    made: PerRecorder = {}
    for journal in journals:
        for record in journal.recorders:
            key = record.name, journal.pid & ID_MASK
            made[key] = made.get(key, 0) + int(getattr(record, what))
    return made


def _less_than(found: PerRecorder, made: PerRecorder) -> dict[tuple[str, int], tuple[int, int]]:
    """Where the trace holds less than was made: both counts."""
    return {key: (found.get(key, 0), count) for key, count in made.items() if found.get(key, 0) < count}


def _missing_items(name: str, pid: int, there: int, made: int) -> Finding:
    return Finding(
        "trace-missing-items",
        Severity.ERROR,
        f"Recorder '{name}' of pid {pid} counted {made} items, the trace holds {there}: the tracer lost events.",
        "A process that it forks should end by returning, not by os._exit or a signal; or use `--tracer embedded`.",
    )


def _missing_ranges(name: str, counts: dict[int, tuple[int, int]], journal: RecorderJournal, trace: Trace) -> Finding:
    """`counts`: by pid, how many ranges the trace holds and how many the recorder made."""
    there, made = (sum(count[position] for count in counts.values()) for position in (0, 1))
    where = ", ".join(
        f"{made_here - there_here} of pid {pid}" for pid, (there_here, made_here) in [*counts.items()][:8]
    )
    by_versions = _hint_by_versions(journal, trace)
    lost_workers = journal.is_forked or journal.pid & ID_MASK not in counts
    return Finding(
        MISSING_RANGES,
        Severity.ERROR,
        f"Recorder '{name}' made {made} ranges, the trace holds {there}; {made - there} are missing ({where})"
        f"{': NVTX_DISABLE is set' if journal.nvtx_disabled else ''}.",
        "Start the workers with the spawn method, and let them end by returning, not by os._exit or a signal."
        if lost_workers and by_versions is None
        else by_versions
        or "The tracer lost events: measure again with fewer batches, a newer nsys, or `--tracer embedded`.",
    )


def _not_finalized(
    name: str, records: list[RecorderRecord], journal: RecorderJournal, *, of_child: bool
) -> list[Finding]:
    still_open = [range_name for record in records for range_name in record.open_ranges]
    if all(record.finalized for record in records) or (of_child and (not still_open or journal.ended == "running")):
        return []
    detail = f" with {len(still_open)} range(s) open ({', '.join(still_open[:5])})" if still_open else ""
    return [
        Finding(
            "recorder-not-finalized",
            Severity.WARNING,
            f"Recorder '{name}' was never finalized: {ENDINGS.get(journal.ended, journal.ended)}{detail}.",
            "Call finalize() when the pipeline is done.",
        )
    ]


def _ranges_found(journals: Sequence[RecorderJournal], trace: Trace) -> dict[tuple[str, int], int]:
    """How many ranges of each recorder, deleted ones included, each process has in the trace."""
    recorders = find_recorders(trace)
    if recorders is not None:
        owner, names = recorders.owner_of(trace.ranges.category), recorders.owners
    else:
        # No recorder declared itself: its ranges are not distinct, so those of its domain are counted.
        domain_of = {record.domain: record.name for journal in journals for record in journal.recorders}
        names = list(domain_of.values())
        owner_of_domain = {domain: position for position, domain in enumerate(domain_of)}
        of_code = np.asarray([*(owner_of_domain.get(name, -1) for name in trace.names), -1], dtype=np.int64)
        owner = of_code[trace.ranges.domain]
    at = np.flatnonzero(owner >= 0)
    return _sums(owner[at], trace.ranges.thread[at], np.ones(len(at), dtype=np.int64), names, journals)


def _items_found(recorders: Recorders, journals: Sequence[RecorderJournal], trace: Trace) -> PerRecorder:
    """How many items the batches of each recorder, deleted ones included, counted in each process."""
    marks = trace.marks
    owner = recorders.owner_of(marks.category)
    is_count = np.asarray([*(name == conventions.MARK_ITEMS for name in trace.names), False])[marks.name]
    at = np.flatnonzero((owner >= 0) & is_count & marks.has_payload)
    return _sums(owner[at], marks.thread[at], marks.payload[at], recorders.owners, journals)


def _sums(
    owner: Int64, thread: Int64, values: Int64, names: Sequence[str], journals: Sequence[RecorderJournal]
) -> PerRecorder:
    """Sums of the values by owner and pid, exact as the recorder's are: they may leave 64 bits."""
    groups = group_rows(owner, pid_of(thread))
    halves = np.zeros((2, len(groups)), dtype=np.int64)
    for half, part in zip(halves, (values >> HALF_BITS, values & ((1 << HALF_BITS) - 1)), strict=True):
        np.add.at(half, groups.code, part)
    pids = pid_of(thread[groups.first])
    if len(journals) == 1 and len(np.unique(pids)) == 1:
        pids[:] = journals[0].pid & ID_MASK  # inside a container a process may have another pid than the tracer saw
    return {
        (names[of], pid): (high << HALF_BITS) + low
        for of, pid, high, low in zip(owner[groups.first].tolist(), pids.tolist(), *halves.tolist(), strict=True)
    }


def _hint_by_versions(journal: RecorderJournal, trace: Trace) -> str | None:
    """What to do where this nsys records no range of this nvtx."""
    if journal.nvtx_disabled:
        return "Unset NVTX_DISABLE, which switches nvtx off in the script, or `--tracer embedded`."
    if journal.listening is False and trace.meta.tracer == "nsys" and journal.nvtx_version is not None:
        return (
            f"nvtx {journal.nvtx_version} is too new for nsys {trace.meta.tracer_version}, which took no range of it. "
            "Install nvtx<0.2.12 next to the script, use a newer nsys, or `--tracer embedded`."
        )
    if journal.nvtx_version is None and trace.meta.tracer == "nsys":
        return "The package nvtx is not installed next to the script: `pip install nvtx`."
    nvtx, nsys = _version(journal.nvtx_version), _version(trace.meta.tracer_version)
    if trace.meta.tracer == "nsys" and nsys and nsys < NSYS_THAT_KNOWS_NEW_NVTX and nvtx >= NVTX_THAT_OLD_NSYS_IGNORES:
        return (
            f"nvtx {journal.nvtx_version} is too new for nsys {trace.meta.tracer_version}: install nvtx<0.2.12 next to "
            "the script, use a newer nsys, or `--tracer embedded`."
        )
    return None


def _version(text: str | None) -> tuple[int, ...]:
    parts = (text or "").split(".")
    return tuple(int(part) for part in parts[:3] if part.isdigit())


def _untraced_cuda(journals: Sequence[RecorderJournal], trace: Trace) -> list[Finding]:
    if (
        not any(journal.cuda_loaded for journal in journals)
        or trace.meta.gpu_coverage != "traced"
        or len(trace.api)
        or len(trace.operations)
    ):
        return []
    return [
        Finding(
            "gpu-work-not-traced",
            Severity.ERROR,
            "The process loaded the CUDA driver, but the trace holds no CUDA event; GPU times of 0 may be wrong.",
            "See `perfharness doctor` for what keeps CUDA from being traced.",
        )
    ]
