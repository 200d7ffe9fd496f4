"""Matrix products in batches, with the parts of the start-up named, and a process that may come late."""

import argparse
import os
import time

import torch

from perfharness import PerfRecorder, startup_range

parser = argparse.ArgumentParser()
parser.add_argument("--batches", type=int, default=60)
parser.add_argument("--late-s", type=float, default=0.0, help="that much later for each process before it")
parser.add_argument("--name-context", action="store_true", help="make the context inside a start-up range")
parser.add_argument("--tell-cpus", action="store_true")
options = parser.parse_args()

if options.name_context:
    with startup_range("cuda_context"):
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
with startup_range("model_load"):
    left, right = (torch.randn(4096, 4096, device="cuda", dtype=torch.float16) for _ in range(2))
    torch.cuda.synchronize()
if options.tell_cpus:
    print("cpus", sorted(os.sched_getaffinity(0)), flush=True)
time.sleep(options.late_s * int(os.environ.get("PERFHARNESS_PROCESS_INDEX", "0")))

perf = PerfRecorder("launch")
with perf.range("pipeline"):
    for index in range(options.batches):
        with perf.batch(index, total_items=1), perf.range("work"):
            for _ in range(8):
                left @ right
            torch.cuda.synchronize()
perf.finalize()
