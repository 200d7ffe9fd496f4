"""Sampled stacks: whose time is whose, and names that mean nothing but themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.host_samples.host_profile import Spans
from perfharness.analysis.host_samples.stacks import Stack, outermost, stage_stacks
from perfharness.cli.main import run
from perfharness.host_probe import sample_file
from perfharness.model import conventions
from perfharness.model.host_samples import Frame, HostProbe, HostState
from perfharness.model.nsys_schema import global_tid
from perfharness.render.stacks import collapsed
from tests.support.probe_builder import ProbeBuilder
from tests.unit.recorded_traces import Recorded

MS = 1_000_000
BATCH = ("rec", "batch")


WRAPPERS = "/x/perfharness/annotate/wrappers.py"
CALL, OPENED = f"plain.<locals>.call@{WRAPPERS}:1", f"open_range@{WRAPPERS}:1"
START = ("main@/x/perfharness/tracer/entry.py:3", "run@<frozen runpy>:8")


@pytest.mark.parametrize(
    ("stack", "shown"),
    [
        (("run@app.py:1", CALL, "main@app.py:1"), ("main", "run")),  # only calls a measured function
        ((OPENED, CALL, "main@app.py:1"), ("main", "open_range")),  # is at work itself
        (("start@/x/perfharness/tracer/api.py:1", "loop@app.py:2", *START), ("loop", "start")),
        (START, ("run", "main")),  # what started the script is left out where there is something else
    ],
)
def test_the_frames_that_are_shown(stack: tuple[str, ...], shown: tuple[str, ...]) -> None:
    builder = ProbeBuilder()
    builder.sample(MS, stack, stage=BATCH)
    assert list(named(stage_stacks(builder.build(), spans(BATCH, 2)))) == [shown]


# ---- of samples ----


def probe() -> HostProbe:
    """12 samples of 1 ms in a batch: 9 of them in its stage, 3 of it in a function that the others do not call."""
    builder = ProbeBuilder()
    stage = (*BATCH, "decode")
    builder.samples(0, 6 * MS, ["read@app.py:3", "main@app.py:1"], stage=stage)
    builder.samples(6 * MS, 9 * MS, ["resize@app.py:5", "main@app.py:1"], stage=stage, state=HostState.GIL)
    builder.samples(9 * MS, 12 * MS, ["main@app.py:2"], stage=BATCH)
    return builder.build()


def spans(path: tuple[str, ...], end_ms: int, batches: int = 1) -> Spans:
    thread = np.asarray([global_tid(100, 100)])
    return Spans(path, thread, np.asarray([0]), np.asarray([end_ms * MS]), batches)


def named(stacks: Sequence[Stack]) -> dict[tuple[str, ...], float]:
    return {tuple(one.function for one in frames): ms for frames, ms in stacks}


def test_the_stages_inside_stand_above_the_stacks() -> None:
    assert named(stage_stacks(probe(), spans(BATCH, 12))) == {
        ("main",): pytest.approx(3.0),
        ("[decode]", "main", "read"): pytest.approx(6.0),
        ("[decode]", "main", "resize"): pytest.approx(3.0),
    }
    inner = named(stage_stacks(probe(), spans((*BATCH, "decode"), 9, batches=3)))
    assert inner == {("main", "read"): pytest.approx(2.0), ("main", "resize"): pytest.approx(1.0)}
    assert stage_stacks(probe(), spans(("rec", "elsewhere"), 9)) == []


def test_the_outermost_stages_hold_the_others() -> None:
    paths = [BATCH, (*BATCH, "decode"), ("rec", "batches"), ("rec", "a", "b"), ("rec", "a", "b", "c", "d")]
    assert [one.path for one in outermost([spans(path, 1) for path in paths])] == [BATCH, paths[2], paths[3]]


# ---- the files ----


def test_collapsed_stacks_are_lines_of_microseconds() -> None:
    own, inner = Frame("f;g", "app.py", 3), Frame("blur", "cv.py", 0)
    stacks = {"rec/batch": [((own, inner), 1.5), ((own,), 0.25), ((own,), 0.0001)]}
    assert list(collapsed(stacks)) == [
        "rec/batch;f:g (app.py:3);blur (cv.py) 1500", "rec/batch;f:g (app.py:3) 250",
    ]  # fmt: skip


# ---- a run ----


@pytest.fixture
def sampled(tmp_path: Path) -> Path:
    """A trace with 12 batches of 10 ms, 6 of them in `decode`, and samples of every ms next to it."""
    trace = Recorded(gpu=False)
    for time in (1, 2):
        trace.mark(conventions.MARK_CLOCK, time, domain="perfharness", category="toy", payload=time)
    for index in range(12):
        trace.batch(index, 10 * index, 10 * index + 10)
        trace.stage("decode", 10 * index, 10 * index + 6)
    path = trace.write(tmp_path / "trace.sqlite")
    file = sample_file.SampleFile(str(tmp_path / "host_samples.log"))
    file.write_json(sample_file.META, {"pid": 100, "interval_ns": MS, "monotonic_ns": 0, "unix_ns": 0})
    main = file.number("frames", ("main", "/app/<serve>.py", 3))
    slow = file.number("frames", ("read", "/app/files.py", 8))
    stacks = [file.number("stacks", (slow, main)), file.number("stacks", (main,))]
    stages = [file.number("stages", ("toy", "batch", "decode")), file.number("stages", ("toy", "batch"))]
    for time in range(120):
        place = int(time % 10 >= 6)
        times = (time * MS + MS // 2, 100, MS, MS, 0)
        file.sample(*times, HostState.RUNNING, stacks[place], stages[place], 0)
    file.close()
    return path


Captured = pytest.CaptureFixture[str]


def test_export_writes_the_outermost_stages(sampled: Path, tmp_path: Path, capsys: Captured) -> None:
    text = tmp_path / "stacks.txt"
    assert run(["export", str(sampled), "-o", str(text)]) == 0
    lines = text.read_text("utf-8").splitlines()
    assert sorted(line.rsplit(" ", 1)[1] for line in lines) == ["4000", "6000"]
    assert all(line.startswith("trace: toy/batch;") for line in lines)
    assert capsys.readouterr().out.strip() == str(text)
