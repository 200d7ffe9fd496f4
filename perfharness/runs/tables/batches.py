"""Batches and stages as rows: the Arrow tables of one process. Times in ns, null where not measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.stages.roles import StageTable
from perfharness.model.result import path_text
from perfharness.model.trace import Bool, Int64, pid_of, tid_of
from perfharness.runs.tables.columns import constant, names_of, nullable, unix_times, whole

TIME_COLUMNS = ("duration_ns", "gpu_duration_ns", "gpu_busy_ns")


@dataclass(frozen=True)
class StagePaths:
    """The path of each stage: a code per stage, a text and a last name per code."""

    code: Int64
    texts: list[str]
    last_names: list[str]

    @classmethod
    def of(cls, stages: StageTable) -> StagePaths:
        """Paths as benchmark.json has them: names from the outermost range down, batch indices left out."""
        paths = stages.paths
        texts = [path_text(paths.names(path)[1:]) for path in range(len(paths))]
        return cls(paths.code.astype(np.int64), texts, paths.keys)


@dataclass(frozen=True)
class _Times:
    """Per stage: times and operations; where `gpu_known` is False, those of the GPU are no measurements."""

    duration_ns: Int64
    gpu_duration_ns: Int64
    gpu_busy_ns: Int64
    gpu_op_count: Int64
    gpu_known: Bool

    @classmethod
    def of(cls, analysis: Analysis) -> _Times:
        at, projection = analysis.stages.index, analysis.table.projection
        count = projection.operation_count[at]
        return cls(
            duration_ns=analysis.stages.end_ns - analysis.stages.start_ns,
            gpu_duration_ns=np.where(count > 0, (projection.end_ns - projection.start_ns)[at], 0),
            gpu_busy_ns=np.where(count > 0, projection.busy_ns[at], 0),
            gpu_op_count=count,
            gpu_known=analysis.table.gpu_known[at],
        )

    def summed(self, rows: Int64, owner: Int64, owners: int) -> _Times:
        """Sums of `rows` per owner."""

        def total(values: Int64) -> Int64:
            sums = np.zeros(owners, dtype=np.int64)
            np.add.at(sums, owner, values[rows])
            return sums

        return _Times(
            total(self.duration_ns), total(self.gpu_duration_ns), total(self.gpu_busy_ns), total(self.gpu_op_count),
            gpu_known=total((~self.gpu_known).astype(np.int64)) == 0,
        )  # fmt: skip

    def columns(self) -> dict[str, pa.Array]:
        """Times and the operation count, as columns."""
        gpu = {name: nullable(getattr(self, name), ~self.gpu_known) for name in TIME_COLUMNS[1:]}
        return {
            "duration_ns": pa.array(self.duration_ns),
            **gpu,
            "gpu_op_count": nullable(self.gpu_op_count, ~self.gpu_known),
        }

    def per_item(self, items: npt.NDArray[np.float64]) -> dict[str, pa.Array]:
        """Times divided by items, null where there are none."""
        some = items > 0
        divisor = np.where(some, items, 1)
        return {
            name.replace("_ns", "_per_item_ns"): nullable(
                getattr(self, name) / divisor, ~(some & (self.gpu_known if name.startswith("gpu") else True))
            )
            for name in TIME_COLUMNS
        }


def batch_rows(analysis: Analysis, process: str) -> pa.Table:
    """One row a batch, in order of start. GPU times are 0 where a batch started no GPU work, null where unknown."""
    stages = analysis.stages
    batches = np.flatnonzero(stages.is_batch)
    start = stages.start_ns[batches]
    batches = batches[np.argsort(start, kind="stable")]
    times = _Times.of(analysis).summed(batches, np.arange(len(batches)), len(batches))
    return pa.table({**_common(analysis, process, batches, batches), **_numbers(analysis, batches, times)})


def stage_rows(analysis: Analysis, process: str) -> pa.Table:
    """One row for each stage of each batch, in order of batch and first start.

    A stage that occurs more than once in a batch is one row: `count` says how often, the times are sums, as in
    benchmark.json. Items are those of the batch.
    """
    stages, stage_times, ranges = analysis.stages, analysis.stage_times, analysis.table.ranges
    inside = np.flatnonzero((stage_times.batch >= 0) & ~stages.is_batch)
    inside = inside[np.argsort(stages.start_ns[inside], kind="stable")]
    key = np.stack([StagePaths.of(stages).code[inside], stage_times.batch[inside]])
    _, first, owner = np.unique(key, axis=1, return_index=True, return_inverse=True)
    batch_start = stages.start_ns[stage_times.batch[inside[first]]]
    order = np.lexsort((first, stage_times.batch[inside[first]], batch_start))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    owner, rows = place[owner.ravel()], inside[first[order]]
    times = _Times.of(analysis).summed(inside, owner, len(rows))
    paths = StagePaths.of(stages)
    common = _common(analysis, process, rows, stage_times.batch[rows])
    columns = {
        **{name: common[name] for name in ("process", "recorder", "path")},
        "stage": names_of(paths.code[rows], paths.last_names),
        **{name: column for name, column in common.items() if name not in ("process", "recorder", "path", "range_id")},
        "batch_range_id": whole(ranges.row[stages.index[stage_times.batch[rows]]]),
        "count": np.bincount(owner, minlength=len(rows)),
        **_numbers(analysis, rows, times),
    }
    return pa.table(columns)


def _common(analysis: Analysis, process: str, rows: Int64, batch: Int64) -> dict[str, pa.Array]:
    stages, ranges = analysis.stages, analysis.table.ranges
    at, paths = stages.index[rows], StagePaths.of(stages)
    return {
        "process": constant(process, len(rows)),
        "recorder": names_of(stages.owner[rows], stages.owners),
        "path": names_of(paths.code[rows], paths.texts),
        "batch_index": whole(stages.batch_index[batch]),
        "pid": pid_of(stages.thread[rows]),
        "tid": tid_of(stages.thread[rows]),
        "range_id": whole(ranges.row[at]),
        "start_ns": stages.start_ns[rows],
        "start_unix_ns": unix_times(stages.start_ns[rows], analysis.trace.meta.session_start_unix_ns),
    }


def _numbers(analysis: Analysis, rows: Int64, times: _Times) -> dict[str, pa.Array]:
    items = analysis.stage_times.items[rows]
    uncounted = np.isnan(items)
    return {
        **times.columns(),
        "items": nullable(np.where(uncounted, 0, items).astype(np.int64), uncounted),
        **times.per_item(np.where(uncounted, 0, items)),
        "warmup": pa.array(analysis.stage_times.warmup[rows]),
    }
