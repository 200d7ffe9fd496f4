"""A comparison in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from perfharness.bench.engines.model import EngineComparison, EngineResult
from perfharness.model.bench import AccuracyRecord
from perfharness.render.terminal.console import Column, fixed, print_table, say
from perfharness.render.text import NOT_MEASURED

DEPTH_COLUMNS = ("abs_rel", "sq_rel", "rmse", "delta1", "delta2", "delta3", "scale")
SPEED_COLUMNS = (
    "engine",
    "mean",
    "p50",
    "p90",
    "p95",
    "p99",
    "min",
    "max",
    "std",
    "images/s",
    "speed-up",
    "iterations",
)
NOT_SHOWN = ("p90", "min", "std", "iterations")
"""Columns that a terminal has no room for; the picture and the JSON have all."""

GPU_COLUMNS = ("engine", "GPU %", "memory GiB", "W", "J/image", "clock drop %")


def print_comparison(console: Console, comparison: EngineComparison) -> None:
    """Print speed, GPU, errors, pairs and remarks."""
    engines = comparison.engines
    places = [place for place, name in enumerate(SPEED_COLUMNS) if name not in NOT_SHOWN]
    speeds = [[row[place] for place in places] for row in (SPEED_COLUMNS, *map(speed_row, engines))]
    _table(console, "latency of one image, ms", speeds[0], speeds[1:])
    if comparison.gpu_uuid is None:
        say(console, f"GPU: {comparison.gpu_reason}")
    else:
        title = f"GPU {comparison.gpu_index}, in the telemetry pass"
        _table(console, title, GPU_COLUMNS, [_gpu_row(one) for one in engines])
    _print_accuracy(console, "the image against its ground truth", {one.name: one.image_accuracy for one in engines})
    _print_accuracy(console, "the data set against its ground truth", {one.name: one.accuracy for one in engines})
    if comparison.pairs:
        title = f"maps of two engines, each normalised ({comparison.pairs[0].over})"
        rows = [
            [f"{one.first} - {one.second}", str(one.images), *map(_shown, (one.mae, one.rmse, one.max))]
            for one in comparison.pairs
        ]
        _table(console, title, ("engines", "images", "MAE", "RMSE", "max"), rows)
    for line in _lines(comparison):
        say(console, line)


def speed_row(engine: EngineResult) -> list[str]:
    """An engine's speed in the tables, ms."""
    stats = engine.latency
    if stats is None:
        return [engine.name, *[NOT_MEASURED] * (len(SPEED_COLUMNS) - 1)]
    p90, p95, p99 = (None if one is None else one.value for one in (stats.p90, stats.p95, stats.p99))
    milliseconds = [stats.mean.value, stats.p50, p90, p95, p99, stats.min, stats.max, stats.std]
    return [
        engine.name,
        *map(fixed, milliseconds),
        fixed(engine.images_per_second, 1),
        NOT_MEASURED if engine.speedup is None else f"{engine.speedup:.2f}x",
        str(stats.iterations),
    ]


def _print_accuracy(console: Console, title: str, records: Mapping[str, AccuracyRecord | None]) -> None:
    known = {name: record for name, record in records.items() if record is not None}
    if not known:
        return
    metrics = [name for record in known.values() for name in record.metrics if name != "rmse_log"]
    names = list(dict.fromkeys((*DEPTH_COLUMNS, *metrics)))
    empty = AccuracyRecord(against="", samples=0, metrics={})
    rows = [
        [engine, str((record or empty).samples), *(_shown((record or empty).metrics.get(name)) for name in names)]
        for engine, record in records.items()
    ]
    _table(console, title, ("engine", "images", *names), rows)
    for engine, record in known.items():
        for name, reason in record.reasons.items():
            say(console, f"{engine}, {name.replace('_', ' ')}: {reason}")


def _gpu_row(engine: EngineResult) -> list[str]:
    use = engine.gpu
    memory = None if use.memory_peak_bytes is None else use.memory_peak_bytes / (1 << 30)
    figures = (use.utilization_percent, memory, use.power_mean_w, use.energy_per_inference_j, use.clock_drop_percent)
    return [engine.name, *(_shown(value) for value in figures)]


def _lines(comparison: EngineComparison) -> list[str]:
    found = [f"{one.name} is {one.status}: {one.reason}" for one in comparison.engines if one.status != "ok"]
    if comparison.gpu_uuid is not None:
        for one in comparison.engines:
            found += [f"{one.name}, {name}: {reason}" for name, reason in one.reasons.items()]
    found += [f"{one.first} - {one.second}: {one.reason}" for one in comparison.pairs if one.reason]
    return found + [f"warning: {remark}" for remark in comparison.remarks]


def _table(console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    say(console, f"\n{title}")
    columns = [Column(name, is_text=not place, drop=max(0, place - 1)) for place, name in enumerate(headings)]
    print_table(console, columns, rows)


def _shown(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.4g}"
