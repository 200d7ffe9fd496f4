"""Images are decoded under one lock, which a thread for thumbnails holds mostly. Mended: no lock, no thumbnails."""

import contextlib
import io
import threading

from PIL import Image

from tests.faults.frame import MENDED, count, hashing, run

lock, stopping = threading.Lock(), threading.Event()


def jpeg(side):
    stream = io.BytesIO()
    Image.effect_mandelbrot((side, side), (-2.0, -1.5, 1.0, 1.5), 20).convert("RGB").save(stream, "JPEG", quality=90)
    return stream.getvalue()


def decode(data):
    with Image.open(io.BytesIO(data)) as picture:
        return picture.convert("RGB")


def admission():
    return contextlib.nullcontext() if MENDED else lock


def make_thumbnails():
    while not stopping.wait(60 if MENDED else 0.001):
        with lock:
            decode(large).reduce(8)


def open_picture(_):
    count(lock.locked())
    with admission():  # fault
        return decode(small)


def dither(picture):
    return picture.resize((96, 96)).convert("1").tobytes()


small, large = jpeg(160), jpeg(2400)
thread = threading.Thread(target=make_thumbnails, name="thumbnails")
thread.start()
run(40, fetch=hashing(6000), open=open_picture, dither=dither)
stopping.set()
thread.join()
