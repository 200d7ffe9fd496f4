"""Stages of three kinds: one computes, one waits for a lock, one reads what a child process prints."""

import json
import subprocess
import threading
import time

from perfharness import PerfRecorder

RECORDS = [{"index": index, "text": str(index)} for index in range(4000)]
lock = threading.Lock()


def hold() -> None:
    with lock:
        time.sleep(0.008)


def encode() -> str:
    return json.dumps(RECORDS, indent=1)


perf = PerfRecorder("service")
with perf.range("serve"):
    for index in range(16):
        with perf.batch(index, total_items=1):
            with perf.range("encode"):
                encode()
            with perf.range("lock"):
                holder = threading.Thread(target=hold)
                holder.start()
                time.sleep(0.001)
                with lock:
                    pass
                holder.join()
            with perf.range("child"):
                subprocess.run(["sleep", "0.005"], check=True)
perf.finalize()
