"""A grammar's table is kept by the tokenizer that it is for, and every request brings a tokenizer object of its own.

dottxt-ai/outlines#876, dottxt-ai/outlines#872. Mended: it is kept by the tokenizer's name.
"""

from __future__ import annotations

import functools
import sys

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, STATES = 30, 24
VOCABULARY = [f"{first}{second}" for first in "abcdefghijklmnop" for second in range(120)]
built = 0


class RequestTokenizer:
    """What a request has of the tokenizer."""

    name = "byte-pairs"

    def __init__(self, vocabulary: list[str]) -> None:
        self.vocabulary = vocabulary

    if MENDED:

        def __eq__(self, other: object) -> bool:
            return isinstance(other, RequestTokenizer) and other.name == self.name

        def __hash__(self) -> int:
            return hash(self.name)


def follow(state: int, token: str) -> int | None:
    for letter in token:
        state = (state * 7 + ord(letter)) % STATES
        if state == 5:
            return None
    return state


@functools.lru_cache(maxsize=16)
def transitions(pattern: str, tokenizer: RequestTokenizer) -> dict[int, dict[int, int]]:  # fault
    global built
    built += 1
    table: dict[int, dict[int, int]] = {}
    for state in range(STATES):
        table[state] = {}
        for number, token in enumerate(tokenizer.vocabulary):
            after = follow((state + len(pattern)) % STATES, token)
            if after is not None:
                table[state][number] = after
    return table


class Guide:
    """Which tokens may come next."""

    def __init__(self, pattern: str, tokenizer: RequestTokenizer) -> None:
        self.table = transitions(pattern, tokenizer)
        self.state = 0

    def allow(self, logits: np.ndarray) -> int:
        allowed = list(self.table[self.state])
        token = allowed[int(np.argmax(logits[allowed]))]
        self.state = self.table[self.state][token]
        return token


def prompt(index: int) -> list[int]:
    return [(index * 17 + position * 31) % len(VOCABULARY) for position in range(20000)]


def generate(tokens: list[int], guide: Guide) -> list[int]:
    rng = np.random.default_rng(tokens[0])
    return [guide.allow(rng.standard_normal(len(VOCABULARY))) for _ in range(24)]


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("prompt"):
                tokens = prompt(index)
            with perf.range("guide"):
                guide = Guide("[a-z]+", RequestTokenizer(VOCABULARY))
            with perf.range("generate"):
                generate(tokens, guide)
perf.finalize()
print(built, "tables built")
