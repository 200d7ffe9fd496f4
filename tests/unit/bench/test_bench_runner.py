"""A suite of cases with similar names, with simulated processes: none may be mistaken for another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.bench import BenchObserver, load_suite
from perfharness.bench import run as bench_run
from perfharness.bench.case import CaseRecord
from perfharness.bench.plan import Plan, plan_cases
from perfharness.bench.process import CaseEnd
from perfharness.bench.results import prepare
from perfharness.bench.run import SuiteRun
from perfharness.bench.spec import OUTPUTS_NAME, CaseSpec
from perfharness.errors import OutOfMemoryError
from perfharness.model.bench import AccuracyRecord, CaseResult, MachineRecord
from perfharness_launcher.interrupts import Interrupts
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.unit.bench_results import known

ALIKE = """
[[model]]
name = "a b"
source = "net.py:create"
[[model]]
name = "a_b"
source = "net.py:create"
"""
ONE = """
[[model]]
name = "m"
source = "net.py:create"
"""
MODES = f"""
[[backend]]
name = "{FAKE_BACKEND}"
modes = "all"
"""
THREADS = f"""
[[backend]]
name = "{FAKE_BACKEND}"
threads = 1
[[backend]]
name = "{FAKE_BACKEND}"
threads = 2
"""
ACCURACY = '[accuracy]\ninputs = "data"\n'


def run_suite(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, output: Callable[[CaseSpec], float]
) -> list[CaseResult]:
    """The rows of a suite whose processes answer `output(spec)`, or raise `OutOfMemoryError`."""

    def play(spec: CaseSpec, place: Path, *_: object, **__: object) -> CaseEnd:
        place.mkdir(parents=True)
        record = CaseRecord(place, spec)
        try:
            value = output(spec)
        except OutOfMemoryError as error:
            return CaseEnd(record.end("out-of-memory", str(error)))
        arrays: dict[str, Any] = {"y": np.full(4, value, np.float32)}
        if "outputs" in spec.passes:
            np.savez(place / OUTPUTS_NAME, **arrays)
        if spec.accuracy is not None:
            stored = place / "outputs"
            against = 0.0
            if spec.accuracy.baseline is not None:
                against = float(np.load(spec.accuracy.baseline / "a.npz")["y"][0])
            if spec.accuracy.store:
                stored.mkdir()
                np.savez(stored / "a.npz", **arrays)
            metrics: dict[str, float | None] = {"difference": value - against}
            record.keep(accuracy=AccuracyRecord(against=spec.accuracy.against, samples=1, metrics=metrics))
        return CaseEnd(record.end("ok", None))

    monkeypatch.setattr(bench_run, "run_process", play)
    write_model(folder / "net.py", FakeScript())
    (folder / "data").mkdir(exist_ok=True)
    np.save(folder / "data" / "a.npy", np.zeros(4, np.float32))
    (folder / "suite.toml").write_text(text)
    suite, out = load_suite(folder / "suite.toml"), folder / "out"
    prepare(out, resume=True)
    plan = Plan(plan_cases(suite, ()), suite.baseline or FAKE_BACKEND, MachineRecord(hostname="h"))
    return SuiteRun(suite, out, plan, Interrupts(), BenchObserver()).run().cases


def of_model_and_mode(spec: CaseSpec) -> float:
    """The fast mode of the first model is wrong."""
    return {"a b": 1.0, "a_b": 5.0}[spec.case.model] + (spec.case.model == "a b" and spec.case.mode == "fast")


def of_threads(spec: CaseSpec) -> float:
    return {1: 1.0, 2: 5.0}[spec.threads or 0]


@pytest.mark.parametrize(
    ("text", "output", "equal", "differences"),
    [
        # the baselines differ from 0, the others from their own baseline
        (ALIKE + MODES, of_model_and_mode, [True, False, True, True], [1.0, 1.0, 5.0, 0.0]),
        # two cells of one name: the first is the baseline, the second's outputs are its own
        (ONE + THREADS, of_threads, [True, False], [1.0, 4.0]),
    ],
)
def test_cells_whose_names_are_alike_are_compared_each_with_its_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    output: Callable[[CaseSpec], float],
    equal: list[bool],
    differences: list[float],
) -> None:
    found = run_suite(tmp_path, text + "[equality]\n" + ACCURACY + "[run]\nshuffle = false\n", monkeypatch, output)
    assert [known(one.equality).equal for one in found] == equal
    assert [known(one.accuracy).metrics["difference"] for one in found] == differences


def test_one_out_of_memory_does_not_speak_for_other_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def output(spec: CaseSpec) -> float:
        if spec.threads == 1:
            raise OutOfMemoryError("no room")
        return 0.0

    text = "batch_sizes = [1, 2]\n" + ONE + THREADS + "[run]\nshuffle = false\n"
    found = run_suite(tmp_path, text, monkeypatch, output)
    assert [one.status for one in found] == ["out-of-memory", "out-of-memory", "ok", "ok"]
    assert "not run: a batch of 1" in (found[1].reason or "")


def test_the_baseline_is_the_first_cell_that_its_name_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f'baseline = "{FAKE_BACKEND}"\n{ONE}{MODES}[equality]\n'
    found = run_suite(tmp_path, text, monkeypatch, lambda spec: 1.0)
    assert {known(one.equality).reference for one in found} == {f"{FAKE_BACKEND}/plain/fp32"}
