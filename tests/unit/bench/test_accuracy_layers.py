"""Where two ONNX models begin to differ, on graphs whose first difference is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from perfharness.bench.accuracy.layers import (  # noqa: E402
    compare_layers,
)
from perfharness.bench.accuracy.onnx_graph import GraphTensor, align  # noqa: E402
from perfharness.cli.main import run  # noqa: E402


def chain(path: Path, factors: list[float], prefix: str = "t", casts: bool = False, kind: int = 1) -> Path:
    """`x` times each factor, one after another; with casts to fp16 and back in between."""
    helper, numbers = onnx.helper, onnx.numpy_helper
    nodes, stored, last = [], [], f"{prefix}_in"
    for place, factor in enumerate(factors):
        stored.append(numbers.from_array(np.asarray(factor, np.float16 if kind == 10 else np.float32), f"f{place}"))
        out = f"{prefix}{place}"
        nodes.append(helper.make_node("Mul", [last, f"f{place}"], [out]))
        last = out
        if casts:
            nodes.append(helper.make_node("Cast", [last], [f"{out}_half"], to=10))
            nodes.append(helper.make_node("Cast", [f"{out}_half"], [f"{out}_back"], to=1))
            last = f"{out}_back"
    given = helper.make_tensor_value_info(f"{prefix}_in", kind, ["n", 4])
    graph = helper.make_graph(nodes, "g", [given], [helper.make_tensor_value_info(last, kind, ["n", 4])], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


ONES = {"t_in": np.ones((2, 4), np.float32)}


def test_the_first_tensor_that_differs_is_named(tmp_path: Path) -> None:
    """Factors 2, 3, 5 and 2, 3.3, 5: by hand the second and all after it are wrong by a tenth."""
    one, two = chain(tmp_path / "a.onnx", [2, 3, 5]), chain(tmp_path / "b.onnx", [2, 3.3, 5])
    found = compare_layers(one, two, ONES, tolerance=0.01)
    assert found.aligned_by == "name"
    assert [row.relative_error for row in found.rows] == pytest.approx([0, 0.1, 0.1], rel=1e-5)
    assert [row.beyond for row in found.rows] == [False, True, True]
    assert found.first_beyond == 1
    assert (found.rows[1].first, found.rows[1].max_value) == ("t1", 6)
    assert found.rows[1].max_absolute == pytest.approx(0.6)
    assert compare_layers(one, two, ONES, tolerance=0.2).first_beyond is None


def test_a_graph_with_other_names_is_matched_by_position(tmp_path: Path) -> None:
    one = chain(tmp_path / "a.onnx", [2, 3, 5])
    two = chain(tmp_path / "b.onnx", [2, 3, 6], prefix="other", casts=True)
    found = compare_layers(one, two, ONES)
    assert found.aligned_by == "position"
    assert [(row.first, row.second) for row in found.rows] == [("t0", "other0"), ("t1", "other1"), ("t2", "other2")]
    assert found.first_beyond == 2
    assert found.only_first == found.only_second == []


def test_a_missing_layer_is_told_and_the_rest_is_matched() -> None:
    def graph(prefix: str, ops: str) -> list[GraphTensor]:
        return [GraphTensor(f"{prefix}{n}", n, op, (1, n), "float32") for n, op in enumerate(ops)]

    one, two = graph("a", "CRBM"), [tensor for tensor in graph("b", "CRBM") if tensor.op_type != "B"]
    found = align(one, two)
    assert [(a.name, b.name) for a, b in found.pairs] == [("a0", "b0"), ("a1", "b1"), ("a3", "b3")]
    assert (found.only_first, found.only_second) == (["a2"], [])


def test_an_overflow_in_half_precision_is_the_first_difference(tmp_path: Path) -> None:
    """300 * 300 is more than fp16 holds; the one before it, 300, is exact."""
    one = chain(tmp_path / "a.onnx", [300, 300, 0.5])
    two = chain(tmp_path / "b.onnx", [300, 300, 0.5], kind=10)
    found = compare_layers(one, two, ONES)
    assert found.first_beyond == 1
    row = found.rows[1]
    assert (row.relative_error, row.inf_count) == (None, 8)
    assert row.reason


def test_the_verb(tmp_path: Path) -> None:
    one, two = chain(tmp_path / "a.onnx", [2, 3, 5]), chain(tmp_path / "b.onnx", [2, 3.3, 5])
    np.savez(tmp_path / "in.npz", t_in=np.ones((1, 4), np.float32))
    given = [str(one), str(two), "--input", str(tmp_path / "in.npz"), "--json", str(tmp_path / "out.json")]
    assert run(["compare-layers", *given]) == 3
    assert json.loads((tmp_path / "out.json").read_text())["first_beyond"] == 1
    assert run(["compare-layers", str(one), str(one), "--shape", "t_in=1,4"]) == 0
    assert run(["compare-layers", str(one), str(two), "--shape", "t_in"]) == 2
