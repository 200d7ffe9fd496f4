"""Findings about annotations, and about events missing from the trace compared to the recorders' counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from perfharness.analysis.stages.entries import names_with_negative_time
from perfharness.analysis.stages.roles import NOT_COUNTED, StageTable, find_recorders
from perfharness.analysis.stages.throughput import measured_rows
from perfharness.analysis.stages.times import StageTimes
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.grouping import group_rows, sum_by_code
from perfharness.model import conventions
from perfharness.model.columns import Int64
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import RecorderJournal, RecorderRecord
from perfharness.model.trace import ID_MASK, Trace, pid_of
from perfharness.trace.names import code_of

CAPTURED = "batches-captured"
MISSING_RANGES = "trace-missing-ranges"

MUCH_OF_A_RANGE = 0.01
"""Least share of a range that a wait of other threads must take to be reported."""

LONG_PAUSE = 0.1
"""Least share of a loop's measured time for a reported pause, which also takes twice the median batch period."""

NVTX_THAT_OLD_NSYS_IGNORES = (0, 2, 12)
NSYS_THAT_KNOWS_NEW_NVTX = (2024, 1)
"""nsys 2023.4 silently records no ranges of nvtx 0.2.12 or newer; 2025.3 does. Versions between are untested."""

ENDINGS = {
    "exit": "the process ended",
    "exception": "the process ended with an exception",
    "exec": "the process became another program",
    "running": "the process was killed",
}

PerRecorder = dict[tuple[str, int], int]
"""Counts by recorder name and pid."""


def stage_findings(stages: StageTable, times: StageTimes, warmup_batches: int, *, uses_gpu: bool) -> Iterator[Finding]:
    """Findings about ranges, batches, items, pauses and the warm-up."""
    batches = np.flatnonzero(stages.is_batch)
    if any(finding.code in ("domain-not-found", "batch-pattern-not-found") for finding in stages.findings):
        pass  # the reason is already reported
    elif not len(stages):
        yield Finding(
            "no-ranges",
            Severity.ERROR,
            "The trace has no ranges to report.",
            "Annotate the script with PerfRecorder, name its functions in a file (launch --annotate FILE.toml), or use "
            "PyTorch's modules (--annotate-torch DEPTH).",
        )
    elif not len(batches):
        yield Finding(
            "no-batches",
            Severity.WARNING,
            "No range is a batch, so there are no numbers per item and no warm-up.",
            "Take batches from perf.batches(…), or push them with batch_idx."
            if stages.from_recorder
            else "Select batch ranges: perfharness analyze --batch-pattern REGEX.",
        )
    yield from _all_warmup(stages, times, batches, warmup_batches)
    uncounted = int((stages.items[batches] == NOT_COUNTED).sum())
    if uncounted:
        yield Finding(
            "batch-without-items",
            Severity.WARNING,
            f"{uncounted} of {len(batches)} batches counted no items, so their numbers per item are null.",
            "Count items: perf.batches(…, items=len), or total_items when pushing or popping a batch."
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
            f"its cpu_time excludes them{', its gpu_time includes them' if uses_gpu else ''}.",
            "Add --no-barrier to start measured batches without waiting for the other processes.",
        )


def _names(stages: StageTable, rows: Int64) -> str:
    return ", ".join(f"'{name}'" for name in dict.fromkeys(stages.names[code] for code in stages.name[rows]))


def _all_warmup(stages: StageTable, times: StageTimes, batches: Int64, warmup_batches: int) -> Iterator[Finding]:
    """Report an error if all batches are warm-up, a warning if all of some name are."""
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
    """Report the longest pause of each loop if it takes much of the measured time."""
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
            f"{stages.batch_index[rows[measured.start + at]]}; it is included in the throughput.",
        )


def barrier_wait_findings(stages: StageTable, times: StageTimes) -> Iterator[Finding]:
    """Warn about ranges outside batches that were open while other threads waited at the barrier.

    A trace does not show whether such a range waited for these threads (`join`) or worked.
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
            f"Other threads waited at the start barrier during {shown}; if the range waited for these threads, its "
            "cpu_time includes that.",
            "Read the ranges on the waiting threads, which exclude it, or add --no-barrier to start measured batches "
            "without waiting.",
        )


def negative_time_findings(stages: StageTable, times: StageTimes) -> Iterator[Finding]:
    """Warn about ranges with a negative time after subtracting their warm-up batches."""
    if names := names_with_negative_time(stages, times):
        shown = ", ".join(f"'{name}'" for name in sorted(set(names))[:5])
        yield Finding(
            "negative-without-warmup",
            Severity.WARNING,
            f"The warm-up batches inside {shown} overlap in time and add up to more than the range's own time; times "
            "without warm-up are null there.",
            "Read stats_minus_warmup, which does not subtract.",
        )


# Check of a trace against the recorders' counts.


def with_checks(findings: Sequence[Finding], checked: Sequence[Finding]) -> list[Finding]:
    """Findings of a trace and of its check, without `no-ranges` if recorded ranges are missing."""
    is_missing = any(finding.code == MISSING_RANGES for finding in checked)
    return [*(finding for finding in findings if not (is_missing and finding.code == "no-ranges")), *checked]


def check_journals(journals: Sequence[RecorderJournal], trace: Trace, *, of_child: bool = False) -> list[Finding]:
    """Compare the trace with the recorders' counts, per process, and report recorders that were not finalized. The
    first journal is the measured process's. `of_child`: its recorders need not be finalized.
    """
    findings = [*_missing_ranges(journals, trace), *_missing_items(journals, trace)]
    for journal in journals:
        findings += _of_recorders(journal, trace, of_child=of_child or journal.is_forked)
    if of_child:
        findings += [_killed(journal, trace) for journal in journals if journal.ended == "running"]
    return [*findings, *_captured(journals), *_of_processes(journals, trace)]


def _missing_ranges(journals: Sequence[RecorderJournal], trace: Trace) -> Iterator[Finding]:
    missing = _less_than_made(_ranges_found(journals, trace), journals, lambda one: one.recorded_ranges)
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
            f"Recorder '{name}' made {made} ranges, but {made - there} are missing in the trace ({where})"
            f"{': NVTX_DISABLE is set' if journal.nvtx_disabled else ''}.",
            hint or "The tracer lost events: use fewer batches, a newer nsys, or `--tracer embedded`.",
        )


def _missing_items(journals: Sequence[RecorderJournal], trace: Trace) -> Iterator[Finding]:
    recorders, marks = find_recorders(trace), trace.marks
    if recorders is None:
        return
    owner = recorders.owner[marks.category]
    is_count = marks.name == code_of(trace.names, conventions.MARK_ITEMS)
    at = np.flatnonzero((owner >= 0) & is_count & marks.has_payload)
    found = _sums(owner[at], marks.thread[at], marks.payload[at], recorders.owners, journals)
    # A capture does not count items.
    missing = _less_than_made(found, journals, lambda one: one.items if one.captured is None else 0)
    for (name, pid), (there, counted) in missing.items():
        yield Finding(
            "trace-incomplete",
            Severity.ERROR,
            f"Recorder '{name}' of pid {pid} counted {counted} items, the trace has {there}: the tracer lost events.",
            "Let forked processes end by returning, not by os._exit or a signal; or use `--tracer embedded`.",
        )


def _less_than_made(
    found: PerRecorder, journals: Sequence[RecorderJournal], count: Callable[[RecorderRecord], int]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Both counts, if the trace has fewer than were made."""
    made: PerRecorder = {}
    for journal in journals:
        for record in journal.recorders:
            key = record.name, journal.pid & ID_MASK
            made[key] = made.get(key, 0) + count(record)
    return {key: (there, number) for key, number in made.items() if (there := found.get(key, 0)) < number}


def _ranges_found(journals: Sequence[RecorderJournal], trace: Trace) -> PerRecorder:
    """Number of ranges in the trace per recorder and process, including deleted ones."""
    recorders = find_recorders(trace)
    if recorders is not None:
        owner, names = recorders.owner[trace.ranges.category], recorders.owners
    else:
        # Without recorder declarations, count the ranges of their domains.
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
        sums[code] += value  # Python integers, because sums may exceed 64 bits
    pids = pid_of(thread[groups.first])
    if len(journals) == 1 and len(np.unique(pids)) == 1:
        pids[:] = journals[0].pid & ID_MASK  # in a container, the process's pid may differ from the tracer's
    keys = zip(owner[groups.first].tolist(), pids.tolist(), strict=True)
    return {(names[of], pid): found for (of, pid), found in zip(keys, sums, strict=True)}


def _hint_by_versions(journal: RecorderJournal, trace: Trace) -> str | None:
    """How to make this nsys record ranges of this nvtx; None if it does."""
    if journal.nvtx_disabled:
        return "Unset NVTX_DISABLE, which disables nvtx in the script, or use `--tracer embedded`."
    if trace.meta.tracer != "nsys":
        return None
    if journal.nvtx_version is None:
        return "The package nvtx is missing in the script's environment: `pip install nvtx`."
    nvtx, nsys = _version(journal.nvtx_version), _version(trace.meta.tracer_version)
    is_too_new = nsys and nsys < NSYS_THAT_KNOWS_NEW_NVTX and nvtx >= NVTX_THAT_OLD_NSYS_IGNORES
    if journal.listening is not False and not is_too_new:
        return None
    return (
        f"nvtx {journal.nvtx_version} is too new for nsys {trace.meta.tracer_version}: install nvtx<0.2.12 in the "
        "script's environment, use a newer nsys, or `--tracer embedded`."
    )


def _version(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (text or "").split(".")[:3] if part.isdigit())


def _of_recorders(journal: RecorderJournal, trace: Trace, *, of_child: bool) -> Iterator[Finding]:
    """Recorders that were not finalized, failed batches, and ranges closed by nsys at the end."""
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
            f"{len(names)} range(s) were open when the process ended ({', '.join(names[:5])}); nsys closed them then.",
        )


def _killed(journal: RecorderJournal, trace: Trace) -> Finding:
    """A process that left no final counts. The embedded tracer writes each range immediately."""
    is_nsys = trace.meta.tracer == "nsys"
    lost = "nsys may have lost an unknown number of its ranges." if is_nsys else "its ranges until then are kept."
    return Finding(
        "child-killed",
        Severity.ERROR if is_nsys else Severity.WARNING,
        f"Process {journal.pid} was killed: {lost}",
        "Call close() and join() on the pool; delete the DataLoader before the program ends"
        f"{'; or use --tracer embedded, which keeps them' if is_nsys else ''}.",
    )


def _captured(journals: Sequence[RecorderJournal]) -> Iterator[Finding]:
    """Number of captured batches, if only some were requested."""
    every = [record for journal in journals for record in journal.recorders]
    for name in dict.fromkeys(record.name for record in every if record.captured is not None):
        records = [record for record in every if record.name == name]
        captured = sum(record.captured.batches for record in records if record.captured is not None)
        batches = sum(record.batches for record in records)
        if not batches and any(record.batches for record in every):
            continue  # only ranges, like the recorder of annotated functions
        yield Finding(
            CAPTURED,
            Severity.NOTE if captured else Severity.ERROR,
            f"{captured} of {batches} batches of recorder '{name}' were captured (--capture-batches); the others are "
            "not in these results.",
            "" if captured else "Select existing batches; the first is 0.",
        )


def _of_processes(journals: Sequence[RecorderJournal], trace: Trace) -> Iterator[Finding]:
    """Causes that hid ranges, slowed the processes down, or kept GPU work out of the trace."""
    if names := sorted({name for journal in journals for name in journal.compiled_ranges}):
        yield Finding(
            "ranges-in-compiled-code",
            Severity.WARNING,
            f"Range(s) {', '.join(repr(name) for name in names[:5])}{' ...' if names[5:] else ''} are missing inside "
            "code compiled by torch.compile.",
            "Put ranges around the call of the compiled function, or measure without torch.compile.",
        )
    if slows := [*dict.fromkeys(name for journal in journals for name in journal.instruments)]:
        yield Finding(
            "process-slowed-down",
            Severity.WARNING,
            f"These settings or instruments slow the process down: {', '.join(slows)}.",
            "Disable them and measure again.",
        )
    is_traced = trace.meta.gpu_coverage == "traced"
    if any(journal.cuda_loaded for journal in journals) and is_traced and not (len(trace.api) or len(trace.operations)):
        yield Finding(
            "gpu-not-traced",
            Severity.ERROR,
            "The process loaded the CUDA driver, but the trace has no CUDA events; GPU times of 0 may be wrong.",
            "Run `perfharness doctor` to see what prevents CUDA tracing.",
        )
