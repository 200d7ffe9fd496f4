"""Plain NVTX, without a recorder."""

import time

import nvtx


def resize() -> None:
    with nvtx.annotate("resize"):
        time.sleep(0.004)


for _ in range(10):
    with nvtx.annotate("frame", payload=2):
        resize()
        with nvtx.annotate("detect", domain="library"):
            sum(range(30_000))
