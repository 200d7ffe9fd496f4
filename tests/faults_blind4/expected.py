"""What is right to say of each program of this corpus (`tests/fault_corpus.py`), decided before any of them was
diagnosed, by somebody who had read the rules' code and their misses on the other corpora. None of them needs a GPU.
"""

from __future__ import annotations

from tests.fault_corpus import SYSTEM, Fault

CPU = ("cpu-bound",)
THREAD = (*SYSTEM, "waiting:stage")
"""Waits for another thread; the latter where that thread's work has a name."""

EXPECTED = (
    Fault("tokenizer_each_call", CPU, "encode", "maziyarpanahi/openmed#443", modules=("tokenizers",)),
    Fault("cache_by_identity", CPU, "guide", "dottxt-ai/outlines#876"),
    Fault("disk_cache_lock", THREAD, "look-up", "openobserve/openobserve#7654"),
    # With as many threads as images it waits for one round trip, at another line: less, but for nothing else.
    Fault("one_worker", THREAD, "images", "sgl-project/sglang#35349", mended_codes=THREAD),
    # The pool is a queue; nobody loads anything.
    Fault("connection_pool", THREAD, "find", "epam/statgpt-backend#174"),
    Fault("slow_reader", ("waiting:process",), "show", "opencog/ros-behavior-scripting#148"),
)
