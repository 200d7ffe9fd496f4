"""What torchrun starts twice: each rank has batches of its own, and waits for the slower one."""

import time

import torch
import torch.distributed as dist

from perfharness import PerfRecorder

dist.init_process_group("gloo")
perf = PerfRecorder("model")
with perf.range("serve"):
    for index in range(10):
        with perf.batch(index, total_items=2):
            with perf.range("forward"):
                time.sleep(0.003 * (1 + dist.get_rank()))
            with perf.range("reduce"):
                dist.all_reduce(torch.ones(4))
perf.finalize()
dist.destroy_process_group()
