"""A scheduler takes waiting requests from the front of a list, and every time the rest of the list moves.

GradientHQ/parallax#327, modelcontextprotocol/python-sdk#2165. Mended: `collections.deque`.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from dataclasses import dataclass

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ADMITTED, WAITING = 40, 500, 700_000
RNG = np.random.default_rng(3)
shifts = 0


@dataclass
class Request:
    number: int
    tokens: int
    generated: int = 0


class Scheduler:
    """First come, first served, while there is room in the cache."""

    def __init__(self) -> None:
        self.waiting: list[Request] = [Request(number, 16 + number % 64) for number in range(WAITING)]
        self.queue = deque(self.waiting)
        self.running: list[Request] = []

    def next_request(self) -> Request:
        global shifts
        if MENDED:
            return self.queue.popleft()
        shifts += 1
        return self.waiting.pop(0)  # fault

    def admit(self, room: int) -> None:
        while room > 0 and len(self.running) < ADMITTED:
            request = self.next_request()
            self.running.append(request)
            room -= request.tokens

    def finish(self) -> list[Request]:
        done, self.running = self.running, []
        return done


def forward(batch: list[Request], weights: np.ndarray) -> np.ndarray:
    states = np.full((len(batch), weights.shape[0]), 0.1, dtype=np.float32)
    for _ in range(12):
        states = np.tanh(states @ weights)
    return states


def sample(logits: np.ndarray, batch: list[Request]) -> None:
    for request, token in zip(batch, logits.argmax(-1), strict=True):
        request.generated += int(token) > 0


scheduler, weights = Scheduler(), RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=ADMITTED):
            with perf.range("schedule"):
                scheduler.admit(1 << 30)
            with perf.range("forward"):
                logits = forward(scheduler.running, weights)
            with perf.range("sample"):
                sample(logits, scheduler.finish())
perf.finalize()
print(shifts, "shifts of the list")
