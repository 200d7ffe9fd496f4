"""The cache of keys and values grows by concatenation for every token. Mended: it is allocated once."""

import numpy as np

from tests.faults.frame import MENDED, count, run

STEPS, LAYERS, PROMPT, WIDTH = 8, 4, 2500, 384
RNG = np.random.default_rng(19)
WEIGHTS = [RNG.normal(0, 0.05, (WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)]
ROOM = np.tile(RNG.normal(size=(1, WIDTH)).astype(np.float32), (PROMPT + STEPS, 1))


class Cache:
    """Keys and values of a layer."""

    def __init__(self):
        self.keys, self.values = ROOM.copy(), ROOM.copy()

    def reset(self):
        self.length = PROMPT
        if not MENDED:
            self.keys, self.values = self.keys[:PROMPT], self.values[:PROMPT]

    def append(self, key, value):
        if MENDED:
            self.keys[self.length], self.values[self.length] = key[0], value[0]
        else:
            self.keys = np.concatenate([self.keys, key])  # fault
            self.values = np.concatenate([self.values, value])  # fault
            count(2)
        self.length += 1


def attend(state, cache, weights):
    cache.append(state, np.tanh(state))
    near = slice(cache.length - 64, cache.length)
    scores = cache.keys[near] @ state[0]
    chances = np.exp(scores - scores.max())
    return np.tanh(((chances / chances.sum()) @ cache.values[near])[None] @ weights)


def decode(_):
    state, tokens = np.full((1, WIDTH), 0.1, np.float32), []
    for cache in caches:
        cache.reset()
    for _ in range(STEPS):
        for cache, weights in zip(caches, WEIGHTS, strict=True):
            state = attend(state, cache, weights)
        tokens.append(int(state.argmax()))
    return tokens


def detokenize(tokens):
    vocabulary = {number: f"piece{number}" for number in range(100_000)}
    return " ".join(vocabulary[token] for token in tokens)


caches = [Cache() for _ in range(LAYERS)]
run(50, STEPS, decode=decode, detokenize=detokenize)
