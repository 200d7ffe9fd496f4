"""Sampled stacks: whose time is whose, and names that mean nothing but themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.host_samples.stacks import stage_stacks
from perfharness.cli.main import run
from perfharness.host_probe import sample_file
from perfharness.model import conventions
from perfharness.model.host_samples import Frame, HostState
from perfharness.render.stacks import collapsed
from perfharness.trace import open_trace
from tests.support.probe_builder import ProbeBuilder
from tests.unit.recorded_traces import Recorded

MS = 1_000_000
BATCH = ("toy", "batch")

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
def test_the_frames_that_are_shown(stack: tuple[str, ...], shown: tuple[str, ...], tmp_path: Path) -> None:
    builder = ProbeBuilder()
    builder.sample(MS, stack, stage=BATCH)
    assert list(stacks_of(builder, tmp_path)[BATCH]) == [shown]


def test_the_stages_inside_stand_above_the_stacks(tmp_path: Path) -> None:
    """12 samples of 1 ms in two batches: 9 of them in `decode`, 3 of these in a function that others do not call."""
    builder = ProbeBuilder()
    stage = (*BATCH, "decode")
    builder.samples(0, 6 * MS, ["read@app.py:3", "main@app.py:1"], stage=stage)
    builder.samples(6 * MS, 9 * MS, ["resize@app.py:5", "main@app.py:1"], stage=stage, state=HostState.GIL)
    builder.samples(9 * MS, 12 * MS, ["main@app.py:2"], stage=BATCH)
    builder.samples(12 * MS, 15 * MS, ["after@app.py:2"])
    assert stacks_of(builder, tmp_path) == {
        BATCH: {
            ("main",): pytest.approx(1.5),
            ("[decode]", "main", "read"): pytest.approx(3.0),
            ("[decode]", "main", "resize"): pytest.approx(1.5),
        }
    }


def stacks_of(builder: ProbeBuilder, folder: Path) -> dict[tuple[str, ...], dict[tuple[str, ...], float]]:
    """By outermost stage and functions, ms per batch; of two batches, from 0 to 11 and from 11 to 12 ms."""
    made = Recorded(gpu=False)
    made.batch(0, 0, 11)
    made.stage("decode", 0, 9)
    made.batch(1, 11, 12)
    analysis = Analysis(open_trace(made.write(folder / "t.sqlite")), host_probe=builder.build())
    return {
        path: {tuple(one.function for one in frames): ms for frames, ms in stacks}
        for path, stacks in stage_stacks(analysis).items()
    }


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
