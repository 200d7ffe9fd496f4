"""A comparison of engines: speed, GPU, errors, differences of their maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from perfharness.bench.engines.model import EngineComparison, EngineResult, PairResult
from perfharness.model.bench import AccuracyRecord, Estimate
from perfharness.render.blocks import Block, Cell, Column, Columns, Items, Table, table_of
from perfharness.render.numbers import factor

DEPTH_METRICS = ("abs_rel", "sq_rel", "rmse", "delta1", "delta2", "delta3", "scale")
GIB = float(1 << 30)


def engines_view(comparison: EngineComparison) -> list[Block]:
    """Tables, then remarks."""
    engines = comparison.engines
    return [
        speed_table(engines),
        _gpu(comparison),
        *_accuracy("image", "the image", {one.name: one.image_accuracy for one in engines}),
        *_accuracy("data set", "the data set", {one.name: one.accuracy for one in engines}),
        *_pairs(comparison),
        *_remarks(comparison),
    ]


def speed_table(engines: Sequence[EngineResult]) -> Table:
    """Latency and rate of each engine."""

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
        (Column("images/s", "number"), lambda one: one.images_per_second),
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
        (Column("GPU %", "number"), lambda one: one.gpu.utilization_percent),
        (Column("memory GiB", "number"), lambda one: _gibibytes(one.gpu.memory_peak_bytes)),
        (Column("W", "number"), lambda one: one.gpu.power_mean_w),
        (Column("J/image", "number"), lambda one: one.gpu.energy_per_inference_j),
        (Column("clock drop %", "number"), lambda one: one.gpu.clock_drop_percent),
    ]
    return table_of("GPU", columns, comparison.engines, f"GPU {comparison.gpu_index}, in the telemetry pass.")


def _gibibytes(size: int | None) -> Cell:
    return None if size is None else size / GIB


def _accuracy(name: str, what: str, records: Mapping[str, AccuracyRecord | None]) -> Iterator[Block]:
    """Metrics of the maps, and why some are missing."""
    known = {engine: record for engine, record in records.items() if record is not None}
    if not known:
        return
    metrics = dict.fromkeys((*DEPTH_METRICS, *(one for record in known.values() for one in record.metrics)))
    metrics.pop("rmse_log", None)
    columns = [Column(one, "number", drop=place) for place, one in enumerate(metrics)]
    nothing = AccuracyRecord(against="", samples=0, metrics={})
    rows: list[list[Cell]] = [
        [engine, record.samples, *map(record.metrics.get, metrics)]
        for engine, record in ((engine, record or nothing) for engine, record in records.items())
    ]
    note = f"Map of {what} against its ground truth."
    yield Table(f"accuracy, {name}", [Column("engine"), Column("images", "count"), *columns], rows, note)
    reasons = [
        f"{engine}, {metric.replace('_', ' ')}: {reason}"
        for engine, record in known.items()
        for metric, reason in record.reasons.items()
    ]
    if reasons:
        yield Items(reasons)


def _pairs(comparison: EngineComparison) -> Iterator[Table]:
    columns: Columns[PairResult] = [
        (Column("engines"), lambda one: f"{one.first} - {one.second}"),
        (Column("images", "count"), lambda one: one.images),
        (Column("MAE", "number"), lambda one: one.mae),
        (Column("RMSE", "number"), lambda one: one.rmse),
        (Column("max", "number"), lambda one: one.max),
    ]
    if pairs := comparison.pairs:
        yield table_of("pairs", columns, pairs, f"Maps of two engines, each normalised ({pairs[0].over}).")


def _remarks(comparison: EngineComparison) -> Iterator[Items]:
    engines = comparison.engines
    lines = [f"{one.name} is {one.status}: {one.reason}" for one in engines if one.status != "ok"]
    if comparison.gpu_uuid is not None:
        lines += [f"{one.name}, {name}: {reason}" for one in engines for name, reason in one.reasons.items()]
    lines += [f"{one.first} - {one.second}: {one.reason}" for one in comparison.pairs if one.reason]
    lines += [f"warning: {remark}" for remark in comparison.remarks]
    if lines:
        yield Items(lines)
