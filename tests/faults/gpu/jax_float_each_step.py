"""A float of each step's value ends JAX's asynchronous dispatch. Mended: of the last one."""

import jax
import jax.numpy as jnp

from tests.faults.frame import DEVICE, MENDED, pick, run

STEPS = 100


@jax.jit
def step(state):
    state = jnp.tanh(state) * 1.01
    return state, state.mean()


def steps(_):
    global state
    means = []
    for _ in range(STEPS):
        state, mean = step(state)
        means.append(mean if MENDED else float(mean))  # fault
    return means


jax.config.update("jax_platforms", DEVICE)
state = jnp.ones(pick(16 << 20, 1 << 6))
step(state)[0].block_until_ready()
run(50, STEPS, steps=steps, results=lambda means: jax.device_get(means[-1]))
