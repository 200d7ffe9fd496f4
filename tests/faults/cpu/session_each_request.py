"""A session of ONNX Runtime is made for every request. Mended: the session is kept."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tests.faults.frame import MENDED, count, run

LAYERS, WIDTH, ROWS = 140, 256, 8
RNG = np.random.default_rng(6)


def build_model():
    """A deep perceptron, as an exporter would write it."""
    nodes, weights = [], [numpy_helper.from_array(np.zeros(WIDTH, np.float32), "bias")]
    for n in range(LAYERS):
        weights.append(numpy_helper.from_array(RNG.normal(0, 0.06, (WIDTH, WIDTH)).astype(np.float32), f"w{n}"))
        nodes.append(helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"m{n}"]))
        nodes.append(helper.make_node("Add", [f"m{n}", "bias"], [f"a{n}"]))
        nodes.append(helper.make_node("Relu", [f"a{n}"], [f"x{n + 1}"]))
    ends = [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["n", WIDTH]) for x in ("x0", f"x{LAYERS}")]
    graph = helper.make_graph(nodes, "perceptron", ends[:1], ends[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def load():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])  # fault


def session():
    if MENDED:
        return kept
    count()
    return load()


def featurize(_):
    features = np.zeros((ROWS, WIDTH), dtype=np.float32)
    for position, character in enumerate("the quick brown fox jumps over the lazy dog" * 1200):
        features[position % ROWS, ord(character) % WIDTH] += 1
    return features


def infer(features):
    return session().run(None, {"x0": features})[0]


def rank(scores):
    return [sorted(range(WIDTH), key=row.__getitem__)[:5] for row in scores]


model = build_model()
kept = load() if MENDED else None
run(50, ROWS, featurize=featurize, infer=infer, rank=rank)
