"""Suites, sweeps and start-ups from Python give what the commands give."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.bench import load_suite, load_sweep, recommend_again, run_startup, run_suite, run_sweep
from perfharness.bench.suite.case_run import BenchObserver
from perfharness.bench.suite.store import SUITE, SWEEP
from perfharness.errors import UsageError
from perfharness.model.bench import BenchCase, CaseResult
from tests.integration.bench_runs import FAST
from tests.support.fake_backend import FAKE_BACKEND, write_model


class Seen(BenchObserver):
    def __init__(self) -> None:
        self.started_cases: list[str] = []
        self.done_cases: list[tuple[str, bool]] = []
        self.polls = 0

    def started(self, case: BenchCase, what: str) -> None:
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
    assert found == SUITE.read(out)
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
def test_a_sweep(tmp_path: Path, options: dict[str, object]) -> None:
    seen, again, out = Seen(), Seen(), tmp_path / "out"
    found = run_sweep(load_sweep(None, options), out, largest=4, observer=seen)
    assert found == SWEEP.read(out)
    assert (found.cells[0].batch_sizes, found.complete) == ([1, 2, 4], True)
    assert run_sweep(load_sweep(None, options), out, largest=4, resume=True, observer=again).cells == found.cells
    assert [is_kept for _, is_kept in seen.done_cases + again.done_cases] == [False] * 3 + [True] * 3


def test_passes_of_a_sweep(options: dict[str, object]) -> None:
    del options["measure.passes"]
    assert load_sweep(None, options).measure.passes == ("latency", "telemetry")
    assert load_sweep(None, options, target_ms=5.0).measure.passes == ("latency",)
    fast = load_sweep(None, {**options, "measure.passes": ["latency"]}, smallest=3)
    assert (fast.measure.passes, fast.batch_sizes) == (("latency",), (3,))


def test_a_start_up_is_that_of_one_case_in_an_empty_folder(tmp_path: Path, options: dict[str, object]) -> None:
    for sizes, out in (([1], tmp_path), ([1, 2], tmp_path / "out")):
        with pytest.raises(UsageError):
            run_startup(load_suite(None, {**options, "batch_sizes": sizes}), out, 1)
