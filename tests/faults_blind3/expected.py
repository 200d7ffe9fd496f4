"""What is right to say of each program of this corpus (`tests/fault_corpus.py`), decided before any of them was
diagnosed, by somebody who had read the rules' code and their misses on the other corpora. None of them needs a GPU.
"""

from __future__ import annotations

from tests.fault_corpus import SYSTEM, Fault

CPU = ("cpu-bound",)
THREAD = (*SYSTEM, "waiting:stage")
"""Waits for another thread; the latter where that thread's work has a name."""
SLEEP = SYSTEM
"""A timer, for which an event loop waits in a poll: "network" would be wrong."""
FILE = ("waiting:file", *SYSTEM)
OTHER = ("waiting:process", *FILE)
"""Waits for a lock of the file system, which another process holds."""

EXPECTED = (
    Fault("context_each_client", CPU, "embed", "encode/httpx#2298", modules=("certifi",)),
    Fault("sleep_in_coroutine", SLEEP, "infer", "huggingface/huggingface_hub#2672", mended_codes=SLEEP),
    # Sixteen threads wait for the lock, and the stage for all of them: either leads to the mended program.
    Fault("pack_threads", ("gil-contention", *THREAD), "pack", "Ascend/TransferQueue#153"),
    # It waits for a thread of its own; that this one asks a collector is a matter of that thread.
    Fault("flush_each_request", THREAD, "finish", "cognizant-ai-lab/neuro-san#1217"),
    Fault("flock_spin", CPU, "compile", "Xilinx/mlir-aie#3424", mended_codes=OTHER),
    Fault("stream_pause", SLEEP, "generate", "Blaizzy/mlx-vlm#808"),
    Fault("warn_each_box", CPU, "convert", "pytorch/pytorch#76952"),
    Fault("rows_of_tracks", CPU, "track", "talmolab/sleap-roots#194", modules=("pandas",)),
    Fault("decode_lock", THREAD, "open", "defl/hokku_epaper#29", modules=("PIL",)),
    # The SQLite library sleeps until it tries again.
    Fault("writers_of_one_file", OTHER, "store", "ogx-ai/ogx#4048"),
    Fault("metadata_rewritten", (*CPU, *FILE), "describe", "happycube/ld-decode#60"),
    Fault("idle_scheduler", ("gil-contention",), "tokenize", "dbader/schedule#156"),
)
