"""A beam search joins the tokens of all candidates and throws most away. Mended: it sorts first."""

from dataclasses import dataclass

import numpy as np

from tests.faults.frame import MENDED, batches, count, stage

STEPS, BEAMS, CANDIDATES, PROMPT = 16, 24, 48, 700
RNG = np.random.default_rng(9)
WEIGHTS = RNG.normal(0, 0.1, (192, 192)).astype(np.float32)


@dataclass(frozen=True)
class Beam:
    tokens: list[int]
    score: float


def join(beam, token, score):
    count()
    return Beam([*beam.tokens, token], score)  # fault


def best(beams, scores):
    if MENDED:
        order = np.argsort(-scores, axis=None)[:BEAMS]
        return [join(beams[at // CANDIDATES], int(at % CANDIDATES), float(scores.flat[at])) for at in order]
    return sorted(candidates(beams, scores), key=lambda beam: -beam.score)[:BEAMS]


def candidates(beams, scores):
    for number, beam in enumerate(beams):
        for token in range(CANDIDATES):
            yield join(beam, token, float(scores[number, token]))  # fault


def forward(beams):
    states = np.stack([np.resize(np.array(beam.tokens[-64:], np.float32), 192) for beam in beams]) / 700
    for _ in range(8):
        states = np.tanh(states @ WEIGHTS)
    return states[:, :CANDIDATES] + RNG.normal(0, 0.01, (len(beams), CANDIDATES))


for index in batches(12):
    with stage("generate"):
        beams = [Beam([position * index % 700 for position in range(PROMPT)], 0.0)] * BEAMS
        for _ in range(STEPS):
            with stage("step"):
                with stage("forward"):
                    scores = forward(beams)
                with stage("expand"):
                    beams = best(beams, scores)
    with stage("detokenize"):
        [" ".join(f"<{token}>" for token in beam.tokens) for beam in beams]
