"""A suite on several GPUs, which the recorded NVML lists; the backend computes on the CPU."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from perfharness import report
from perfharness.cli.main import run
from tests.integration.bench_runs import bench, suite_in, write_suite
from tests.support.documents import markdown_table
from tests.support.fake_backend import FAKE_BACKEND
from tests.support.nvml_cards import gpu_uuid, h100_machine
from tests.support.replayed_nvml import replay_environment
from tests.unit.bench_results import known

MODEL = f"""
import os

from tests.support.fake_backend import FakeScript


def create(backend, precision):
    is_second = os.environ["CUDA_VISIBLE_DEVICES"] == {gpu_uuid(1)!r}
    return FakeScript(execute_ms=20.0 if is_second else 1.0, bias=float(is_second))
"""
GPUS = ["H100 80GB HBM3 (GPU 0)", "H100 80GB HBM3 (GPU 1)"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpus")
    modes = f'gpus = [0, 1]\n[[backend]]\nname = "{FAKE_BACKEND}"\nmodes = "all"\n'
    suite = write_suite(folder, more="[equality]", batch_sizes="[2]", backends=modes)
    (folder / "net.py").write_text(MODEL)
    (folder / "nvml.json").write_text(h100_machine(2).model_dump_json())
    replay = replay_environment(folder / "nvml.json")
    done = bench(suite, "--device", "cuda", "-o", folder / "out", "--no-charts", **replay)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


def test_each_case_has_its_gpu_and_the_baseline_of_that_gpu(out: Path) -> None:
    found = suite_in(out)
    assert sorted((one.case.gpu, one.case.gpu_index, one.case.mode) for one in found.cases) == [
        (name, index, mode) for index, name in enumerate(GPUS) for mode in ("fast", "plain")
    ]
    for one in found.cases:
        assert (known(one.latency).min >= 20.0) == (one.case.gpu_index == 1)
        assert known(one.equality).equal, "the outputs of the other GPU differ by 1"
    starts = sorted((known(one.started_unix_ns), known(one.duration_s)) for one in found.cases)
    assert all(start + seconds * 1e9 <= later for (start, seconds), (later, _) in itertools.pairwise(starts))
    assert found.machine.gpus == ["NVIDIA H100 80GB HBM3"] * 2


def test_a_report_puts_the_gpus_side_by_side(out: Path, tmp_path: Path) -> None:
    assert run(["report", str(out), "-o", str(tmp_path / "r.md")]) == 0
    rows = markdown_table((tmp_path / "r.md").read_text(), "GPU", "speed-up")
    assert [(row["GPU"], row["speed-up"] == "base") for row in rows] == [
        (name, mode == "plain") for name in GPUS for mode in ("plain", "fast")
    ]
    (merged,) = report(out).merged
    assert [one.machine.gpus for one in merged.merged.runs] == [[name] for name in GPUS]
    assert [(row.mode, len(row.cells)) for row in merged.merged.rows] == [("plain", 2), ("fast", 2)]
    for row in merged.merged.rows:
        for cell in row.cells:
            assert 0.2 < known(cell.speedup).value < 5, "the other GPU is 20 times as fast, or as slow"
