"""The frame of the fault programs: the switch, the loop over batches, innocent stages and a server.

A program has its fault unless it is started with `--mended`. A stage is a function: it gets what the stage before it
returned, the first one the number of the batch. Programs that need a GPU run in small with `--cpu`.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from inspect import isawaitable
from typing import Any

from perfharness import PerfRecorder

Stage = Callable[[Any], Any]

MENDED = "--mended" in sys.argv
DEVICE = "cpu" if "--cpu" in sys.argv else "cuda"
counted = 0


def pick(on_gpu: Any, in_small: Any) -> Any:
    """The size of a program that needs a GPU."""
    return on_gpu if DEVICE == "cuda" else in_small


def count(times: int = 1) -> None:
    """Count how often the faulty thing was done; the sum is the last line of output."""
    global counted
    counted += times


atexit.register(lambda: print(counted, "faults"))


@functools.cache
def recorder() -> PerfRecorder:
    """The recorder of the program, made at its first range."""
    return PerfRecorder("faults")


def batches(number: int, items: int = 1) -> Iterator[int]:
    """Numbers of the batches, each of them open while the caller has its number."""
    with recorder().range("pipeline"):
        for index in range(number):
            with recorder().batch(index, total_items=items):
                yield index
    recorder().finalize()


def stage(name: str, category: str | None = None) -> AbstractContextManager[Any]:
    """A range of a stage."""
    return recorder().range(name, category=category)


def run(number: int, items: int = 1, /, **stages: Stage) -> None:
    """So many batches of these stages."""
    for value in batches(number, items):
        for name, function in stages.items():
            with stage(name):
                value = function(value)


async def run_async(number: int, items: int = 1, /, **stages: Stage) -> None:
    """The same, of which some are coroutine functions."""
    for value in batches(number, items):
        for name, function in stages.items():
            with stage(name):
                value = function(value)
                if isawaitable(value):
                    value = await value


def sorting(number: int) -> Stage:
    """An innocent stage in Python; like the others it returns what it got."""

    def sort(value: Any) -> Any:
        sorted(range(number), key=lambda one: one * 7919 % 10007)
        return value

    return sort


def squaring(number: int) -> Stage:
    """An innocent stage in Python, without a list."""

    def square(value: Any) -> Any:
        sum(one * one for one in range(number))
        return value

    return square


def hashing(number: int) -> Stage:
    """An innocent stage in Python, with texts."""

    def hash_texts(value: Any) -> Any:
        sum(hash(f"{value}-{one}") % 7 for one in range(number))
        return value

    return hash_texts


def spelling(number: int) -> Stage:
    """An innocent stage in Python, with one long text."""

    def spell(value: Any) -> Any:
        "".join(chr(97 + one * 7919 % 26) for one in range(number))
        return value

    return spell


def network(rows: int, width: int, layers: int) -> Stage:
    """An innocent stage in numpy: dense layers."""
    import numpy as np

    weights = np.random.default_rng(1).normal(0, 0.1, (width, width)).astype(np.float32)
    inputs = np.random.default_rng(2).normal(0, 1, (rows, width)).astype(np.float32)

    def infer(value: Any) -> Any:
        states = inputs
        for _ in range(layers):
            states = np.tanh(states @ weights)
        return value

    return infer


def svd(side: int) -> Stage:
    """An innocent stage in LAPACK."""
    import numpy as np

    def decompose(value: Any) -> Any:
        np.linalg.svd(np.random.default_rng(3).standard_normal((side, side)), compute_uv=False)
        return value

    return decompose


def products(times: int) -> Stage:
    """An innocent stage on the GPU: products of matrices, of which it returns the last."""
    import torch

    side = pick(4096, 16)
    weight = torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16)

    def multiply(factor: Any) -> Any:
        hidden = weight * factor
        for _ in range(times):
            hidden = hidden @ weight * 0.01
        return hidden

    return multiply


def result(hidden: Any) -> Any:
    """An innocent stage that reads a number from the GPU."""
    return hidden.amax().item()


def serve(answer: Callable[[Any], object]) -> Any:
    """The address of a server in a forked process, which calls `answer(connection)` on a thread for each connection."""
    import multiprocessing
    import socket
    import threading

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0), backlog=32)
    multiprocessing.get_context("fork").Process(target=accept, daemon=True).start()
    return listener.getsockname()
