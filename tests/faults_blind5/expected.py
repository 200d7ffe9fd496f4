"""What is right to say of each program of this corpus (`tests/fault_corpus.py`), decided before any of them was
diagnosed, by somebody who had read the guide to causes and the misses on the other corpora, and not the rules' code.
None of them needs a GPU.
"""

from __future__ import annotations

from tests.fault_corpus import SYSTEM, Fault

CPU = ("cpu-bound",)
THREAD = (*SYSTEM, "waiting:stage")
"""Waits for another thread; the latter where that thread's work has a name."""

EXPECTED = (
    Fault("log_each_skip", CPU, "filter", "IBM/mcp-context-forge#2064"),
    Fault("missing_import", CPU, "normalize", "matrixarkai/TemporalStore#1303"),
    Fault("index_missing", CPU, "recall", "mem0ai/mem0#5009"),
    # FFmpeg may decode in threads of its own, for which the caller waits.
    Fault("seek_each_frame", (*CPU, *THREAD), "frames", "opencv/opencv#4511", modules=("cv2",)),
    Fault("hash_pixels", CPU, "tower", "sgl-project/sglang#15724"),
    # All bytes are there: each call is short, and there are many.
    Fault("recv_each_byte", CPU, "fetch", "vertica/vertica-python#397"),
    Fault("semaphore_of_one", ("waiting:network",), "judge", "mjpieters/aiolimiter#69"),
    Fault("missed_notify", THREAD, "embedding", "open-telemetry/opentelemetry-python#949"),
    # The caller waits for the pool's threads, which pickle, and its processes, which do likewise. Nobody loads data.
    Fault("frames_to_pool", (*THREAD, "waiting:process"), "preprocess", "joblib/joblib#1094"),
    # A hop is work of the loop and of the executor, and waiting for the other thread. There is no network.
    Fault("thread_hop_each_token", (*CPU, *THREAD), "stream", "mlrun/storey#633"),
    Fault("shm_each_frame", CPU, "publish", "gloobsters/gloobie#48"),
    Fault("planes_strided", CPU, "normalize", "mehta-lab/recOrder#322"),
    Fault(
        "shared_array_elements", CPU, "exchange", "ray-project/ray#42886",
        options=("-w", "1", "--annotate", "shared_array_elements.toml"),
    ),
    # The line is that of an import, which is over. The twin still waits for its pool.
    Fault("pinned_cpu", ("cpu-contention",), "encode", "pytorch/pytorch#99625", mended_codes=THREAD, has_line=False),
)  # fmt: skip
