"""B: requests of 3 to 6 tokens; a token is a batch inside the batch of its request, and takes nearly all of it."""

import time

from perfharness import PerfRecorder

perf = PerfRecorder("llm")
with perf.range("serve"):
    for request, tokens in enumerate([3, 6, 4, 5, 3, 6, 5, 4]):
        with perf.batch(request, total_items=1, message="request"):
            with perf.range("prepare"):
                time.sleep(0.003)
            for token in range(tokens):
                with perf.batch(token, total_items=1, message="token"), perf.range("step"):
                    time.sleep(0.010 if token == 0 else 0.003)
perf.finalize()
