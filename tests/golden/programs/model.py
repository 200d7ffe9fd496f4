"""Writes the model that bench measures."""

import sys

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

weights = numpy_helper.from_array(numpy.ones((8, 4), numpy.float32), "weights")
graph = helper.make_graph(
    [helper.make_node("MatMul", ["image", "weights"], ["scores"])],
    "tiny",
    [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 8])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 4])],
    [weights],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), sys.argv[1])
