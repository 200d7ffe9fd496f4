"""GPU memory is logged by starting a program after every step (there `nvidia-smi`, here an interpreter).

Lightning-AI/pytorch-lightning#189. Mended: once, after the last step.
"""

from __future__ import annotations

import subprocess
import sys

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES = 20
started = 0


def memory_used() -> str:
    global started
    started += 1
    return subprocess.run(  # fault
        [sys.executable, "-I", "-c", "import json; print(json.dumps({'used': sum(range(200000))}))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("infer"):
                sorted(range(40000), key=lambda value: value * 7919 % 10007)
            with perf.range("log"):
                if not MENDED:
                    memory_used()
memory_used()
perf.finalize()
print(started, "processes started")
