"""MobileNetV3-Large through every framework as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.model.manifest import BENCH_NAME

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

missing = [name for name in FRAMEWORKS if find_spec(name) is None]


@pytest.mark.timeout(1500)  # twelve processes, each of which imports a framework
@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
def test_all_frameworks_give_the_same_and_are_measured(tmp_path: Path) -> None:
    """Outputs as near to PyTorch's as the suite says; few iterations: that it runs, not how fast."""
    command = [sys.executable, "-m", "perfharness", "bench", "samples/mobilenet_v3/suite.toml", "-o", str(tmp_path)]
    few = ["--batch-size", "1", "--warmup", "2", "--iterations", "10", "--passes", "latency"]
    done = subprocess.run([*command, *few], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = BenchSuiteResult.model_validate_json((tmp_path / BENCH_NAME).read_text())
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
