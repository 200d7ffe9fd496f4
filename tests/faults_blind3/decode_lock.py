"""Images are decoded under a lock of the whole service, which a thread that makes thumbnails holds most of the time.

defl/hokku_epaper#29, GrokImageCompression/grok#386. Mended: as many decode as the memory allows.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from contextlib import AbstractContextManager

from PIL import Image

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES = 40
DECODE_LOCK = threading.Lock()
stopping = threading.Event()
contended = 0


def jpeg(side: int) -> bytes:
    picture = Image.effect_mandelbrot((side, side), (-2.0, -1.5, 1.0, 1.5), 20).convert("RGB")
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=90)
    return stream.getvalue()


def decode(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as picture:
        return picture.convert("RGB")


def admission() -> AbstractContextManager[object]:
    return contextlib.nullcontext() if MENDED else DECODE_LOCK


def make_thumbnails(data: bytes) -> None:
    while not stopping.is_set():
        if MENDED:  # it works at night
            stopping.wait()
            continue
        with DECODE_LOCK:
            decode(data).reduce(8)
        stopping.wait(0.001)


def open_for_panel(data: bytes) -> Image.Image:
    global contended
    contended += DECODE_LOCK.locked()
    with admission():  # fault
        return decode(data)


def fetch(index: int) -> int:
    return sum(hash(f"{index}-{position}") % 7 for position in range(6000))


def dither(picture: Image.Image) -> bytes:
    return picture.resize((96, 96)).convert("1").tobytes()


small, large = jpeg(160), jpeg(2400)
thread = threading.Thread(target=make_thumbnails, args=(large,), name="thumbnails")
thread.start()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("fetch"):
                fetch(index)
            with perf.range("open"):
                picture = open_for_panel(small)
            with perf.range("dither"):
                dither(picture)
perf.finalize()
stopping.set()
thread.join()
print(contended, "times the lock was taken")
