"""`[accuracy]` of a suite: real processes, the user's samples, a baseline's stored outputs, resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.cli.main import run
from perfharness.testing.fake_backend import FAKE_BACKEND, FakeScript, write_model


def write_suite(folder: Path, accuracy: str) -> Path:
    """fp32 and fp16 of a model that returns its input; 2049 is 2048 in fp16."""
    write_model(folder / "model.py", FakeScript(scale=1.0, execute_ms=0.1))
    for label, row in {"w": [9, 1, 1, 1], "x": [2048, 2049, 1, 1]}.items():
        (folder / "data" / label).mkdir(parents=True, exist_ok=True)
        np.save(folder / "data" / label / "a.npy", np.asarray(row, np.float32))
    (folder / "suite.toml").write_text(
        'precisions = ["fp32", "fp16"]\nbatch_sizes = [1, 2]\ndevice = "cpu"\n'
        f'[[model]]\nname = "m"\nsource = "model.py:create"\n[[backend]]\nname = "{FAKE_BACKEND}"\n'
        f"[latency]\nwarmup = 1\niterations = 10\n{accuracy}"
    )
    return folder / "suite.toml"


def cases_of(out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    found = json.loads((out / "bench.json").read_text())["cases"]
    return {(one["case"]["precision"], one["case"]["batch_size"]): one for one in found}


@pytest.mark.slow
def test_every_cell_is_compared_with_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fp32 has both classes; fp16 ties the two scores of `x`, and the lower class wins: it lost all of `x`."""
    suite = write_suite(tmp_path, '[accuracy]\ninputs = "data"\nlabels = "data"\n')
    code = run(["bench", str(suite), "-o", str(tmp_path / "out")])
    shown = capsys.readouterr()
    assert code == 0, shown.out + shown.err
    cases = cases_of(tmp_path / "out")
    for batch in (1, 2):
        own, half = (cases[precision, batch]["accuracy"] for precision in ("fp32", "fp16"))
        assert (own["against"], own["metrics"]["top1"]) == ("ground truth", 1)
        assert half["against"].endswith("fp32")
        assert (half["samples"], half["metrics"]["top1"], half["metrics"]["max_absolute"]) == (2, 0.5, 1)
        assert half["lost_classes"] == {"x": 1}
    assert len(list((tmp_path / "out" / "accuracy").glob("*/outputs/*/a.npz"))) == 2

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "accuracy").rglob("result.json")}
    assert run(["bench", str(suite), "-o", str(tmp_path / "out"), "--resume"]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert cases_of(tmp_path / "out")["fp16", 2]["accuracy"]["metrics"]["top1"] == 0.5


@pytest.mark.parametrize(
    ("accuracy", "says"),
    [
        ('inputs = "nothing"', "[accuracy] there is no file or folder"),
        ('inputs = "data"\ntruth = "nothing"', "[accuracy] there is no file or folder"),
        ('inputs = "data"\nbaseline = "torch"', "[accuracy] baseline"),
        ('inputs = "data"\nk = 3', "there is no key `accuracy.k`"),
    ],
)
def test_what_cannot_be_compared_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], accuracy: str, says: str
) -> None:
    suite = write_suite(tmp_path, f"[accuracy]\n{accuracy}\n")
    assert run(["bench", str(suite), "-o", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
