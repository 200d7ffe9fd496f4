"""A file lock is tried again and again while another process holds it. Mended: the call that waits."""

import fcntl
import multiprocessing
import os
import tempfile
import time
from contextlib import contextmanager

from tests.faults.frame import MENDED, count, run

context = multiprocessing.get_context("fork")
started = context.Event()


def try_lock(file):
    count()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fault
    except OSError:
        return False
    return True


@contextmanager
def locked():
    file = os.open(path, os.O_RDWR)
    if MENDED:
        fcntl.flock(file, fcntl.LOCK_EX)
    else:
        while not try_lock(file):  # fault
            pass
    yield
    os.close(file)


def compile_elsewhere():
    """Another process of the same cache."""
    while True:
        file = os.open(path, os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX)
        started.set()
        time.sleep(0.02)
        os.close(file)
        time.sleep(0.004)


def lower(index):
    return [f"op{(index * position) % 89}".upper().lower() for position in range(9000)]


def compile_kernel(ops):
    with locked():
        return f"code of {ops[0]}"


def launch(code):
    return sum(position * len(code) % 7 for position in range(30000))


with tempfile.NamedTemporaryFile() as lock_file:
    path = lock_file.name
    context.Process(target=compile_elsewhere, daemon=True).start()
    started.wait()
    run(40, lower=lower, compile=compile_kernel, launch=launch)
