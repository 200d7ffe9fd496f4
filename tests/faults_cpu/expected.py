"""What is right to say of each program of this corpus (`tests/fault_corpus.py`); none of them needs a GPU."""

from __future__ import annotations

from tests.fault_corpus import SYSTEM, Fault

CPU = ("cpu-bound",)
THREAD = (*SYSTEM, "waiting:stage")
"""Waits for another thread; the latter where that thread is in a stage."""
FILE = ("waiting:file", *SYSTEM)
NETWORK = ("waiting:network", *SYSTEM)
RANK = ("waiting:rank",)
"""In the rank that waits: the process that is launched."""
PROCESS = ("waiting:process", *SYSTEM)
POOL = ("data-loader", *PROCESS)
"""Of a mended twin that still waits for a pool's results."""

EXPECTED = (
    Fault("tokenize_quadratic", CPU, "tokenize", "huggingface/transformers#1830"),
    Fault("preprocess_pixels", CPU, "grey", "kristjankorjus/Replicating-DeepMind#4"),
    Fault(
        "deepcopy_params", CPU, "prepare", "vllm-project/vllm#31041",
        options=("-w", "1", "--annotate", "deepcopy_params.toml"),
    ),
    Fault("json_masks", CPU, "respond", "pytorch/serve#769"),
    Fault("resize_float64", CPU, "resize", "scikit-image/scikit-image#7041"),
    Fault("rowwise_lookup", CPU, "label", "bytedance/Protenix#248"),
    Fault(
        "config_each_step", CPU, "sample", "mlc-ai/mlc-llm#2150",
        options=("-w", "1", "--annotate", "config_each_step.toml"),
    ),
    Fault("debug_log", CPU, "schedule", "vllm-project/vllm#4261"),
    Fault("regex_each_request", ("compilation", *CPU), "guide", "sgl-project/sglang#2168"),
    Fault(
        "torch_recompiles", ("compilation",), "infer", "GeeeekExplorer/nano-vllm#105",
        modules=("torch",), options=("-w", "3"),
    ),
    Fault("lazy_import", ("compilation",), "postprocess", "langgenius/dify#2423", options=("-w", "0")),
    Fault("page_faults", CPU, "cache", "numpy/numpy#27483"),
    Fault("gc_pauses", ("garbage-collection",), "parse", "sgl-project/sglang#30596"),
    Fault("gil_contention", ("gil-contention",), "infer", "pytorch/pytorch#77139"),
    Fault("oversubscription", ("cpu-contention",), "infer", "microsoft/onnxruntime#3099", has_line=False),
    Fault(
        "cpu_quota", ("cpu-contention",), "infer", "kserve/kserve#1031", has_line=False, needs_control_group=True,
        mended_codes=SYSTEM,  # in the stage that sleeps
    ),
    Fault("lock_handover", THREAD, "enqueue", "triton-inference-server/core#287"),
    Fault("queue_starved", ("data-loader", *THREAD), "load", "mlcommons/inference#767"),
    Fault("loader_in_main", CPU, "load", "huggingface/transformers#34059", modules=("torch",)),
    Fault(
        "loader_starved", ("data-loader",), "load", "jwyang/faster-rcnn.pytorch#574", modules=("torch",)
    ),
    Fault("fsync_records", FILE, "store", "SwanHubX/SwanLab#1664"),
    # Reads out of the page cache never wait for a disk: system calls, which are the CPU's time.
    Fault(
        "small_reads", (*FILE, *CPU), "read", "datastax/jvector#584",
        options=("-w", "1", "--annotate", "small_reads.toml"),
    ),
    Fault("hub_round_trip", NETWORK, "load", "ml-explore/mlx-lm#1649"),
    Fault("asyncio_blocked", NETWORK, "fetch", "sgl-project/sglang#30770", mended_codes=NETWORK),
    Fault("polling", SYSTEM, "generate", "eth-sri/lmql#127"),
    Fault("subprocess_each_step", PROCESS, "log", "Lightning-AI/pytorch-lightning#189"),
    Fault("pickle_pipe", (*PROCESS, *CPU), "exchange", "open-edge-platform/geti#4994"),
    # Ranks of equal work wait for each other, too, now one and now the other.
    Fault(
        "rank_zero_evaluates", RANK, "reduce", "horovod/horovod#403", has_line=False, modules=("torch",),
        mended_codes=(*PROCESS, *NETWORK),
    ),
    Fault(
        "uneven_lengths", RANK, "gather", "lightseekorg/TorchSpec#13", has_line=False, modules=("torch",),
        mended_codes=(*PROCESS, *NETWORK),
    ),
    Fault("pool_each_batch", (*PROCESS, *CPU), "augment", "springfall2008/batpred#4546", mended_codes=POOL),
)  # fmt: skip
