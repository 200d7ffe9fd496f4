"""A thread that parses log lines in Python takes the interpreter lock from the thread that launches kernels.

pytorch/pytorch#77139: a pinning thread that held the lock froze the launching thread for 50 ms at a time.
"""

from __future__ import annotations

import threading

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 30
SIDE = {"cuda": 4096, "cpu": 16}
LAYERS = 8
"""Few: each call gives the lock away, and the other thread may keep it for 5 ms."""
RECORD = "2026-01-01 00:00:00 INFO request=17 tokens=512 state=done"


def parse_forever(stop: threading.Event) -> None:  # fault
    while not stop.is_set():
        fields = {}
        for _ in range(2_000):
            for field in RECORD.split(" "):
                name, _, value = field.partition("=")
                fields[name] = value


def main() -> None:
    args = parse_options(__doc__)
    side = SIDE[args.device]
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16) / side**0.5
    inputs = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)
    stop = threading.Event()
    parser_thread = threading.Thread(target=parse_forever, args=(stop,), name="log-parser", daemon=True)
    if not args.mended:
        parser_thread.start()

    perf = PerfRecorder("gil_thread")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=len(inputs)):
                with perf.range("model"):
                    hidden = inputs
                    for _ in range(LAYERS):
                        hidden = torch.relu(hidden @ weight)
                with perf.range("results"):
                    hidden.amax().item()
    stop.set()
    perf.finalize()


if __name__ == "__main__":
    main()
