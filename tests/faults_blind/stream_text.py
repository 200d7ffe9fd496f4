"""A detokenizer appends every piece to the text of the whole answer, which copies it each time.

vllm-project/vllm#40028, sgl-project/sglang#24659. Mended: the pieces are joined at the end.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, PIECES = 50, 1500
RNG = np.random.default_rng(26)
VOCABULARY = [f" piece{number}" for number in range(5000)]
copies = 0


class Stream:
    """An answer as it comes."""

    def __init__(self, prompt: str) -> None:
        self.text, self.pieces = prompt, [prompt]

    def append(self, piece: str) -> None:
        global copies
        if MENDED:
            self.pieces.append(piece)
            return
        self.text = self.text + piece  # fault
        copies += 1

    def whole(self) -> str:
        return "".join(self.pieces) if MENDED else self.text


def receive(stream: Stream, tokens: list[int]) -> str:
    for token in tokens:
        stream.append(VOCABULARY[token])
    return stream.whole()


def forward(states: np.ndarray, weights: np.ndarray) -> np.ndarray:
    for _ in range(30):
        states = np.tanh(states @ weights)
    return states


def sample(states: np.ndarray) -> list[int]:
    chances = np.exp(states - states.max(-1, keepdims=True)).cumsum(-1)
    return [int(np.searchsorted(row, row[-1] * RNG.random())) for row in np.resize(chances, (PIECES, 256))]


def stop_reason(text: str) -> str:
    return "stop" if text.endswith("</s>") else "length"


document = "a line of a long document that is continued\n" * 20_000
weights = RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=PIECES):
            with perf.range("forward"):
                states = forward(np.full((64, 256), index / 100, dtype=np.float32), weights)
            with perf.range("sample"):
                tokens = sample(states)
            with perf.range("detokenize"):
                text = receive(Stream(document), tokens)
            with perf.range("finish"):
                stop_reason(text)
perf.finalize()
print(copies, "copies of the text")
