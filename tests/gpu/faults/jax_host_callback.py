"""A compiled function calls NumPy on the host in each step: the GPU waits for the copies and for the host.

jax-ml/jax#31319: `pure_callback` made functions about ten times slower and brought computation back to the CPU.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 24
STEPS = 6
VALUES = {"cuda": 1 << 19, "cpu": 1 << 6}


def on_host(values: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.sin(np.asarray(values))  # fault
    return found


@jax.jit
def with_callback(values: jax.Array) -> jax.Array:
    shape = jax.ShapeDtypeStruct(values.shape, values.dtype)
    return jnp.cos(jax.pure_callback(on_host, shape, jnp.tanh(values)))


@jax.jit
def on_device(values: jax.Array) -> jax.Array:
    return jnp.cos(jnp.sin(jnp.tanh(values)))


def main() -> None:
    args = parse_options(__doc__)
    jax.config.update("jax_platforms", "cuda,cpu" if args.device == "cuda" else "cpu")  # the callback needs a CPU
    compute = on_device if args.mended else with_callback
    values = jnp.linspace(0.0, 1.0, VALUES[args.device])
    compute(values).block_until_ready()

    perf = PerfRecorder("jax_host_callback")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=STEPS):
                with perf.range("steps"):
                    hidden = values
                    for _ in range(STEPS):
                        hidden = compute(hidden)
                    hidden.block_until_ready()
                with perf.range("results"):
                    float(hidden[0])
    perf.finalize()


if __name__ == "__main__":
    main()
