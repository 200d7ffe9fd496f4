"""`perfharness compare` as a user runs it: formats, gates, exit codes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfharness.cli.main import run
from perfharness.runs.comparison.result import Comparison
from tests.unit.compared_runs import write_side
from tests.unit.export_runs import recorded_trace, series_of_runs

BASE = [10.0, 10.05, 9.95, 10.02, 9.98]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def sides(tmp_path: Path) -> tuple[str, str]:
    """A base, and a version whose decoding is 10 % slower."""
    return write_side(tmp_path / "a", BASE), write_side(tmp_path / "b", [1.1 * time for time in BASE], turn=1)


def verb(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = run(["compare", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_is_the_comparison(sides: tuple[str, str], capsys: Captured) -> None:
    code, out, err = verb(capsys, *sides, "--format", "json")
    comparison = Comparison.model_validate_json(out)
    verdicts = {(row.stage, row.metric): row.verdict for row in comparison.versions[0].rows}
    assert (code, err) == (0, "")
    assert verdicts["toy/batch/decode", "cpu_time_per_item"] == "slower"
    assert verdicts["toy/batch/infer", "cpu_time_per_item"] == "same"
    assert json.loads(out)["rule"] == {
        "alpha": 0.05, "min_effect": 0.02, "spread": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--fail-on", "slower"], 3),
        (["--fail-on", "slower,undecided"], 3),
        (["--fail-on", "faster,not-comparable"], 0),
        (["--fail-on", "slower", "--min-effect", "20%"], 0),
        (["--fail-on", "slower", "--min-effect", "0.2"], 0),
        (["--fail-on", "slower", "--stage", "infer"], 0),
        (["--fail-if", "decode.p95 > 20ms"], 0),
        (["--fail-if", "decode.p95 > 20ms", "--fail-if", "decode.cpu > +5%"], 3),
        (["--fail-if", "start_up > 10s"], 3),
    ],
)
def test_gates(sides: tuple[str, str], capsys: Captured, arguments: Sequence[str], code: int) -> None:
    assert verb(capsys, *sides, *arguments)[0] == code


@pytest.mark.parametrize("output_format", ["text", "md", "json"])
def test_names_do_not_steer_what_shows_them(tmp_path: Path, capsys: Captured, output_format: str) -> None:
    name = "\x1b[31m<script>|`x`|</script>\u202e"
    base, new = (write_side(tmp_path / side, BASE, turn=turn, name=name) for turn, side in enumerate("ab"))
    code, out, _ = verb(capsys, base, new, "--format", output_format)
    assert code == 0
    assert "\x1b" not in out
    assert "\u202e" not in out
    if output_format == "md":
        assert "<script>" not in out.replace(r"\<script", "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--fail-on", "worse"], "worse"),
        (["--fail-if", "decode.p95 >"], "character 13"),
        (["--min-effect", "2ms"], "--min-effect"),
        (["--alpha", "0"], "--alpha"),
        (["--spread", "3"], "--spread 3"),
        (["--min-effect", "2"], "--min-effect 2"),
        (["--spread", "0"], "--spread"),
        (["--map", "decode"], "--map"),
        (["--map", "decoed=decode"], "decoed"),
        (["--stage", "decoed"], "decoed"),
        (["--allow", "weather"], "weather"),
    ],
)
def test_wrong_options(sides: tuple[str, str], capsys: Captured, arguments: Sequence[str], named: str) -> None:
    code, out, err = verb(capsys, *sides, *arguments)
    assert (code, out) == (2, "")
    assert named in err


def test_sides_that_cannot_be_compared(sides: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    assert verb(capsys)[0] == 2
    assert verb(capsys, sides[0])[0] == 2
    assert verb(capsys, sides[0], str(tmp_path / "nothing"))[0] == 1
    sweep = series_of_runs(tmp_path / "sweep", "processes", ("1 process", "np_1"), ("2 processes", "np_2"))
    code, _, err = verb(capsys, sides[0], str(sweep))
    assert (code, "np_1" in err) == (1, True)


def test_a_process_stands_for_its_launch(sides: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    processes = [
        ",".join(f"{launch}/proc_0_gpu_0" for launch in side.split(",")) for side in sides
    ]  # fmt: skip
    code, out, _ = verb(capsys, *processes, "--format", "json", "--stage", "decode")
    assert code == 0
    assert [row.verdict for row in Comparison.model_validate_json(out).versions[0].rows] == ["slower"]


def test_a_gate_does_not_pass_where_nothing_could_be_compared(tmp_path: Path, capsys: Captured) -> None:
    base = write_side(tmp_path / "a", BASE)
    new = write_side(tmp_path / "b", [2 * time for time in BASE], turn=1, warmup_batches=5)
    code, out, err = verb(capsys, base, new, "--fail-on", "slower")
    assert (code, "warm-up" in err, "warm-up" in out) == (3, True, True)
    assert verb(capsys, base, new, "--fail-on", "faster", "--allow", "warm-up")[0] == 0


def test_bare_traces_are_sides(tmp_path: Path, capsys: Captured) -> None:
    sides = []
    for side in ("a", "b"):
        paths = [recorded_trace(tmp_path / f"{side}{number}.sqlite") for number in range(3)]
        sides.append(",".join(map(str, paths)))
    code, out, _ = verb(capsys, *sides, "-w", "1", "--format", "json")
    rows = {(row.stage, row.metric): row for row in Comparison.model_validate_json(out).versions[0].rows}
    assert code == 0
    # One of three batches is no warm-up: 4 items in 9 ms, 1 ms of it in `load`; equal traces do not differ.
    assert rows["toy/pipeline/batch", "cpu_time_per_item"].base.mean == pytest.approx(9 / 4)
    assert rows["toy/pipeline/batch/load", "cpu_time_per_item"].verdict == "same"
    assert rows["toy/pipeline/batch/infer", "gpu_time_per_item"].base.mean is not None


def test_how_a_run_is_read_cannot_be_changed_here(sides: tuple[str, str], capsys: Captured) -> None:
    code, _, err = verb(capsys, *sides, "-w", "1")
    assert (code, "perfharness analyze" in err) == (2, True)
