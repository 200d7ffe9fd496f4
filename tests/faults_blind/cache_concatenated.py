"""The cache of keys and values grows by concatenation: every token copies all tokens before it, in every layer.

huggingface/candle#3143, tenstorrent/tt-xla#4197. Mended: written into space that was allocated once.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, STEPS, LAYERS, PROMPT, WIDTH = 50, 8, 4, 2500, 384
RNG = np.random.default_rng(19)
copies = 0


class Cache:
    """Keys and values of a layer."""

    def __init__(self) -> None:
        prompt = np.tile(RNG.normal(size=(1, WIDTH)).astype(np.float32), (PROMPT, 1))
        self.length = PROMPT
        self.keys, self.values = (np.concatenate([prompt, np.zeros((STEPS, WIDTH), np.float32)]) for _ in range(2))
        if not MENDED:
            self.keys, self.values = self.keys[:PROMPT].copy(), self.values[:PROMPT].copy()

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        global copies
        if MENDED:
            self.keys[self.length], self.values[self.length] = key[0], value[0]
        else:
            self.keys = np.concatenate([self.keys, key])  # fault
            self.values = np.concatenate([self.values, value])  # fault
            copies += 2
        self.length += 1


class Layer:
    def __init__(self) -> None:
        self.weights = RNG.normal(0, 0.05, (WIDTH, WIDTH)).astype(np.float32)

    def attend(self, state: np.ndarray, cache: Cache) -> np.ndarray:
        cache.append(state, np.tanh(state))
        near = slice(max(0, cache.length - 64), cache.length)
        scores = cache.keys[near] @ state[0]
        weights = np.exp(scores - scores.max())
        return np.tanh(((weights / weights.sum()) @ cache.values[near])[None] @ self.weights)


def prefill(layers: list[Layer]) -> list[Cache]:
    return [Cache() for _ in layers]


def decode(layers: list[Layer], caches: list[Cache]) -> list[int]:
    state, tokens = np.full((1, WIDTH), 0.1, np.float32), []
    for _ in range(STEPS):
        for layer, cache in zip(layers, caches, strict=True):
            state = layer.attend(state, cache)
        tokens.append(int(state.argmax()))
    return tokens


def detokenize(tokens: list[int]) -> str:
    vocabulary = {number: f"piece{number}" for number in range(100_000)}
    return " ".join(vocabulary[token] for token in tokens)


layers = [Layer() for _ in range(LAYERS)]
waiting = [prefill(layers) for _ in range(2)]
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        caches = prefill(layers)
        with perf.batch(index, total_items=STEPS):
            with perf.range("decode"):
                tokens = decode(layers, caches)
            with perf.range("detokenize"):
                text = detokenize(tokens)
perf.finalize()
print(copies, "copies of a cache")
