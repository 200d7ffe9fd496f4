"""Fixture of the GPU tests: PyTorch imported and the GPU used once."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

FIRST_USE = """
import torch
a = torch.randn(2048, 2048, device="cuda")
print((a @ a).sum().item())
"""
TIMEOUT_S = 280


@pytest.fixture(scope="session", autouse=True)
def warm_machine() -> None:
    """On a fresh machine importing PyTorch and opening CUDA can take a minute: before the first test, not within it."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    print(f"PyTorch imported and the GPU used once in {time.monotonic() - began:.1f} s: {done.stderr or 'no error'}")
