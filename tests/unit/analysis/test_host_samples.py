"""Samples of threads: whose code, functions and lines they show, compilers, event loops that wait, flame graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence
from perfharness.analysis.host_samples.awaits import with_awaits
from perfharness.analysis.host_samples.clock import on_trace_clock
from perfharness.analysis.host_samples.compilers import COMPILERS, compilers_of_stacks
from perfharness.analysis.host_samples.frames import is_library, library_of
from perfharness.analysis.host_samples.stacks import stage_stacks
from perfharness.cli.main import run
from perfharness.host_probe import sample_file
from perfharness.model import conventions
from perfharness.model.diagnosis import Cause, Code, StageDiagnosis
from perfharness.model.host_samples import Frame, HostSamples, HostState
from perfharness.trace import open_trace
from tests.support.made_batches import diagnosed, near, stage_of
from tests.support.probe_builder import ProbeBuilder
from tests.support.sample_files import new_file, recorded_in
from tests.support.trace_builder import MS, SITE, Recorded

LIBRARY = "/usr/lib/python3.11"
SCOPES, WRAPPERS = "/x/perfharness/recorder/scopes.py", "/x/perfharness/annotate/wrappers.py"
DUMPS, ENCODE = f"dumps@{LIBRARY}/json/encoder.py:8", f"encode@{LIBRARY}/json/encoder.py:200"


# ---- functions and lines ----


def functions(stage: StageDiagnosis) -> dict[str, tuple[int, float, float]]:
    """Line, own and whole share by function."""
    return {one.function: (one.line, round(one.self_share, 6), round(one.total_share, 6)) for one in stage.functions}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "running@f@a.py:3|main@a.py:9 0..600; file@g@a.py:5|f@a.py:4|main@a.py:9 600..1000",
            {"f": (3, 0.6, 1.0), "g": (5, 0.4, 0.4), "main": (9, 0.0, 1.0)},
        ),
        (f"running@{ENCODE} 0..1000", {"encode": (200, 1.0, 1.0)}),
        # 400 us are the recorder's; a wrapper's time is that of what it calls, which is native code
        (
            f"""
            running@RangeScope.__enter__@{SCOPES}:46|work@run.py:12 0..300
            running@{DUMPS}|RangeScope.close@{SCOPES}:9|work@run.py:12 300..400
            running@work@run.py:13|annotate_function.<locals>.call@{SCOPES}:134 400..800
            running@_plain.<locals>.call@{WRAPPERS}:94|pack@run.py:7 800..1000
            """,
            {"work": (13, 0.4, 0.8), "pack": (7, 0.2, 0.2)},
        ),
    ],
)
def test_functions_have_their_own_time_and_that_of_what_they_call(
    text: str, expected: dict[str, tuple[int, float, float]], tmp_path: Path
) -> None:
    stage = stage_of(diagnosed(tmp_path, text))
    assert functions(stage) == expected
    assert [one.function for one in stage.functions] == list(expected)


READS = f"item@{SITE}/torch/a.py:9|step@user.py:"
SELECT = f"EpollSelector.select@{LIBRARY}/selectors.py:468|main@user.py:90"
CALLER = f"running@_iterencode_dict@{LIBRARY}/json/encoder.py:400|save@log.py:8|run@{LIBRARY}/threading.py:9"
PLACES: dict[str, tuple[str, Code, float, tuple[str, str, int]]] = {
    # name: (a trace, the cause, its share, function, file and line)
    "a library leads to the line that calls it": (
        f"running@{ENCODE}|save@log.py:8|main@run.py:3 0..700; running@save@log.py:9|main@run.py:3 700..1000",
        Code.CPU_BOUND, 1.0, ("save", "log.py", 8),
    ),
    # 600 of 800 us; of the thread that holds it in the others there are no samples
    "the holder of the interpreter lock": (
        f"""
        gil@mine@run.py:1 0..600 gil_holder=101; gil@mine@run.py:1 600..800 gil_holder=7
        running@mine@run.py:1 800..1000; {CALLER} 0..1000 tid=101
        """,
        Code.GIL_CONTENTION, 0.8, ("save", "log.py", 8),
    ),
    "values are read by the line whose samples lie in the calls": (
        f"""
        cudaStreamSynchronize 100..300 x3+300
        running@{READS}30 0..100 x4+300; running@{READS}31 100..300 x3+300
        """,
        Code.SYNCHRONIZATION, 0.6, ("step", "user.py", 31),
    ),
    # Of 1 ms, 600 us are ready in the selector on a busy machine, and the user's own function computes for 400.
    "a loop that was woken and waits for a CPU is no function": (
        f"runnable@{SELECT} 0..600; running@digest@user.py:5|main@user.py:90 600..1000",
        Code.CPU_BOUND, 0.4, ("digest", "user.py", 5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_the_place_of_a_cause(name: str, tmp_path: Path) -> None:
    text, code, share, expected = PLACES[name]
    verdict = stage_of(diagnosed(tmp_path, text)).verdict
    assert verdict.code is code
    assert verdict.share == pytest.approx(share, abs=0.05)
    assert verdict.place is not None
    assert (verdict.place.function, verdict.place.file, verdict.place.line) == expected
    if "library" in name:
        assert "json" in verdict.step
        assert (verdict.place.function_share, verdict.place.line_share) == pytest.approx((1.0, 0.7))


@pytest.mark.parametrize(
    ("stack", "named"),
    [
        (f"{ENCODE}|{DUMPS}", "Call dumps of json"),
        (f"run@{SITE}/onnxruntime/a.py:4|identify@{SITE}/magika/magika.py:7", "Call run of onnxruntime"),
    ],
)
def test_the_function_that_is_named_is_one_of_the_library_that_computes(stack: str, named: str, tmp_path: Path) -> None:
    assert named in stage_of(diagnosed(tmp_path, f"running@{stack}|main@user.py:3 0..1000")).verdict.step


ASYNC = "lock@wait@/x/torch/_inductor/async_compile.py:809|model@user.py:9 0..600; running@post@user.py:12 600..1000"
CROWDED = "runnable@work 0..600; running@work 600..1000; crowded 0..1000"


@pytest.mark.parametrize(
    ("text", "used_us", "code", "share"),
    [
        ("running@work 0..1000; collects 100..300; collects 400..900 tid=101", 0, Code.GARBAGE_COLLECTION, 0.2),
        # the workers of `async_compile` compile
        (ASYNC, 0, Code.COMPILATION, 0.6),
        # Ready without a CPU for 60 % of the time, with too many threads throughout, which get 2, 1 or 0.4 of 2 CPUs:
        # one thread would have had one, or 0.4, so 60, 60 and 24 % are due to the process itself.
        (CROWDED, 2000, Code.CPU_CONTENTION, 0.6),
        (CROWDED, 1000, Code.CPU_CONTENTION, 0.6),
        (CROWDED, 400, Code.CPU_CONTENTION, 0.24),
    ],
)
def test_shares_of_causes(text: str, used_us: int, code: Code, share: float, tmp_path: Path) -> None:
    used = f"; used 0..1000 detail={used_us}" if used_us else ""
    causes: dict[Code, Cause] = {one.code: one for one in stage_of(diagnosed(tmp_path, text + used)).causes}
    assert causes[code].share == near(share)


@pytest.mark.parametrize(
    ("file", "expected", "name"),
    [
        (f"{LIBRARY}/threading.py", True, "threading"),
        (f"{LIBRARY}/json/encoder.py", True, "json"),
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


# ---- compilers ----

TRACING = f"{SITE}/tensorflow/python/eager/polymorphic_function/tracing_compilation.py"
PARSE = f"parse@{LIBRARY}/re/_parser.py"


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        (PARSE, "re"),
        ("_parse@/usr/lib/python3.10/sre_parse.py", "re"),
        ("parse@/home/me/core/_parser.py", None),  # ends like `re/_parser.py`, and is none
        (f"run@{SITE}/torch/_inductor/compile_fx.py", None),  # what was compiled
        (f"compile_fx_inner@{SITE}/torch/_inductor/compile_fx.py", "torch.compile"),
        (f"Core.compile_model@{SITE}/openvino/_ov_api.py", "OpenVINO's compile_model"),
        (f"Core.read_model@{SITE}/openvino/_ov_api.py", None),
        (f"_maybe_define_function@{TRACING}|trace_function@{TRACING}", None),  # looks up what was traced
        (f"_create_concrete_function@{TRACING}|_maybe_define_function@{TRACING}", "tf.function"),
        (f"{PARSE}|_compile@{SITE}/torch/_dynamo/convert_frame.py", "torch.compile"),  # which has called the other
    ],
)
def test_the_outermost_compiler_of_a_stack(stack: str, name: str | None) -> None:
    pairs = [one.split("@") for one in [*stack.split("|"), "main@user.py"]]
    frames = [Frame(function, file, 1) for function, file in pairs]
    found = compilers_of_stacks(frames, [tuple(range(len(frames))), ()]).tolist()
    assert [None if number < 0 else COMPILERS[number].name for number in found] == [name, None, None]


# ---- event loops that wait show the coroutine that ran last in the same stage ----

LOOP = (
    f"BaseEventLoop._run_once@{LIBRARY}/asyncio/base_events.py:1884",
    f"BaseEventLoop.run_forever@{LIBRARY}/asyncio/base_events.py:607",
    f"Runner.run@{LIBRARY}/asyncio/runners.py:118",
    "main@user.py:90",
)
LOOPS = [frame.partition("@")[0] for frame in LOOP]
WAITS = (f"EpollSelector.select@{LIBRARY}/selectors.py:468", *LOOP)
STEP = f"Handle._run@{LIBRARY}/asyncio/events.py:80"
WRITES = (f"StreamWriter.write@{LIBRARY}/asyncio/streams.py:343", "encode@user.py:5", "embed@user.py:9", STEP, *LOOP)
COUNTS = ("cluster@user.py:20", STEP, *LOOP)
WAKES = (f"_set_state@{LIBRARY}/asyncio/futures.py:403", STEP, *LOOP)
EMBED, CLUSTER = ("p", "embed"), ("p", "cluster")


def stacks(samples: HostSamples) -> list[list[str]]:
    """Of each sample, the functions on its stack, the innermost first."""
    return [[samples.frames[number].function for number in samples.stacks[stack]] for stack in samples.stack.tolist()]


def test_a_waiting_loop_has_the_coroutine_of_its_stage_below_its_wait() -> None:
    probe = ProbeBuilder()
    sampled = [(COUNTS, CLUSTER), (WAITS, EMBED), (WRITES, EMBED), (WAKES, EMBED), (WAITS, EMBED), (WAITS, CLUSTER)]
    for number, (stack, stage) in enumerate([*sampled, (WAITS, None)]):
        state = HostState.SOCKET if stack is WAITS else HostState.RUNNING
        probe.sample(number * 1000, stack, stage=stage, state=state)
    for state in (HostState.RUNNING, HostState.RUNNABLE):  # the loop is at work, or would be
        probe.sample((7 + state) * 1000, WAITS, stage=EMBED, state=state)
    before = probe.build().samples
    after = with_awaits(before)
    embeds, counts = ["EpollSelector.select", "encode", "embed", *LOOPS], ["EpollSelector.select", "cluster", *LOOPS]
    found = stacks(after)
    assert [found[1], found[4], found[5]] == [embeds, embeds, counts]
    unchanged = [0, 2, 3, 6, 7, 8]
    assert [found[number] for number in unchanged] == [stacks(before)[number] for number in unchanged]
    assert (after.state == before.state).all()


def test_what_a_coroutine_only_called_has_returned() -> None:
    suspended = Frame("stream", "user.py", 30, suspends=True), Frame("main", "user.py", 40, suspends=True)
    probe = ProbeBuilder()
    probe.sample(0, (Frame("next_token", "user.py", 21), *suspended, STEP, *LOOP), stage=EMBED)
    probe.sample(1000, WAITS, stage=EMBED, state=HostState.SLEEP)
    ran, waited = stacks(with_awaits(probe.build().samples))
    assert ran[:3] == ["next_token", "stream", "main"]
    assert waited == ["EpollSelector.select", "stream", "main", *LOOPS]


def test_other_threads_blocked_coroutines_and_native_loops() -> None:
    probe = ProbeBuilder()
    probe.sample(0, WRITES, stage=EMBED, tid=99)
    probe.sample(1000, WAITS, stage=EMBED)
    probe.sample(2000, ("get@user.py:7", "embed@user.py:9", STEP, *LOOP), stage=EMBED, state=HostState.LOCK)
    probe.sample(3000, stage=EMBED)
    samples = probe.build().samples
    assert stacks(with_awaits(samples)) == stacks(samples)
    # As uvloop: below `asyncio.run` there is either the coroutine or nothing.
    probe = ProbeBuilder()
    probe.sample(0, ("embed@user.py:9", *LOOP[2:]), stage=EMBED)
    probe.sample(1000, LOOP[2:], stage=EMBED, state=HostState.SOCKET)
    assert stacks(with_awaits(probe.build().samples))[1] == ["embed", "Runner.run", "main"]


# ---- flame graphs ----

BATCH = ("toy", "batch")
CALL, OPENED = f"plain.<locals>.call@{WRAPPERS}:1", f"open_range@{WRAPPERS}:1"
START = ("main@/x/perfharness/tracer/entry.py:3", "run@<frozen runpy>:8")


def stacks_of(builder: ProbeBuilder, folder: Path) -> dict[tuple[str, ...], dict[tuple[str, ...], float]]:
    """By outermost stage and functions, ms per batch; of two batches, from 0 to 11 and from 11 to 12 ms."""
    made = Recorded(gpu=False)
    made.batch(0, 0, 11)
    made.batch(1, 11, 12)
    made.probe = builder
    return {
        path: {tuple(one.function for one in frames): ms for frames, ms in stacks}
        for path, stacks in stage_stacks(made.add("decode 0..9").analysis(folder)).items()
    }


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
    decode = (*BATCH, "decode")
    builder.samples(0, 6 * MS, ["read@app.py:3", "main@app.py:1"], stage=decode)
    builder.samples(6 * MS, 9 * MS, ["resize@app.py:5", "main@app.py:1"], stage=decode, state=HostState.GIL)
    builder.samples(9 * MS, 12 * MS, ["main@app.py:2"], stage=BATCH)
    builder.samples(12 * MS, 15 * MS, ["after@app.py:2"])
    expected = {("main",): 1.5, ("[decode]", "main", "read"): 3.0, ("[decode]", "main", "resize"): 1.5}
    assert stacks_of(builder, tmp_path) == {BATCH: {path: near(ms) for path, ms in expected.items()}}


# ---- a file of samples next to a trace ----


def test_samples_reach_the_diagnosis_and_the_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Batches of 10 ms, 4 of them in `load`; when the trace's clock is 1 us, the monotonic one is 5 s later."""
    shift = 5_000_000_000
    builder = Recorded(gpu=False)
    for time in (1000, 1200):
        at = time + shift - 100
        builder.mark(conventions.MARK_CLOCK, time, domain="perfharness", category="toy", payload=at)
    for index in range(3):
        builder.batch(index, 10 + 20 * index, 20 + 20 * index)
        builder.add(f"load {11 + 20 * index}..{15 + 20 * index}")
    trace = open_trace(builder.write(tmp_path / "trace.sqlite"))
    file = new_file(tmp_path / sample_file.FILE_NAME)
    stack = file.number("stacks", (file.number("frames", ("rea;d", "a.py", 3)),))
    stages = [file.number("stages", ("toy", "batch", *more)) for more in ((), ("load",))]
    for time in range(100):
        stage = stages[time % 20 in range(11, 15)] if time % 20 >= 10 else -1
        file.sample(time * MS + MS // 2 + shift, 100, MS, 0, 0, HostState.FILE, stack, stage, 0)
    file.close()
    found = diagnose(find_evidence(Pass(Analysis(trace, host_probe=on_trace_clock(recorded_in(tmp_path), trace)))))
    load, batch = (stage_of(found, name) for name in ("load", "batch"))
    assert (load.samples, batch.samples) == (12, 30)
    assert (load.verdict.code, load.verdict.detail, load.verdict.share) == (Code.WAITING, "file", near(1.0))
    alone = diagnose(find_evidence(Pass(Analysis(trace))))
    assert {(stage.samples, stage.verdict.code) for stage in alone.stages} == {(0, Code.UNKNOWN)}
    text = tmp_path / "stacks.txt"
    assert run(["export", str(tmp_path / "trace.sqlite"), "-o", str(text)]) == 0
    assert capsys.readouterr().out.strip() == str(text)
    stacks = [f"trace: toy/batch;{inside}rea:d (a.py:3) {us}" for inside, us in (("[load];", 4000), ("", 6000))]
    assert sorted(text.read_text("utf-8").splitlines()) == sorted(stacks)
