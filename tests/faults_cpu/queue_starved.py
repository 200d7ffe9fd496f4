"""One thread decodes for a consumer that is much faster, so the consumer waits at an empty queue.

mlcommons/inference#767 (all preparation is done by one thread). Mended: the thread decodes the reduced size that the
model needs.
"""

from __future__ import annotations

import queue
import sys
import threading
import zlib

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES = 24
FULL = zlib.compress(np.random.default_rng(1).integers(0, 40, 3_000_000, dtype=np.uint8).tobytes(), 6)
REDUCED = zlib.compress(bytes(150_000), 6)
ready: queue.Queue[bytes | None] = queue.Queue(maxsize=2)
bytes_decoded = 0


def decode(data: bytes) -> bytes:
    return zlib.decompress(data)  # fault


def produce() -> None:
    global bytes_decoded
    for _ in range(BATCHES):
        image = decode(REDUCED if MENDED else FULL)
        bytes_decoded += len(image)
        ready.put(image)
    ready.put(None)


perf = PerfRecorder("faults")
thread = threading.Thread(target=produce)
thread.start()
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("load"):
                image = ready.get()  # fault
            assert image is not None
            with perf.range("infer"):
                for _ in range(4):
                    np.frombuffer(image[:150_000], dtype=np.uint8).astype(np.float32).cumsum()
thread.join()
perf.finalize()
print(bytes_decoded, "bytes decoded")
