"""Threads of ONNX Runtime's pools spin after every run. Mended: they do not spin."""

import os
import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tests.faults.frame import MENDED, batches, count, stage

ROWS, WIDTH = 64, 256
RNG = np.random.default_rng(27)


def build_model():
    weights = numpy_helper.from_array(RNG.normal(0, 0.06, (WIDTH, WIDTH)).astype(np.float32), "w")
    ends = [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["n", WIDTH]) for x in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "one", ends[:1], ends[1:], [weights])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def load():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2 * len(os.sched_getaffinity(0))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if MENDED else "1")
    return onnxruntime.InferenceSession(build_model(), options, providers=["CPUExecutionProvider"])


def infer(session, states):
    for _ in range(4):
        (states,) = session.run(None, {"x": states})
    return states


def crop(image):
    """Between two models: in numpy, on this thread."""
    for shift in range(1, 140):
        image = np.tanh(image + 0.1 * np.roll(image, shift, axis=1))
    return image


sessions = [load() for _ in range(3)]
began = time.process_time() - time.thread_time()
for _ in batches(60, ROWS):
    states = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
    for session in sessions:
        with stage("infer"):
            states = infer(session, states)
        with stage("crop"):
            states = crop(states)
    with stage("postprocess"):
        [max(range(WIDTH), key=row.__getitem__) for row in states]
count(int(1e3 * (time.process_time() - time.thread_time() - began)))  # ms of other threads
