"""The programs of the GPU's fault corpus are what `expected.py` says of them; here on the CPU, in small."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.faults.expected import EXPECTED

CORPUS = Path(__file__).parents[1] / "gpu" / "faults"
COUNTS = Path(__file__).with_name("marked_line_counts.py")
TIMEOUT_S = 1800

SAME_LINE = {
    "compile_lengths", "copy_not_overlapped", "cudnn_benchmark", "cupy_without_pool", "decode_loop", "default_stream",
    "first_use", "float64_inputs", "fp32_product", "growing_lengths", "jax_float_each_step", "jpeg_on_cpu",
    "loader_workers", "shared_gpu", "slow_producer", "slow_rank", "small_transformer", "unpinned_copy",
}  # fmt: skip
"""Both twins execute the marked line: what differs is its operands, or there is nothing to mend on a CPU."""

NO_LINE_ON_A_CPU = {"empty_cache", "shared_gpu", "synchronize_per_layer"}


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 20)
def test_the_faulty_twin_alone_does_the_faulty_thing() -> None:
    chosen = [
        fault for fault in EXPECTED if all(map(importlib.util.find_spec, fault.modules)) or "cupy" in fault.modules
    ]
    assert len(chosen) > 25
    programs = [str(CORPUS / f"{fault.program}.py") for fault in chosen]
    done = subprocess.run(
        [sys.executable, str(COUNTS), *programs], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    failed = {name: said for name, said in counts.items() if isinstance(said, str)}
    assert not failed, "\n".join(failed.values())
    for name, (faulty, mended) in counts.items():
        assert faulty > 0 or name in NO_LINE_ON_A_CPU, name
        assert mended <= faulty / 20 or name in SAME_LINE, name
