"""A thread of a metrics library holds the interpreter lock in one long call. Mended: once a minute."""

import json
import threading

import numpy as np

from tests.faults.frame import MENDED, count, run

LAYERS, WIDTH = 12, 320
RNG = np.random.default_rng(11)
WEIGHTS = [RNG.normal(0, 0.08, (WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)]
SERIES = {f"latency_bucket_{n}": {"labels": {"model": "m", "le": n}, "value": n * 0.5} for n in range(12000)}
closed = threading.Event()


def render():
    return json.dumps(SERIES)  # fault


def export():
    while not closed.wait(60.0 if MENDED else 0.002):
        render()
        count()


def tokenize(index):
    return [sum(map(ord, word)) % 5000 for word in f"some words of request {index} ".split() * 3000]


def infer(tokens):
    states = np.resize(np.array(tokens, np.float32) / 5000, (320, WIDTH))
    for weights in WEIGHTS:
        states = np.tanh(states @ weights)
    return states


def respond(states):
    return ",".join(f"{value:.3f}" for value in states[:40].ravel().tolist())


thread = threading.Thread(target=export, name="metrics")
thread.start()
run(50, 8, tokenize=tokenize, infer=infer, respond=respond)
closed.set()
thread.join()
