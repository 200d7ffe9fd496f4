"""A table is cached by the tokenizer object, and every request brings a new one. Mended: by its name."""

import functools

import numpy as np

from tests.faults.frame import MENDED, batches, count, stage

STATES = 24
VOCABULARY = [f"{first}{second}" for first in "abcdefghijklmnop" for second in range(120)]


class RequestTokenizer:
    """What a request has of the tokenizer."""

    if MENDED:

        def __eq__(self, other):
            return isinstance(other, RequestTokenizer)

        def __hash__(self):
            return hash("byte-pairs")


def follow(state, token):
    for letter in token:
        state = (state * 7 + ord(letter)) % STATES
        if state == 5:
            return None
    return state


@functools.lru_cache(maxsize=16)
def transitions(pattern, tokenizer):  # fault
    count()
    table = {}
    for state in range(STATES):
        table[state] = {}
        for number, token in enumerate(VOCABULARY):
            after = follow((state + len(pattern)) % STATES, token)
            if after is not None:
                table[state][number] = after
    return table


class Guide:
    """Which tokens may come next."""

    def __init__(self, pattern, tokenizer):
        self.table = transitions(pattern, tokenizer)
        self.state = 0

    def allow(self, logits):
        allowed = list(self.table[self.state])
        token = allowed[int(np.argmax(logits[allowed]))]
        self.state = self.table[self.state][token]
        return token


for index in batches(30):
    with stage("prompt"):
        tokens = [(index * 17 + position * 31) % len(VOCABULARY) for position in range(20000)]
    with stage("guide"):
        guide = Guide("[a-z]+", RequestTokenizer())
    with stage("generate"):
        rng = np.random.default_rng(tokens[0])
        [guide.allow(rng.standard_normal(len(VOCABULARY))) for _ in range(24)]
