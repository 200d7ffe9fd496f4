"""Behaviour planted in a real HTTP server is found under load with the right figure."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfharness.load.generator import LoadRun
from perfharness.load.http import http_targets
from perfharness.load.http_settings import http_settings
from perfharness.load.profile import checked_profile
from perfharness.load.record import LoadLog, memory_bytes_below
from perfharness.load.stress import read_load
from perfharness.load.worker import WorkerSpec
from perfharness.load.workers import workers_for
from perfharness.model.load import REQUESTS_NAME, LoadResult
from tests.load_server import Options, draws, served_by, serving

USERS = 200


def load(
    folder: Path, url: str, phase: dict[str, Any], pid: int | None = None, *, users: int = USERS, **target: Any
) -> LoadResult:
    """A load from this process, without a launch."""
    profile = checked_profile({"concurrency": users, "phases": [phase]})
    settings = http_settings(url, given=target)
    workers = workers_for(http_targets(settings, [None], is_started=False), profile.concurrency)
    workers.open()
    log = LoadLog(folder, lambda: memory_bytes_below(pid))
    made = LoadRun(profile, workers, log)
    made.run()
    log.close(made.status, made.reason)
    workers.close()
    spec = WorkerSpec(kind="http", target=url, profile=profile, http=settings)
    return read_load(folder.parent, spec, [folder.name])


def latencies_s(folder: Path) -> Any:
    rows = pq.read_table(folder / REQUESTS_NAME)
    return (rows["done_ns"].to_numpy() - rows["intended_ns"].to_numpy()) / 1e9


def counts(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/counts") as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


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


def test_a_stall_is_in_the_latencies_of_an_open_loop_and_of_one_request_of_a_closed_one(tmp_path: Path) -> None:
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
    with serving("--stall", "1:2", "--service-ms", 1) as url:
        load(tmp_path / "open", url, {"rate": 60, "duration": 4})
    waited = latencies_s(tmp_path / "open")
    assert len(waited) == 240
    assert waited.max() > 1.9
    # Who comes in the stall waits for its end, and 60 come a second: so many wait almost as long as the first.
    for less_s, expected in ((0.5, 30), (1.0, 60), (1.5, 90)):
        assert abs((waited > waited.max() - less_s).sum() - expected) < 25
    with serving("--stall", "0.4:1", "--service-ms", 1) as url:
        load(tmp_path / "closed", url, {"duration": 2}, users=1)
    waited = latencies_s(tmp_path / "closed")
    assert (waited > 0.5).sum() == 1  # which is all that a generator without a schedule sees
    assert len(waited) > 10


def test_a_queue_of_one_rejects_as_the_arithmetic_says(tmp_path: Path) -> None:
    """Twice what can be served, at even times: each 20 ms one is taken, one is too many."""
    with serving("--service-ms", 20, "--queue", 1) as url:
        found = load(tmp_path, url, {"rate": 100, "duration": 2})
        served = counts(url)
    (phase,) = found.phases
    assert phase.errors == {"http-503": served["rejected"]}
    assert phase.ok + served["rejected"] == 200
    assert 0 < phase.ok <= 2 / 0.02 + 2  # in service, and waiting, at the end


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
