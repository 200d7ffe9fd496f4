"""Samples of threads in the diagnosis: whose code, functions and lines they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence
from perfharness.analysis.host_samples.clock import on_trace_clock
from perfharness.analysis.host_samples.frames import is_library, library_of
from perfharness.model import conventions
from perfharness.model.diagnosis import Code, StageDiagnosis
from perfharness.model.host_samples import HostEventKind, HostState
from perfharness.trace import open_trace
from tests.support.made_batches import WORKER, Batch, Content, diagnosed, near, stage_of
from tests.support.sample_files import MS, new_file, recorded_in
from tests.support.trace_builder import TraceBuilder

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
