"""A session that was asked for CUDA runs on the CPU, without an error, because that provider is not installed.

microsoft/onnxruntime#6799: "Onnxruntime.gpu is as slow as cpu". Mended: the same network in PyTorch, on the GPU.
"""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnxruntime
import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 30
LAYERS = 4
WIDTH = {"cuda": 1024, "cpu": 16}
ROWS = {"cuda": 256, "cpu": 4}


def onnx_network(weight: np.ndarray) -> bytes:
    """The weight as `LAYERS` dense layers."""
    width = len(weight)
    nodes = []
    for layer in range(LAYERS):
        nodes.append(onnx.helper.make_node("MatMul", [f"h{layer}", "weight"], [f"m{layer}"]))
        nodes.append(onnx.helper.make_node("Relu", [f"m{layer}"], [f"h{layer + 1}"]))
    graph = onnx.helper.make_graph(
        nodes,
        "network",
        [onnx.helper.make_tensor_value_info("h0", onnx.TensorProto.FLOAT, [None, width])],
        [onnx.helper.make_tensor_value_info(f"h{LAYERS}", onnx.TensorProto.FLOAT, [None, width])],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    encoded: bytes = model.SerializeToString()
    return encoded


def main() -> None:
    args = parse_options(__doc__)
    width, rows = WIDTH[args.device], ROWS[args.device]
    weight = np.random.default_rng(0).standard_normal((width, width), dtype=np.float32) / width**0.5
    on_device = torch.from_numpy(weight).to(args.device)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a line in a log that nobody reads
        session = onnxruntime.InferenceSession(
            onnx_network(weight), options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
        )
    images = torch.randn(rows, width, device=args.device)

    perf = PerfRecorder("onnx_on_cpu")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=rows):
                with perf.range("prepare"):
                    inputs = images * 0.5
                with perf.range("network"):
                    if args.mended:
                        outputs = inputs
                        for _ in range(LAYERS):
                            outputs = torch.relu(outputs @ on_device)
                    else:
                        (found,) = session.run(None, {"h0": inputs.cpu().numpy()})  # fault
                        outputs = torch.from_numpy(found).to(args.device)
                with perf.range("results"):
                    outputs.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
