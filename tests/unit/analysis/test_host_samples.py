"""Host time of stages by samples: worked by hand, and read back from the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import diagnose
from perfharness.analysis.host_samples.frames import is_library, library_of
from perfharness.analysis.host_samples.host_profile import (
    Spans,
    host_profile,
    inside,
    lines_during,
    nearest_samples,
    on_trace_clock,
    own_functions,
    rows_of_stage,
)
from perfharness.host_probe import sample_file
from perfharness.model import conventions
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import HostProfile
from perfharness.model.host_samples import HostEventKind, HostState
from perfharness.model.manifest import ProcessRecord
from perfharness.model.measured import MeasuredProcess
from perfharness.model.trace import PID_SHIFT
from perfharness.runs.files.process_traces import ProcessTraces
from perfharness.trace import open_trace
from perfharness.trace.host_samples import RecordedProbe, read_host_probe
from tests.support.probe_builder import ProbeBuilder
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000
THREAD = schema.global_tid(100, 100)


def spans(*intervals: tuple[int, int], path: tuple[str, ...] = ("r", "batch", "stage"), batches: int = 1) -> Spans:
    start, end = np.asarray(intervals, dtype=np.int64).T
    return Spans(path, np.full(len(start), THREAD), start, end, batches)


def new_file(path: Path, **facts: int) -> sample_file.SampleFile:
    file = sample_file.SampleFile(str(path))
    file.write_json(sample_file.META, {"pid": 100, "interval_ns": MS, "monotonic_ns": 0, "unix_ns": 0, **facts})
    return file


def recorded_in(folder: Path, pid: int | None = None) -> RecordedProbe:
    found = read_host_probe(folder, pid)
    assert found is not None
    return found


def profile_of(builder: ProbeBuilder, stage: Spans) -> HostProfile:
    probe = builder.build()
    return host_profile(probe, stage, rows_of_stage(probe.samples, stage))


def test_time_is_shared_out_by_what_samples_stand_for() -> None:
    """Of 10 ms, 6 are f's own; g's one sample stands for 4 ms, of which f's call is the rest of the stack."""
    builder = ProbeBuilder(MS)
    for time in range(1, 7):
        builder.sample(time * MS, ["f@a.py:3", "main@a.py:9"])
    builder.sample(9 * MS, ["g@a.py:5", "f@a.py:4", "main@a.py:9"], length_ns=4 * MS, state=HostState.FILE)
    builder.sample(11 * MS, ["h@a.py:1"])
    profile = profile_of(builder, spans((0, 10 * MS)))
    found = {one.function: one for one in profile.top_functions}
    assert profile.samples == 7
    assert list(found) == ["f", "g", "main"]
    assert found["f"].self_ms == pytest.approx(6.0)
    assert found["f"].cumulative_ms == pytest.approx(10.0)
    assert (found["f"].file, found["f"].line) == ("a.py", 3)
    assert found["g"].self_ms == pytest.approx(4.0)
    assert found["main"].self_ms == 0.0
    assert profile.state_ms["running"] == pytest.approx(6.0)
    assert profile.state_ms["file"] == pytest.approx(4.0)
    assert profile.state_ms["gil"] == 0.0
    assert profile.on_cpu_ms == pytest.approx(6.0)


def test_the_recorders_own_time_is_no_functions() -> None:
    """Of 10 ms, 4 are the recorder's, its library's among them; a wrapper's is that of what it calls, native code."""
    builder, work = ProbeBuilder(MS), "work@/home/a/run.py:12"
    scopes = "/x/perfharness/recorder/scopes.py"
    builder.samples(0, 3 * MS, [f"RangeScope.__enter__@{scopes}:46", work])
    builder.samples(
        3 * MS, 4 * MS, ["dumps@/usr/lib/python3.11/json/__init__.py:8", f"RangeScope.close@{scopes}:9", work]
    )
    builder.samples(4 * MS, 8 * MS, ["work@/home/a/run.py:13", f"annotate_function.<locals>.call@{scopes}:134"])
    builder.samples(8 * MS, 10 * MS, ["_plain.<locals>.call@/x/perfharness/annotate/wrappers.py:94", "pack@run.py:7"])
    probe, stage = builder.build(), spans((0, 10 * MS), batches=2)
    profile = profile_of(builder, stage)
    assert profile.recorder_ms == pytest.approx(2.0)
    found = {one.function: (one.self_ms, one.cumulative_ms, one.line) for one in profile.top_functions}
    assert found == {"work": pytest.approx((2.0, 4.0, 13)), "pack": pytest.approx((1.0, 1.0, 7))}
    rows = rows_of_stage(probe.samples, stage)
    program = own_functions(probe.samples, rows, 0.5 / MS)
    assert [(one.function, one.line, one.self_ms) for one in program] == [("work", 13, 2.0), ("pack", 7, 1.0)]
    (recorder,) = own_functions(probe.samples, rows, 0.5 / MS, of_recorder=True)
    assert (recorder.function, recorder.line, recorder.self_ms) == ("work", 12, 2.0)


def test_error_is_that_of_independent_samples() -> None:
    builder = ProbeBuilder(MS)
    for time in range(400):
        builder.sample(time * MS, ["f@a.py:3" if time % 10 < 7 else "g@a.py:5"])
    error = profile_of(builder, spans((0, 400 * MS))).top_functions[0].error_ms
    assert error == pytest.approx(400 * 1.96 * (0.7 * 0.3 / 400) ** 0.5, rel=0.02)


def test_the_recorders_stack_decides_at_a_boundary_and_the_clock_in_which_range() -> None:
    builder = ProbeBuilder(MS)
    stage = ("r", "batch", "stage")
    builder.sample(10 * MS + 20_000, ["f@a.py:3"], stage=stage)  # the range ended 20 us before the sample's time
    builder.sample(5 * MS, ["g@a.py:3"], stage=("r", "batch"))  # by the clock inside, by the stack not
    builder.sample(50 * MS, ["h@a.py:3"], stage=stage)  # of a range that is not examined: the warm-up
    builder.sample(6 * MS, ["i@a.py:3"], stage=("other", "batch"))  # another recorder: the clock decides
    builder.sample(7 * MS, ["j@a.py:3"], stage=(*stage, "part"))
    found = profile_of(builder, spans((0, 10 * MS)))
    assert sorted(one.function for one in found.top_functions) == ["f", "i", "j"]


def test_what_the_holder_of_the_lock_did() -> None:
    builder = ProbeBuilder(MS)
    for time in range(10):
        at = time * MS
        builder.sample(at, ["mine@a.py:1"], state=HostState.GIL if time < 4 else HostState.RUNNING, gil_holder=7)
        builder.sample(at + 1000, [f"theirs@b.py:{2 if time < 3 else 3}"], tid=7, gil_holder=7)
    profile = profile_of(builder, spans((0, 10 * MS)))
    assert profile.state_ms["gil"] == pytest.approx(4.0)
    [holder] = profile.gil_holders
    assert (holder.function, holder.file, holder.line) == ("theirs", "b.py", 2)
    assert holder.self_ms == pytest.approx(4.0)


def test_a_holder_in_a_library_is_named_by_the_users_line_above_it() -> None:
    builder, encoder = ProbeBuilder(MS), "/usr/lib/python3.11/json/encoder.py"
    save = [
        "JSONEncoder.encode@/usr/lib/python3.11/json/encoder.py:200",
        "save@/home/a/log.py:8",
        "run@/usr/lib/python3.11/threading.py:9",
    ]
    for time in range(10):
        inside = [f"_iterencode_dict@{encoder}:400", *save] if time < 6 else ["save@/home/a/log.py:9"]
        builder.sample(time * MS, ["mine@/home/a/a.py:1"], state=HostState.GIL, gil_holder=7 if time < 8 else 8)
        builder.sample(time * MS + 1000, inside, tid=7, gil_holder=7)
    (holder,) = profile_of(builder, spans((0, 10 * MS))).gil_holders  # of thread 8 there are no samples
    assert (holder.function, holder.file, holder.line) == ("save", "/home/a/log.py", 8)
    assert holder.self_ms == pytest.approx(8.0)
    assert holder.callee == "json.encoder._iterencode_dict"


@given(st.lists(st.integers(0, 60), unique=True), st.lists(st.integers(-5, 70), min_size=1))
def test_the_nearest_sample_is_what_comparing_each_says(times: list[int], wanted: list[int]) -> None:
    builder = ProbeBuilder(MS)
    builder.sample(0, ["f@a.py:1"], tid=6)
    for time in times:
        builder.sample(time, ["f@a.py:1"], tid=7)
    samples = builder.build().samples
    mine = np.flatnonzero(samples.thread == samples.thread.max()).tolist() if times else []
    expected = [min(mine, key=lambda row: abs(int(samples.time_ns[row]) - time), default=-1) for time in wanted]
    thread = int(samples.thread.max()) + (0 if times else 1)
    assert nearest_samples(samples, thread, np.asarray(wanted, dtype=np.int64)).tolist() == expected


def test_collections_of_the_stages_own_thread_count() -> None:
    builder = ProbeBuilder(MS)
    builder.sample(MS, ["f@a.py:1"])
    builder.event(HostEventKind.COLLECTION, 1 * MS, 3 * MS, 2)
    builder.event(HostEventKind.COLLECTION, 21 * MS, 22 * MS, 0)
    builder.event(HostEventKind.COLLECTION, 15 * MS, 16 * MS, 0)  # between the ranges
    builder.event(HostEventKind.COLLECTION, 5 * MS, 6 * MS, 0, tid=7)
    profile = profile_of(builder, spans((0, 10 * MS), (20 * MS, 30 * MS), batches=2))
    assert profile.collections == 1.0
    assert profile.collection_ms == pytest.approx(1.5)


def test_states_that_the_system_hides_are_unknown_not_zero() -> None:
    builder = ProbeBuilder(MS)
    builder.sample(1 * MS, ["f@a.py:1"], state=HostState.UNKNOWN, on_cpu_ns=-1)
    profile = profile_of(builder, spans((0, 2 * MS)))
    assert profile.state_ms["gil"] is None
    assert profile.on_cpu_ms is None


def test_without_a_sample_nothing_is_known() -> None:
    profile = profile_of(ProbeBuilder(), spans((0, MS)))
    assert profile.samples == 0
    assert profile.top_functions == []
    assert profile.on_cpu_ms is None
    assert profile.state_ms["running"] is None
    assert profile.missing


def test_lines_during_calls() -> None:
    builder = ProbeBuilder(MS)
    stack = ["item@/x/lib/python3.11/site-packages/torch/t.py:8", "step@run.py:20", "main@run.py:3"]
    builder.samples(0, 3 * MS, stack)
    builder.samples(3 * MS, 5 * MS, ["step@run.py:21"])
    builder.samples(5 * MS, 9 * MS, ["step@run.py:22"])
    samples, start = builder.build().samples, np.asarray([0, 4 * MS, 100 * MS])
    found = lines_during(samples, THREAD, start, np.asarray([3 * MS, 5 * MS, 200 * MS]))
    assert [(one.function, one.line, one.self_ms) for one in found] == [("item", 8, 3.0), ("step", 21, 1.0)]
    own = lines_during(samples, THREAD, start, np.asarray([3 * MS, 5 * MS, 200 * MS]), own_code=True)
    assert [(one.function, one.line, one.self_ms) for one in own] == [("step", 20, 3.0), ("step", 21, 1.0)]
    assert lines_during(samples, THREAD + 1, start[:1], start[:1] + MS) == []


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))), st.lists(st.integers(-5, 90)))
def test_inside_is_what_comparing_each_says(intervals: list[tuple[int, int]], times: list[int]) -> None:
    start = np.asarray([first for first, _ in intervals], dtype=np.int64)
    end = start + np.asarray([length for _, length in intervals], dtype=np.int64)
    expected = [any(a <= time < b for a, b in zip(start, end, strict=True)) for time in times]
    assert inside(np.asarray(times, dtype=np.int64), start, end).tolist() == expected


@pytest.mark.parametrize(
    ("file", "expected", "name"),
    [
        ("/usr/lib/python3.11/threading.py", True, "threading"),
        ("/usr/lib/python3.11/json/encoder.py", True, "json"),
        ("/home/a/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py", True, "torch"),
        ("/usr/lib/python3/dist-packages/numpy/linalg.py", True, "numpy"),
        ("<frozen importlib._bootstrap>", True, "importlib"),
        ("<eval_with_key>.1", True, None),
        ("/tmp/__autograph_generated_file0x.py", True, None),
        ("/tmp/torchinductor_me/ab/cab.py", True, None),
        ("/home/a/run.py", False, None),
        ("/srv/lib/python3tools/run.py", False, None),
        ("/srv/perfharness/recorder/scopes.py", True, None),
        ("/srv/perfharness/steps.py", True, None),
        ("/srv/perfharness/pipeline/steps.py", False, None),
    ],
)
def test_is_library(file: str, expected: bool, name: str | None) -> None:
    assert is_library(file) is expected
    assert library_of(file) == name


def test_cpu_time_of_the_process_in_the_ranges_of_a_stage() -> None:
    """Of 0 to 10 ms it has 1 CPU, then 2, of which a forked child has one, too; the stage is open from 5 to 15 ms."""
    builder = ProbeBuilder(MS, cpus=4)
    builder.samples(0, 20 * MS, ["f@a.py:3"])
    for start in range(0, 20 * MS, 2 * MS):
        used = 2000 if start < 10 * MS else 4000
        builder.event(HostEventKind.CPU_TIME, start, start + 2 * MS, used)
        builder.event(HostEventKind.CPU_TIME, start, start + 2 * MS, 1000, pid=200, tid=200)
    for ranges in ([(5 * MS, 15 * MS)], [(5 * MS, 15 * MS), (6 * MS, 8 * MS)]):
        profile = profile_of(builder, spans(*ranges))
        assert profile.cpus_used == pytest.approx((1 + 2) / 2 + 0.5)
        assert profile.cpus == 4
    assert profile_of(builder, spans((15 * MS, 40 * MS))).cpus_used is None  # four fifths of it are not known
    assert profile_of(ProbeBuilder(), spans((0, MS))).cpus_used is None


@pytest.mark.parametrize(
    ("recorded", "read"),
    [
        ("C.run.<locals>.<dictcomp>", "C.run"),
        ("run.<locals>.<genexpr>.<locals>.<listcomp>", "run"),
        ("run.<locals>.<lambda>", "run.<locals>.<lambda>"),
        ("<listcomp>", "<listcomp>"),
    ],
)
def test_a_comprehension_is_part_of_its_function(tmp_path: Path, recorded: str, read: str) -> None:
    write_file(tmp_path / "host_samples.log", 100, recorded)
    probe = recorded_in(tmp_path)
    assert [frame.function for frame in probe.probe.samples.frames] == [read]
    assert probe.probe.cpus is None


def test_a_process_has_its_own_samples_and_those_of_all_beside_them(tmp_path: Path) -> None:
    folder = "proc_0_gpu_0"
    (tmp_path / folder).mkdir()
    write_file(tmp_path / folder / "host_samples.log", 100, "serve")
    record = ProcessRecord(
        index=0, gpu_index=0, folder=folder, command=["p"], pid=100, ended="ok", trace="trace.sqlite",
        measured=[MeasuredProcess(folder=folder, launched_index=0, pid=100)],
    )  # fmt: skip
    alone = ProcessTraces(tmp_path).host_probe(record)
    write_file(tmp_path / folder / "host_samples_200.log", 200, "decode")
    both = ProcessTraces(tmp_path).host_probe(record)
    assert alone is not None
    assert both is not None
    assert alone.probe.together is None
    assert {thread >> PID_SHIFT for thread in alone.probe.everyone.thread.tolist()} == {100}
    assert {thread >> PID_SHIFT for thread in both.probe.samples.thread.tolist()} == {100}
    assert {thread >> PID_SHIFT for thread in both.probe.everyone.thread.tolist()} == {100, 200}
    assert [frame.function for frame in both.probe.samples.frames] == ["serve"]
    assert [frame.function for frame in both.probe.everyone.frames] == ["serve", "decode"]
    assert both.probe.events.thread.tolist() == alone.probe.events.thread.tolist()


START = ("BaseProcess._bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314)
POPEN = ("Popen._launch", "/usr/lib/python3.11/multiprocessing/popen_fork.py", 71)
LIST = ("f.<locals>.<listcomp>", "a.py", 2)


@pytest.mark.parametrize(
    ("stack", "lines"),
    [
        ([LIST, ("f", "a.py", 1)], [2]),  # of a comprehension and its function one frame is left
        ([LIST, ("dumps", "b.py", 3), ("f", "a.py", 1)], [2, 3, 1]),
        ([("f", "a.py", 4), ("f", "a.py", 1)], [4, 1]),
        ([LIST, LIST, ("f", "a.py", 1)], [2]),
        # of a forked worker, the frames of its parent below the fork are no part of it
        ([("work", "a.py", 5), START, POPEN, ("main", "a.py", 9)], [5, 314]),
        ([("work", "a.py", 5), ("_bootstrap", "a.py", 6), ("main", "a.py", 9)], [5, 6, 9]),
    ],
)
def test_frames_that_are_no_part_of_a_stack(
    tmp_path: Path, stack: list[tuple[str, str, int]], lines: list[int]
) -> None:
    file = new_file(tmp_path / "host_samples.log", cpus=4)
    file.number("stacks", tuple(file.number("frames", frame) for frame in stack))
    file.close()
    recorded = recorded_in(tmp_path)
    samples = recorded.probe.samples
    assert [[samples.frames[number].line for number in stack] for stack in samples.stacks] == [lines]
    assert recorded.probe.cpus == 4


# ---- the file ----


def write_file(path: Path, pid: int, function: str) -> None:
    file = new_file(path, pid=pid, monotonic_ns=500, unix_ns=10_500)
    frame = file.number("frames", (function, "a.py", 3))
    stack = file.number("stacks", (frame,))
    stage = file.number("stages", ("r", "batch"))
    file.sample(2 * MS, pid + 1, MS, MS, 0, HostState.RUNNING, stack, stage, pid)
    file.flush()
    file.sample(1 * MS, pid, MS, -1, -1, HostState.GIL, -1, -1, 0)
    file.event(MS, 2 * MS, pid, HostEventKind.COLLECTION, 2)
    file.write_json(sample_file.MISSING, ["something"])
    file.close()


def test_files_of_a_process_and_its_children_are_read_as_one(tmp_path: Path) -> None:
    write_file(tmp_path / "host_samples.log", 100, "f")
    write_file(tmp_path / "host_samples_200.log", 200, "g")
    recorded = recorded_in(tmp_path)
    samples = recorded.probe.samples
    assert (recorded.monotonic_ns, recorded.unix_ns, samples.interval_ns) == (500, 10_500, MS)
    assert samples.thread.tolist() == [pid << 24 | tid for pid, tid in ((100, 100), (100, 101), (200, 200), (200, 201))]
    assert samples.gil_holder.tolist() == [0, 100 << 24 | 100, 0, 200 << 24 | 200]
    assert [[samples.frames[n].function for n in samples.stacks[s]] if s >= 0 else [] for s in samples.stack] == [
        [], ["f"], [], ["g"],
    ]  # fmt: skip
    assert [samples.stage_paths[s] if s >= 0 else None for s in samples.stage] == [None, ("r", "batch")] * 2
    assert samples.on_cpu_ns.tolist() == [-1, MS, -1, MS]
    assert recorded.probe.events.detail.tolist() == [2, 2]
    assert recorded.probe.missing == ("something",)
    of_child = recorded_in(tmp_path, 200)
    assert of_child.probe.samples.thread.tolist() == [200 << 24 | 200, 200 << 24 | 201]
    assert of_child.probe.events.thread.tolist() == [200 << 24 | 200]
    assert read_host_probe(tmp_path, 300) is None


def test_of_a_file_that_is_cut_off_whole_chunks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "host_samples.log"
    write_file(path, 100, "f")
    whole = path.read_bytes()
    counts = set()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        recorded = recorded_in(tmp_path)
        assert any(path.name in sentence for sentence in recorded.probe.missing) == (length < len(whole))
        counts.add(len(recorded.probe.samples))
    assert counts == {0, 1, 2}


# ---- on the trace's clock, into the diagnosis ----


def test_samples_reach_the_diagnosis(tmp_path: Path) -> None:
    """The marks tie the clocks: when the trace's is 1000, the monotonic one is 5 s later."""
    shift = 5_000_000_000
    builder = TraceBuilder(gpu=False)
    builder.mark(conventions.MARK_RECORDER, 100, domain="r", category="r")
    for time in (1000, 1200):
        builder.mark(conventions.MARK_CLOCK, time, domain="r", category="r", payload=time + shift - 100)
    for index in range(3):
        start = (10 + 20 * index) * MS
        builder.range("batch", start, start + 10 * MS, domain="r", category="r", payload=index)
        builder.range("load", start + MS, start + 5 * MS, domain="r", category="r")
    trace = open_trace(builder.write(tmp_path / "trace.sqlite"))
    file = new_file(tmp_path / "host_samples.log")
    stack = file.number("stacks", (file.number("frames", ("read", "a.py", 3)),))
    for time in range(100):
        file.sample(time * MS + MS // 2 + shift, 100, MS, 0, 0, HostState.FILE, stack, -1, 0, counts=(5, 0, 1, 0))
    file.close()
    recorded = recorded_in(tmp_path)
    analysis = Analysis(trace, host_probe=on_trace_clock(recorded, trace))
    found = {stage.path[-1]: stage for stage in diagnose(analysis).stages}
    load = found["load"].profile
    assert load is not None
    assert load.samples == 12
    assert load.state_ms["file"] == pytest.approx(4.0)
    assert (load.minor_faults, load.major_faults, load.voluntary_switches) == (20.0, 0.0, 4.0)
    assert load.top_functions[0].self_ms == pytest.approx(4.0)
    assert found["batch"].profile is not None
    assert found["batch"].profile.samples == 30
    assert json.dumps(diagnose(analysis).to_json())
    assert diagnose(Analysis(trace)).stages[0].profile is None


def test_what_the_system_counted_corrects_late_samples(tmp_path: Path) -> None:
    """The thread ran for 3 ms, was seen once meanwhile, and then seen asleep late: 3 of 5 ms are the first sample's.

    The next stretch ends without a blocked sample, and the other thread's time is not known: those stay.
    """
    file = new_file(tmp_path / "host_samples.log")
    file.sample(1 * MS, 100, 1000, 0, 0, HostState.RUNNING, -1, -1, 0)
    file.sample(5 * MS, 100, 4000, 2500, 500, HostState.SLEEP, -1, -1, 0)
    file.sample(6 * MS, 100, 1000, 0, 0, HostState.SLEEP, -1, -1, 0)
    file.sample(7 * MS, 100, 1000, 300, 0, HostState.RUNNING, -1, -1, 0)
    file.sample(1 * MS, 101, 1000, -1, -1, HostState.RUNNING, -1, -1, 0)
    file.sample(2 * MS, 101, 1000, -1, -1, HostState.UNKNOWN, -1, -1, 0)
    file.close()
    recorded = recorded_in(tmp_path)
    assert recorded.probe.samples.length_ns.tolist() == [3000, 2000, 1000, 1000, 1000, 1000]
    assert recorded.probe.samples.on_cpu_ns.tolist() == [2500, 0, 0, 300, -1, -1]
    assert recorded.probe.samples.runnable_ns.tolist() == [500, 0, 0, 0, -1, -1]


def test_time_that_was_counted_late_is_moved_to_where_it_was_spent(tmp_path: Path) -> None:
    """Four rows on a CPU, then two asleep; the system counted a tick in the third and the rest in the fifth."""
    file = new_file(tmp_path / "host_samples.log")
    states = [HostState.RUNNING] * 4 + [HostState.SLEEP] * 2
    for row, (on_cpu, runnable) in enumerate([(0, 0), (0, 0), (2500, 0), (0, 0), (2000, 400), (0, 0)]):
        file.sample(row * MS, 100, 1000, on_cpu, runnable, states[row], -1, -1, 0)
    file.sample(9 * MS, 101, 1000, 700, 0, HostState.RUNNING, -1, -1, 0)
    file.close()
    recorded = recorded_in(tmp_path)
    samples = recorded.probe.samples
    assert samples.length_ns.tolist() == [1225, 1225, 1225, 1225, 100, 1000, 1000]
    assert samples.on_cpu_ns.tolist() == [825, 1225, 1225, 1225, 0, 0, 700]
    assert samples.runnable_ns.tolist() == [400, 0, 0, 0, 0, 0, 0]
