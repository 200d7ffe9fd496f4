"""Findings about what was annotated, and about what the trace lacks of what the recorders counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from perfharness.analysis.stages.entries import names_with_negative_time
from perfharness.analysis.stages.roles import NOT_COUNTED, StageTable, find_recorders
from perfharness.analysis.stages.throughput import measured_rows
from perfharness.analysis.stages.times import StageTimes
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.grouping import group_rows, sum_by_code
from perfharness.model import conventions
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import RecorderJournal
from perfharness.model.trace import ID_MASK, Int64, Trace, pid_of
from perfharness.trace.names import code_of

CAPTURED = "batches-captured"
MISSING_RANGES = "trace-missing-ranges"

MUCH_OF_A_RANGE = 0.01
"""A wait of other threads that takes less of a range does not matter."""

LONG_PAUSE = 0.1
"""Part of a loop's measured time that a pause must take to be noted, and twice the median time from batch to batch."""

NVTX_THAT_OLD_NSYS_IGNORES = (0, 2, 12)
NSYS_THAT_KNOWS_NEW_NVTX = (2024, 1)
"""nsys 2023.4 records no range of nvtx 0.2.12 or newer, without a warning; 2025.3 does. Between: not tried."""

ENDINGS = {
    "exit": "the process came to its end",
    "exception": "the process ended by an exception",
    "exec": "the process became another program",
    "running": "the process was killed",
}

PerRecorder = dict[tuple[str, int], int]
"""A count by recorder name and pid."""


def stage_findings(stages: StageTable, times: StageTimes, warmup_batches: int, *, uses_gpu: bool) -> Iterator[Finding]:
    """Findings about ranges, batches, items, pauses and the warm-up."""
    batches = np.flatnonzero(stages.is_batch)
    if any(finding.code in ("domain-not-found", "batch-pattern-not-found") for finding in stages.findings):
        pass  # these give the reason
    elif not len(stages):
        yield Finding(
            "no-ranges",
            Severity.ERROR,
            "The trace holds no range to report.",
            "Annotate the script with PerfRecorder, or name its functions in a file (launch --annotate FILE.toml), or "
            "take PyTorch's modules (--annotate-torch DEPTH).",
        )
    elif not len(batches):
        yield Finding(
            "no-batches",
            Severity.WARNING,
            "No range is a batch, so there is nothing per item and no warm-up.",
            "Take batches from perf.batches(…), or push them with batch_idx."
            if stages.from_recorder
            else "Say which ranges are batches: perfharness analyze --batch-pattern REGEX.",
        )
    yield from _all_warmup(stages, times, batches, warmup_batches)
    uncounted = int((stages.items[batches] == NOT_COUNTED).sum())
    if uncounted:
        yield Finding(
            "batch-without-items",
            Severity.WARNING,
            f"{uncounted} of {len(batches)} batches counted no items, so their numbers per item are null.",
            "Say how many a batch holds: perf.batches(…, items=len), or total_items where it is pushed or popped."
            if stages.from_recorder
            else "Plain NVTX cannot count items; use PerfRecorder for that.",
        )
    yield from _long_pauses(stages, times)
    waited = np.flatnonzero(stages.barrier_wait_ns > 0)
    if len(waited):
        yield Finding(
            "start-barrier-wait",
            Severity.NOTE,
            f"{stages.barrier_wait_ns.max() / 1e6:.1f} ms at the start barrier lie inside {_names(stages, waited)}; "
            f"its cpu_time is without them{', its gpu_time with them' if uses_gpu else ''}.",
            "Add --no-barrier to start the processes' measured batches without waiting.",
        )


def _names(stages: StageTable, rows: Int64) -> str:
    return ", ".join(f"'{name}'" for name in dict.fromkeys(stages.names[code] for code in stages.name[rows]))


def _all_warmup(stages: StageTable, times: StageTimes, batches: Int64, warmup_batches: int) -> Iterator[Finding]:
    """An error if the warm-up leaves no batch at all, a warning if it leaves none of some name."""
    groups = group_rows(stages.paths.code[batches])
    left = sum_by_code(groups.code, ~times.warmup[batches], len(groups))
    if left.all():
        return
    theirs = batches[left[groups.code] == 0]
    names, loops = _names(stages, batches[groups.first[left == 0]]), len(np.unique(times.loop[theirs]))
    of_loops = f" in {loops} loops" if loops > 1 else ""
    yield Finding(
        "warmup-leaves-nothing",
        Severity.WARNING if left.any() else Severity.ERROR,
        f"All {len(theirs)} batches {names}{of_loops} are warm-up: -w {warmup_batches} drops {warmup_batches} at both "
        "ends of a loop.",
        f"Run at least {2 * warmup_batches + 1} batches in a loop, or use a smaller -w.",
    )


def _long_pauses(stages: StageTable, times: StageTimes) -> Iterator[Finding]:
    """Note the longest pause of each loop if it takes much of the measured time."""
    for rows in times.rows_of_loops:
        measured = measured_rows(~times.warmup[rows])
        if measured is None:
            continue
        start = stages.start_ns[rows[measured.start : measured.stop + 1]]
        end = np.maximum.accumulate(stages.end_ns[rows[measured]])[: len(start) - 1]
        pauses = start[1:] - end
        length = int(stages.end_ns[rows[measured]].max() - start[0])
        if not len(pauses) or pauses.max() < max(LONG_PAUSE * length, 2 * np.median(np.diff(start))):
            continue
        at = int(np.argmax(pauses))
        yield Finding(
            "long-pause",
            Severity.NOTE,
            f"The longest pause between batches of {_names(stages, rows[:1])} takes {pauses[at] / 1e6:.1f} ms, "
            f"{100 * pauses[at] / length:.0f} % of their measured time, after batch "
            f"{stages.batch_index[rows[measured.start + at]]}; it counts in the throughput.",
        )


def barrier_wait_findings(stages: StageTable, times: StageTimes) -> Iterator[Finding]:
    """Warn about ranges around no batch of their own that were open while other threads waited at the barrier.

    Whether such a range waited for these threads (`join`) or worked meanwhile is not in a trace.
    """
    waits = stages.barrier_waits
    longest: dict[str, int] = {}
    around = np.flatnonzero((times.batch < 0) & (stages.barrier_wait_ns == 0))
    for thread in np.unique(stages.thread[around]).tolist() if len(waits.thread) else ():
        others = (waits.thread != thread) & (pid_of(waits.thread) == pid_of(thread))
        rows = around[stages.thread[around] == thread]
        start, end = stages.start_ns[rows], stages.end_ns[rows]
        waited_ns = BusyLine(waits.start_ns[others], waits.end_ns[others]).within(start, end)
        is_much = waited_ns > MUCH_OF_A_RANGE * (end - start)
        for row, waited in zip(rows[is_much].tolist(), waited_ns[is_much].tolist(), strict=True):
            name = stages.names[stages.name[row]]
            longest[name] = max(longest.get(name, 0), waited)
    if longest:
        shown = ", ".join(f"'{name}' ({waited_ns / 1e6:.1f} ms)" for name, waited_ns in longest.items())
        yield Finding(
            "start-barrier-wait",
            Severity.WARNING,
            f"While {shown} lasted, other threads of the process waited at the start barrier; if the range waited for "
            "these threads, that time is in its cpu_time.",
            "Read the ranges on the threads that waited: their times are without it. --no-barrier starts the processes'"
            " measured batches as they come.",
        )


def negative_time_findings(stages: StageTable, times: StageTimes) -> Iterator[Finding]:
    """Warn about ranges whose time less that of their warm-up batches is below zero."""
    if names := names_with_negative_time(stages, times):
        shown = ", ".join(f"'{name}'" for name in sorted(set(names))[:5])
        yield Finding(
            "negative-without-warmup",
            Severity.WARNING,
            f"The warm-up batches inside {shown} overlap in time, so that their times add up to more than the range's "
            "own; the times without warm-up there are null.",
            "Read stats_minus_warmup, which does not subtract.",
        )


# A trace against the recorders' own counts.


def with_checks(findings: Sequence[Finding], checked: Sequence[Finding]) -> list[Finding]:
    """Findings of a trace, then those of its check, without `no-ranges` if ranges were made and are missing."""
    is_missing = any(finding.code == MISSING_RANGES for finding in checked)
    return [*(finding for finding in findings if not (is_missing and finding.code == "no-ranges")), *checked]


def check_journals(journals: Sequence[RecorderJournal], trace: Trace, *, of_child: bool = False) -> list[Finding]:
    """Findings if the trace lacks what recorders counted, process by process, or recorders were not finalized. The
    first journal is the measured process's; `of_child`: nobody need finalize its recorders.
    """
    findings = [*_missing_ranges(journals, trace), *_missing_items(journals, trace)]
    for journal in journals:
        findings += _of_recorders(journal, trace, of_child=of_child or journal.is_forked)
    if of_child:
        findings += [_killed(journal, trace) for journal in journals if journal.ended == "running"]
    return [*findings, *_captured(journals), *_of_processes(journals, trace)]


def _missing_ranges(journals: Sequence[RecorderJournal], trace: Trace) -> Iterator[Finding]:
    missing = _less_than_made(_ranges_found(journals, trace), journals, "recorded_ranges")
    for name in dict.fromkeys(name for name, _ in missing):
        counts = {pid: both for (of, pid), both in missing.items() if of == name}
        there, made = (sum(both[at] for both in counts.values()) for at in (0, 1))
        where = ", ".join(f"{both[1] - both[0]} of pid {pid}" for pid, both in [*counts.items()][:8])
        journal = journals[0]
        hint = _hint_by_versions(journal, trace)
        if hint is None and (journal.is_forked or journal.pid & ID_MASK not in counts):
            hint = "Start the workers with the spawn method, and let them end by returning, not by os._exit."
        yield Finding(
            MISSING_RANGES,
            Severity.ERROR,
            f"Recorder '{name}' made {made} ranges, the trace holds {there}; {made - there} are missing ({where})"
            f"{': NVTX_DISABLE is set' if journal.nvtx_disabled else ''}.",
            hint or "The tracer lost events: measure again with fewer batches, a newer nsys, or `--tracer embedded`.",
        )


def _missing_items(journals: Sequence[RecorderJournal], trace: Trace) -> Iterator[Finding]:
    recorders, marks = find_recorders(trace), trace.marks
    if recorders is None:
        return
    owner = recorders.owner_of(marks.category)
    is_count = marks.name == code_of(trace.names, conventions.MARK_ITEMS)
    at = np.flatnonzero((owner >= 0) & is_count & marks.has_payload)
    found = _sums(owner[at], marks.thread[at], marks.payload[at], recorders.owners, journals)
    for (name, pid), (there, counted) in _less_than_made(found, journals, "recorded_items").items():
        yield Finding(
            "trace-incomplete",
            Severity.ERROR,
            f"Recorder '{name}' of pid {pid} counted {counted} items, the trace holds {there}: the tracer lost events.",
            "A process that it forks should end by returning, not by os._exit or a signal; or use `--tracer embedded`.",
        )


def _less_than_made(
    found: PerRecorder, journals: Sequence[RecorderJournal], what: Literal["recorded_ranges", "recorded_items"]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Both counts where the trace holds less than was made."""
    made: PerRecorder = {}
    for journal in journals:
        for record in journal.recorders:
            key = record.name, journal.pid & ID_MASK
            made[key] = made.get(key, 0) + int(getattr(record, what))
    return {key: (found.get(key, 0), count) for key, count in made.items() if found.get(key, 0) < count}


def _ranges_found(journals: Sequence[RecorderJournal], trace: Trace) -> PerRecorder:
    """How many ranges of each recorder, deleted ones included, each process has in the trace."""
    recorders = find_recorders(trace)
    if recorders is not None:
        owner, names = recorders.owner_of(trace.ranges.category), recorders.owners
    else:
        # No recorder declared itself: count the ranges of its domain.
        domains = {record.domain: record.name for journal in journals for record in journal.recorders}
        names, codes = list(domains.values()), {domain: at for at, domain in enumerate(domains)}
        owner = np.asarray([*(codes.get(name, -1) for name in trace.names), -1])[trace.ranges.domain]
    at = np.flatnonzero(owner >= 0)
    return _sums(owner[at], trace.ranges.thread[at], None, names, journals)


def _sums(
    owner: Int64, thread: Int64, values: Int64 | None, names: Sequence[str], journals: Sequence[RecorderJournal]
) -> PerRecorder:
    """Sums of the values, or numbers of rows, by owner and pid."""
    groups = group_rows(owner, pid_of(thread))
    sums = np.bincount(groups.code, minlength=len(groups)).tolist() if values is None else [0] * len(groups)
    for code, value in zip(groups.code.tolist(), values.tolist(), strict=True) if values is not None else ():
        sums[code] += value  # they may leave 64 bits
    pids = pid_of(thread[groups.first])
    if len(journals) == 1 and len(np.unique(pids)) == 1:
        pids[:] = journals[0].pid & ID_MASK  # inside a container a process may have another pid than the tracer saw
    keys = zip(owner[groups.first].tolist(), pids.tolist(), strict=True)
    return {(names[of], pid): found for (of, pid), found in zip(keys, sums, strict=True)}


def _hint_by_versions(journal: RecorderJournal, trace: Trace) -> str | None:
    """What to do if this nsys records no range of this nvtx."""
    if journal.nvtx_disabled:
        return "Unset NVTX_DISABLE, which switches nvtx off in the script, or `--tracer embedded`."
    if trace.meta.tracer != "nsys":
        return None
    if journal.nvtx_version is None:
        return "The package nvtx is not installed next to the script: `pip install nvtx`."
    nvtx, nsys = _version(journal.nvtx_version), _version(trace.meta.tracer_version)
    is_too_new = nsys and nsys < NSYS_THAT_KNOWS_NEW_NVTX and nvtx >= NVTX_THAT_OLD_NSYS_IGNORES
    if journal.listening is not False and not is_too_new:
        return None
    return (
        f"nvtx {journal.nvtx_version} is too new for nsys {trace.meta.tracer_version}: install nvtx<0.2.12 next to the "
        "script, use a newer nsys, or `--tracer embedded`."
    )


def _version(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (text or "").split(".")[:3] if part.isdigit())


def _of_recorders(journal: RecorderJournal, trace: Trace, *, of_child: bool) -> Iterator[Finding]:
    """Recorders that were not finalized, batches that an exception ended, and ranges that nsys closed at the end."""
    for name in dict.fromkeys(record.name for record in journal.recorders):
        records = [record for record in journal.recorders if record.name == name]
        still_open = [range_name for record in records for range_name in record.open_ranges]
        if all(record.finalized for record in records) or (of_child and (not still_open or journal.ended == "running")):
            continue
        detail = f" with {len(still_open)} range(s) open ({', '.join(still_open[:5])})" if still_open else ""
        yield Finding(
            "recorder-not-finalized",
            Severity.WARNING,
            f"Recorder '{name}' was never finalized: {ENDINGS.get(journal.ended, journal.ended)}{detail}.",
            "Call finalize() when the pipeline is done.",
        )
    for record in journal.recorders:
        if record.failed_batches:
            yield Finding(
                "batches-failed",
                Severity.WARNING,
                f"{record.failed_batches} of {record.batches} batches of recorder '{record.name}' ended with an "
                "exception; they are not counted.",
            )
    names = [name for record in journal.recorders if record.finalized for name in record.open_ranges]
    if names and trace.meta.tracer == "nsys":
        yield Finding(
            "range-without-end",
            Severity.NOTE,
            f"{len(names)} range(s) were open when the process ended ({', '.join(names[:5])}); nsys ends them there.",
        )


def _killed(journal: RecorderJournal, trace: Trace) -> Finding:
    """The finding of a process that left no last counts. The embedded tracer writes each range as it is made."""
    is_nsys = trace.meta.tracer == "nsys"
    lost = (
        "nsys may have lost ranges of it, and how many is not known." if is_nsys else "its ranges until then are kept."
    )
    return Finding(
        "child-killed",
        Severity.ERROR if is_nsys else Severity.WARNING,
        f"Process {journal.pid} was killed: {lost}",
        "close() and join() the pool, delete the DataLoader before the end of the program"
        f"{'; or --tracer embedded, which keeps them' if is_nsys else ''}.",
    )


def _captured(journals: Sequence[RecorderJournal]) -> Iterator[Finding]:
    """How many of the batches are in the trace, if not all were to be."""
    every = [record for journal in journals for record in journal.recorders]
    for name in dict.fromkeys(record.name for record in every if record.captured is not None):
        records = [record for record in every if record.name == name]
        captured = sum(record.captured.batches for record in records if record.captured is not None)
        batches = sum(record.batches for record in records)
        if not batches and any(record.batches for record in every):
            continue  # it has only ranges, as that of annotated functions
        yield Finding(
            CAPTURED,
            Severity.NOTE if captured else Severity.ERROR,
            f"{captured} of {batches} batches of recorder '{name}' were captured (--capture-batches); the others are "
            "not in these results.",
            "" if captured else "Name batches that there are: the first one is 0.",
        )


def _of_processes(journals: Sequence[RecorderJournal], trace: Trace) -> Iterator[Finding]:
    """What hid ranges, slowed the processes down, or kept GPU work out of the trace."""
    if names := sorted({name for journal in journals for name in journal.compiled_ranges}):
        yield Finding(
            "ranges-in-compiled-code",
            Severity.WARNING,
            f"Range(s) {', '.join(repr(name) for name in names[:5])}{' ...' if names[5:] else ''} are missing where "
            "torch.compile compiled the code around them.",
            "Put ranges around the call of the compiled function, or measure without torch.compile.",
        )
    if slows := [*dict.fromkeys(name for journal in journals for name in journal.instruments)]:
        yield Finding(
            "process-slowed-down",
            Severity.WARNING,
            f"These settings or instruments slow the process down: {', '.join(slows)}.",
            "Switch them off and measure again.",
        )
    is_traced = trace.meta.gpu_coverage == "traced"
    if any(journal.cuda_loaded for journal in journals) and is_traced and not (len(trace.api) or len(trace.operations)):
        yield Finding(
            "gpu-not-traced",
            Severity.ERROR,
            "The process loaded the CUDA driver, but the trace holds no CUDA event; GPU times of 0 may be wrong.",
            "See `perfharness doctor` for what keeps CUDA from being traced.",
        )
