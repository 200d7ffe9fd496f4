"""Threads of ONNX Runtime's pools spin after every run, and take the cores from the steps between the runs.

roboflow/rf-detr#1456, microsoft/onnxruntime#13808. Mended: the pools do not spin.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ROWS, WIDTH = 60, 64, 256
MODELS, THREADS = 3, 2 * (os.cpu_count() or 1)
RNG = np.random.default_rng(27)


def build_model() -> bytes:
    weights = numpy_helper.from_array(RNG.normal(0, 0.06, (WIDTH, WIDTH)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


def load(model: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if MENDED else "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def infer(session: Any, states: np.ndarray) -> np.ndarray:
    (found,) = session.run(None, {"x": states})
    return np.asarray(found)


def crop(image: np.ndarray) -> np.ndarray:
    """Between two models: in numpy, on this thread."""
    for shift in range(1, 140):
        image = np.tanh(image + 0.1 * np.roll(image, shift, axis=1))
    return image


def postprocess(states: np.ndarray) -> list[int]:
    return [max(range(WIDTH), key=row.__getitem__) for row in states]


sessions = [load(build_model()) for _ in range(MODELS)]
began = time.process_time(), time.thread_time()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        states = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
        with perf.batch(index, total_items=ROWS):
            for session in sessions:
                with perf.range("infer"):
                    for _ in range(4):
                        states = infer(session, states)
                with perf.range("crop"):
                    states = crop(states)
            with perf.range("postprocess"):
                best = postprocess(states)
perf.finalize()
print(int(1e3 * (time.process_time() - began[0] - (time.thread_time() - began[1]))), "ms CPU of other threads")
