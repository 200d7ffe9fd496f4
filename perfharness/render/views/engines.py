"""A comparison of engines: speed, GPU, errors, differences of their maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfharness.bench.engines.model import EngineComparison, EngineResult
from perfharness.model.bench import AccuracyRecord
from perfharness.render.blocks import Block, Cell, Column, Items, Table
from perfharness.render.numbers import factor

DEPTH_METRICS = ("abs_rel", "sq_rel", "rmse", "delta1", "delta2", "delta3", "scale")
GIB = float(1 << 30)


def engines_view(comparison: EngineComparison) -> list[Block]:
    """Tables, then remarks."""
    engines = comparison.engines
    return [
        speed_table(engines),
        *_gpu(comparison),
        *_accuracy("image", "the image", {one.name: one.image_accuracy for one in engines}),
        *_accuracy("data set", "the data set", {one.name: one.accuracy for one in engines}),
        *_pairs(comparison),
        *_remarks(comparison),
    ]


def speed_table(engines: Sequence[EngineResult]) -> Table:
    """Latency and rate of each engine."""
    columns = [
        Column("engine"),
        Column("mean", "ms"),
        Column("p50", "ms"),
        Column("p90", "ms", drop=5),
        Column("p95", "ms", drop=1),
        Column("p99", "ms", drop=2),
        Column("min", "ms", drop=6),
        Column("max", "ms", drop=3),
        Column("std", "ms", drop=7),
        Column("images/s", "number"),
        Column("speed-up", "number"),
        Column("iterations", "count", drop=4),
    ]
    rows = [_speed_row(one) for one in engines]
    return Table("speed", columns, rows, "Latency of one image, ms.")


def _speed_row(engine: EngineResult) -> list[Cell]:
    stats = engine.latency
    if stats is None:
        return [engine.name, *[None] * 11]
    return [
        engine.name,
        stats.mean.value,
        stats.p50,
        *(None if one is None else one.value for one in (stats.p90, stats.p95, stats.p99)),
        stats.min,
        stats.max,
        stats.std,
        engine.images_per_second,
        factor(engine.speedup),
        stats.iterations,
    ]


def _gpu(comparison: EngineComparison) -> Iterator[Block]:
    if comparison.gpu_uuid is None:
        yield Items([f"GPU: {comparison.gpu_reason}"])
        return
    headings = ("GPU %", "memory GiB", "W", "J/image", "clock drop %")
    rows: list[list[Cell]] = []
    for one in comparison.engines:
        use = one.gpu
        memory = None if use.memory_peak_bytes is None else use.memory_peak_bytes / GIB
        energy = use.energy_per_inference_j
        rows.append([one.name, use.utilization_percent, memory, use.power_mean_w, energy, use.clock_drop_percent])
    note = f"GPU {comparison.gpu_index}, in the telemetry pass."
    yield Table("GPU", [Column("engine"), *(Column(name, "number") for name in headings)], rows, note)


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
    pairs = comparison.pairs
    if not pairs:
        return
    columns = [
        Column("engines"),
        Column("images", "count"),
        *(Column(name, "number") for name in ("MAE", "RMSE", "max")),
    ]
    rows: list[list[Cell]] = [[f"{one.first} - {one.second}", one.images, one.mae, one.rmse, one.max] for one in pairs]
    yield Table("pairs", columns, rows, f"Maps of two engines, each normalised ({pairs[0].over}).")


def _remarks(comparison: EngineComparison) -> Iterator[Items]:
    engines = comparison.engines
    lines = [f"{one.name} is {one.status}: {one.reason}" for one in engines if one.status != "ok"]
    if comparison.gpu_uuid is not None:
        lines += [f"{one.name}, {name}: {reason}" for one in engines for name, reason in one.reasons.items()]
    lines += [f"{one.first} - {one.second}: {one.reason}" for one in comparison.pairs if one.reason]
    lines += [f"warning: {remark}" for remark in comparison.remarks]
    if lines:
        yield Items(lines)
