"""A compiled function calls NumPy on the host in each step. Mended: all on the GPU."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.faults.frame import MENDED, pick, run

STEPS = 6


def on_host(values):
    return np.sin(np.asarray(values))  # fault


@jax.jit
def with_callback(values):
    shape = jax.ShapeDtypeStruct(values.shape, values.dtype)
    return jnp.cos(jax.pure_callback(on_host, shape, jnp.tanh(values)))


@jax.jit
def on_device(values):
    return jnp.cos(jnp.sin(jnp.tanh(values)))


def steps(_):
    hidden = values
    for _ in range(STEPS):
        hidden = compute(hidden)
    return hidden.block_until_ready()


jax.config.update("jax_platforms", pick("cuda,cpu", "cpu"))  # the callback needs a CPU
compute = on_device if MENDED else with_callback
values = jnp.linspace(0.0, 1.0, pick(1 << 19, 1 << 6))
compute(values).block_until_ready()
run(24, STEPS, steps=steps, results=lambda hidden: float(hidden[0]))
