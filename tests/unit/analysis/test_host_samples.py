"""Samples of threads: read from their files, and whose code and functions they show in the diagnosis."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence
from perfharness.analysis.host_samples.frames import is_library, library_of
from perfharness.analysis.host_samples.host_profile import on_trace_clock
from perfharness.host_probe import sample_file
from perfharness.model import conventions
from perfharness.model.diagnosis import Code, StageDiagnosis
from perfharness.model.host_samples import HostEventKind, HostState
from perfharness.model.manifest import ProcessRecord
from perfharness.model.measured import MeasuredProcess
from perfharness.model.trace import PID_SHIFT
from perfharness.runs.files.process_traces import ProcessTraces
from perfharness.trace import open_trace
from perfharness.trace.host_samples import RecordedProbe, read_host_probe
from tests.support.made_batches import WORKER, Batch, Content, diagnosed, near, stage_of
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def new_file(path: Path, **facts: int) -> sample_file.SampleFile:
    file = sample_file.SampleFile(str(path))
    file.write_json(sample_file.META, {"pid": 100, "interval_ns": MS, "monotonic_ns": 0, "unix_ns": 0, **facts})
    return file


def recorded_in(folder: Path, pid: int | None = None) -> RecordedProbe:
    found = read_host_probe(folder, pid)
    assert found is not None
    return found


# ---- functions and lines ----

SCOPES, SITE = "/x/perfharness/recorder/scopes.py", "/usr/lib/python3.11/site-packages"
ENCODER = "/usr/lib/python3.11/json/encoder.py"


def sampled(path: Path, content: Content) -> StageDiagnosis:
    return stage_of(diagnosed(path, content))


def functions(stage: StageDiagnosis) -> dict[str, tuple[int, float, float]]:
    """Line, own and whole share by function."""
    return {one.function: (one.line, round(one.self_share, 6), round(one.total_share, 6)) for one in stage.functions}


def test_functions_have_their_own_time_and_that_of_what_they_call(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        batch.sampled(0, 600, "f@a.py:3", "main@a.py:9")
        batch.sampled(600, 1000, "g@a.py:5", "f@a.py:4", "main@a.py:9", state=HostState.FILE)

    stage = sampled(tmp_path, content)
    assert functions(stage) == {"f": (3, 0.6, 1.0), "g": (5, 0.4, 0.4), "main": (9, 0.0, 1.0)}
    assert [one.function for one in stage.functions] == ["f", "g", "main"]


def test_the_recorders_own_time_is_no_functions(tmp_path: Path) -> None:
    """Of 1 ms, 400 us are the recorder's; a wrapper's time is that of what it calls, which is native code."""

    def content(batch: Batch) -> None:
        batch.sampled(0, 300, f"RangeScope.__enter__@{SCOPES}:46", "work@run.py:12")
        batch.sampled(300, 400, f"dumps@{ENCODER}:8", f"RangeScope.close@{SCOPES}:9", "work@run.py:12")
        batch.sampled(400, 800, "work@run.py:13", f"annotate_function.<locals>.call@{SCOPES}:134")
        batch.sampled(800, 1000, "_plain.<locals>.call@/x/perfharness/annotate/wrappers.py:94", "pack@run.py:7")

    assert functions(sampled(tmp_path, content)) == {"work": (13, 0.4, 0.8), "pack": (7, 0.2, 0.2)}


def test_a_library_leads_to_the_line_that_calls_it(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        batch.sampled(0, 700, f"encode@{ENCODER}:200", "save@log.py:8", "main@run.py:3")
        batch.sampled(700, 1000, "save@log.py:9", "main@run.py:3")

    verdict = sampled(tmp_path, content).verdict
    assert (verdict.code, "json" in verdict.step) == (Code.CPU_BOUND, True)
    assert verdict.place is not None
    assert (verdict.place.function, verdict.place.line) == ("save", 8)
    assert (verdict.place.function_share, verdict.place.line_share) == pytest.approx((1.0, 0.7))


def test_the_holder_of_the_interpreter_lock_is_named_by_the_users_line(tmp_path: Path) -> None:
    """600 of 800 us; of the thread that holds it in the others there are no samples."""

    def content(batch: Batch) -> None:
        batch.sampled(0, 600, "mine@run.py:1", state=HostState.GIL, holder=WORKER)
        batch.sampled(600, 800, "mine@run.py:1", state=HostState.GIL, holder=7)
        batch.sampled(800, 1000, "mine@run.py:1")
        stack = (f"_iterencode_dict@{ENCODER}:400", "save@log.py:8", "run@/usr/lib/python3.11/threading.py:9")
        batch.probe.samples(batch.at(0), batch.at(1000), stack, tid=WORKER)

    verdict = sampled(tmp_path, content).verdict
    assert (verdict.code, verdict.share) == (Code.GIL_CONTENTION, near(0.8))
    assert verdict.place is not None
    assert (verdict.place.function, verdict.place.file, verdict.place.line) == ("save", "log.py", 8)


def test_the_line_that_reads_values_is_named_from_samples_in_its_calls(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        for at in (100, 400, 700):
            batch.call("cudaStreamSynchronize_v3020", at, at + 200)
        for at in range(0, 1000, 100):
            is_reading = at % 300 in (100, 200) and at < 900
            batch.sampled(at, at + 100, f"item@{SITE}/torch/a.py:9", f"step@user.py:{31 if is_reading else 30}")

    verdict = sampled(tmp_path, content).verdict
    assert (verdict.code, verdict.place and verdict.place.line) == (Code.SYNCHRONIZATION, 31)
    assert verdict.share == pytest.approx(0.6, abs=0.05)


def test_collections_of_another_thread_do_not_count(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        batch.sampled(0, 1000, "work@run.py:1")
        batch.event(HostEventKind.COLLECTION, 100, 300, 2)
        batch.event(HostEventKind.COLLECTION, 400, 900, 2, tid=WORKER)

    verdict = sampled(tmp_path, content).causes[-1]
    assert (verdict.code, verdict.share) == (Code.GARBAGE_COLLECTION, near(0.2))


@pytest.mark.parametrize(("used_us", "share"), [(2000, 0.6), (1000, 0.6), (400, 0.24)])
def test_while_others_have_the_cpus_its_own_threads_are_not_too_many(
    used_us: int, share: float, tmp_path: Path
) -> None:
    """Ready without a CPU for 60 % of the time, with too many threads throughout, which get 2, 1 or 0.4 of 2 CPUs: one
    thread would have had one, or 0.4, so 60, 60 and 24 % are due to the process itself.
    """

    def content(batch: Batch) -> None:
        batch.sampled(0, 600, "work@run.py:1", state=HostState.RUNNABLE)
        batch.sampled(600, 1000, "work@run.py:1")
        batch.event(HostEventKind.CROWDED, 0, 1000, 2)
        batch.event(HostEventKind.CPU_TIME, 0, 1000, used_us)

    causes = {cause.code: cause.share for cause in sampled(tmp_path, content).causes}
    assert causes[Code.CPU_CONTENTION] == pytest.approx(share)


# ---- whose code ----


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


# ---- on the trace's clock ----


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
        file.sample(time * MS + MS // 2 + shift, 100, MS, 0, 0, HostState.FILE, stack, -1, 0)
    file.close()
    analysis = Analysis(trace, host_probe=on_trace_clock(recorded_in(tmp_path), trace))
    found = diagnose(find_evidence(Pass(analysis)))
    load, batch = (stage_of(found, name) for name in ("load", "batch"))
    assert (load.samples, batch.samples) == (12, 30)
    assert (load.verdict.code, load.verdict.detail, load.verdict.share) == (Code.WAITING, "file", near(1.0))
    alone = diagnose(find_evidence(Pass(Analysis(trace))))
    assert {(stage.samples, stage.verdict.code) for stage in alone.stages} == {(0, Code.UNKNOWN)}


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
