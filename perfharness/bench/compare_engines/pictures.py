"""Three PNG of a comparison, made of what is on disk. matplotlib is imported here, when it is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.analysis.telemetry_lines import NS_PER_S, with_gaps
from perfharness.bench.accuracy.depth import SMALLEST_DISPARITY, normalised
from perfharness.bench.accuracy.figure import SampleError
from perfharness.bench.accuracy.samples import IMAGE_SUFFIXES, read_image, read_map, resized_map
from perfharness.bench.compare_engines.compare import engine_map
from perfharness.bench.compare_engines.model import (
    DEPTH_PICTURE,
    GPU_PICTURE,
    IMAGE_FOLDER,
    SPEED_PICTURE,
    WALL_NAME,
    EngineComparison,
    EngineResult,
)
from perfharness.errors import PerfHarnessError
from perfharness.files import replacing
from perfharness.model.telemetry import TELEMETRY_NAME, Float64, SampleLog
from perfharness.telemetry.store import read_sample_log

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
NS_PER_MS = 1e6
GIB = float(1 << 30)
WHISKERS = (5, 95)
DPI = 110
NAME_WIDTH = 30

GPU_PANELS = (
    ("gpu_utilization_percent", "utilisation (%)", 1.0),
    ("memory_used_bytes", "memory of the GPU (GiB)", 1 / GIB),
    ("power_instant_mw", "power (W)", 1e-3),
    ("sm_clock_mhz", "SM clock (MHz)", 1.0),
)
INSTEAD = {"power_instant_mw": "power_average_mw"}
"""What is drawn where a GPU does not have the first."""


def draw_comparison(comparison: EngineComparison, folder: Path) -> list[Path]:
    """Draw all three; the files that were written. Raises `ResultError` where they cannot be."""
    return [
        draw_maps(comparison, folder),
        draw_speed(comparison, folder),
        draw_gpu(comparison, folder),
    ]


def _figure(width: float, height: float, title: str) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize="medium", parse_math=False)
    return figure


def _save(figure: Any, path: Path) -> Path:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=DPI, format="png")
    return path


def _color(place: int) -> str:
    return PALETTE[place % len(PALETTE)]


def _empty(ax: Any, text: str) -> None:
    ax.text(0.5, 0.5, textwrap.fill(text, 46), ha="center", va="center", transform=ax.transAxes, fontsize=9,
            color="#666666", parse_math=False)  # fmt: skip


# ---- maps ----


def draw_maps(comparison: EngineComparison, folder: Path) -> Path:
    """The image, the ground truth, and of each engine: map, error to the truth, difference to the first engine's."""
    settings = comparison.settings
    rows = 3 if settings.truth is not None else 2
    columns = len(comparison.engines) + 1
    figure = _figure(3.3 * columns + 0.6, 3.0 * rows + 0.6, f"{settings.image.name}: maps, each normalised by itself")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
        for spine in ax.spines.values():
            spine.set_visible(False)
    _draw_given(axes[:, 0], comparison)
    maps = [_engine_map(one, folder, settings.image.stem) for one in comparison.engines]
    truth = _truth(comparison)
    errors = [_error(one, found, truth, comparison) for one, found in zip(comparison.engines, maps, strict=True)]
    largest = max((float(np.nanpercentile(one, 99)) for one in errors if not isinstance(one, str)), default=1.0)
    for column, (engine, found) in enumerate(zip(comparison.engines, maps, strict=True), 1):
        _draw_map(axes[0][column], engine, found)
        if rows == 3:
            _draw_error(figure, axes[1][column], engine, errors[column - 1], largest)
        _draw_difference(figure, axes[-1][column], found, maps[0], is_first=column == 1)
    return _save(figure, folder / DEPTH_PICTURE)


def _engine_map(engine: EngineResult, folder: Path, image: str) -> Float64 | str:
    """The map, or why there is none."""
    if engine.output is None:
        return f"{engine.status}: {engine.reason}"
    try:
        return engine_map(folder / engine.name / IMAGE_FOLDER, image, engine)
    except SampleError as error:
        return str(error)


def _truth(comparison: EngineComparison) -> Float64 | str:
    settings = comparison.settings
    if settings.truth is None:
        return "no ground truth was given"
    try:
        found = read_map(settings.truth, settings.truth_scale)
    except PerfHarnessError as error:
        return str(error)
    depth = settings.depth
    valid = np.isfinite(found) & (found > depth.min_depth) & (found < depth.max_depth)
    return np.where(valid, found, np.nan)


def _draw_given(axes: Any, comparison: EngineComparison) -> None:
    settings = comparison.settings
    axes[0].set_title("input", fontsize=9)
    if settings.image.suffix.lower() in IMAGE_SUFFIXES:
        axes[0].imshow(read_image(settings.image))
    else:
        _empty(axes[0], f"{settings.image.name} is an array")
    if settings.truth is not None:
        truth = _truth(comparison)
        axes[1].set_title(f"ground truth: {settings.truth.name}", fontsize=9, parse_math=False)
        if isinstance(truth, str):
            _empty(axes[1], truth)
        else:
            axes[1].imshow(truth, cmap="viridis")
            axes[1].set_xlabel(f"{int(np.isfinite(truth).sum())} of {truth.size} pixels are valid", fontsize=8)


def _draw_map(ax: Any, engine: EngineResult, found: Float64 | str) -> None:
    runner = f"{engine.backend}/{engine.mode}" if engine.mode else engine.backend
    title = f"{engine.name}\n{runner}, {engine.precision or '?'}"
    ax.set_title(title, fontsize=9, parse_math=False)
    if isinstance(found, str):
        _empty(ax, found)
        return
    ax.imshow(found, cmap="viridis")
    if engine.latency is not None:
        ax.set_xlabel(f"{engine.latency.mean.value:.3f} ms", fontsize=8)


def _error(
    engine: EngineResult, found: Float64 | str, truth: Float64 | str, comparison: EngineComparison
) -> Float64 | str:
    """|prediction - truth| / truth where the truth is valid, scaled as for the figures; or why there is none."""
    record = engine.image_accuracy
    scale = record.metrics.get("scale") if record else None
    if isinstance(found, str) or isinstance(truth, str) or record is None or scale is None:
        why = record.reasons.get("failed_samples", "") if record else ""
        return why or (truth if isinstance(truth, str) else "no errors were computed")
    depth = comparison.settings.depth
    own = resized_map(found, (truth.shape[0], truth.shape[1]))
    if depth.prediction == "disparity":
        own = 1 / np.maximum(own, SMALLEST_DISPARITY)
    return np.asarray(np.abs(np.clip(own * scale, depth.min_depth, depth.max_depth) - truth) / truth)


def _draw_error(figure: Any, ax: Any, engine: EngineResult, error: Float64 | str, largest: float) -> None:
    """One scale for all engines, up to the 99th percentile of the worst."""
    ax.set_title("relative error to ground truth", fontsize=9)
    if isinstance(error, str):
        _empty(ax, error)
        return
    shown = ax.imshow(error, cmap="magma", vmin=0, vmax=max(1e-9, largest))
    figure.colorbar(shown, ax=ax, shrink=0.8, extend="max")
    metrics = engine.image_accuracy.metrics if engine.image_accuracy else {}
    ax.set_xlabel(
        "  ".join(f"{name} {_shown(metrics.get(name))}" for name in ("abs_rel", "rmse", "delta1")), fontsize=8
    )


def _draw_difference(figure: Any, ax: Any, found: Float64 | str, first: Float64 | str, *, is_first: bool) -> None:
    if is_first:
        return
    ax.set_title("difference to the first engine's", fontsize=9)
    if isinstance(found, str) or isinstance(first, str):
        _empty(ax, "one of the two has no map")
        return
    try:
        error = np.abs(normalised(resized_map(found, (first.shape[0], first.shape[1]))) - normalised(first))
    except SampleError as reason:
        _empty(ax, str(reason))
        return
    shown = ax.imshow(error, cmap="magma", vmin=0, vmax=max(1e-9, float(error.max())))
    figure.colorbar(shown, ax=ax, shrink=0.8)
    ax.set_xlabel(f"MAE {error.mean():.3g}  max {error.max():.3g}", fontsize=8)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


# ---- speed ----


def draw_speed(comparison: EngineComparison, folder: Path) -> Path:
    """Boxes of all timed iterations, and a table under them."""
    engines = comparison.engines
    device = "GPU" if comparison.gpu_uuid else "CPU"
    size = " x ".join(map(str, comparison.settings.input_size))
    title = f"latency of one image of {size} on the {device}: copy in, execute, copy out, synchronised"
    height = 0.3 * len(engines)
    figure = _figure(12, 4.4 + height, title)
    top, bottom = figure.subplots(2, 1, height_ratios=[3.6, 0.4 + height])
    places, samples = [], []
    for place, engine in enumerate(engines):
        path = folder / engine.name / WALL_NAME
        if engine.latency is not None and path.exists():
            places.append(place)
            samples.append(np.load(path) / NS_PER_MS)
    if samples:
        _draw_boxes(top, places, samples)
    else:
        top.set_yticks([])
        _empty(top, "no engine was timed")
    top.set_xlim(-0.6, len(engines) - 0.4)
    top.set_xticks(range(len(engines)))
    top.set_xticklabels([textwrap.fill(one.name, NAME_WIDTH) for one in engines], fontsize=9, parse_math=False)
    for place, engine in enumerate(engines):
        if engine.latency is None:
            top.text(place, 0.5, f"{engine.status}", transform=top.get_xaxis_transform(), ha="center", color="#666666")
    _draw_table(bottom, engines)
    return _save(figure, folder / SPEED_PICTURE)


def _draw_boxes(ax: Any, places: Sequence[int], samples: Sequence[npt.NDArray[np.float64]]) -> None:
    boxes = ax.boxplot(
        samples, positions=places, whis=WHISKERS, showfliers=False, showmeans=True, widths=0.5, patch_artist=True,
        medianprops={"color": "black"}, manage_ticks=False,
        meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black", "markersize": 5},
    )  # fmt: skip
    for place, box in zip(places, boxes["boxes"], strict=True):
        box.set_facecolor(_color(place))
        box.set_alpha(0.7)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("ms")
    ax.grid(axis="y", color="#eeeeee")
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    text = "box: quartiles, line: median, diamond: mean, whiskers: p5 and p95; max is in the table"
    ax.annotate(text, (1.0, 1.01), xycoords="axes fraction", ha="right", fontsize=8, color="#666666")


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


def speed_row(engine: EngineResult) -> list[str]:
    """What the tables say of an engine's speed, ms."""
    stats = engine.latency
    if stats is None:
        return [engine.name, *["-"] * (len(SPEED_COLUMNS) - 1)]
    p90, p95, p99 = (None if one is None else one.value for one in (stats.p90, stats.p95, stats.p99))
    milliseconds = [stats.mean.value, stats.p50, p90, p95, p99, stats.min, stats.max, stats.std]
    return [
        engine.name,
        *("-" if one is None else f"{one:.3f}" for one in milliseconds),
        "-" if engine.images_per_second is None else f"{engine.images_per_second:.1f}",
        "-" if engine.speedup is None else f"{engine.speedup:.2f}x",
        str(stats.iterations),
    ]


def _draw_table(ax: Any, engines: Sequence[EngineResult]) -> None:
    ax.axis("off")
    rows = [speed_row(one) for one in engines]
    rows = [[textwrap.shorten(row[0], NAME_WIDTH, placeholder="…"), *row[1:]] for row in rows]
    widths = [0.22, *[0.078] * (len(SPEED_COLUMNS) - 1)]
    table = ax.table(rows, colLabels=list(SPEED_COLUMNS), colWidths=widths, loc="upper center", cellLoc="right")
    table.auto_set_font_size(False)
    table.set_fontsize(8.5)
    table.scale(1, 1.35)
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("#cccccc")
        cell.get_text().set_parse_math(False)
        if column == 0:
            cell.set_text_props(ha="left")
            if row:
                cell.get_text().set_color("black")
                cell.set_facecolor(_color(row - 1))
                cell.set_alpha(0.35)
        if row == 0:
            cell.set_text_props(weight="bold")


# ---- GPU ----


def draw_gpu(comparison: EngineComparison, folder: Path) -> Path:
    """Four panels, a line an engine, seconds since each began; without a GPU they say why they are empty."""
    where = f"GPU {comparison.gpu_index} {comparison.gpu_uuid}" if comparison.gpu_uuid else "no GPU"
    figure = _figure(13, 7.5, f"{where}: in a second pass beside the sampler, after the timed rounds")
    axes = figure.subplots(2, 2, sharex=True).flat
    logs = [_log(one, folder) for one in comparison.engines]
    for ax, (metric, label, scale) in zip(axes, GPU_PANELS, strict=True):
        ax.set_ylabel(label)
        ax.set_xlabel("seconds since its rounds began")
        ax.grid(color="#eeeeee")
        ax.set_axisbelow(True)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        told = []
        for place, (engine, log) in enumerate(zip(comparison.engines, logs, strict=True)):
            reason = _draw_line(ax, comparison, engine, log, place, (metric, scale))
            told += [f"{engine.name}: {reason}"] if reason else []
        _finish_panel(ax, metric, comparison, told)
    return _save(figure, folder / GPU_PICTURE)


def _finish_panel(ax: Any, metric: str, comparison: EngineComparison, told: list[str]) -> None:
    if not ax.lines:
        ax.set_xticks([])
        ax.set_yticks([])
        _empty(ax, comparison.gpu_reason or "; ".join(told))
        return
    highest = max(float(np.nanmax(line.get_ydata())) for line in ax.lines)
    ax.set_ylim(bottom=0, top=104 if metric == "gpu_utilization_percent" else max(1e-9, highest) * 1.08)
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    if told:
        text = textwrap.fill("; ".join(told), 90)
        ax.annotate(text, (0, 1.01), xycoords="axes fraction", fontsize=7, color="#666666", parse_math=False)


def _log(engine: EngineResult, folder: Path) -> SampleLog | str:
    try:
        return read_sample_log(folder / engine.name / TELEMETRY_NAME)
    except PerfHarnessError as error:
        return engine.reason or str(error)


def _draw_line(
    ax: Any,
    comparison: EngineComparison,
    engine: EngineResult,
    log: SampleLog | str,
    place: int,
    drawn: tuple[str, float],
) -> str | None:
    """One line; why there is none."""
    metric, scale = drawn
    if comparison.gpu_uuid is None:
        return comparison.gpu_reason
    begin, end = engine.gpu.start_unix_ns, engine.gpu.end_unix_ns
    if begin is None or end is None:
        return f"the second pass was not done ({engine.status})"
    if isinstance(log, str):
        return log
    for name in (metric, INSTEAD.get(metric, metric)):
        series = log.get(comparison.gpu_uuid, name)
        if series is not None and series.is_read.any():
            inside = series.between(begin - round(NS_PER_S), end + round(NS_PER_S))
            times, values = with_gaps((inside.time_unix_ns - begin) / NS_PER_S, inside.value * scale)
            ax.plot(times, values, drawstyle="steps-post", color=_color(place), label=engine.name, linewidth=1.5)
            return None
    reasons = [one.reason for one in log.meta.failures if (one.subject, one.metric) == (comparison.gpu_uuid, metric)]
    return reasons[0] if reasons else "it was not read"
