"""A float is made of each step's value, which ends JAX's asynchronous dispatch: the next step starts on an idle GPU.

jax-ml/jax#802: operations return at once until a value is looked at; jax-ml/jax#12994: a conversion is a blocking one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
STEPS = 100
VALUES = {"cuda": 16 << 20, "cpu": 1 << 6}


@jax.jit
def step(state: jax.Array) -> tuple[jax.Array, jax.Array]:
    state = jnp.tanh(state) * 1.01
    return state, state.mean()


def main() -> None:
    args = parse_options(__doc__)
    jax.config.update("jax_platforms", args.device)
    state = jnp.ones(VALUES[args.device])
    step(state)[0].block_until_ready()

    perf = PerfRecorder("jax_float_each_step")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=STEPS):
                means = []
                with perf.range("steps"):
                    for _ in range(STEPS):
                        state, mean = step(state)
                        means.append(mean if args.mended else float(mean))  # fault
                with perf.range("results"):
                    jax.device_get(means[-1])
    perf.finalize()


if __name__ == "__main__":
    main()
