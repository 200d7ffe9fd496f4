from __future__ import annotations

import builtins
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.analysis.activity import ProcessActivity
from perfharness.errors import ToolNotFoundError
from perfharness.model.telemetry import FailureRecord, SampleLog
from perfharness.report.pictures import require_matplotlib
from perfharness.report.plot_panels import Picture, with_gaps
from perfharness.report.telemetry_plots import draw_telemetry, rate_of
from perfharness.testing.sample_builder import MS, SampleBuilder

GPU, START, SECOND = "GPU-1111", 1_700_000_000_000_000_000, 1_000_000_000
PNG = b"\x89PNG\r\n\x1a\n"


def sample_log() -> SampleLog:
    failure = FailureRecord(
        subject="process:proc_0_gpu_3", metric="process_memory_bytes", reason="of another namespace", count=9
    )
    builder = SampleBuilder(failures=[failure])
    builder.subject(GPU, "gpu", name="Made Up", gpu_index=3).subject("host", "host").subject("core:0", "core")
    builder.subject("process:proc_0_gpu_3", "process", name="proc_0_gpu_3", gpu_uuid=GPU)
    end = START + 4 * SECOND
    builder.polled(GPU, "power_instant_mw", lambda t: 70e3 + t % 7e3, START, end, update_period_ns=100 * MS)
    builder.polled(GPU, "sm_clock_mhz", lambda t: 1980, START, end, update_period_ns=100 * MS)
    times = list(range(START, end, 50 * MS))
    builder.readings(GPU, "clock_event_reasons", times, [4 if at % 9 == 0 else 0 for at in range(len(times))])
    builder.readings(GPU, "memory_used_bytes", times, [None if 20 < at < 40 else 1 << 30 for at in range(len(times))])
    for metric, subject in (("cpu_percent", "host"), ("cpu_percent", "core:0"), ("rss_bytes", "process:proc_0_gpu_3")):
        builder.readings(subject, metric, times[::4], [50.0] * len(times[::4]))
    return builder.build()


def activity(batches: int) -> ProcessActivity:
    edges = np.linspace(START, START + 3 * SECOND, batches + 1).astype(np.int64)
    count = np.arange(batches) % 12
    return ProcessActivity(
        [f"stage {number}" for number in range(12)], count, edges[:-1], edges[1:] - 1000, edges[:-1], edges[1:],
        [(int(edges[0]), int(edges[1]))], [(int(edges[1]), int(edges[-1]))],
    )  # fmt: skip


@pytest.mark.parametrize("batches", [0, 12, 5000])
def test_a_picture_for_each_gpu_and_one_for_the_host(tmp_path: Path, batches: int) -> None:
    activities = {"proc_0_gpu_3": activity(batches)} if batches else {}
    written = draw_telemetry(tmp_path, sample_log(), activities, "a $run_with^marks$")
    assert [path.name for path in written] == ["telemetry_gpu_3.png", "telemetry_host.png"]
    for path in written:
        content = path.read_bytes()
        assert content.startswith(PNG)
        width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
        assert width > 1000
        assert height > 800


def test_a_log_without_any_reading_is_drawn_too(tmp_path: Path) -> None:
    log = SampleBuilder().subject(GPU, "gpu", gpu_index=0).build()
    assert len(draw_telemetry(tmp_path, log, {})) == 2


def test_what_is_drawn_has_gaps_where_readings_are_null_or_missing() -> None:
    times = np.array([0.0, 1, 2, 3, 10, 11])
    values = np.array([5.0, 5, np.nan, 5, 6, 6])
    drawn_times, drawn = with_gaps(times, values)
    assert drawn_times.tolist() == [0, 1, 2, 3, 4, 10, 11]
    assert np.isnan(drawn).tolist() == [False, False, True, False, True, False, False]


def test_a_rate_is_the_counters_step_over_the_time_it_took() -> None:
    log = SampleBuilder().readings("host", "read_bytes", [0, SECOND, 3 * SECOND], [100, 150, 350]).build()
    counter = log.get("host", "read_bytes")
    assert counter is not None
    rate = rate_of(counter)
    assert np.isnan(rate.value[0])
    assert rate.value[1:].tolist() == [50, 100]


def test_rates_are_drawn_over_the_time_before_a_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted between two readings belongs to the time between them, not to the time after the second."""
    figures: list[Any] = []
    monkeypatch.setattr(Picture, "save", lambda picture, path: figures.append(picture.figure))
    builder = SampleBuilder().subject("host", "host").subject("process:a", "process", name="a")
    for subject, metric in (("host", "read_bytes"), ("host", "write_bytes"), ("process:a", "context_switches")):
        builder.readings(subject, metric, [0, SECOND, 2 * SECOND], [0, 10, 50])
    builder.readings("process:a", "rss_bytes", [0, SECOND], [1, 2])
    draw_telemetry(tmp_path, builder.build(), {})
    steps = {ax.get_ylabel(): [line.get_drawstyle() for line in ax.lines] for ax in figures[-1].axes}
    assert steps["context\nswitches /s"] == ["steps-pre"]
    assert steps["read + written\nMB/s"] == ["steps-pre"]
    assert steps["resident\nGiB"] == ["steps-post"]


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolNotFoundError, match=r"pip install 'perfharness-nvtx\[plots\]'"):
        require_matplotlib()


def test_asking_for_matplotlib_does_not_load_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **more: Any) -> Any:
        assert not name.startswith("matplotlib")
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    require_matplotlib()
