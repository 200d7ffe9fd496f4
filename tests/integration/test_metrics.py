"""What Prometheus reads: of an annotated service, and of a run while it is measured."""

from __future__ import annotations

from pathlib import Path

from perfharness.metrics.running import RunningRanges, RunningReadings, running_folders
from perfharness.model.telemetry import HOST
from tests.integration.launches import environment, hanging, launching, wait_for

MEASURED = """
import asyncio, os, sys, threading, time
from pathlib import Path
from perfharness import PerfRecorder

perf = PerfRecorder("svc")

def loop():
    with perf.range("pipeline"):
        for i in range(500):
            with perf.batch(i, total_items=3):
                with perf.range("decode"):
                    pass

async def requests():
    for i in range(20):
        with perf.batch(i, total_items=5, message="request"):
            with perf.range("read"):
                await asyncio.sleep(0)

async def serve():
    await asyncio.gather(requests(), requests())

threads = [threading.Thread(target=loop) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
asyncio.run(serve())
perf.push_range("batch", batch_idx=1)
perf.pop_range(total_items=1000, delete_range=True)
if os.fork() == 0:
    loop()
    os._exit(0)
os.wait()
print("hanging", flush=True)
while not Path(sys.argv[1]).exists(): time.sleep(0.01)
"""
"""1,540 batches with 4,700 items in two threads, two tasks and a child, and one that is deleted."""


def test_a_running_launch_is_read_from_its_folder(tmp_path: Path) -> None:
    script, go, out = tmp_path / "measured.py", tmp_path / "go", tmp_path / "out"
    script.write_text(MEASURED)
    arguments = ("--telemetry", "--tracer", "embedded", "-o", out, script, go)
    with launching(arguments, environment()) as launcher:
        wait_for(lambda: hanging(out, 1))
        (folder,) = running_folders(out)
        ranges, readings = RunningRanges(folder), RunningReadings(folder)
        ranges.read()
        (process,) = ranges.processes.values()
        assert (process.batches, process.items) == (1540, 4700)
        assert {path: stage.count for path, stage in process.stages.items()} == {
            ("svc", "pipeline"): 3,
            ("svc", "pipeline/batch"): 1500,
            ("svc", "pipeline/batch/decode"): 1500,
            ("svc", "request"): 40,
            ("svc", "request/read"): 40,
        }
        outer, inner = (process.stages["svc", path].total_ns for path in ("pipeline/batch", "pipeline/batch/decode"))
        assert outer > inner > 0

        def is_sampled() -> bool:
            readings.read()
            latest = readings.latest()
            return (HOST, "cpu_percent") in latest and ("process:proc_0_gpu_0", "rss_bytes") in latest

        wait_for(is_sampled)
        go.touch()
        assert launcher.wait() == 0
    ranges.read()
    assert process.batches == 1540
    assert running_folders(out) == []
    assert not list(out.rglob(".telemetry*"))
