"""Telemetry of a run: one picture per GPU and one of the host, each below the stages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from perfharness.analysis.metrics.activity import ProcessActivity
from perfharness.analysis.metrics.telemetry_lines import (
    Spans,
    core_load,
    rate_of,
    stage_shares,
    stage_spans,
    storage_rate,
    warmup_spans,
)
from perfharness.model.machines import gpu_name
from perfharness.model.telemetry import HOST, SampleLog, Series, process_subject
from perfharness.model.units import NS_PER_S
from perfharness.render.charts.drawing import (
    GREY,
    LIGHT_GREY,
    PALETTE,
    WARMUP,
    Picture,
    Points,
    Row,
    alt,
    fields,
    wrapped,
)
from perfharness.render.charts.over_time import (
    BLACK,
    COLORS,
    GIB,
    HEIGHT,
    ORANGE,
    RATE,
    SAMPLES,
    WIDTH,
    Line,
    OverTime,
    Readings,
)
from perfharness.runs.run import SampledRun

MAX_LINES = len(COLORS)
"""Processes that get a line."""

MAX_SHADED = 60
"""Stages to shade behind the lines; with more, only the top panel shows stages."""


def telemetry_pictures(run: SampledRun) -> list[Picture]:
    """Draw one picture per physical GPU and one of the host."""
    log = run.log
    on_gpus = {record.name: record.given_gpus for record in log.subjects("process") if record.name is not None}
    parents = {record.subject: record.parent_uuid for record in log.subjects("mig")}
    pictures = []
    for gpu in log.subjects("gpu"):
        names = [name for name, uuids in on_gpus.items() if gpu.subject in {parents.get(one) or one for one in uuids}]
        own = [run.activities[name] for name in names if name in run.activities]
        title = run.gpu_titles.get(gpu.subject) or gpu_name(gpu.gpu_index, gpu.subject)
        node = f"_node_{gpu.node}" if gpu.node else ""
        readings = _readings(f"telemetry_gpu_{gpu.gpu_index}{node}", log, own)
        mig = [uuid for uuid, parent in parents.items() if parent == gpu.subject]
        readings.add_gpu(gpu.subject, "", names[:MAX_LINES], mig)
        pictures.append(_picture(readings, f"{title} {gpu.name or ''}  {run.title}", own))
    own = list(run.activities.values())
    readings = _readings("telemetry_host", log, own)
    _add_host(readings, list(on_gpus)[:MAX_LINES])
    _add_cores(readings)
    if len(on_gpus) > MAX_LINES:
        readings.sheet.notes.append(f"{len(on_gpus) - MAX_LINES} of {len(on_gpus)} processes have no line")
    return [*pictures, _picture(readings, f"host  {run.title}", own)]


def _readings(name: str, log: SampleLog, activities: Sequence[ProcessActivity]) -> Readings:
    """Make a sheet that begins with the stages."""
    # The driver's power samples begin before the sampler.
    times = [one.time_unix_ns for (_, metric), one in log.series.items() if len(one) and metric != SAMPLES]
    begin_ns = min((int(own.min()) for own in times), default=0)
    end_ns = max((int(own.max()) for own in times), default=1)
    zero_ns = min((int(own.batch_start_ns.min()) for own in activities), default=begin_ns)
    sheet = OverTime(name, (begin_ns - zero_ns) / NS_PER_S, (end_ns - zero_ns) / NS_PER_S)
    readings = Readings(sheet, log, begin_ns, end_ns, zero_ns)
    if activities:
        _add_stages(readings, list(activities))
    return readings


def _picture(readings: Readings, title: str, activities: Sequence[ProcessActivity]) -> Picture:
    began = datetime.fromtimestamp(readings.zero_ns / NS_PER_S, timezone.utc)
    first = ", the first batch" if activities else ""
    return readings.sheet.picture(f"seconds since {began:%Y-%m-%d %H:%M:%S} UTC{first}", title)


def _add_host(readings: Readings, processes: Sequence[str]) -> None:
    owners = {name: process_subject(name) for name in processes}
    machine = [
        Line("busy", BLACK, HOST, "cpu_percent"),
        Line("I/O wait", ORANGE, HOST, "io_wait_percent"),
        Line("stolen", PALETTE[3], HOST, "steal_percent"),
    ]
    storage = Line("machine", BLACK, HOST, "read_bytes", 1e-6, read=lambda log, *_: storage_rate(log))
    readings.add("CPU (% of all cores)", machine, RATE, domain=[0, 100])
    readings.add("CPU (100 % per core)", readings.of_each(owners, "cpu_percent"), RATE)
    readings.add("resident memory (GiB)", readings.of_each(owners, "rss_bytes", 1 / GIB))
    readings.add("context switches (1/s)", readings.of_each(owners, "context_switches", read=_rate), RATE)
    readings.add("read + written (MB/s)", [storage], RATE)


def _rate(log: SampleLog, subject: str, metric: str) -> Series | None:
    counter = log.get(subject, metric)
    return None if counter is None else rate_of(counter)


def _add_cores(readings: Readings) -> None:
    """Add one row per core; dark is busy."""
    if (load := core_load(readings.log, readings.zero_ns)) is None:
        return
    edges = load.edges_s.round(4).tolist()
    rows: list[Row] = [
        {"seconds": start, "until": end, **dict(zip(load.cores, busy, strict=True))}
        for start, end, busy in zip(edges, edges[1:], load.percent.T.round(1).tolist(), strict=False)
    ]
    labels = len(load.cores) <= 16
    height = max(HEIGHT, min(250, 3 * len(load.cores)))
    chart = readings.sheet.chart("cores", rows, width=WIDTH, height=height).mark_rect(clip=True)
    chart = chart.transform_fold(load.cores, as_=["core", "busy"]).encode(
        x=readings.sheet.x(),
        x2="until:Q",
        y=alt.Y("core:O").sort(load.cores).title("core").axis(labels=labels, ticks=labels),
        color=alt.Color("busy:Q").scale(scheme="cividis", reverse=True, domain=[0, 100]).title("busy (%)"),
        tooltip=fields("core:O", "seconds:Q", "busy:Q"),
    )
    readings.sheet.panels.append(chart)


def _add_stages(readings: Readings, own: list[ProcessActivity]) -> None:
    """Add the share of each stage over time; shade warm-up and a few stages behind the other panels."""
    sheet, zero_ns = readings.sheet, readings.zero_ns
    shares = stage_shares(own, readings.begin_ns, readings.end_ns, zero_ns)
    palette = [*PALETTE[: len(shares.names) - 1], LIGHT_GREY]
    if shares.is_rest:
        palette[-2] = GREY
    of_stage = dict(zip(shares.names, palette, strict=True))
    seconds = shares.start_s.tolist()
    points: dict[str, Points] = {
        wrapped(name): (seconds, percent.tolist())
        for name, percent in zip(shares.names, shares.percent, strict=True)
        if percent.any()
    }
    warmup = warmup_spans(own, zero_ns)
    legend = {label: color for name, color in of_stage.items() if (label := wrapped(name)) in points}
    sheet.shade("warmup", _rows([warmup], {warmup.name: WARMUP}))
    sheet.add_areas("stages (% of time)", points, legend | {warmup.name: WARMUP}, 1.3 * HEIGHT)
    batches, processes = sum(len(one.batch_start_ns) for one in own), "processes" if len(own) > 1 else "process"
    sheet.notes.append(f"stages of {batches} batches of {len(own)} {processes}")
    spans = stage_spans(own, zero_ns)
    if sum(len(one.start_s) for one in spans) <= MAX_SHADED:
        sheet.shade("shaded", _rows(spans, of_stage), opacity=0.13)


def _rows(spans: Sequence[Spans], colors: dict[str, str]) -> list[Row]:
    return [
        {"color": colors.get(one.name, GREY), "seconds": start, "until": end}
        for one in spans
        for start, end in zip(one.start_s, one.end_s, strict=True)
    ]
