"""`[accuracy]` of a suite: real processes, the user's samples, a baseline's stored outputs, resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfharness.cli.main import run
from perfharness.model.bench import AccuracyRecord
from tests.integration.bench_runs import suite_in, write_suite
from tests.support.fake_backend import FAKE_BACKEND, FakeScript
from tests.unit.bench_results import known


def suite_with(folder: Path, accuracy: str) -> Path:
    """fp32 and fp16 of a model that returns its input; 2049 is 2048 in fp16."""
    for label, row in {"w": [9, 1, 1, 1], "x": [2048, 2049, 1, 1]}.items():
        (folder / "data" / label).mkdir(parents=True, exist_ok=True)
        np.save(folder / "data" / label / "a.npy", np.asarray(row, np.float32))
    script = FakeScript(scale=1.0, execute_ms=0.1)
    precisions = f'precisions = ["fp32", "fp16"]\n[[backend]]\nname = "{FAKE_BACKEND}"\n'
    return write_suite(folder, script, f"[accuracy]\n{accuracy}", "[1, 2]", precisions)


def cases_of(out: Path) -> dict[tuple[str | None, int], AccuracyRecord]:
    return {(one.case.precision, one.case.batch_size): known(one.accuracy) for one in suite_in(out).cases}


@pytest.mark.slow
def test_every_cell_is_compared_with_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fp32 has both classes; fp16 ties the two scores of `x`, and the lower class wins: it lost all of `x`."""
    suite, out = suite_with(tmp_path, 'inputs = "data"\nlabels = "data"'), tmp_path / "out"
    code = run(["bench", str(suite), "-o", str(out), "--no-charts"])
    shown = capsys.readouterr()
    assert code == 0, shown.out + shown.err
    found = cases_of(out)
    for batch in (1, 2):
        own, half = found["fp32", batch], found["fp16", batch]
        assert (own.against, own.metrics["top1"]) == ("ground truth", 1)
        assert half.against.endswith("fp32")
        assert (half.samples, half.metrics["top1"], half.metrics["max_absolute"]) == (2, 0.5, 1)
        assert half.lost_classes == {"x": 1}
    assert len(list((out / "cases").glob("*/outputs/*/a.npz"))) == 2

    before = {path: path.stat().st_mtime_ns for path in (out / "cases").rglob("result.json")}
    assert run(["bench", str(suite), "-o", str(out), "--resume", "--no-charts"]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert cases_of(out) == found


@pytest.mark.parametrize(
    "accuracy",
    [
        'inputs = "nothing"',
        'inputs = "data"\ntruth = "nothing"',
        'inputs = "data"\nk = 3',
    ],
)
def test_what_cannot_be_compared_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], accuracy: str
) -> None:
    assert run(["bench", str(suite_with(tmp_path, accuracy)), "-o", str(tmp_path / "out")]) == 2
    assert "accuracy" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
