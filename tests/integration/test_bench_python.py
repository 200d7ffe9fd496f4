"""Suites, searches and start-ups from Python give what the commands give."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.bench import BenchObserver, load_suite, read_suite, recommend_again, run_startup, run_suite
from perfharness.errors import UsageError
from perfharness.model.bench import BenchCase, CaseResult
from tests.integration.bench_runs import FAST
from tests.support.fake_backend import FAKE_BACKEND, write_model


class Seen(BenchObserver):
    def __init__(self) -> None:
        self.started_cases: list[str] = []
        self.done_cases: list[tuple[str, bool]] = []
        self.polls = 0

    def started(self, case: BenchCase) -> None:
        self.started_cases.append(case.case_id)

    def poll(self, interrupts: int) -> None:
        assert interrupts == 0
        self.polls += 1

    def done(self, result: CaseResult, *, is_kept: bool = False) -> None:
        self.done_cases.append((result.case.case_id, is_kept))


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    model = write_model(tmp_path / "net.py", FAST)
    return {
        "models": [model], "backends": [FAKE_BACKEND], "device": "cpu",
        "latency.iterations": 40, "latency.warmup": 1, "measure.passes": ["latency"],
    }  # fmt: skip


def test_a_suite(tmp_path: Path, options: dict[str, object]) -> None:
    seen, out = Seen(), tmp_path / "out"
    suite = load_suite(None, {**options, "batch_sizes": [1, 2], "constraints.max_latency_ms": 100.0})
    found = run_suite(suite, out, observer=seen, command=["by hand"])
    assert found == read_suite(out)
    assert [case.status for case in found.cases] == ["ok", "ok"]
    assert (found.command, found.complete, found.settings["latency.iterations"]) == (["by hand"], True, 40)
    assert sorted(seen.started_cases) == sorted(case.case.case_id for case in found.cases)
    assert (len(seen.done_cases), seen.polls > 0) == (2, True)
    with pytest.raises(UsageError):
        run_suite(suite, out)
    assert run_suite(suite, out, resume=True).cases == found.cases
    assert recommend_again(found, max_latency_ms=1e-6).recommendations[0].best is None
    assert found.recommendations[0].best is not None


@pytest.mark.slow
def test_a_search(tmp_path: Path, options: dict[str, object]) -> None:
    seen, again, out = Seen(), Seen(), tmp_path / "out"
    suite = load_suite(None, {**options, "batch_sizes": [1, 4]})
    found = run_suite(suite, out, find_batch=True, observer=seen)
    assert found == read_suite(out)
    assert (found.searches[0].batch_sizes, found.searches[0].batch_size, found.complete) == ([1, 2, 4], 4, True)
    assert run_suite(suite, out, find_batch=True, resume=True, observer=again).searches == found.searches
    assert [is_kept for _, is_kept in seen.done_cases + again.done_cases] == [False] * 3 + [True] * 3


def test_a_start_up_is_that_of_one_case_in_an_empty_folder(tmp_path: Path, options: dict[str, object]) -> None:
    for sizes, out in (([1], tmp_path), ([1, 2], tmp_path / "out")):
        with pytest.raises(UsageError):
            run_startup(load_suite(None, {**options, "batch_sizes": sizes}), out, 1)
