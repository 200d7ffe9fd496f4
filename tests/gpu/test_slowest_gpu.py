"""A slow request on a real GPU has its planted cause named: a copy that the others do not have, and a lock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launches import environment

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SLOW, TIMEOUT_S = 31, 280
COPY_BYTES = 2_000_000_000
PIPELINE = f"""
import sys, threading, time
import torch
from perfharness import PerfRecorder

mode = sys.argv[1]
perf = PerfRecorder("net")
weights = torch.randn(4096, 4096, device="cuda")
inputs = torch.randn(256, 4096).pin_memory()
more = torch.empty({COPY_BYTES}, dtype=torch.uint8).pin_memory() if mode == "copy" else None
target = torch.empty_like(more, device="cuda") if more is not None else None
lock, go, held = threading.Lock(), threading.Event(), threading.Event()

def holder():
    go.wait()
    with lock:
        held.set()
        time.sleep(0.2)

threading.Thread(target=holder, daemon=True).start()
with perf.range("loop"):
    for index, _ in perf.batches([None] * 60, items=lambda _: 256):
        with perf.range("load"):
            batch = inputs.to("cuda", non_blocking=True)
            if index == {SLOW} and mode == "copy":
                target.copy_(more, non_blocking=True)
            if index == {SLOW} and mode == "lock":
                go.set()
                held.wait()
                with lock:
                    pass
        with perf.range("infer"):
            for _ in range(20):
                batch = torch.relu(batch @ weights) * 0.01
            torch.cuda.synchronize()
perf.finalize()
"""


def perfharness(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfharness", *map(str, arguments)], capture_output=True, text=True, check=False,
        env=environment(PERFHARNESS_HISTORY="off"), timeout=TIMEOUT_S,
    )  # fmt: skip


def slowest(out: Path) -> dict[str, Any]:
    """The slowest request of the run."""
    done = perfharness("analyze", out, "--slowest", 1, "--format", "json")
    assert done.returncode == 0, done.stderr
    (loop,) = json.loads(done.stdout)["loops"]
    found: dict[str, Any] = loop["requests"][0]
    assert sum(part["ms"] for part in found["parts"]) + found["small_ms"] + found["rest_ms"] == pytest.approx(
        found["difference_ms"]
    )
    return found


def launch(folder: Path, tracer: str, mode: str, *options: str) -> Path:
    script = folder / "pipeline.py"
    script.write_text(PIPELINE)
    done = perfharness("launch", "--tracer", tracer, "-w", 5, *options, "-o", folder / "out", script, mode)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


@pytest.mark.parametrize("tracer", ["embedded", "nsys"])
def test_an_injected_copy_is_named(tmp_path: Path, tracer: str) -> None:
    request = slowest(launch(tmp_path, tracer, "copy"))
    part = request["parts"][0]
    assert (request["index"], request["verdict"]) == (SLOW, "explained")
    assert (part["reason"], part["name"], part["stage"]) == (
        "sync" if tracer == "nsys" else "unknown",  # the embedded tracer records calls that wait in the profiling pass
        "copy host to device",
        "infer",
    )
    (copies,) = [one for one in request["operations"] if one["name"] == "copy host to device"]
    assert (copies["count"], copies["typical_count"]) == (2, 1.0)
    assert copies["copied_bytes"] - copies["typical_copied_bytes"] == COPY_BYTES
    assert part["ms"] == pytest.approx(copies["gpu_ms"] - copies["typical_gpu_ms"], rel=0.3)


@pytest.mark.parametrize("tracer", ["embedded", "nsys"])
def test_an_injected_lock_is_named(tmp_path: Path, tracer: str) -> None:
    out = launch(tmp_path, tracer, "lock", "--explain")
    request = slowest(out / "explain")
    part = request["parts"][0]
    assert (request["index"], part["reason"], part["stage"]) == (SLOW, "lock", "load")
    assert part["ms"] == pytest.approx(200, rel=0.4)
    assert part["where"]["file"].endswith("pipeline.py")
    measured = slowest(out)
    assert (measured["index"], measured["parts"][0]["stage"]) == (SLOW, "load")
    assert measured["parts"][0]["reason"] in ("unknown", "lock")
