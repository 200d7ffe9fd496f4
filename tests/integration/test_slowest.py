"""`perfharness analyze --slowest` of real launches: a request with a planted cause, and a pipeline without."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import perfharness
from perfharness.cli.main import run
from tests.integration.launches import TRACERS_SLOW_UNDER_NSYS, environment, run_to_the_end, tracing
from tests.integration.launches import perfharness as verb
from tests.schemas import valid

SLOW = 22
SCRIPT = f"""
import gc, sys, threading, time
from perfharness import PerfRecorder

mode = sys.argv[1]
perf = PerfRecorder("pipe")
lock, go, held = threading.Lock(), threading.Event(), threading.Event()
heap = [[number] for number in range(1_000_000)] if mode == "collect" else []
gc.disable()

def holder():
    go.wait()
    with lock:
        held.set()
        time.sleep(0.25)

def plant():
    if mode == "collect":
        for _ in range(4):  # longer than a busy machine holds up any other batch
            gc.collect()
    if mode == "sleep":
        time.sleep(0.25)
    if mode == "lock":
        go.set()
        held.wait()
        with lock:
            pass

threading.Thread(target=holder, daemon=True).start()
with perf.range("loop"):
    for index, batch in perf.batches([[1, 2]] * 40, items=len):
        with perf.range("decode"):
            time.sleep(0.001)
            if index == {SLOW}:
                plant()
        with perf.range("infer"):
            time.sleep(0.001)
perf.finalize()
"""


def slowest(out: Path, most: int = 5, *options: object) -> dict[str, Any]:
    """The one loop of the run."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run(["analyze", str(out), "--slowest", str(most), "--format", "json", *map(str, options)]) == 0
    (loop,) = valid("slowest", json.loads(printed.getvalue()))["loops"]
    found: dict[str, Any] = loop
    return found


def causes(request: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(part["reason"], part["stage"]) for part in request["parts"]]


def launch(out: Path, script: Path, mode: str, *more: str, tracer: str = "embedded") -> None:
    options, sites = tracing(tracer)
    done = run_to_the_end((*options, *more, "-o", out, script, mode), environment(*sites))
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def unplanted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which no batch is slow for a reason of the script."""
    folder = tmp_path_factory.mktemp("unplanted")
    (folder / "pipeline.py").write_text(SCRIPT)
    launch(folder / "out", folder / "pipeline.py", "none")
    return folder / "out"


def test_a_collection_is_named_by_the_measured_pass_alone(tmp_path: Path, script: Path) -> None:
    launch(tmp_path / "out", script, "collect")
    loop = slowest(tmp_path / "out", 3)
    assert (loop["batches"], loop["measured_by"], len(loop["requests"])) == (38, "duration", 3)
    first = loop["requests"][0]
    assert (first["index"], first["verdict"]) == (SLOW, "explained")
    assert causes(first)[0] == ("gc", "decode")
    took = {stage["stage"]: stage["slow_ms"] for stage in first["stages"]}
    assert 0.5 * took["decode"] < first["parts"][0]["ms"] <= took["decode"]
    assert sum(part["ms"] for part in first["parts"]) + first["small_ms"] + first["rest_ms"] == pytest.approx(
        first["difference_ms"]
    )
    assert perfharness.open_run(tmp_path / "out").slowest(1).loops[0].requests[0].index == SLOW


def test_without_a_plant_nobody_is_accused(unplanted: Path) -> None:
    reasons = {reason for one in slowest(unplanted)["requests"] for reason, _ in causes(one)}
    assert reasons <= {"unknown", "sleep", "no-cpu", "compute"}  # whatever else the machine did


@TRACERS_SLOW_UNDER_NSYS
def test_a_lock_is_named_by_the_explaining_pass(tmp_path: Path, script: Path, tracer: str) -> None:
    launch(tmp_path / "out", script, "lock", "--explain", tracer=tracer)
    first = slowest(tmp_path / "out" / "explain", 1)["requests"][0]
    assert (first["index"], causes(first)[0]) == (SLOW, ("lock", "decode"))
    assert first["parts"][0]["ms"] > 125
    assert first["parts"][0]["where"]["file"].endswith("script.py")
    measured = slowest(tmp_path / "out", 1)["requests"][0]
    assert (measured["index"], causes(measured)[0]) in [(SLOW, ("lock", "decode")), (SLOW, ("unknown", "decode"))]


TARGET = """
import time

def serve(request):
    time.sleep(0.6 if request.id == 60 else 0.001)
    if request.id == 20:
        raise ValueError("no")
"""


@pytest.mark.slow
def test_requests_of_a_load_wait_behind_the_one_that_stalls(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(TARGET)
    load = ("--rate", 50, "--duration", "3s", "--warm-up", "0.4s", "--tracer", "embedded")
    verb("stress", f"{tmp_path / 'target.py'}:serve", *load, "-o", tmp_path / "out")
    loop = slowest(tmp_path / "out", 4)
    assert (loop["measured_by"], loop["batches"]) == ("latency", 149)  # one of them failed
    requests = {one["index"]: one for one in loop["requests"]}
    assert list(requests) == [60, 61, 62, 63]
    assert causes(requests[60])[0] in [("sleep", None), ("unknown", None)]
    assert requests[60]["ms"] == pytest.approx(requests[60]["queue_ms"] + requests[60]["batch_ms"], abs=100)
    for index in (61, 62, 63):  # due 20, 40 and 60 ms later, and begun when the stall is over
        assert causes(requests[index])[0] == ("queue", None)
        assert requests[index]["queue_ms"] >= 600 - 20 * (index - 60) - 1  # the clocks are compared
    failed = slowest(tmp_path / "out", 150)["requests"]  # all of them
    (without,) = [one for one in failed if one["index"] == 20]
    assert (without["verdict"], without["error"]) == ("not-compared", "exception:ValueError")


def test_what_cannot_be_shown(tmp_path: Path, unplanted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    shutil.copytree(unplanted, out)
    assert run(["analyze", str(out), "--slowest", "5", "-w", "20"]) == 3
    for options in (["--slowest", "0"], ["--slowest", "1", "--stage", "decode"]):
        assert run(["analyze", str(out), *options]) == 2
    (out / "proc_0_gpu_0" / "requests.parquet").write_bytes(b"no parquet")
    capsys.readouterr()
    assert run(["analyze", str(out), "--slowest", "1"]) == 0
    assert "requests.parquet" in capsys.readouterr().out
