"""What is right to say of each program of this corpus (`tests/fault_corpus.py`). They need a GPU to have their fault;
`--device cpu` runs them in small, to see that they work.
"""

from __future__ import annotations

from tests.fault_corpus import SYSTEM, Fault

DISPATCH = ("launch-bound",)
SYNCHRONIZES = ("synchronization",)
COPIES = ("copy-bound",)
ALLOCATES = ("allocator-churn",)
COMPILES = ("compilation",)
WAITS_FOR_FILE = ("waiting:file", *SYSTEM)
WAITS_FOR_THREAD = ("waiting:stage", "data-loader", *SYSTEM)
WAITS_FOR_RANK = ("waiting:rank", "waiting:process", "waiting:network", *SYSTEM)

WARM_UP = ("-w", "15")
"""Libraries load and clocks rise for some tens of milliseconds, which are few batches or many."""

FEW_BATCHES = ("-w", "3")
"""Of programs whose batches take so long, or whose fault does."""


def torch_program(
    program: str,
    codes: tuple[str, ...],
    stage: str,
    report: str,
    options: tuple[str, ...] = WARM_UP,
    mended_codes: tuple[str, ...] = (),
    more_modules: tuple[str, ...] = (),
) -> Fault:
    return Fault(
        program, codes, stage, report, options=options, mended_codes=mended_codes, modules=("torch", *more_modules)
    )


def other_program(
    program: str, codes: tuple[str, ...], stage: str, report: str, options: tuple[str, ...] = WARM_UP
) -> Fault:
    """Of CuPy or JAX, which its name begins with."""
    return Fault(program, codes, stage, report, options=options, modules=(program.split("_")[0],))


EXPECTED = (
    torch_program("small_transformer", DISPATCH, "model", "pegainfer-project/pegainfer#910"),
    torch_program("decode_loop", DISPATCH, "decode", "resemble-ai/chatterbox#552"),
    torch_program("value_per_map", SYNCHRONIZES, "statistics", "openvdb/fvdb-reality-capture#144"),
    torch_program("boolean_mask", SYNCHRONIZES, "penalties", "vllm-project/vllm#16436", mended_codes=DISPATCH),
    torch_program("nonzero_per_image", SYNCHRONIZES, "select", "pytorch/pytorch#131256"),
    torch_program(
        "anchor_tensors", ("small-copies", *SYNCHRONIZES), "anchors", "pytorch/vision#5515", mended_codes=DISPATCH
    ),
    torch_program("synchronize_per_layer", SYNCHRONIZES, "model", "HuguesTHOMAS/KPConv-PyTorch#22"),
    # Formatting a tensor waits for it, launches kernels on it, and is Python that takes long.
    torch_program("print_tensor", (*SYNCHRONIZES, "cpu-bound", *DISPATCH), "model", "pytorch/pytorch#126829"),
    torch_program("empty_cache", ALLOCATES, "enhance", "huggingface/transformers#31372"),
    torch_program("growing_lengths", ALLOCATES, "encode", "pytorch/pytorch#96995"),
    torch_program("unpinned_copy", COPIES, "upload", "pytorch/pytorch#39694"),
    torch_program("offload_each_step", COPIES, "denoise", "huggingface/diffusers#11872", options=FEW_BATCHES),
    torch_program("copy_not_overlapped", COPIES, "upload", "KellerJordan/modded-nanogpt#231"),
    torch_program("feature_dict", ("small-copies",), "upload", "sgl-project/sglang#18558"),
    torch_program("cudnn_benchmark", COMPILES, "model", "pytorch/pytorch#2759", options=FEW_BATCHES),
    torch_program("compile_lengths", COMPILES, "model", "huggingface/transformers#37908", options=FEW_BATCHES),
    torch_program("fp32_product", ("gpu-bound:compute",), "model", "pytorch/pytorch#153195"),
    # What the float64 pipe limits is called compute or memory, as the functions' cost and the card have it.
    torch_program("float64_inputs", ("gpu-bound",), "tone", "dfalbel/torch#12"),
    torch_program("rms_norm_by_hand", ("gpu-bound:memory",), "norms", "vllm-project/vllm#42251"),
    torch_program("repeated_clones", ("gpu-bound:memory",), "steps", "huggingface/transformers#36748"),
    torch_program("cache_cat", ("gpu-bound:memory",), "decode", "huggingface/transformers#24115"),
    torch_program("layout_changes", ("gpu-bound:memory",), "model", "tensorflow/tensorflow#8286"),
    torch_program("one_row", ("gpu-bound:underfilled",), "probabilities", "microsoft/onnxruntime#9696"),
    torch_program("default_stream", ("gpu-bound:underfilled",), "models", "dmlc/xgboost#9396"),
    torch_program(
        "tensor_from_list",
        ("cpu-bound",),
        "prepare",
        "vllm-project/vllm#6879",
        options=(*WARM_UP, "--annotate", "tensor_from_list.toml"),
        mended_codes=COPIES,
    ),
    torch_program("graph_and_host", ("cpu-bound",), "metadata", "sgl-project/sglang#5593"),
    torch_program("jpeg_on_cpu", ("cpu-bound",), "decode", "NVIDIA/DALI#11", FEW_BATCHES, more_modules=("PIL",)),
    torch_program(
        "onnx_on_cpu", ("cpu-bound",), "network", "microsoft/onnxruntime#6799",
        mended_codes=DISPATCH, options=FEW_BATCHES, more_modules=("onnx", "onnxruntime"),
    ),
    torch_program("gil_thread", ("gil-contention",), "results", "pytorch/pytorch#77139", options=FEW_BATCHES),
    torch_program(
        "collect_per_image",
        ("garbage-collection",),
        "release",
        "Mikubill/sd-webui-controlnet#1462",
        options=(*FEW_BATCHES, "--annotate", "collect_per_image.toml"),
    ),
    torch_program(
        "loader_workers", ("data-loader",), "load", "open-edge-platform/geti#5958", FEW_BATCHES,
        mended_codes=COPIES,
    ),
    torch_program("slow_producer", WAITS_FOR_THREAD, "take", "bearpaw/pytorch-pose#28", options=FEW_BATCHES),
    torch_program("first_use", ("compilation",), "model", "pytorch/pytorch#44269", options=("-w", "1")),
    Fault(
        "shared_gpu", ("waiting:process",), "model", "pytorch/pytorch#14531",
        options=(*WARM_UP, "-np", "2"), mended_options=WARM_UP, has_line=False, modules=("torch",),
    ),
    torch_program("fsync_results", WAITS_FOR_FILE, "save", "lanpa/tensorboardX#731", options=FEW_BATCHES),
    torch_program("slow_rank", WAITS_FOR_RANK, "reduce", "NVIDIA/nccl#893", options=(*FEW_BATCHES, "-np", "2")),
    other_program("cupy_without_pool", ALLOCATES, "enhance", "NVIDIA/cudf#12222"),
    other_program("cupy_element_by_element", SYNCHRONIZES, "search", "cupy/cupy#3142"),
    other_program("cupy_new_kernel", COMPILES, "binarize", "cupy/cupy#2469", options=FEW_BATCHES),
    other_program("jax_new_function", COMPILES, "model", "jax-ml/jax#9288", options=FEW_BATCHES),
    other_program("jax_float_each_step", SYNCHRONIZES, "steps", "jax-ml/jax#802"),
    other_program("jax_host_callback", ("cpu-bound", *SYNCHRONIZES), "steps", "jax-ml/jax#31319", options=FEW_BATCHES),
)  # fmt: skip
