"""`jax.jit` gets a new lambda in each batch, so it traces and compiles the same computation again. Mended: once."""

import jax
import jax.numpy as jnp

from tests.faults.frame import DEVICE, MENDED, pick, run


def forward(hidden, weight):
    for _ in range(6):
        hidden = jnp.tanh(hidden * weight) + hidden
    return hidden


def model(_):
    if MENDED:
        return compiled(hidden, weight)
    return jax.jit(lambda x: forward(x, weight))(hidden)  # fault


jax.config.update("jax_platforms", DEVICE)
hidden = jnp.ones(pick(64 << 20, 1 << 6))
weight = jnp.full(1, 0.5)
compiled = jax.jit(forward)
compiled(hidden, weight).block_until_ready()
run(12, model=model, results=lambda output: float(output.max()))
