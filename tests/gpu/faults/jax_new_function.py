"""`jax.jit` gets a new lambda in each batch, so it traces and compiles the same computation again.

jax-ml/jax#9288: "if I switch this to a lambda function, it is indeed being compiled every iteration".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 12
VALUES = {"cuda": 64 << 20, "cpu": 1 << 6}
LAYERS = 6


def forward(hidden: jax.Array, weight: jax.Array) -> jax.Array:
    for _ in range(LAYERS):
        hidden = jnp.tanh(hidden * weight) + hidden
    return hidden


def main() -> None:
    args = parse_options(__doc__)
    jax.config.update("jax_platforms", args.device)
    hidden = jnp.ones(VALUES[args.device])
    weight = jnp.full(1, 0.5)
    compiled = jax.jit(forward)
    compiled(hidden, weight).block_until_ready()

    perf = PerfRecorder("jax_new_function")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                with perf.range("model"):
                    if args.mended:
                        output = compiled(hidden, weight)
                    else:
                        output = jax.jit(lambda x: forward(x, weight))(hidden)  # fault
                with perf.range("results"):
                    float(output.max())
    perf.finalize()


if __name__ == "__main__":
    main()
