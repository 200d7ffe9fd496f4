"""A rating system calls a function of JAX with as many games as a player had, a new number nearly each time.

jax-ml/jax#817. Mended: padded to one length, with weights of 0 for what was added.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, LONGEST = 24, 96
shapes: set[int] = set()


def log_likelihood(rating: jax.Array, opponents: jax.Array, results: jax.Array, weights: jax.Array) -> jax.Array:
    deviations = jnp.sqrt(1.0 + 3.0 * opponents**2 / jnp.pi**2)
    expected = jax.nn.sigmoid((rating - opponents) / deviations)
    for _ in range(3):
        rating = rating + jnp.sum(weights * (results - expected)) * 0.01
        expected = jax.nn.sigmoid((rating - opponents) / deviations)
    return jnp.sum(weights * (results * jnp.log(expected) + (1 - results) * jnp.log1p(-expected)))


likelihood = jax.jit(log_likelihood)


def rate(opponents: np.ndarray, results: np.ndarray) -> float:
    if MENDED:
        added = LONGEST - len(opponents)
        weights = np.pad(np.ones_like(opponents), (0, added))
        value = likelihood(jnp.float32(0.1), np.pad(opponents, (0, added)), np.pad(results, (0, added)), weights)
        shapes.add(LONGEST)
    else:
        shapes.add(len(opponents))
        value = likelihood(jnp.float32(0.1), opponents, results, np.ones_like(opponents))  # fault
    return float(value)


def read_games(index: int) -> tuple[np.ndarray, np.ndarray]:
    count = 12 + (index * 37) % 83
    games = [(position * 31 % 97 / 97, position % 2) for position in range(9000)][:count]
    return np.array([game[0] for game in games], np.float32), np.array([game[1] for game in games], np.float32)


def leaderboard(value: float) -> list[float]:
    return sorted((value * position % 1.7 for position in range(20000)), reverse=True)[:10]


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("games"):
                opponents, results = read_games(index)
            with perf.range("rate"):
                value = rate(opponents, results)
            with perf.range("leaderboard"):
                leaderboard(value)
perf.finalize()
print(len(shapes), "shapes compiled")
