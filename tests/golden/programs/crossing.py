"""F2: a range that ends on another thread than it began on, 10 ms in each of eight batches."""

import queue
import threading
import time
from typing import Any

import nvtx

from perfharness import PerfRecorder

uploads: queue.Queue[Any] = queue.Queue()


def finish() -> None:
    while (upload := uploads.get()) is not None:
        time.sleep(0.010)
        nvtx.end_range(upload)


thread = threading.Thread(target=finish)
thread.start()
perf = PerfRecorder("service")
for index in range(8):
    with perf.batch(index, total_items=1):
        uploads.put(nvtx.start_range("upload", domain="perfharness"))
        with perf.range("request"):
            time.sleep(0.004)
uploads.put(None)
thread.join()
perf.finalize()
