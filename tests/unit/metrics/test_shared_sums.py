"""Sums of processes that share a folder: those of ended ones become one file, and each counts once."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfharness.boot.ranks import start_ticks
from perfharness.metrics.collect import SharedSums

KEY = ("svc", "batch", 3)
ENDED_PID = (1 << 22) + 1
"""Of no process: larger than Linux gives."""


@pytest.mark.parametrize(("ended", "files"), [(16, 18), (17, 3), (40, 3)])
def test_each_process_counts_once(tmp_path: Path, ended: int, files: int) -> None:
    """More than 16 files of ended processes are joined; one of a running process is not."""
    meter: Any = SimpleNamespace(sums=lambda: Counter({KEY: 5}))
    shared = SharedSums(tmp_path, is_temporary=False)
    shared.add(meter)
    assert shared.sums()[KEY] == 5
    (own,) = tmp_path.glob("*.json")
    for number in range(ended):
        (tmp_path / f"{ENDED_PID}-7-{number}.json").write_bytes(own.read_bytes())
    running = tmp_path / f"{os.getpid()}-{start_ticks()}-0.json"
    running.write_bytes(own.read_bytes())
    for _ in range(2):
        assert shared.sums()[KEY] == 5 * (ended + 2)
        assert (len(list(tmp_path.glob("*.json"))), own.exists(), running.exists()) == (files, True, True)
