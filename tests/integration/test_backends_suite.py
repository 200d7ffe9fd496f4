"""MobileNetV3-Large through every framework as a user runs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from perfharness.model.bench_suite import BenchSuiteResult
from samples.mobilenet_v3 import data
from tests.integration.bench_runs import suite_in

ROOT = Path(__file__).parent.parent.parent
CELLS = {
    ("torch", "eager"),
    ("onnxruntime", "cpu"),
    ("keras", "keras"),
    ("keras", "kerasxla"),
    ("tensorflow", "tf"),
    ("tensorflow", "tfxla"),
}
FRAMEWORKS = ("torch", "onnx", "onnxruntime", "keras", "tensorflow")

pytestmark = pytest.mark.slow

FEW = ("--warmup", "2", "--iterations", "10", "--passes", "latency")

missing = [name for name in FRAMEWORKS if find_spec(name) is None]


def measured(suite: object, out: Path, *options: str) -> BenchSuiteResult:
    command = [sys.executable, "-m", "perfharness", "bench", str(suite), "-o", str(out), *FEW, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return suite_in(out)


@pytest.mark.timeout(1500)  # twelve processes, each of which imports a framework
@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
def test_all_frameworks_give_the_same_and_are_measured(tmp_path: Path) -> None:
    """Outputs as near to PyTorch's as the suite says; few iterations: that it runs, not how fast."""
    result = measured("samples/mobilenet_v3/suite.toml", tmp_path, "--batch-size", "1")
    assert {(one.case.backend, one.case.mode) for one in result.cases} == CELLS
    for one in result.cases:
        assert one.status == "ok", (one.case.case_id, one.reason)
        assert one.equality is not None
        assert one.equality.equal, (one.case.case_id, one.equality)
        assert one.latency is not None
        assert 1 <= one.latency.iterations <= 10  # the suite's limit of 20 s ends them on a busy machine
        if one.case.backend != "torch":
            assert one.equality.max_absolute is not None
            assert one.equality.max_absolute > 0  # equal, and no copy of the reference


@pytest.mark.timeout(900)
@pytest.mark.skipif(bool({"torch", "onnx", "onnxruntime"} & set(missing)), reason=f"not installed: {missing}")
def test_int8_and_pruning_with_their_accuracy(tmp_path: Path) -> None:
    """Of 16 images; the labels are the answers of the whole network in fp32."""
    data.write(tmp_path / "data", 16)
    for name in ("suite_int8.toml", "images.npz"):
        shutil.copy(ROOT / "samples" / "mobilenet_v3" / name, tmp_path)
    result = measured(tmp_path / "suite_int8.toml", tmp_path / "out")
    top1 = {}
    for one in result.cases:
        assert one.status == "ok", (one.case.case_id, one.reason)
        assert one.accuracy is not None
        top1[one.case.model, one.case.backend, one.case.precision] = one.accuracy.metrics["top1"] or 0
    print(top1)
    assert len(top1) == 8
    for (model, _, precision), share in top1.items():
        assert share == 1 if (model, precision) == ("MobileNetV3-Large", "fp32") else 0 < share <= 1
