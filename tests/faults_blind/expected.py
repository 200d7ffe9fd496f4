"""What is right to say of each program of this corpus (`tests/fault_corpus.py`), decided before any of them was
diagnosed, by somebody who knew the names of the verdicts and none of the rules. None of them needs a GPU.
"""

from __future__ import annotations

from tests.fault_corpus import SYSTEM, Fault

CPU = ("cpu-bound",)
THREAD = (*SYSTEM, "waiting:stage")
"""Waits for another thread; the latter where that thread is in a stage."""
FILE = ("waiting:file", *SYSTEM)
NETWORK = ("waiting:network", *SYSTEM)
POOL = ("data-loader", "waiting:process", *SYSTEM)
"""Waits for what another process of the program is to send."""
COMPILED = ("compilation", "cpu-bound")
"""Something is built again that could be kept; the time is the CPU's."""
ONNX = ("onnx", "onnxruntime")

EXPECTED = (
    Fault("vectorize_sigmoid", CPU, "decode", "NVIDIA/TensorRT#2469"),
    Fault("gzip_masks", CPU, "export", "gwastro/pycbc#3428"),
    Fault("waiting_list", CPU, "schedule", "GradientHQ/parallax#327"),
    Fault("jpeg_full_size", CPU, "preprocess", "thumbor/thumbor#989", modules=("PIL",)),
    Fault("half_scores", CPU, "search", "numpy/numpy#11590"),
    Fault("react_parser", CPU, "parse", "run-llama/llama_index#22334"),
    Fault("cache_concatenated", CPU, "decode", "huggingface/candle#3143", options=("-w", "2")),
    Fault("tensor_of_arrays", CPU, "collate", "pytorch/pytorch#13918", modules=("torch",), options=("-w", "3")),
    Fault("caller_names", CPU, "boxes", "Physical-Intelligence/openpi#534"),
    Fault("stream_text", CPU, "detokenize", "vllm-project/vllm#40028", options=("-w", "2")),
    Fault("session_each_request", COMPILED, "infer", "microsoft/onnxruntime#19022", modules=ONNX, options=("-w", "3")),
    Fault("chat_template", COMPILED, "render", "home-assistant/core#175399", modules=("jinja2",)),
    # The first language is warm; the others are met later. "Loaded at its first use" and "the CPU is busy loading, in
    # this function" both lead to the mended program.
    Fault("lazy_languages", ("compilation", *CPU), "detect", "pemistahl/lingua#79"),
    Fault("collect_each_image", ("garbage-collection",), "postprocess", "Mikubill/sd-webui-controlnet#1462"),
    Fault("metrics_export", ("gil-contention",), "infer", "open-telemetry/opentelemetry-python-contrib#1142"),
    # Without spinning, a run still waits for the threads that it shares its work with.
    Fault(
        "spinning_pool", ("cpu-contention",), "crop", "roboflow/rf-detr#1456",
        modules=ONNX, has_line=False, options=("-w", "2"), mended_codes=SYSTEM,
    ),
    Fault("commit_each_row", FILE, "store", "OfflineIMAP/offlineimap#390"),
    Fault("mapped_vectors", FILE, "lookup", "Comfy-Org/ComfyUI#2288"),
    Fault("delayed_ack", NETWORK, "embed", "alibaba/rtp-llm#1080"),
    Fault("feature_round_trips", NETWORK, "features", "feast-dev/feast#1759", mended_codes=NETWORK),
    # The manager is a process behind a socket: either is what a user can act on.
    Fault("manager_counts", (*NETWORK, "waiting:process"), "report", "flav-io/flavio#123"),
    Fault("batch_window", THREAD, "predict", "ray-project/ray#13389"),
    Fault("writer_backpressure", THREAD, "output", "olibartfast/neuriplo-infer#49", modules=("cv2",)),
    Fault("retry_sleep", SYSTEM, "embed", "HumanSignal/Adala#350"),
    Fault("frame_pipe", POOL, "read", "lstein/PhotoMapAI#366", modules=("PIL",)),
    Fault("straggler", POOL, "tokenize", "hvasbath/beat#86", mended_codes=POOL),
    # Starting workers is work of this process (`fork`) and waiting for theirs.
    Fault(
        "loader_restarts", (*POOL[:2], *CPU), "load", "pytorch/pytorch#15849",
        modules=("torch",), options=("-w", "2"), mended_codes=POOL[:1],
    ),
)  # fmt: skip
