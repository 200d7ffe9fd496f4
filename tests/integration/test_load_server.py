"""Behaviour planted in a real HTTP server is found under load with the right figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.load.generator import send_load
from perfharness.load.http import http_targets
from perfharness.load.http_settings import http_settings
from perfharness.load.profile import checked_profile
from perfharness.load.record import memory_bytes_below
from perfharness.load.stress import read_load
from perfharness.load.worker import WorkerSpec
from perfharness.model.load import LoadResult
from tests.load_server import Options, draws, served_by, serving


def load(folder: Path, url: str, phase: dict[str, Any], pid: int | None = None, **target: Any) -> LoadResult:
    """A load from this process, without a launch."""
    profile = checked_profile({"concurrency": 200, "phases": [phase]})
    settings = http_settings(url, given=target)
    send_load(profile, http_targets(settings, []), folder, memory_bytes=lambda: memory_bytes_below(pid))
    spec = WorkerSpec(kind="http", target=url, profile=profile, http=settings)
    return read_load(folder.parent, spec, [folder.name])


def test_errors_are_those_that_were_planted(tmp_path: Path) -> None:
    options = Options(errors=0.1, resets=0.05, wrong=0.05, seed=5)
    with serving("--errors", 0.1, "--resets", 0.05, "--wrong", 0.05, "--seed", 5) as url:
        found = load(tmp_path, f"{url}/", {"rate": 150, "duration": 2}, expect_text="42")
    drawn = [draws(options, number) for number in range(300)]
    names = {"http-500": "error", "reset": "reset", "wrong-answer": "wrong"}
    assert {error.kind: error.count for error in found.errors} == {
        kind: drawn.count(name) for kind, name in names.items()
    }
    for error in found.errors:
        assert error.first is not None
        assert drawn[error.first.request] == names[error.kind]
    (phase,) = found.phases
    assert (phase.arrivals, phase.completed, phase.ok) == (300, 300, drawn.count(None))


@pytest.mark.slow
def test_a_leak_is_in_the_memory_of_the_server(tmp_path: Path) -> None:
    with served_by("--leak-mb-s", 30) as (url, pid):
        found = load(tmp_path, url, {"rate": 20, "duration": 4}, pid)
    memory = [(window.end_s, window.rss_mb) for window in found.windows if window.rss_mb is not None]
    ends, sizes = np.array(memory).T
    assert len(memory) >= 4
    slope, _ = np.polyfit(ends[:4], sizes[:4], 1)
    assert 15 < slope < 45


def test_tokens_are_counted_with_the_times_between_them(tmp_path: Path) -> None:
    with serving("--service-ms", 40, "--servers", 50, "--token-ms", 10) as url:
        found = load(tmp_path, f"{url}/v1/chat/completions", {"rate": 20, "duration": 2}, max_tokens=6)
    (phase,) = found.phases
    assert phase.tokens == 40 * 6
    assert phase.first_token is not None
    assert phase.between_tokens is not None
    assert (phase.first_token.count, phase.between_tokens.count) == (40, 40 * 5)
    assert phase.first_token.p50.value is not None
    assert phase.first_token.p50.value >= 40
    assert phase.between_tokens.mean.value is not None
    assert phase.between_tokens.mean.value >= 10
