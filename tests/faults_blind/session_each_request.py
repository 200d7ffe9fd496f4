"""A session of ONNX Runtime is made for every request: the graph is parsed, optimised and packed each time.

microsoft/onnxruntime#19022, microsoft/onnxruntime#12494. Mended: the session is kept.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, LAYERS, WIDTH = 50, 140, 256
ROWS = 8
RNG = np.random.default_rng(6)
sessions: dict[str, Any] = {}
made = 0


def build_model() -> bytes:
    """A deep perceptron, as an exporter would write it."""
    nodes, weights = [], []
    for layer in range(LAYERS):
        weights.append(numpy_helper.from_array(RNG.normal(0, 0.06, (WIDTH, WIDTH)).astype(np.float32), f"w{layer}"))
        weights.append(numpy_helper.from_array(np.zeros(WIDTH, np.float32), f"b{layer}"))
        nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Add", [f"m{layer}", f"b{layer}"], [f"a{layer}"]))
        nodes.append(helper.make_node("Relu", [f"a{layer}"], [f"x{layer + 1}"]))
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info(f"x{LAYERS}", TensorProto.FLOAT, ["n", WIDTH])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


def options() -> Any:
    found = onnxruntime.SessionOptions()
    found.intra_op_num_threads = 1
    return found


def load(name: str) -> Any:
    global made
    made += 1
    return onnxruntime.InferenceSession(MODELS[name], options(), providers=["CPUExecutionProvider"])  # fault


class Service:
    """Answers requests with the model that they name."""

    def session(self, name: str) -> Any:
        if MENDED:
            return sessions[name]
        return load(name)

    def predict(self, name: str, features: np.ndarray) -> np.ndarray:
        (answer,) = self.session(name).run(None, {"x0": features})
        return np.asarray(answer)


def featurize(text: str) -> np.ndarray:
    counts = np.zeros((ROWS, WIDTH), dtype=np.float32)
    for position, character in enumerate(text):
        counts[position % ROWS, ord(character) % WIDTH] += 1
    return counts


assert onnx.__version__
MODELS = {"ranker": build_model()}
if MENDED:
    sessions["ranker"] = load("ranker")
made, service = 0, Service()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=ROWS):
            with perf.range("featurize"):
                features = featurize("the quick brown fox jumps over the lazy dog" * 1200)
            with perf.range("infer"):
                scores = service.predict("ranker", features)
            with perf.range("rank"):
                order = [sorted(range(WIDTH), key=row.__getitem__)[:5] for row in scores]
perf.finalize()
print(made, "sessions")
