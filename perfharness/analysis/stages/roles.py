"""Find the ranges that become results, and their roles: recorder, batch, items.

A recorder's trace describes itself (docs/internals/trace-conventions.md). In plain NVTX, a pattern matches names of
batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfharness.analysis.timeline.grouping import (
    Groups,
    distinct,
    group_nested,
    group_rows,
    row_order,
    rows_of_levels,
)
from perfharness.analysis.timeline.intervals import MAX_LEVELS, NO_PARENT, Nesting, nest
from perfharness.model import conventions
from perfharness.model.columns import Bool, Columns, Int64, Integers
from perfharness.model.findings import Finding, Severity, listed
from perfharness.model.result import RESERVED_KEYS, Path
from perfharness.model.trace import NvtxRanges, Trace, pid_of
from perfharness.trace.names import code_of

NOT_COUNTED = -1
"""Item count of a batch without one."""

MANY_RARE = 40
"""Number of stages that occur in a single batch above which names are taken to contain ids."""

INDEX = re.compile(r"[0-9]{1,18}")
"""A batch index, which fits in 64 bits."""

DEFAULT_BATCH_PATTERN = r"batch(?:[ _-]?(\d+))?$"
"""Names of plain NVTX batches, matched from the start, ignoring case. The digits are the index."""

LISTED, SHOWN_OF_NAME = 5, 60
"""Names per finding, and characters per name."""

OWN_DOMAINS = (conventions.STARTUP_DOMAIN, conventions.CAPTURE_RANGE)
"""Domains whose ranges are for the tracer and the timeline only."""

PLAIN_DOMAIN_NAME = "nvtx"
"""Name for the default NVTX domain."""

STAGE_SUFFIX = " (range)"
"""Suffix of a stage whose name is also the key of a number or the name of a batch."""


@dataclass(frozen=True)
class BarrierWaits:
    """Waits of threads at the start barrier, one row each."""

    thread: Int64
    start_ns: Int64
    end_ns: Int64


NO_WAITS = BarrierWaits(*np.empty((3, 0), dtype=np.int64))


@dataclass(frozen=True)
class StagePaths:
    """Paths of stages: names from the outermost range down, without batch indices. `code`: path of each stage. Per
    path: `parent`, the path around it (-1 for none), which comes first; `keys`, its last name; `owners`, its recorder
    or domain.
    """

    code: Integers
    parent: Integers
    is_batch: Bool
    keys: list[str]
    owners: list[str]

    def __len__(self) -> int:
        return len(self.keys)

    def names(self, path: int) -> Path:
        """Recorder, and names from the outermost range to this one."""
        owner, found = self.owners[path], []
        while path >= 0:
            found.append(self.keys[path])
            path = int(self.parent[path])
        return (owner, *reversed(found))

    def of_row(self, row: int) -> Path:
        """Names of a stage's path."""
        return self.names(int(self.code[row]))


@dataclass(frozen=True)
class StageTable(Columns):
    """Ranges that become results, without deleted ones, ordered by (owner, thread, lane, start). `parent` indexes this
    table, `index` the trace's ranges, `owner` the recorders (plain NVTX: domains) in `owners`, `name` the `names`.
    `batch_index` is valid where `is_batch`; `items` may be `NOT_COUNTED`; `is_shared`: other ranks process the same
    items; `is_other`: inside a batch, but not made by its recorder; `barrier_wait_ns`: wait of the thread at the start
    barrier inside the range.
    """

    index: Integers
    start_ns: Int64
    end_ns: Int64
    owner: Integers
    lane: Integers
    thread: Int64
    parent: Integers
    level: Integers
    name: Integers
    is_batch: Bool
    batch_index: Integers
    items: Int64
    is_shared: Bool
    is_other: Bool
    barrier_wait_ns: Int64
    names: list[str]
    owners: list[str]
    findings: list[Finding]
    from_recorder: bool
    barrier_waits: BarrierWaits = NO_WAITS

    @cached_property
    def paths(self) -> StagePaths:
        """Number the paths of all stages by owner, name, and whether they are batches."""
        groups = group_nested(self.rows_of_levels, self.parent, self.owner, self.name, self.is_batch.astype(np.int8))
        return StagePaths(
            code=groups.code,
            parent=np.append(groups.code, NO_PARENT)[self.parent[groups.first]],
            is_batch=self.is_batch[groups.first],
            keys=[self.names[name] for name in self.name[groups.first].tolist()],
            owners=[self.owners[owner] for owner in self.owner[groups.first].tolist()],
        )

    @cached_property
    def entries(self) -> Groups:
        """The entry of benchmark.json for each stage; every batch has its own."""
        index = np.where(self.is_batch, self.batch_index, NOT_COUNTED)
        columns = self.owner, self.name, self.is_batch.astype(np.int8), index
        return group_nested(self.rows_of_levels, self.parent, *columns)

    @cached_property
    def rows_of_levels(self) -> list[Integers]:
        """Rows of each level, from the outermost, in table order."""
        return rows_of_levels(self.level)

    def inside(self, chosen: Bool) -> Bool:
        """Extend a mask to the stages inside."""
        found = np.append(chosen, False)
        for rows in self.rows_of_levels[1:] if chosen.any() else ():
            found[rows] |= found[self.parent[rows]]
        return found[:-1]


def find_stages(
    trace: Trace, nesting: Nesting, domain: str | None = None, batch_pattern: str | None = None
) -> StageTable:
    """Select the ranges that become results. Given a domain (`nvtx` for the default one) or a batch pattern, ranges of
    plain NVTX; else those of recorders, or of all domains without recorders.
    """
    recorders = find_recorders(trace) if domain is None and batch_pattern is None else None
    if recorders is not None:
        return _ordered(_recorded(trace, recorders))
    return _ordered(_plain(trace, nesting, domain, batch_pattern))


@dataclass(frozen=True)
class Recorders:
    """Recorders of a trace. By category code, the last for -1 (no category): `owner`, an index in `owners`, -1 for
    none; `lane`, 0 for the thread's stack, others for asyncio tasks.
    """

    owner: Int64
    lane: Int64
    owners: list[str]


def find_recorders(trace: Trace) -> Recorders | None:
    """Recorders declared in the trace, or None."""
    declares = trace.marks.name == code_of(trace.names, conventions.MARK_RECORDER)
    owners = [trace.names[code] for code in distinct(trace.marks.category[declares & (trace.marks.category >= 0)])]
    if not owners:
        return None
    owner = np.full(len(trace.names) + 1, -1, dtype=np.int64)
    lane = np.zeros(len(trace.names) + 1, dtype=np.int64)
    known = frozenset(owners)
    for code in distinct(np.r_[trace.ranges.category, trace.marks.category]):
        parsed = conventions.parse_category(trace.names[code], known) if code >= 0 else None
        if parsed is not None:
            owner[code], lane[code] = owners.index(parsed[0]), parsed[2]
    return Recorders(owner, lane, owners)


def _recorded(trace: Trace, recorders: Recorders) -> StageTable:
    """Ranges of recorders, and other ranges inside batches."""
    ranges = trace.ranges
    owner = recorders.owner[ranges.category]
    index = np.flatnonzero((owner >= 0) | ~(_is_own(trace) | ranges.crosses_threads))
    owner, lane, thread = owner[index], recorders.lane[ranges.category[index]], ranges.thread[index]
    start_ns, end_ns = ranges.start_ns[index], ranges.end_ns[index]
    is_batch = ranges.has_payload[index] & (owner >= 0)
    lane = _with_lanes_of_others(start_ns, end_ns, thread, lane, is_batch, owner < 0)

    owner_of_mark = recorders.owner[trace.marks.category]
    of_recorders = np.flatnonzero(owner_of_mark >= 0)
    owner_of_mark, lane_of_mark = owner_of_mark[of_recorders], recorders.lane[trace.marks.category[of_recorders]]
    mark_ns, mark_thread = trace.marks.time_ns[of_recorders], trace.marks.thread[of_recorders]
    payload, mark_name = trace.marks.payload[of_recorders].astype(np.int64), trace.marks.name[of_recorders]

    def marks(name: str) -> Int64:
        return np.flatnonzero(mark_name == code_of(trace.names, name))

    count = len(index)
    stack = group_rows(np.r_[thread, mark_thread], np.r_[lane, lane_of_mark]).code
    nesting = nest(np.r_[start_ns, mark_ns], np.r_[end_ns, mark_ns], stack)
    around = np.append(nesting.parent, NO_PARENT)
    owner_of_all = np.r_[owner, owner_of_mark, -1]
    holder = around[count:-1]
    while (climbing := (holder >= 0) & ((holder >= count) | (owner_of_all[holder] != owner_of_mark))).any():
        holder = np.where(climbing, around[holder], holder)
    batch, stops = holder, np.append(is_batch, True)
    while (climbing := ~stops[batch]).any():  # a stage may end at the time of the mark
        batch = np.where(climbing, around[batch], batch)

    parent, level, new_owner, is_kept = _inside_batches(nesting, owner, is_batch)
    items = np.full(count + 1, NOT_COUNTED, dtype=np.int64)
    counts = marks(conventions.MARK_ITEMS)
    counts = counts[np.argsort(mark_ns[counts], kind="stable")]  # the last mark of a batch counts
    items[batch[counts]] = payload[counts]
    items = np.where(is_batch, items[:-1], NOT_COUNTED)
    is_shared = np.zeros(count + 1, dtype=np.bool_)
    is_shared[batch[marks(conventions.MARK_SHARED)]] = True
    open_at_end = _open_at_end(ranges, index, parent) & is_kept
    cut = is_batch & (items == NOT_COUNTED) & open_at_end
    deleted = np.append(cut, False)
    deleted[holder[marks(conventions.MARK_DELETE)]] = True
    at = marks(conventions.MARK_BARRIER)
    waits = BarrierWaits(mark_thread[at], mark_ns[at] - payload[at], mark_ns[at])
    waited_ns = np.zeros(count, dtype=np.int64)
    for of, begin, stop in zip(waits.thread, waits.start_ns, waits.end_ns, strict=True):
        # A waiting asyncio task blocks the other tasks of its thread.
        waited_ns[(start_ns <= begin) & (end_ns >= stop) & (thread == of)] += stop - begin
    table = StageTable(
        index=index,
        start_ns=start_ns,
        end_ns=end_ns,
        owner=new_owner,
        lane=lane,
        thread=thread,
        parent=parent,
        level=level,
        name=ranges.name[index],
        is_batch=is_batch,
        batch_index=np.where(is_batch, ranges.payload[index], 0),
        items=items,
        is_shared=is_shared[:-1],
        is_other=owner != new_owner,
        barrier_wait_ns=waited_ns,
        names=trace.names,
        owners=recorders.owners,
        findings=[
            *_cut_finding(trace, index[cut], index[open_at_end]),
            *_outside_of_batches(trace, index[~is_kept]),
            *_ended_on_another_thread(
                trace, (recorders.owner[ranges.category] < 0) & ranges.crosses_threads & ~_is_own(trace)
            ),
        ],
        from_recorder=True,
        barrier_waits=waits,
    )
    return _rows(table, np.flatnonzero(is_kept & ~table.inside(deleted[:-1])))


def _with_lanes_of_others(
    start: Int64, end: Int64, thread: Int64, lane: Int64, is_batch: Bool, is_other: Bool
) -> Int64:
    """Move ranges of others to the lane of an asyncio task, if it is the only one with a batch around them."""
    others = np.flatnonzero(is_other & np.isin(thread, thread[lane > 0]))
    batches = np.flatnonzero(is_batch & np.isin(thread, thread[others]))
    batches = batches[np.argsort(start[batches], kind="stable")]
    lane = lane.copy()
    tasks_around = np.zeros(len(others), dtype=np.int64)
    stacks = group_rows(thread[batches], lane[batches])
    for number in range(len(stacks)):
        rows = batches[stacks.code == number]
        before = np.searchsorted(start[rows], start[others], side="right") - 1
        reached = np.maximum.accumulate(end[rows])[before]
        is_around = (thread[others] == thread[rows[0]]) & (before >= 0) & (reached >= end[others])
        tasks_around += is_around
        lane[others[is_around]] = lane[rows[0]]
    lane[others[tasks_around != 1]] = 0
    return lane


def _inside_batches(nesting: Nesting, owner: Int64, is_batch: Bool) -> tuple[Integers, Integers, Int64, Bool]:
    """Parent, level and owner of each range, and whether it becomes a result. Ranges inside a batch belong to its
    recorder. Outside batches, a recorder's range gets the nearest parent of the same recorder, and other ranges are
    dropped.
    """
    count = len(owner)
    around = np.append(nesting.parent[:count], NO_PARENT)
    parent, level = around[:-1].copy(), np.zeros(count, dtype=np.int16)
    new_owner, is_inside = np.append(owner, -2), np.append(is_batch, False)
    for rows in rows_of_levels(nesting.level[:count]):
        above = around[rows]
        inside = is_inside[above]
        new_owner[rows[inside]] = new_owner[above[inside]]
        level[rows[inside]] = level[above[inside]] + 1
        is_inside[rows[inside]] = True
        rows, above = rows[~inside], above[~inside]
        while (climbing := (above >= 0) & (new_owner[above] != owner[rows])).any():
            above = np.where(climbing, around[above], above)
        parent[rows], level[rows] = above, np.where(above >= 0, level[above] + 1, 0)
    new_owner = new_owner[:-1]
    return parent, level, new_owner, new_owner >= 0


def _open_at_end(ranges: NvtxRanges, index: Int64, parent: Integers) -> Bool:
    """Mask of ranges cut by the end of their process. nsys ends all open ranges at the process's last event: nested
    ranges then end in the same nanosecond, unlike ranges ended by calls. A single open range is not detected.
    """
    end = ranges.end_ns[index]
    groups = group_rows(pid_of(ranges.thread[index]))
    last = np.zeros(len(groups), dtype=np.int64)
    np.maximum.at(last, groups.code, end)
    inner = np.flatnonzero((parent >= 0) & (end == last[groups.code]))
    inner = inner[end[inner] == end[parent[inner]]]
    cut: Bool = ranges.is_open[index].copy()
    cut[inner] = cut[parent[inner]] = True
    return cut


def _cut_finding(trace: Trace, batches: Int64, rows: Int64) -> Iterator[Finding]:
    ranges = trace.ranges
    names = [
        trace.names[ranges.name[row]] + (f"_{ranges.payload[row]}" if ranges.has_payload[row] else "")
        for row in rows[:5].tolist()
    ]
    if len(batches):
        message = f"The end of the process cut {len(batches)} batch(es), which are not in these results"
        yield Finding("batches-cut", Severity.WARNING, f"{message}; open were {', '.join(names)}.")


def _plain(trace: Trace, nesting: Nesting, domain: str | None, asked: str | None) -> StageTable:
    """Ranges of plain NVTX, of one or all domains."""
    ranges, label = trace.ranges, _domain_labels(trace)
    owners = sorted(set(label.values()))
    owner_of_code = np.full(len(trace.names) + 1, -1, dtype=np.int32)  # last entry: code -1, the default domain
    for code, name_of_domain in label.items():
        owner_of_code[code] = owners.index(name_of_domain)
    owner = owner_of_code[ranges.domain]
    wanted = ~_is_own(trace)
    findings = []
    if domain is not None:
        wanted = owner == (owners.index(domain) if domain in owners else -2)
        if domain not in owners:
            message = f"The trace has no NVTX ranges of domain '{domain}'; its domains are: "
            hint = "Name one of these with --domain, or drop the option."
            message += f"{listed([*map(repr, owners)], LISTED) or 'none'}."
            findings.append(Finding("domain-not-found", Severity.ERROR, message, hint))
    findings += _ended_on_another_thread(trace, wanted & ranges.crosses_threads)
    index = np.flatnonzero(wanted & ~ranges.crosses_threads)
    at = slice(None) if len(index) == len(ranges) else index  # avoids copies
    start_ns, end_ns, owner, thread = ranges.start_ns[at], ranges.end_ns[at], owner[at], ranges.thread[at]
    if len(owners) > 1 or len(index) < len(ranges):
        nesting = nest(start_ns, end_ns, group_rows(owner, thread).code)
    pattern = re.compile(asked or DEFAULT_BATCH_PATTERN, re.IGNORECASE)
    names, name, is_batch, batch_index = _batches_by_name(trace.names, ranges.name[at], start_ns, pattern)
    if asked is not None and len(index) and not is_batch.any():
        message = f"No range name matches --batch-pattern '{asked}', so there are no batches; names are: "
        message += f"{listed([repr(names[code]) for code in distinct(name)], LISTED)}."
        hint = "The pattern is matched from the start of a name."
        findings.append(Finding("batch-pattern-not-found", Severity.ERROR, message, hint))
    nothing = np.zeros(len(index), dtype=np.int64)
    return StageTable(
        index=index,
        start_ns=start_ns,
        end_ns=end_ns,
        owner=owner,
        lane=np.zeros(len(index), dtype=np.int32),
        thread=thread,
        parent=nesting.parent,
        level=nesting.level,
        name=name,
        is_batch=is_batch,
        batch_index=batch_index,
        items=nothing + NOT_COUNTED,
        is_shared=nothing > 0,
        is_other=nothing > 0,
        barrier_wait_ns=nothing,
        names=names,
        owners=owners,
        findings=findings,
        from_recorder=False,
    )


def _is_own(trace: Trace) -> Bool:
    return np.isin(trace.ranges.domain, [code_of(trace.names, name) for name in OWN_DOMAINS])


def _domain_labels(trace: Trace) -> dict[int, str]:
    return {
        code: (trace.names[code] if code >= 0 else "") or PLAIN_DOMAIN_NAME for code in distinct(trace.ranges.domain)
    }


def _outside_of_batches(trace: Trace, rows: Int64) -> Iterator[Finding]:
    """Report ranges without a recorder outside batches."""
    if not len(rows):
        return
    parts = []
    for code, name in _domain_labels(trace).items():
        mine = rows[trace.ranges.domain[rows] == code]
        if len(mine):
            parts.append(f"{len(mine)} of domain '{name}' ({_shown_names(trace, mine)})")
    yield Finding(
        "ranges-of-other-domains",
        Severity.NOTE,
        f"{len(rows)} NVTX ranges of other domains lie outside batches and are in no table: "
        f"{'; '.join(sorted(parts))}.",
        "`perfharness export RUN_OR_TRACE --table ranges` lists them; --domain NAME analyzes one domain.",
    )


def _ended_on_another_thread(trace: Trace, is_left_out: Bool) -> Iterator[Finding]:
    """Report start/end ranges that are on no thread's stack."""
    rows = np.flatnonzero(is_left_out)
    if len(rows):
        yield Finding(
            "ranges-end-on-another-thread",
            Severity.NOTE,
            f"{len(rows)} NVTX ranges ended on another thread than they began on, and are in no table: "
            f"{_shown_names(trace, rows)}.",
            "`perfharness export RUN_OR_TRACE --table ranges` lists them; end ranges on their own thread to include "
            "them.",
        )


def _shown_names(trace: Trace, rows: Int64) -> str:
    """Names with most time, with counts."""
    codes, group, counts = np.unique(trace.ranges.name[rows], return_inverse=True, return_counts=True)
    total_ns = np.bincount(group.ravel(), weights=trace.ranges.end_ns[rows] - trace.ranges.start_ns[rows])
    shown = [
        f"{trace.names[codes[at]][:SHOWN_OF_NAME]}: {counts[at]}, {total_ns[at] / 1e6:.3g} ms"
        for at in np.lexsort((codes, -total_ns))
    ]
    return listed(shown, LISTED)


def _batches_by_name(
    names: list[str], code_of: Integers, start_ns: Int64, pattern: re.Pattern[str]
) -> tuple[list[str], Integers, Bool, Integers]:
    """Names without batch index; and per range its name, whether it is a batch, and its index. Batches without an index
    are numbered by start.
    """
    found: dict[str, int] = {}
    name = np.zeros(len(names), dtype=np.int32)
    number = np.full(len(names), NOT_COUNTED, dtype=np.int64)
    matches = np.zeros(len(names), dtype=np.bool_)
    for code in distinct(code_of):
        text = names[code]
        match = pattern.match(text)
        matches[code] = match is not None
        for group in range(1, len(match.groups()) + 1 if match else 0):
            assert match is not None
            if INDEX.fullmatch(match[group] or ""):
                number[code] = int(match[group])
                text = (text[: match.start(group)] + text[match.end(group) :]).strip(" _-#:") or text
                break
        name[code] = found.setdefault(text, len(found))
    is_batch, batch_index = matches[code_of], number[code_of]
    unnumbered = np.flatnonzero(is_batch & (batch_index == NOT_COUNTED))
    batch_index[unnumbered[np.argsort(start_ns[unnumbered], kind="stable")]] = np.arange(len(unnumbered))
    batch_index[~is_batch] = 0
    return list(found), name[code_of], is_batch, batch_index


def _ordered(table: StageTable) -> StageTable:
    """Order rows by (owner, thread, lane, start), drop levels beyond `MAX_LEVELS`, and resolve name clashes."""
    is_too_deep = table.level >= MAX_LEVELS
    if is_too_deep.any():
        table = replace(table, findings=[*table.findings, _nested_too_deep(table, is_too_deep)])
    order = row_order(table.owner, table.thread, table.lane, table.start_ns, -table.end_ns, table.level)
    if order is not None or is_too_deep.any():
        order = np.arange(len(table)) if order is None else order
        table = _rows(table, order[~is_too_deep[order]])
    return _with_free_names(table)


def _rows(table: StageTable, rows: Int64) -> StageTable:
    """Select rows in this order and renumber parents."""
    place = np.full(len(table) + 1, NO_PARENT, dtype=np.int32)
    place[rows] = np.arange(len(rows))
    return replace(table.select(rows), parent=place[table.parent[rows]])


def _with_free_names(table: StageTable) -> StageTable:
    """Add a suffix to names that clash with keys of numbers, and to stages that are named like a batch."""
    names, name = list(table.names), table.name
    batches = {names[code] for code in distinct(name[table.is_batch])}
    for is_batch in (True, False):
        for code in distinct(name[table.is_batch == is_batch]):
            indexed = re.fullmatch(r"(.*)_-?\d+", names[code], re.DOTALL)
            like_batch = names[code] in batches or (indexed is not None and indexed[1] in batches)
            if names[code] in RESERVED_KEYS or (like_batch and not is_batch):
                name = np.where((name == code) & (table.is_batch == is_batch), len(names), name)
                names.append(names[code] + STAGE_SUFFIX)
    return table if len(names) == len(table.names) else replace(table, names=names, name=name)


def _nested_too_deep(table: StageTable, is_too_deep: Bool) -> Finding:
    rows = np.flatnonzero(is_too_deep)
    codes, counts = np.unique(table.name[rows], return_counts=True)
    return Finding(
        "nested-too-deep",
        Severity.WARNING,
        f"{len(rows)} ranges ({table.is_batch[rows].sum()} batches, mostly '{table.names[codes[np.argmax(counts)]]}') "
        f"are nested deeper than {MAX_LEVELS} levels; results include them only in the ranges around them.",
        "Pop every range, because an open one encloses all that follow. `perfharness export --table ranges` lists all.",
    )
