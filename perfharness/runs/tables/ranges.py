"""Tables of ranges, batches and stages of one process. Times are ns; null means not measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.timeline.grouping import group_rows
from perfharness.model.columns import Bool, Int64
from perfharness.model.result import path_text
from perfharness.model.trace import Style, pid_of, tid_of

STYLE_NAMES = {Style.PUSH_POP: "push_pop", Style.START_END: "start_end"}


def range_rows(analysis: Analysis, process: str) -> pa.Table:
    """One row per range by process, thread and start; parents come before children."""
    trace, table = analysis.trace, analysis.table
    ranges, projection, order = table.ranges, table.projection, table.order
    gpu_known, operation_count = table.gpu_known[order], projection.operation_count[order]
    has_no_work = (operation_count == 0) | ~gpu_known
    start, parent = np.asarray(ranges.start_ns[order]), table.nesting.parent[order]
    gpu_start = projection.start_ns[order]
    return pa.table(
        {
            "process": constant(process, len(start)),
            "range_id": whole(ranges.row[order]),
            "parent_id": nullable(ranges.row[parent], parent < 0),
            **{
                column: names_of(getattr(ranges, column)[order], trace.names).cast(pa.string())
                for column in ("name", "domain", "category")
            },
            "style": pa.DictionaryArray.from_arrays(ranges.style[order].astype(np.int8), list(STYLE_NAMES.values())),
            "pid": pid_of(ranges.thread[order]),
            "tid": tid_of(ranges.thread[order]),
            "level": whole(table.nesting.level[order]),
            "start_ns": start,
            "start_unix_ns": unix_times(start, trace.meta.session_start_unix_ns),
            "duration_ns": ranges.end_ns[order] - start,
            "gpu_start_ns": nullable(gpu_start, has_no_work),
            "gpu_duration_ns": nullable(projection.end_ns[order] - gpu_start, has_no_work),
            "gpu_busy_ns": nullable(projection.busy_ns[order], has_no_work),
            "gpu_op_count": nullable(operation_count, ~gpu_known),
            "payload": nullable(ranges.payload[order], ~ranges.has_payload[order]),
        }
    )


def batch_rows(analysis: Analysis, process: str) -> pa.Table:
    """One row per batch by start. GPU times are 0 without GPU work, and null if unknown."""
    stages = analysis.stages
    batches = np.flatnonzero(stages.is_batch)
    batches = batches[np.argsort(stages.start_ns[batches], kind="stable")]
    numbers = _numbers(analysis, batches, batches, np.arange(len(batches)))
    return pa.table({**_common(analysis, process, batches, batches), **numbers})


def stage_rows(analysis: Analysis, process: str) -> pa.Table:
    """One row per stage and batch, by batch and first start.

    `count` is the number of occurrences in the batch, and times are their sums, as in benchmark.json. Items are those
    of the batch.
    """
    stages, stage_times, ranges = analysis.stages, analysis.stage_times, analysis.table.ranges
    inside = np.flatnonzero((stage_times.batch >= 0) & ~stages.is_batch)
    inside = inside[np.argsort(stages.start_ns[inside], kind="stable")]
    groups = group_rows(stages.paths.code[inside], stage_times.batch[inside])
    batch = stage_times.batch[inside[groups.first]]
    order = np.lexsort((groups.first, batch, stages.start_ns[batch]))
    rows, owner = inside[groups.first[order]], np.argsort(order)[groups.code]
    common = _common(analysis, process, rows, stage_times.batch[rows])
    del common["range_id"]  # there may be several
    return pa.table(
        {
            **{name: common.pop(name) for name in ("process", "recorder", "path")},
            "stage": names_of(stages.paths.code[rows], stages.paths.keys),
            **common,
            "batch_range_id": whole(ranges.row[stages.index[stage_times.batch[rows]]]),
            "count": np.bincount(owner, minlength=len(rows)),
            **_numbers(analysis, rows, inside, owner),
        }
    )


def path_texts(stages: StageTable) -> list[str]:
    """Texts of paths as in benchmark.json: names from the outermost range, without batch indices."""
    paths = stages.paths
    return [path_text(paths.names(path)[1:]) for path in range(len(paths))]


def _common(analysis: Analysis, process: str, rows: Int64, batch: Int64) -> dict[str, pa.Array]:
    stages, ranges = analysis.stages, analysis.table.ranges
    return {
        "process": constant(process, len(rows)),
        "recorder": names_of(stages.owner[rows], stages.owners),
        "path": names_of(stages.paths.code[rows], path_texts(stages)),
        "batch_index": whole(stages.batch_index[batch]),
        "pid": pid_of(stages.thread[rows]),
        "tid": tid_of(stages.thread[rows]),
        "range_id": whole(ranges.row[stages.index[rows]]),
        "start_ns": stages.start_ns[rows],
        "start_unix_ns": unix_times(stages.start_ns[rows], analysis.trace.meta.session_start_unix_ns),
    }


def _numbers(analysis: Analysis, rows: Int64, summed: Int64, owner: Int64) -> dict[str, pa.Array]:
    """Times and items of rows: sums over the stages `summed`, each of which belongs to the row `owner`."""
    stages, table, projection = analysis.stages, analysis.table, analysis.table.projection

    def total(values: Int64) -> Int64:
        sums = np.zeros(len(rows), dtype=np.int64)
        np.add.at(sums, owner, values[summed])
        return sums

    count = projection.operation_count[stages.index]
    gpu_ns = (projection.end_ns - projection.start_ns)[stages.index]
    times = {
        "duration_ns": total(stages.end_ns - stages.start_ns),
        "gpu_duration_ns": total(np.where(count > 0, gpu_ns, 0)),
        "gpu_busy_ns": total(np.where(count > 0, projection.busy_ns[stages.index], 0)),
    }
    gpu_unknown = total((~table.gpu_known[stages.index]).astype(np.int64)) > 0
    unknown = {name: gpu_unknown & name.startswith("gpu") for name in times}
    items = analysis.stage_times.items[rows]
    uncounted, has_items = np.isnan(items), items > 0
    divisor = np.where(has_items, items, 1)
    return {
        **{name: nullable(values, unknown[name]) for name, values in times.items()},
        "gpu_op_count": nullable(total(count), gpu_unknown),
        "items": nullable(np.where(uncounted, 0, items).astype(np.int64), uncounted),
        **{
            name.replace("_ns", "_per_item_ns"): nullable(values / divisor, ~has_items | unknown[name])
            for name, values in times.items()
        },
        "warmup": pa.array(analysis.stage_times.warmup[rows]),
    }


# ---- columns, without copies if they have no nulls ----


def whole(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Widen integers to 64 bits, so that tables of all traces have the same types."""
    return values.astype(np.int64, copy=False) if values.dtype.kind == "i" else values


def nullable(values: npt.NDArray[Any], is_null: Bool) -> pa.Array:
    """Make a column with nulls, or a view of 64-bit values without nulls."""
    values = whole(values)
    return pa.array(values, mask=is_null) if is_null.any() else pa.array(values)


def unknown_is_null(values: Int64) -> pa.Array:
    """Make a column with null for negative values."""
    return nullable(values, values < 0)


def names_of(codes: Int64, names: list[str]) -> pa.DictionaryArray:
    """Make a dictionary-encoded column with only the used names; code -1 is null."""
    used, place = np.unique(codes, return_inverse=True)
    number: dict[str, int] = {}  # several codes may have equal names
    index_of = np.asarray(
        [number.setdefault(names[code], len(number)) if code >= 0 else -1 for code in used], dtype=np.int32
    )
    index = index_of[place.ravel()]
    return pa.DictionaryArray.from_arrays(pa.array(index, mask=index < 0), pa.array(list(number), type=pa.string()))


def constant(value: str, count: int) -> pa.DictionaryArray:
    """Make a dictionary-encoded column of one value."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), pa.array([value], pa.string()))


def unix_times(start_ns: Int64, session_start_unix_ns: int | None) -> pa.Array:
    """Convert trace times to UTC nanoseconds; null if the start of the trace is unknown."""
    if session_start_unix_ns is None:
        return pa.nulls(len(start_ns), pa.int64())
    return pa.array(start_ns + session_start_unix_ns)
