"""Which ranges make up the result, and what they mean: recorder, lane, batch index, item count, deleted or not.

A recorder's trace is self-describing (docs/internals/trace-conventions.md). A trace of plain NVTX calls is read by a
pattern that matches the names of batches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfharness.analysis.stages.paths import StagePaths, unique_keys
from perfharness.analysis.timeline.grouping import distinct, group_rows, rows_of_levels
from perfharness.analysis.timeline.intervals import NO_PARENT, Nesting, nest
from perfharness.model import conventions
from perfharness.model.findings import Finding, Severity
from perfharness.model.trace import Bool, Int64, Integers, NvtxMarks, NvtxRanges, Trace, pid_of

NOT_COUNTED = -1
"""Item count of a batch that recorded none."""

MAX_INDEX = re.compile(r"[0-9]{1,18}")
"""What is an index fits in 64 bits."""

DEFAULT_BATCH_PATTERN = r"batch(?:[ _-]?(\d+))?$"
"""Plain NVTX ranges with such a name are batches; matched from the start, ignoring case. Its digits are the index."""

LISTED_NAMES = 8
LISTED_LEFT_OUT = 3
"""How many names a note about ranges in no table shows for each domain, and how much of each."""

SHOWN_OF_NAME = 60

OWN_DOMAINS = (conventions.STARTUP_DOMAIN, conventions.CAPTURE_RANGE)
"""Ranges of these are for the tracer and the timeline."""

MAX_LEVELS = 100
"""Results hold ranges inside of fewer others than this. Many readers of JSON refuse to go deeper (128 levels)."""

PLAIN_DOMAIN_NAME = "nvtx"
"""Stands for the default NVTX domain, which has no name."""


@dataclass(frozen=True)
class BarrierWaits:
    """Waits at the start barrier, one row each: which thread, from when to when, and whether others may have worked."""

    thread: Int64
    start_ns: Int64
    end_ns: Int64
    with_workers: Bool

    def __len__(self) -> int:
        return len(self.thread)


NO_WAITS = BarrierWaits(*(np.empty(0, dtype=np.int64),) * 3, np.empty(0, dtype=np.bool_))


@dataclass(frozen=True)
class StageTable:
    """The ranges that results are made of; all columns are aligned, `parent` indexes this table.

    `index` is the range's index in the trace's ranges, `start_ns` and `end_ns` are its times; `owner` indexes `owners`,
    the recorders (or, of plain NVTX, the domains); `name` indexes `names`; `batch_index` counts where `is_batch`;
    `items` may be `NOT_COUNTED`; `is_shared` marks batches whose items other ranks work on too.
    `barrier_wait_ns` is how long the thread waited at the start barrier inside the range.
    Deleted ranges are not in the table. Rows are ordered by (owner, thread, lane, start).
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
    barrier_wait_ns: Int64
    names: list[str]
    owners: list[str]
    findings: list[Finding]
    from_recorder: bool
    barrier_waits: BarrierWaits = NO_WAITS

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def paths(self) -> StagePaths:
        """Where the stages stand in results: their paths, and the keys of these."""
        return find_paths(self)

    @cached_property
    def rows_of_levels(self) -> list[Integers]:
        """Rows of each level, the outermost first, each level's in their order."""
        return rows_of_levels(self.level)


def find_stages(
    trace: Trace, nesting: Nesting, domain: str | None = None, batch_pattern: str | None = None
) -> StageTable:
    """Pick the ranges that results are made of.

    Args:
        trace: the whole trace.
        nesting: of all its ranges.
        domain: read only this NVTX domain, as plain NVTX; `nvtx` is the default domain. None: the recorders' ranges
            where there are any, else all domains.
        batch_pattern: regular expression that matches the names of plain ranges that are batches.
    """
    if domain is None and batch_pattern is None:
        recorded = _recorded(trace)
        if recorded is not None:
            return recorded
    return _plain(trace, nesting, domain, batch_pattern)


@dataclass(frozen=True)
class Recorders:
    """The recorders of a trace, and for each category code its recorder (-1: none) and its lane."""

    owner: Int64
    lane: Int64
    owners: list[str]

    def owner_of(self, category: Integers) -> Int64:
        """Index in `owners` of each event's recorder, -1 where it has none."""
        return _by_code(self.owner, category)


def _recorded(trace: Trace) -> StageTable | None:
    """Ranges of recorders, or None where no recorder left a trace."""
    ownership = find_recorders(trace)
    if ownership is None:
        return None
    ranges, marks = trace.ranges, trace.marks
    owner = ownership.owner_of(ranges.category)
    index = np.flatnonzero(owner >= 0)
    mark_owner = ownership.owner_of(marks.category)
    mark_index = np.flatnonzero(mark_owner >= 0)
    owner, lane = owner[index], _by_code(ownership.lane, ranges.category)[index]
    mark_lane = _by_code(ownership.lane, marks.category)[mark_index]
    thread, mark_thread = ranges.thread[index], marks.thread[mark_index]

    group = _codes(owner, thread, lane, mark_owner[mark_index], mark_thread, mark_lane)
    times = marks.time_ns[mark_index]
    nesting = nest(np.r_[ranges.start_ns[index], times], np.r_[ranges.end_ns[index], times], group)
    count = len(index)
    holder = _range_of_mark(nesting.parent, count)
    is_batch = ranges.has_payload[index]
    batch = _nearest(holder, nesting.parent, is_batch)
    items = _items(marks, mark_index, batch, trace.names, count)
    waits = _waits(marks, mark_index, trace.names, ownership.owners)
    open_at_end = _cut(ranges, index, nesting.parent[:count])
    cut = is_batch & (items == NOT_COUNTED) & open_at_end
    deleted = _deleted(marks, mark_index, holder, trace.names, cut, nesting.parent[:count], nesting.level[:count])
    table = StageTable(
        index=index, start_ns=ranges.start_ns[index], end_ns=ranges.end_ns[index],
        owner=owner, lane=lane, thread=thread,
        parent=nesting.parent[:count], level=nesting.level[:count], name=ranges.name[index],
        is_batch=is_batch, batch_index=np.where(is_batch, ranges.payload[index], 0),
        items=np.where(is_batch, items, NOT_COUNTED),
        is_shared=_shared(marks, mark_index, batch, trace.names, count),
        barrier_wait_ns=_waited_inside(ranges, index, waits),
        names=trace.names, owners=ownership.owners,
        findings=[
            *_cut_finding(ranges, index[cut], index[open_at_end], trace.names),
            *_other_domains(trace, ownership),
        ],
        from_recorder=True,
        barrier_waits=waits,
    )  # fmt: skip
    return _ordered(table, keep=~deleted)


def find_recorders(trace: Trace) -> Recorders | None:
    """Recorders that declared themselves in the trace; None where there is none."""
    declares = trace.marks.name == _code(trace.names, conventions.MARK_RECORDER)
    declared = np.unique(trace.marks.category[declares & (trace.marks.category >= 0)])
    owners = [trace.names[code] for code in declared]
    if not owners:
        return None
    owner = np.full(len(trace.names), -1, dtype=np.int64)
    lane = np.zeros(len(trace.names), dtype=np.int64)
    known = frozenset(owners)
    for code in np.unique(np.r_[trace.ranges.category, trace.marks.category]):
        parsed = conventions.parse_category(trace.names[code], known) if code >= 0 else None
        if parsed is not None:
            owner[code], lane[code] = owners.index(parsed[0]), parsed[2]
    return Recorders(owner, lane, owners)


def _range_of_mark(parent: Int64, count: int) -> Int64:
    """The innermost range around each mark. Marks of one moment enclose each other; they are stepped over."""
    holder = parent[count:]
    while (holder >= count).any():
        holder = np.where(holder >= count, parent[holder], holder)
    return holder


def _nearest(holder: Int64, parent: Int64, is_batch: Bool) -> Int64:
    """The innermost batch around each holder, itself included: a stage may end in the very moment of the mark."""
    stops = np.append(is_batch, True)  # the last one stands for the holder -1: a mark outside of any range
    while (climbing := ~stops[holder]).any():
        holder = np.where(climbing, parent[holder], holder)
    return holder


def _items(marks: NvtxMarks, mark_index: Int64, holder: Int64, names: list[str], count: int) -> Int64:
    items = np.full(count, NOT_COUNTED, dtype=np.int64)
    counts = (marks.name[mark_index] == _code(names, conventions.MARK_ITEMS)) & (holder >= 0)
    order = np.argsort(marks.time_ns[mark_index[counts]], kind="stable")  # the last mark of a batch wins
    items[holder[counts][order]] = marks.payload[mark_index[counts]][order]
    return items


def _shared(marks: NvtxMarks, mark_index: Int64, holder: Int64, names: list[str], count: int) -> Bool:
    shared = np.zeros(count, dtype=np.bool_)
    shared[holder[(marks.name[mark_index] == _code(names, conventions.MARK_SHARED)) & (holder >= 0)]] = True
    return shared


def _cut(ranges: NvtxRanges, index: Int64, parent: Int64) -> Bool:
    """Ranges that the end of their process cut.

    nsys has all that is open end with the last event of the process: two of them, one in the other, end in the same
    nanosecond, which two calls never do. One that is open alone is not told from one that ended there; a batch with
    items has ended.
    """
    end = ranges.end_ns[index]
    groups = group_rows(pid_of(ranges.thread[index]))
    last = np.zeros(len(groups), dtype=np.int64)
    np.maximum.at(last, groups.code, end)
    inner = np.flatnonzero((parent >= 0) & (parent < len(index)) & (end == last[groups.code]))
    inner = inner[end[inner] == end[parent[inner]]]
    cut: Bool = ranges.is_open[index].copy()
    cut[inner] = cut[parent[inner]] = True
    return cut


def _cut_finding(ranges: NvtxRanges, batches: Int64, rows: Int64, names: list[str]) -> list[Finding]:
    if not len(batches):
        return []
    shown = [
        f"{names[ranges.name[row]]}_{ranges.payload[row]}" if ranges.has_payload[row] else names[ranges.name[row]]
        for row in rows[:5].tolist()
    ]
    return [
        Finding(
            "batches-cut",
            Severity.WARNING,
            f"The end of its process cut {len(batches)} batch(es), which are not in these results; open were "
            f"{', '.join(shown)}.",
        )
    ]


def _deleted(
    marks: NvtxMarks,
    mark_index: Int64,
    holder: Int64,
    names: list[str],
    cut: Bool,
    parent: Int64,
    level: Int64,
) -> Bool:
    deleted: Bool = cut.copy()
    deletes = (marks.name[mark_index] == _code(names, conventions.MARK_DELETE)) & (holder >= 0)
    deleted[holder[deletes]] = True
    for at in rows_of_levels(level)[1:] if deleted.any() else ():
        deleted[at] |= deleted[parent[at]]
    return deleted


def _waits(marks: NvtxMarks, mark_index: Int64, names: list[str], owners: list[str]) -> BarrierWaits:
    """A wait ends where its mark stands, and is as long as the mark's payload."""
    at = mark_index[marks.name[mark_index] == _code(names, conventions.MARK_BARRIER)]
    end, known = marks.time_ns[at], frozenset(owners)
    categories = [conventions.parse_category(names[code], known) for code in marks.category[at].tolist()]
    with_workers = [parsed is not None and parsed[1] == conventions.WITH_WORKERS for parsed in categories]
    return BarrierWaits(marks.thread[at], end - marks.payload[at], end, np.asarray(with_workers, dtype=np.bool_))


def _waited_inside(ranges: NvtxRanges, index: Int64, waits: BarrierWaits) -> Int64:
    """Nanoseconds that the thread of each range waited at the start barrier while the range was open.

    By time and thread, not by nesting: an asyncio task that waits holds up the other tasks of its loop too, and ranges
    of other recorders may lie around it.
    """
    waited = np.zeros(len(index), dtype=np.int64)
    for thread, start, end in zip(waits.thread, waits.start_ns, waits.end_ns, strict=True):
        around = (ranges.start_ns[index] <= start) & (ranges.end_ns[index] >= end)
        waited[around & (ranges.thread[index] == thread)] += end - start
    return waited


def _plain(trace: Trace, nesting: Nesting, domain: str | None, asked: str | None) -> StageTable:
    pattern = re.compile(asked or DEFAULT_BATCH_PATTERN, re.IGNORECASE)
    ranges = trace.ranges
    label = _domain_labels(trace)
    owners = sorted(set(label.values()))
    owner_of_code = np.full(len(trace.names) + 1, -1, dtype=np.int32)  # the last one is code -1, the default domain
    for code, label_of_code in label.items():
        owner_of_code[code] = owners.index(label_of_code)
    owner = owner_of_code[ranges.domain]
    of_domain = ~_is_own(trace)
    if domain in owners:
        of_domain = owner == owners.index(domain)
    wanted = of_domain & ~ranges.crosses_threads
    findings = _ended_on_another_thread(trace, of_domain & ranges.crosses_threads)
    if domain is not None and domain not in owners:
        there = ", ".join(f"'{name}'" for name in owners) or "none"
        findings.append(
            Finding(
                "domain-not-found",
                Severity.ERROR,
                f"No NVTX range of domain '{domain}' is in the trace; domains there are: {there}.",
                "Name one of these with --domain, or leave the option out.",
            )
        )
        wanted = np.zeros_like(wanted)
    index = np.flatnonzero(wanted)
    at = slice(None) if wanted.all() else index  # of all, no copies
    start_ns, end_ns, owner, thread = ranges.start_ns[at], ranges.end_ns[at], owner[at], ranges.thread[at]
    if len(owners) > 1 or len(index) < len(ranges):
        nesting = nest(start_ns, end_ns, group_rows(owner, thread).code)
    names, name, is_batch, batch_index = _batches_by_name(trace.names, ranges.name[at], start_ns, pattern)
    if asked is not None and len(index) and not is_batch.any():
        findings.append(_pattern_not_found(asked, names, name))
    table = StageTable(
        index=index, start_ns=start_ns, end_ns=end_ns, owner=owner, lane=np.zeros(len(index), dtype=np.int32),
        thread=thread,
        parent=nesting.parent, level=nesting.level, name=name, is_batch=is_batch, batch_index=batch_index,
        items=np.full(len(index), NOT_COUNTED, dtype=np.int64), is_shared=np.zeros(len(index), dtype=np.bool_),
        barrier_wait_ns=np.zeros(len(index), dtype=np.int64), names=names, owners=owners,
        findings=findings, from_recorder=False,
    )  # fmt: skip
    return _ordered(table, keep=np.ones(len(index), dtype=np.bool_))


def _is_own(trace: Trace) -> Bool:
    return np.isin(trace.ranges.domain, [_code(trace.names, name) for name in OWN_DOMAINS])


def _other_domains(trace: Trace, recorders: Recorders) -> list[Finding]:
    """The note about ranges that no recorder made."""
    left_out = np.flatnonzero((recorders.owner_of(trace.ranges.category) < 0) & ~_is_own(trace))
    if not len(left_out):
        return []
    label, domain = _domain_labels(trace), trace.ranges.domain[left_out]
    parts = []
    for code in distinct(domain):
        rows = left_out[domain == code]
        parts.append(f"{len(rows)} of domain '{label[int(code)]}' ({_shown_names(trace, rows)})")
    return [
        Finding(
            "ranges-of-other-domains",
            Severity.NOTE,
            f"{len(left_out)} NVTX ranges that no recorder made are in no table: {'; '.join(sorted(parts))}.",
            "`perfharness export RUN_OR_TRACE --table ranges` lists them; --domain NAME analyzes one domain.",
        )
    ]


def _ended_on_another_thread(trace: Trace, is_left_out: Bool) -> list[Finding]:
    """The note about start/end ranges that have no place on a thread's stack."""
    rows = np.flatnonzero(is_left_out)
    if not len(rows):
        return []
    return [
        Finding(
            "ranges-end-on-another-thread",
            Severity.NOTE,
            f"{len(rows)} NVTX ranges end on another thread than they began on and are in no table: "
            f"{_shown_names(trace, rows)}.",
            "`perfharness export RUN_OR_TRACE --table ranges` lists them; end a range on its thread to have it in "
            "the tables.",
        )
    ]


def _shown_names(trace: Trace, rows: Int64) -> str:
    """The most frequent names with their numbers and their time."""
    codes, group, counts = np.unique(trace.ranges.name[rows], return_inverse=True, return_counts=True)
    total_ns = np.bincount(group.ravel(), weights=trace.ranges.end_ns[rows] - trace.ranges.start_ns[rows])
    order = np.lexsort((codes, -total_ns))
    shown = [
        f"{trace.names[codes[at]][:SHOWN_OF_NAME]}: {counts[at]}, {total_ns[at] / 1e6:.3g} ms"
        for at in order[:LISTED_LEFT_OUT]
    ]
    more = [f"and {len(codes) - LISTED_LEFT_OUT} more names"] if len(codes) > LISTED_LEFT_OUT else []
    return ", ".join([*shown, *more])


def _pattern_not_found(pattern: str, names: list[str], name: Integers) -> Finding:
    there = list(dict.fromkeys(names[code] for code in distinct(name)))
    more = f" and {len(there) - LISTED_NAMES} more" if len(there) > LISTED_NAMES else ""
    return Finding(
        "batch-pattern-not-found",
        Severity.ERROR,
        f"No range has a name as --batch-pattern '{pattern}' asks for, so there are no batches; names there are: "
        f"{', '.join(repr(one) for one in there[:LISTED_NAMES])}{more}.",
        "The pattern is matched from the start of a name; give one that fits.",
    )


def _domain_labels(trace: Trace) -> dict[int, str]:
    return {
        int(code): (trace.names[code] if code >= 0 else "") or PLAIN_DOMAIN_NAME
        for code in distinct(trace.ranges.domain)
    }


def _batches_by_name(
    names: list[str], code_of: Integers, start_ns: Int64, pattern: re.Pattern[str]
) -> tuple[list[str], Integers, Bool, Integers]:
    """Names without their batch index, which of them are batches, and the index; without one, they are numbered.

    Args:
        names: of the trace.
        code_of: the name of each range that counts.
        start_ns: its start.
    """
    plain_names = list(names)
    new_code = np.arange(len(names), dtype=np.int32)
    number = np.full(len(names), NOT_COUNTED, dtype=np.int64)
    matches = np.zeros(len(names), dtype=np.bool_)
    there = np.zeros(len(names), dtype=np.bool_)
    there[code_of] = True
    for code in np.flatnonzero(there).tolist():
        match = pattern.match(names[code])
        if match is None:
            continue
        matches[code] = True
        digits = next(
            (position for position in range(1, len(match.groups()) + 1) if MAX_INDEX.fullmatch(match[position] or "")),
            None,
        )
        if digits is not None:
            number[code] = int(match[digits])
            base = (names[code][: match.start(digits)] + names[code][match.end(digits) :]).strip(" _-#:")
            new_code[code] = len(plain_names)
            plain_names.append(base or names[code])
    # Names that lose their index become equal strings: give them one code.
    first_code: dict[str, int] = {}
    unified = np.asarray([first_code.setdefault(name, code) for code, name in enumerate(plain_names)], dtype=np.int32)
    if number.max(initial=0) <= np.iinfo(np.int32).max:
        number = number.astype(np.int32)
    new_code = unified[new_code]
    used = np.flatnonzero(there)
    name = code_of if (new_code[used] == used).all() else new_code[code_of]
    is_batch, batch_index = matches[code_of], number[code_of]
    unnumbered = np.flatnonzero(is_batch & (batch_index == NOT_COUNTED))
    in_order = unnumbered[np.argsort(start_ns[unnumbered], kind="stable")]
    batch_index[in_order] = np.arange(len(in_order))
    batch_index[~is_batch] = 0
    return plain_names, name, is_batch, batch_index


def _ordered(table: StageTable, keep: Bool) -> StageTable:
    """Rows that are kept, ordered by (owner, thread, lane, start), parents renumbered; no deeper than `MAX_LEVELS`."""
    too_deep = keep & (table.level >= MAX_LEVELS)
    if too_deep.any():
        keep = keep & ~too_deep
        table = replace(table, findings=[*table.findings, _nested_too_deep(table, too_deep)])
    order = np.lexsort((table.level, -table.end_ns, table.start_ns, table.lane, table.thread, table.owner))
    order = order[keep[order]]
    if len(order) == len(table) and (order[1:] > order[:-1]).all():
        return table
    new_place = np.full(len(table.index) + 1, NO_PARENT, dtype=np.int32)
    new_place[order] = np.arange(len(order))
    columns = {
        name: getattr(table, name)[order]
        for name in (
            "index",
            "start_ns",
            "end_ns",
            "owner",
            "lane",
            "thread",
            "level",
            "name",
            "is_batch",
            "batch_index",
            "items",
            "is_shared",
            "barrier_wait_ns",
        )
    }
    return replace(table, **columns, parent=new_place[table.parent[order]])


def _nested_too_deep(table: StageTable, too_deep: Bool) -> Finding:
    rows = np.flatnonzero(too_deep)
    batches = int(table.is_batch[rows].sum())
    codes, counts = np.unique(table.name[rows], return_counts=True)
    most = table.names[codes[np.argmax(counts)]]
    return Finding(
        "nested-too-deep",
        Severity.WARNING,
        f"{len(rows)} ranges ({batches} batches, mostly '{most}') lie inside of {MAX_LEVELS} others or more; in the "
        "results they are a part of the ranges around them only.",
        "Pop every range: one that stays open holds all that follow. `perfharness export --table ranges` has each.",
    )


def _codes(owner: Int64, thread: Int64, lane: Int64, mark_owner: Int64, mark_thread: Int64, mark_lane: Int64) -> Int64:
    """One number per (owner, thread, lane), ranges first, marks behind them."""
    keys = np.stack([np.r_[owner, mark_owner], np.r_[thread, mark_thread], np.r_[lane, mark_lane]])
    codes: Int64 = np.unique(keys, axis=1, return_inverse=True)[1].astype(np.int64).ravel()
    return codes


def _by_code(values: Int64, codes: Int64) -> Int64:
    """`values[code]`, -1 for the code -1."""
    return np.append(values, np.int64(-1))[codes]


def _code(names: list[str], name: str) -> int:
    """Code of a name; a code that nothing has where the trace does not know the name."""
    try:
        return names.index(name)
    except ValueError:
        return -2


def find_paths(stages: StageTable) -> StagePaths:
    """Number the paths of all stages, and give them keys."""
    code = name_paths(stages)
    count = int(code.max(initial=-1)) + 1
    first = np.zeros(count, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)  # of several writes the last one stays
    above = stages.parent[first]
    parent = np.where(above >= 0, code[above], -1).astype(np.int64)
    owner = np.asarray(stages.owner[first], dtype=np.int64)
    is_batch = np.asarray(stages.is_batch[first], dtype=np.bool_)
    names = [stages.names[name] for name in stages.name[first].tolist()]
    around = np.where(parent >= 0, parent, -1 - owner).tolist()
    owners = [stages.owners[position] for position in owner.tolist()]
    return StagePaths(code, first, parent, is_batch, unique_keys(around, names, is_batch.tolist()), owners)


def name_paths(stages: StageTable) -> Integers:
    """One number per chain of names from the outermost range down, owners, batches and stages distinguished."""
    path = np.zeros(len(stages), dtype=np.int32)
    next_number = 0
    for at in stages.rows_of_levels:
        parent = stages.parent[at]
        above = np.where(parent >= 0, path[parent], -1)
        groups = group_rows(stages.owner[at], above, stages.name[at], stages.is_batch[at].astype(np.int8))
        path[at] = groups.code + next_number
        next_number += len(groups)
    return path
