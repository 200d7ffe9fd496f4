"""Suites and searches from Python give what the commands give."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.bench import BenchObserver, load_suite, read_suite, run_suite
from perfharness.errors import UsageError
from perfharness.model.bench import BenchCase, CaseResult
from tests.integration.bench_runs import FAST
from tests.support.fake_backend import FAKE_BACKEND, write_model


class Seen(BenchObserver):
    def __init__(self) -> None:
        self.started_cases: list[str] = []
        self.done_cases: list[tuple[int, bool]] = []

    def started(self, case: BenchCase) -> None:
        self.started_cases.append(case.case_id)

    def done(self, result: CaseResult, *, is_kept: bool = False) -> None:
        self.done_cases.append((result.case.batch_size, is_kept))


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    model = write_model(tmp_path / "net.py", FAST)
    return {
        "models": [model], "backends": [FAKE_BACKEND], "device": "cpu", "constraints.max_latency_ms": 100.0,
        "latency.iterations": 40, "latency.warmup": 1, "measure.passes": ["latency"], "run.shuffle": False,
    }  # fmt: skip


def test_a_suite(tmp_path: Path, options: dict[str, object]) -> None:
    seen, out = Seen(), tmp_path / "out"
    suite = load_suite(None, {**options, "batch_sizes": [1, 2]})
    found = run_suite(suite, out, observer=seen, command=["by hand"])
    assert found == read_suite(out)
    assert [case.status for case in found.cases] == ["ok", "ok"]
    assert (found.command, found.complete, found.settings["latency.iterations"]) == (["by hand"], True, 40)
    assert seen.started_cases == [case.case.case_id for case in found.cases]
    assert seen.done_cases == [(1, False), (2, False)]
    with pytest.raises(UsageError):
        run_suite(suite, out)
    assert run_suite(suite, out, resume=True).cases == found.cases
    assert found.recommendations[0].best is not None
    strict = load_suite(None, {**options, "batch_sizes": [1, 2], "constraints.max_latency_ms": 1e-6})
    assert run_suite(strict, out, resume=True).recommendations[0].best is None


@pytest.mark.slow
def test_a_search(tmp_path: Path, options: dict[str, object]) -> None:
    seen, out = Seen(), tmp_path / "out"
    suite = load_suite(None, {**options, "batch_sizes": [1, 4], "constraints.max_latency_ms": None})
    found = run_suite(suite, out, find_batch=True, observer=seen)
    assert (found.searches[0].batch_sizes, found.searches[0].batch_size, found.complete) == ([1, 2, 4], 4, True)
    assert run_suite(suite, out, find_batch=True, resume=True, observer=seen).searches == found.searches
    assert seen.done_cases == [(size, is_kept) for is_kept in (False, True) for size in (1, 2, 4)]
