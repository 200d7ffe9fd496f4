"""A beam search joins the tokens of all candidates, sorts them, and throws all but a few away.

vllm-project/vllm#19347. Mended: sorted first, and joined where one stays.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, STEPS, BEAMS, CANDIDATES, PROMPT = 12, 16, 24, 48, 700
joined = 0


@dataclass(frozen=True)
class Beam:
    tokens: list[int]
    score: float


def join(beam: Beam, token: int, score: float) -> Beam:
    global joined
    joined += 1
    return Beam([*beam.tokens, token], score)  # fault


def best(beams: list[Beam], scores: np.ndarray) -> list[Beam]:
    if MENDED:
        order = np.argsort(-scores, axis=None)[:BEAMS]
        return [
            Beam([*beams[place // CANDIDATES].tokens, int(place % CANDIDATES)], float(scores.flat[place]))
            for place in order
        ]
    return sorted(candidates(beams, scores), key=lambda beam: -beam.score)[:BEAMS]


def candidates(beams: list[Beam], scores: np.ndarray) -> Iterator[Beam]:
    for number, beam in enumerate(beams):
        for token in range(CANDIDATES):
            yield join(beam, token, float(scores[number, token]))  # fault


def forward(beams: list[Beam]) -> np.ndarray:
    states = np.stack([np.resize(np.array(beam.tokens[-64:], np.float32), 192) for beam in beams]) / 700
    for _ in range(8):
        states = np.tanh(states @ WEIGHTS)
    return states[:, :CANDIDATES] + RNG.normal(0, 0.01, (len(beams), CANDIDATES))


def detokenize(beams: list[Beam]) -> list[str]:
    return [" ".join(f"<{token}>" for token in beam.tokens) for beam in beams]


RNG = np.random.default_rng(9)
WEIGHTS = RNG.normal(0, 0.1, (192, 192)).astype(np.float32)
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("generate"):
                beams = [Beam([position * index % 700 for position in range(PROMPT)], 0.0)] * BEAMS
                for _ in range(STEPS):
                    with perf.range("step"):
                        with perf.range("forward"):
                            scores = forward(beams)
                        with perf.range("expand"):
                            beams = best(beams, scores)
            with perf.range("detokenize"):
                detokenize(beams)
perf.finalize()
print(joined, "candidates joined")
