"""The programs of the GPU's fault corpus are what `expected.py` says of them; here on the CPU, in small."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault_corpus import Fault, fault_lines
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


def test_every_program_is_listed_once() -> None:
    names = [fault.program for fault in EXPECTED]
    assert sorted(names) == sorted(file.stem for file in CORPUS.glob("*.py") if file.stem != "expected")


@pytest.mark.parametrize("fault", EXPECTED, ids=[fault.program for fault in EXPECTED])
def test_a_program_cites_its_report_and_marks_its_fault(fault: Fault) -> None:
    source = (CORPUS / f"{fault.program}.py").read_text(encoding="utf-8")
    assert fault.report in source.split('"""')[1]
    assert bool(fault_lines(source)) is fault.has_line
    annotations = CORPUS / f"{fault.program}.toml"
    annotated = annotations if annotations.exists() else annotations.with_suffix(".py")
    assert f'"{fault.stage}"' in annotated.read_text(encoding="utf-8")


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
