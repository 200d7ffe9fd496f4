"""What is right to say of each program of this corpus (`tests/fault_corpus.py`), decided before any of them was
diagnosed, by somebody who knew the verdicts and their table in the guides, and neither the rules' code nor what is said
of other programs. None of them needs a GPU.
"""

from __future__ import annotations

from tests.fault_corpus import SYSTEM, Fault

CPU = ("cpu-bound",)
THREAD = (*SYSTEM, "waiting:stage")
"""Waits for another thread; the latter where that thread's work has a name."""
NETWORK = ("waiting:network", *SYSTEM)
POOL = ("data-loader", "waiting:process", *SYSTEM)
"""Waits for what another process of the program is to send."""

EXPECTED = (
    Fault("zip_reopened", CPU, "fetch", "zarr-developers/zarr-python#66"),
    Fault("limiter_lock", THREAD, "call", "vutran1710/PyrateLimiter#301"),
    # What it waits for are threads of its own: "network" would be wrong, though an event loop sleeps in a poll.
    Fault("executor_full", THREAD, "tokenize", "hatchet-dev/hatchet#4803"),
    Fault("serial_awaits", NETWORK, "embed", "ai-dynamo/dynamo#10117", mended_codes=NETWORK),
    Fault("log_post", NETWORK, "score", "logdna/python#61"),
    # Making threads is work of this thread, and waiting until they have started and ended.
    Fault("threads_each_call", (*SYSTEM, *CPU), "forward", "cvxgrp/diffcp#28"),
    Fault("burst_window", ("data-loader", *THREAD), "next", "marin-community/marin#7474", options=("-w", "8")),
    Fault("jax_lengths", ("compilation",), "rate", "jax-ml/jax#817", modules=("jax",), options=("-w", "2")),
    Fault("all_boxes", CPU, "suppress", "experiencor/keras-yolo3#177"),
    Fault("counter_lock", POOL, "tokenize", "sambanova/generative_data_prep#115", mended_codes=POOL),
    # The second one was added after the first score: without the collector, which goes through all tokens of all
    # candidates again and again, the stage takes less than half as long.
    Fault("beam_copies", (*CPU, "garbage-collection"), "expand", "vllm-project/vllm#19347"),
    Fault("adapter_each_request", ("compilation", *CPU), "parse", "PrefectHQ/prefect#15047", options=("-w", "5")),
    Fault("cache_lock_poll", SYSTEM, "kernels", "inducer/pyopencl#504"),
)
