"""A detokenizer appends every piece to the text of the whole answer, which copies it. Mended: joined at the end."""

import numpy as np

from tests.faults.frame import MENDED, count, network, run

PIECES = 1500
RNG = np.random.default_rng(26)
VOCABULARY = [f" piece{number}" for number in range(5000)]
PROMPT = "a line of a long document that is continued\n" * 20_000
CHANCES = np.exp(RNG.normal(0, 0.1, (64, 256))).cumsum(-1)


class Stream:
    """An answer as it comes."""

    def __init__(self):
        self.text, self.pieces = PROMPT, [PROMPT]

    def append(self, piece):
        if MENDED:
            self.pieces.append(piece)
            return
        self.text = self.text + piece  # fault
        count()


def sample(_):
    return [int(np.searchsorted(row, row[-1] * RNG.random())) for row in np.resize(CHANCES, (PIECES, 256))]


def detokenize(tokens):
    stream = Stream()
    for token in tokens:
        stream.append(VOCABULARY[token])
    return "".join(stream.pieces) if MENDED else stream.text


def finish(text):
    return "stop" if text.endswith("</s>") else "length"


run(50, PIECES, forward=network(64, 256, 30), sample=sample, detokenize=detokenize, finish=finish)
