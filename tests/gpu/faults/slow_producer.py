"""One thread decodes what the GPU's thread takes from a queue, and takes longer for an item than the GPU.

bearpaw/pytorch-pose#28: whenever the loaded data were used up, the GPU waited. Mended: items are decoded beforehand.
"""

from __future__ import annotations

import hashlib
import queue
import threading

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 30
ITEM_BYTES = {"cuda": 30_000_000, "cpu": 100_000}


def main() -> None:
    args = parse_options(__doc__)
    side = 4096 if args.device == "cuda" else 16
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)
    encoded = bytes(ITEM_BYTES[args.device])
    items: queue.Queue[int] = queue.Queue()
    perf = PerfRecorder("slow_producer")

    def decode_all() -> None:
        for _ in range(BATCHES):
            with perf.range("decode"):
                items.put(hashlib.sha256(encoded).digest()[0])  # fault

    producer = threading.Thread(target=decode_all, name="producer")
    producer.start()
    if args.mended:
        producer.join()
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                with perf.range("take"):
                    item = items.get()  # fault
                with perf.range("model"):
                    hidden = weight * item
                    for _ in range(20):
                        hidden = hidden @ weight * 0.01
                    hidden.amax().item()
    producer.join()
    perf.finalize()


if __name__ == "__main__":
    main()
