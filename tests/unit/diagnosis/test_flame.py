"""Flame graphs and speedscope: whose time is whose, and names that mean nothing but themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.host_samples.flame import Flame, FrameKind, Stack, flame, kind_of, outermost, stage_stacks
from perfharness.analysis.host_samples.host_profile import Spans
from perfharness.cli.main import run
from perfharness.host_probe import spool
from perfharness.model import conventions
from perfharness.model.host_samples import Frame, HostProbe, HostState
from perfharness.model.nsys_schema import global_tid
from perfharness.render.flame.drawing import page, svg
from perfharness.render.flame.files import collapsed
from tests.support.probe_builder import ProbeBuilder
from tests.unit.recorded_traces import Recorded

MS = 1_000_000
BATCH = ("rec", "batch")
SVG = "{http://www.w3.org/2000/svg}"

FRAMES = st.builds(Frame, st.sampled_from("abc"), st.sampled_from(["x.py", "y.py"]), st.integers(1, 3))
STACKS = st.lists(st.tuples(st.lists(FRAMES, min_size=1, max_size=5).map(tuple), st.floats(0.001, 100)), max_size=12)


def every(graph: Flame) -> list[Flame]:
    found = [graph]
    for one in found:
        found.extend(one.callees)
    return found


def frame(function: str, file: str = "app.py", line: int = 1, *, is_native: bool = False) -> Frame:
    return Frame(function, file, line, is_native)


# ---- the stacks ----


def test_what_only_calls_a_measured_function_is_not_shown() -> None:
    """Annotated functions are called by one of perfharness, which is shown where it is at work itself."""
    here = "/x/perfharness/annotate/wrappers.py"
    builder = ProbeBuilder()
    call, opened = frame("plain.<locals>.call", here), frame("open_range", here)
    builder.sample(1 * MS, [frame("run"), call, frame("main")])
    builder.sample(2 * MS, [opened, call, frame("main")])
    spans = Spans(BATCH, np.asarray([global_tid(100, 100)]), np.asarray([0]), np.asarray([3 * MS]), 1)
    found = [[one.function for one in frames] for frames, _ in stage_stacks(builder.build(), spans)]
    assert sorted(found) == [["main", "open_range"], ["main", "run"]]


# ---- the tree ----


def test_stacks_are_merged_by_function_and_the_line_is_the_one_of_most_time() -> None:
    main, slow, fast = frame("main"), frame("work", line=7), frame("work", line=9)
    graph = flame([((main, fast), 1.0), ((main, slow), 3.0), ((main,), 0.5), ((frame("other"),), 2.0)], "batch")
    assert (graph.ms, graph.own_ms, graph.depth) == (6.5, 0.0, 3)
    assert [(one.frame.function, one.ms, one.own_ms) for one in graph.callees] == [
        ("main", 4.5, 0.5),
        ("other", 2.0, 2.0),
    ]
    (work,) = graph.callees[0].callees
    assert (work.frame.line, work.ms, work.own_ms) == (7, 4.0, 4.0)


@given(STACKS)
def test_a_function_takes_what_it_and_its_callees_take(stacks: list[Stack]) -> None:
    graph = flame(stacks, "batch")
    assert graph.ms == pytest.approx(sum(ms for _, ms in stacks))
    for one in every(graph):
        assert one.ms == pytest.approx(one.own_ms + sum(callee.ms for callee in one.callees))
        assert len({(each.frame.function, each.frame.file) for each in one.callees}) == len(one.callees)
    assert sum(one.own_ms for one in every(graph)) == pytest.approx(graph.ms)


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (frame("[decode]", ""), FrameKind.STAGE), (frame("f", "/home/u/app.py"), FrameKind.OWN),
        (frame("f", "/usr/lib/python3.11/json/decoder.py"), FrameKind.LIBRARY),
        (frame("f", "/v/site-packages/numpy/core.py"), FrameKind.LIBRARY),
        (frame("f", "/usr/lib/libjpeg.so", 0, is_native=True), FrameKind.NATIVE),
    ],
)  # fmt: skip
def test_a_frame_is_of_its_kind(made: Frame, kind: FrameKind) -> None:
    assert kind_of(made) is kind


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


def test_what_started_the_script_is_left_out_but_not_what_the_script_calls() -> None:
    builder = ProbeBuilder()
    start = ["main@/x/perfharness/tracer/entry.py:3", "run@<frozen runpy>:8"]
    inside = ["start@/x/perfharness/tracer/api.py:1", "loop@app.py:2"]
    builder.sample(MS // 2, [*inside, *start], stage=BATCH)
    builder.sample(MS + MS // 2, start, stage=BATCH)
    assert set(named(stage_stacks(builder.build(), spans(BATCH, 2)))) == {("loop", "start"), ("run", "main")}


def test_the_outermost_stages_hold_the_others() -> None:
    paths = [BATCH, (*BATCH, "decode"), ("rec", "batches"), ("rec", "a", "b"), ("rec", "a", "b", "c", "d")]
    assert [one.path for one in outermost([spans(path, 1) for path in paths])] == [BATCH, paths[2], paths[3]]


# ---- the files ----


def test_collapsed_stacks_are_lines_of_microseconds() -> None:
    own, native = frame("f;g", "app.py", 3), frame("blur", "/usr/lib/libcv.so", 0, is_native=True)
    stacks = {"rec/batch": [((own, native), 1.5), ((own,), 0.25), ((own,), 0.0001)]}
    assert list(collapsed(stacks)) == [
        "rec/batch;f:g (app.py:3);blur (/usr/lib/libcv.so) 1500", "rec/batch;f:g (app.py:3) 250",
    ]  # fmt: skip


def boxes(picture: str) -> dict[str, tuple[float, float, float]]:
    """By what its tooltip begins with: left, top, width."""
    found = {}
    for group in Xml.fromstring(picture).iter(f"{SVG}g"):
        box, title = group.find(f"{SVG}rect"), group.findtext(f"{SVG}title")
        assert box is not None
        assert title is not None
        found[title.partition(" (")[0].partition("\n")[0]] = tuple(
            float(box.attrib[key]) for key in ("x", "y", "width")
        )
    return found  # type: ignore[return-value]


def test_boxes_are_as_wide_as_their_time() -> None:
    found = boxes(svg([("rec/batch", flame([((frame("a"), frame("b")), 3.0), ((frame("a"),), 1.0)], "batch"))]))
    root, a, b = found["[batch]"], found["a"], found["b"]
    assert (a[2], b[2]) == pytest.approx((root[2], 0.75 * root[2]), abs=0.01)
    assert root[1] < a[1] < b[1]


def test_boxes_that_cannot_be_seen_are_left_out_and_depth_needs_no_recursion() -> None:
    deep = tuple(frame(f"f{level}") for level in range(3000))
    picture = svg([("rec", flame([(deep, 1.0), ((frame("tiny"), frame("below")), 1e-5)], "rec"))])
    found = boxes(picture)
    assert len(found) == 3001
    assert "tiny" not in found
    assert "below" not in found


EVIL = "</style><script>alert(1)</script>\x1b[2J\x00\ufffe&amp;\ud800"


def test_names_of_others_are_text_and_nothing_is_loaded() -> None:
    graphs = [(EVIL, flame([((frame(EVIL, EVIL),), 1.0)], EVIL))]
    texts = [element.text or "" for element in Xml.fromstring(svg(graphs)).iter() if not element.tag.endswith("style")]
    assert any("<script>alert(1)</script>\\x1b[2J\\x00" in text for text in texts)
    assert not [part for part in ("<script", "src=", "href=", "url(") if part in page(graphs, EVIL)]


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
    file = spool.Spool(str(tmp_path / "host_samples.log"))
    file.write_json(spool.META, {"pid": 100, "interval_ns": MS, "monotonic_ns": 0, "unix_ns": 0})
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


def test_diagnose_draws_the_outermost_stages_or_one(sampled: Path, tmp_path: Path, capsys: Captured) -> None:
    text, picture = tmp_path / "flame.txt", tmp_path / "flame.svg"
    assert run(["diagnose", str(sampled), "--flame", str(text)]) == 0
    lines = text.read_text("utf-8").splitlines()
    assert sorted(line.rsplit(" ", 1)[1] for line in lines) == ["4000", "6000"]
    assert all(line.startswith("trace: toy/batch;") for line in lines)
    assert run(["diagnose", str(sampled), "--flame", str(picture), "--stage", "decode"]) == 0
    assert set(boxes(picture.read_text("utf-8"))) == {"[trace: toy/batch/decode]", "main", "read"}
    assert run(["diagnose", str(sampled), "--flame", str(tmp_path / "flame.html")]) == 0
    assert "<svg" in (tmp_path / "flame.html").read_text("utf-8")
    assert str(text) in capsys.readouterr().err


def test_diagnose_without_samples_or_with_another_ending_says_so(tmp_path: Path, capsys: Captured) -> None:
    trace = Recorded(gpu=False)
    for index in range(3):
        trace.batch(index, 10 * index, 10 * index + 5)
    path = str(trace.write(tmp_path / "trace.sqlite"))
    assert run(["diagnose", path, "--flame", str(tmp_path / "a.svg")]) == 3
    assert "--explain" in capsys.readouterr().err
    assert not (tmp_path / "a.svg").exists()
    assert run(["diagnose", path, "--flame", str(tmp_path / "a.pdf")]) == 2
