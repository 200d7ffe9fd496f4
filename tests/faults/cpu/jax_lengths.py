"""A function of JAX gets as many games as a player had, a new shape each time. Mended: padded to one length."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.faults.frame import MENDED, count, run

LONGEST = 96
shapes = set()


@jax.jit
def likelihood(rating, opponents, results, weights):
    deviations = jnp.sqrt(1.0 + 3.0 * opponents**2 / jnp.pi**2)
    expected = jax.nn.sigmoid((rating - opponents) / deviations)
    for _ in range(3):
        rating = rating + jnp.sum(weights * (results - expected)) * 0.01
        expected = jax.nn.sigmoid((rating - opponents) / deviations)
    return jnp.sum(weights * (results * jnp.log(expected) + (1 - results) * jnp.log1p(-expected)))


def rate(games):
    opponents, results = games
    length = LONGEST if MENDED else len(opponents)
    count(length not in shapes)
    shapes.add(length)
    if MENDED:
        added = LONGEST - len(opponents)
        weights = np.pad(np.ones_like(opponents), (0, added))
        value = likelihood(jnp.float32(0.1), np.pad(opponents, (0, added)), np.pad(results, (0, added)), weights)
    else:
        value = likelihood(jnp.float32(0.1), opponents, results, np.ones_like(opponents))  # fault
    return float(value)


def games(index):
    number = 12 + (index * 37) % 83
    found = [(position * 31 % 97 / 97, position % 2) for position in range(9000)][:number]
    return np.array([game[0] for game in found], np.float32), np.array([game[1] for game in found], np.float32)


def leaderboard(value):
    return sorted((value * position % 1.7 for position in range(20000)), reverse=True)[:10]


run(24, games=games, rate=rate, leaderboard=leaderboard)
