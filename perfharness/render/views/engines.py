"""Comparison of engines: speed, GPU, errors, differences of their maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from perfharness.bench.engines.model import EngineComparison, EngineResult, MapDifference
from perfharness.model.bench import Estimate
from perfharness.render.blocks import Block, Cell, Column, Columns, Items, Table, table_of
from perfharness.render.numbers import factor, scaled

DEPTH_METRICS = ("abs_rel", "sq_rel", "rmse", "delta1", "delta2", "delta3", "scale")
GPU_FIELDS = ("utilization_percent", "power_mean_w", "energy_per_item_j", "clock_drop_percent")


def engines_view(comparison: EngineComparison) -> list[Block]:
    """Tables and remarks."""
    engines = comparison.engines
    more = [*_accuracy(comparison), *_differences(engines), *_remarks(comparison)]
    return [speed_table(engines), _gpu(comparison), *more]


def speed_table(engines: Sequence[EngineResult]) -> Table:
    """Latency and throughput of each engine."""

    def latency(name: str) -> Callable[[EngineResult], Cell]:
        return lambda one: _number(getattr(one.latency, name, None))

    columns: Columns[EngineResult] = [
        (Column("engine"), lambda one: one.name),
        (Column("mean", "ms"), latency("mean")),
        (Column("p50", "ms"), latency("p50")),
        (Column("p90", "ms", drop=5), latency("p90")),
        (Column("p95", "ms", drop=1), latency("p95")),
        (Column("p99", "ms", drop=2), latency("p99")),
        (Column("min", "ms", drop=6), latency("min")),
        (Column("max", "ms", drop=3), latency("max")),
        (Column("std", "ms", drop=7), latency("std")),
        (Column("images/s", "number"), lambda one: _number(one.items_per_second)),
        (Column("speed-up", "number"), lambda one: factor(one.speedup)),
        (Column("iterations", "count", drop=4), latency("iterations")),
    ]
    return table_of("speed", columns, engines, "Latency of one image, ms.")


def _number(value: Estimate | float | None) -> Cell:
    return value.value if isinstance(value, Estimate) else value


def _gpu(comparison: EngineComparison) -> Block:
    if comparison.gpu_uuid is None:
        return Items([f"GPU: {comparison.gpu_reason}"])
    columns: Columns[EngineResult] = [
        (Column("engine"), lambda one: one.name),
        (Column("GPU %", "number"), lambda one: one.utilization_percent),
        (Column("memory MB", "number"), lambda one: scaled(one.memory.device_peak_bytes, 1e6)),
        (Column("W", "number"), lambda one: one.power_mean_w),
        (Column("J/image", "number"), lambda one: _number(one.energy_per_item_j)),
        (Column("clock drop %", "number"), lambda one: one.clock_drop_percent),
    ]
    return table_of("GPU", columns, comparison.engines, f"GPU {comparison.gpu_index}, in the telemetry pass.")


def _accuracy(comparison: EngineComparison) -> Iterator[Block]:
    """Metrics of the maps over the data set, or of the image; reasons for missing ones."""
    engines, is_set = comparison.engines, comparison.settings.metric_truth is not None
    records = {one.name: one.accuracy if is_set else one.image_accuracy for one in engines}
    known = {engine: record for engine, record in records.items() if record is not None}
    if not known:
        return
    metrics = dict.fromkeys((*DEPTH_METRICS, *(one for record in known.values() for one in record.metrics)))
    metrics.pop("rmse_log", None)
    columns = [Column(one, "number", drop=place) for place, one in enumerate(metrics)]
    rows: list[list[Cell]] = [
        [engine, record.samples if record else 0, *(record.metrics.get(one) if record else None for one in metrics)]
        for engine, record in records.items()
    ]
    note = "Mean over the images of the data set." if is_set else "Metrics of the image."
    yield Table("accuracy", [Column("engine"), Column("images", "count"), *columns], rows, note)
    reasons = [
        f"{engine}, {metric.replace('_', ' ')}: {reason}"
        for engine, record in known.items()
        for metric, reason in record.reasons.items()
    ]
    if reasons:
        yield Items(reasons)


def _differences(engines: Sequence[EngineResult]) -> Iterator[Table]:
    others = [(one.name, one.difference) for one in engines[1:] if one.difference is not None]
    columns: Columns[tuple[str, MapDifference]] = [
        (Column("engine"), lambda one: one[0]),
        (Column("MAE", "number"), lambda one: one[1].mae),
        (Column("RMSE", "number"), lambda one: one[1].rmse),
        (Column("max", "number"), lambda one: one[1].max),
    ]
    if others:
        note = f"Difference of the normalised map to that of {engines[0].name}."
        yield table_of("difference", columns, others, note)


def _remarks(comparison: EngineComparison) -> Iterator[Items]:
    engines = comparison.engines
    lines = [f"{one.name} is {one.status}: {one.reason}" for one in engines if one.status != "ok"]
    if comparison.gpu_uuid is not None:
        reasons = [(one, name, one.reasons.get(name)) for one in engines for name in GPU_FIELDS]
        lines += [f"{one.name}, {name}: {reason}" for one, name, reason in reasons if reason]
    lines += [f"{one.name}: {one.difference.reason}" for one in engines if one.difference and one.difference.reason]
    lines += [f"warning: {remark}" for remark in comparison.remarks]
    if lines:
        yield Items(lines)
