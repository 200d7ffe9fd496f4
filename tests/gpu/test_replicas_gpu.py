"""Replicas that share a real GPU: in turns, through MPS, on MIG instances.

`python3 -m pytest tests/gpu/test_replicas_gpu.py -m gpu -s -q`; needs PyTorch with CUDA. About four minutes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import perfharness as api
from perfharness.load.replicas.result import ReplicaCase, Replicas
from perfharness_launcher.companions.mps import find_mps
from perfharness_launcher.plan.gpus import find_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(900)]
pytest.importorskip("torch")

MODEL_MB = 256
TARGET = f"""
import time
import torch

class Model:
    def __init__(self):
        self.weights = torch.ones({MODEL_MB} << 20, dtype=torch.uint8, device="cuda")
        self.a = torch.randn(1024, 1024, device="cuda")

    def __call__(self):
        time.sleep(0.004)  # as a host that decodes, holding up its own GPU work only
        for _ in range(8):
            self.a = torch.nn.functional.normalize(self.a @ self.a)
        torch.cuda.synchronize()
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(TARGET)
    return f"{tmp_path / 'net.py'}:Model"


def compared(target: str, tmp_path: Path, *, sharing: tuple[str, ...], starts_mps: bool = False) -> Replicas:
    found: Replicas = api.compare_replicas(
        target, replicas=(1, 2, 4), sharing=sharing, starts_mps=starts_mps, count=3, concurrency=4, duration_s=5,
        warmup_s=1, output_dir=tmp_path / "out", history=False,
    )  # fmt: skip
    for case in found.cases:
        print(case.name, {name: (one.mean, one.low, one.high) for name, one in case.figures.items()}, case.standing)
    print(found.chosen, found.proven, found.reason)
    return found


def mean(case: ReplicaCase, name: str) -> float:
    value = case.figures[name].mean
    assert value is not None, case.figures[name].reason
    return value


def test_replicas_in_turns(tmp_path: Path, target: str) -> None:
    """Hosts that sleep leave the GPU to others, so that several replicas keep it busier; each has the model."""
    found = compared(target, tmp_path, sharing=("plain",))
    one, two, four = (found.case(f"plain_{number}") for number in (1, 2, 4))
    for case in (one, two, four):
        assert not case.left_out
        assert 0 < mean(case, "gpu_busy_share") <= 1
        assert mean(case, "gpu_memory_mb") > MODEL_MB * 4 / case.replicas  # four users, each with a model
    assert mean(four, "answers_per_second") > mean(one, "answers_per_second") * 0.8
    assert found.chosen is not None


def test_replicas_through_mps(tmp_path: Path, target: str) -> None:
    facts = find_mps()
    if facts.program is None:
        pytest.skip("no nvidia-cuda-mps-control here")
    found = compared(target, tmp_path, sharing=("plain", "mps"), starts_mps=facts.pipes is None)
    assert {case.name for case in found.cases if not case.left_out} == {
        f"{sharing}_{number}" for sharing in ("plain", "mps") for number in (1, 2, 4)
    }
    manifest = (tmp_path / "out" / "mps_2" / "launch_0" / "manifest.json").read_text()
    assert "mps-not-used" not in manifest
    assert find_mps().pipes == facts.pipes  # what was started has ended
    listed = subprocess.run(["ps", "-e", "-o", "comm"], capture_output=True, text=True, check=True).stdout
    assert facts.pipes is not None or "nvidia-cuda-mps" not in listed


def test_replicas_on_mig_instances(tmp_path: Path, target: str) -> None:
    instances = [gpu for gpu in find_gpus().gpus if gpu.mig]
    if len(instances) < 4:
        pytest.skip("takes four MIG instances")
    found = compared(target, tmp_path, sharing=("mig",))
    one, four = found.case("mig_1"), found.case("mig_4")
    assert len(set(four.gpus)) == 4
    assert mean(four, "answers_per_second") > 2 * mean(one, "answers_per_second")
