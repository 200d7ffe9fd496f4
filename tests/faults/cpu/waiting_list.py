"""A scheduler takes waiting requests from the front of a list, and the rest of the list moves. Mended: a deque."""

from collections import deque
from dataclasses import dataclass

from tests.faults.frame import MENDED, count, network, run

ADMITTED, WAITING = 500, 700_000


@dataclass
class Request:
    number: int
    tokens: int
    generated: int = 0


waiting = [Request(number, 16 + number % 64) for number in range(WAITING)]
ordered = deque(waiting)


def next_request():
    if MENDED:
        return ordered.popleft()
    count()
    return waiting.pop(0)  # fault


def schedule(_):
    room, running = 1 << 30, []
    while room > 0 and len(running) < ADMITTED:
        running.append(next_request())
        room -= running[-1].tokens
    return running


def sample(running):
    for request in running:
        request.generated += request.tokens > 0


run(40, ADMITTED, schedule=schedule, forward=network(ADMITTED, 256, 12), sample=sample)
