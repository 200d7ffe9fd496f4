"""The segment table: what threads do in stages, from events and samples; times in ms, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfharness.analysis.segments import SampleTimes, paint, sample_times
from perfharness.model import nsys_schema as schema
from perfharness.model.activity import ACTIVITIES
from perfharness.model.host_samples import HostState
from tests.support.trace_builder import MS, WORDS, Recorded


def made(text: str) -> Recorded:
    """A batch of 100 ms: `decode` from 0 to 40, `infer` from 40 to 90. Samples are of `decode`."""
    builder = Recorded()
    builder.batch(0, 0, 100)
    builder.of_samples = {"stage": ("toy", "batch", "decode")}
    builder.add(f"decode 0..40; infer 40..90; {text}", words=WORDS | {"gemm": "gemm"})
    return builder


SYNC = "cudaStreamSynchronize 50..80"
EVENTS: dict[str, tuple[str, dict[str, float]]] = {
    # name: (events, ms by stage, activity and what it was, beside what is unknown)
    "nothing": ("", {}),
    "calls of the system": (
        "os:read 5..35; os:pthread_mutex_lock 10..20; os:recv 80..95; os:read 50..60 tid=101",
        {"decode file": 20, "decode lock": 10, "infer network": 10, "batch network": 5},
    ),
    "a call in a call, and the collector": (
        "os:read 42..60; cudaMalloc_v3020 50..55; cuMemAlloc_v2 52..54; collects 53..53.5",
        {"infer file": 13, "infer alloc cudaMalloc": 3, "infer alloc cuMemAlloc": 1.5, "infer gc": 0.5},
    ),
    "a wait for its own kernel": (
        f"launch 41..42 -> 45..70 name=gemm; {SYNC}",
        {"infer launch": 1, "infer sync gemm": 20, "infer sync": 10},
    ),
    "a wait for others' work": (
        f"launch 1..2 -> 52..60 name=gemm tid=101; {SYNC}",
        {"infer sync": 22, "infer sync GPU work of others": 8},
    ),
    "without calls that wait": ("launch 41..42 -> 45..70 name=gemm", {"infer launch": 1, "infer unknown gemm": 25}),
}


@pytest.mark.parametrize("name", EVENTS)
def test_what_a_thread_does_in_its_stages(name: str, tmp_path: Path) -> None:
    text, expected = EVENTS[name]
    builder = made(text)
    if "collector" in name:
        builder.probe.sample(53 * MS, state=HostState.UNKNOWN)
    if "without" in name:
        builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="yes")
    analysis = builder.analysis(tmp_path)
    segments = paint(analysis)
    sums = segments.sum_by("stage", "activity", "name", "gpu")
    found: dict[str, float] = {}
    for at, ns in enumerate(sums.ns.tolist()):
        keys = {key: int(column[at]) for key, column in sums.keys.items()}
        parts = [analysis.stages.paths.names(keys["stage"])[-1], ACTIVITIES[keys["activity"]].value]
        parts += [segments.names[keys[key]] for key in ("name", "gpu") if keys[key] >= 0]
        found[" ".join(parts)] = ns / MS
    for stage, whole in {"decode": 40.0, "infer": 50.0, "batch": 10.0}.items():
        assert sum(ms for key, ms in found.items() if key.startswith(stage)) == pytest.approx(whole)
    assert {key: ms for key, ms in found.items() if not key.endswith("unknown")} == pytest.approx(expected)


def test_the_interpreter_lock_inside_a_wait(tmp_path: Path) -> None:
    builder = made("os:read 5..35")
    builder.range("Waiting for GIL", 30 * MS, 38 * MS, domain="GIL Trace")
    sums = paint(builder.analysis(tmp_path)).sum_by("activity")
    names = [ACTIVITIES[code].value for code in sums.keys["activity"].tolist()]
    assert dict(zip(names, sums.ns / MS, strict=True)) == {"unknown": 67, "file": 25, "gil": 8}


def sampled(builder: Recorded, folder: Path) -> SampleTimes:
    analysis = builder.analysis(folder)
    times = sample_times(analysis, paint(analysis))
    assert times is not None
    return times


SAMPLES: dict[str, dict[str, float]] = {
    "sleep@wait 0..20; running@wait 20..40": {"sleep": 20, "compute": 20},
    "runnable@wait 0..40 on_cpu_ns=250000 runnable_ns=750000": {"compute": 10, "no-cpu": 30},
    "os:read 0..20; lock@wait 0..40": {"lock": 20},
    "running@compiler 0..40": {"compile": 40},
    # Read 40 us after the stage had ended, by its clock; the recorder's stack knows the stage.
    "sleep@wait 0..39; file@wait 39.54..41": {"sleep": 39, "file": 1},
}


@pytest.mark.parametrize("text", SAMPLES)
def test_samples_show_what_is_unknown(text: str, tmp_path: Path) -> None:
    times = sampled(made(text), tmp_path)
    sums = times.select(~times.is_recorded).sum_by("activity")
    names = [ACTIVITIES[code].value for code in sums.keys["activity"].tolist()]
    assert dict(zip(names, (sums.ns / MS).tolist(), strict=True)) == pytest.approx(SAMPLES[text])
    assert sums.samples.sum() == pytest.approx(sum(SAMPLES[text].values()))


def test_the_line_of_a_recorded_wait_is_that_of_its_samples(tmp_path: Path) -> None:
    times = sampled(made("os:read 0..20; lock@wait 0..40"), tmp_path)
    found = times.sum_by("activity", "line")
    lines = [times.lines[line] for line in found.keys["line"].tolist()]
    assert [(one.function, one.line) for one in lines] == [("wait", 9)] * 2
    assert found.samples.tolist() == [20, 20]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_segments_add_up_to_the_ranges(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is nested, overlaps, or reaches over the ends of ranges."""
    builder, moments = Recorded(), st.integers(0, 60)
    stretch = st.tuples(moments, moments).map(sorted)
    for index in range(4):
        at, length = 50 * index, data.draw(st.integers(0, 40))
        builder.batch(index, at, at + length, tid=data.draw(st.sampled_from([100, 101])))
        for begin, end in data.draw(st.lists(stretch, max_size=3)):
            builder.add(f"{data.draw(st.sampled_from('ab'))} {min(begin, length)}..{min(end, length)}", at)
        for begin, end in data.draw(st.lists(stretch, max_size=4)):
            first, last = data.draw(stretch)
            name = data.draw(st.sampled_from(["cudaStreamSynchronize", "cudaMalloc", "launch"]))
            builder.add(f"{name} {begin}..{end} -> {first}..{last}", at)
    analysis = builder.analysis(tmp_path_factory.mktemp("h"))
    stages, segments = analysis.stages, paint(analysis)
    length_ns = stages.end_ns - stages.start_ns
    assert (segments.end_ns > segments.start_ns).all()
    assert int(segments.sum_by("thread").ns.sum()) == int(length_ns[np.asarray(stages.parent) < 0].sum())
    batches = analysis.stage_times.outermost_batches()
    by_batch = paint(analysis, batches).sum_by("batch")
    found = dict(zip(by_batch.keys["batch"].tolist(), by_batch.ns.astype(int).tolist(), strict=True))
    assert found == {row: ns for row, ns in zip(batches.tolist(), length_ns[batches].tolist(), strict=True) if ns}
