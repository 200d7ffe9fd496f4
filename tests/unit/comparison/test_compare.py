"""`perfharness compare` on run folders: what is matched, what is said of each figure, gates and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import perfharness
from perfharness.cli.main import run
from perfharness.model.manifest import MeasuredProcess
from tests.unit.compared_runs import compared as compare
from tests.unit.compared_runs import first_version as first
from tests.unit.compared_runs import write_launch, write_side
from tests.unit.export_runs import recorded_trace, series_of_runs
from tests.unit.run_records import process

BASE = [10.0, 10.05, 9.95, 10.02, 9.98]
SLOWER = [1.1 * time for time in BASE]
GPUS = [{"index": 0, "uuid": "GPU-1", "name": "H200"}]
Captured = pytest.CaptureFixture[str]


def row(version: dict[str, Any], stage: str, metric: str = "cpu_time_per_item") -> dict[str, Any]:
    (found,) = [one for one in version["rows"] if (one["stage"], one["metric"]) == (stage, metric)]
    return dict(found)


@pytest.fixture
def sides(tmp_path: Path) -> tuple[str, str]:
    """A base, and a version whose decoding is 10 % slower."""
    return write_side(tmp_path / "a", BASE), write_side(tmp_path / "b", SLOWER, turn=1)


# ---- figures and verdicts ----


def test_each_figure_has_its_ratio_and_verdict(sides: tuple[str, str], capsys: Captured) -> None:
    comparison = compare(capsys, *sides)
    (version,) = comparison["versions"]
    verdicts = {(one["stage"], one["metric"]): one["verdict"] for one in version["rows"]}
    assert verdicts == {
        ("", "throughput"): "slower",
        ("toy/batch", "cpu_time_per_item"): "slower",
        ("toy/batch", "p50"): "slower",
        ("toy/batch", "p95"): "slower",
        ("toy/batch/decode", "cpu_time_per_item"): "slower",
        ("toy/batch/infer", "cpu_time_per_item"): "same",
    }
    decode = row(version, "toy/batch/decode")
    assert (decode["unit"], decode["ratio"]) == ("ms", pytest.approx(1.1))
    assert decode["base"]["mean"] == pytest.approx(10.0 / 4, rel=1e-4)
    assert decode["base"]["launches"] == [time / 4 for time in BASE]
    assert row(version, "", "throughput")["ratio"] < 1
    assert [one["metric"] for one in version["not_compared"]] == ["start_up"]
    assert (version["order"], version["remarks"], version["differences"]) == ("in-turns", [], [])
    assert (comparison["rows_tested"], comparison["rule"]["alpha"]) == (6, 0.05)


def test_every_version_is_compared_with_the_first(sides: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    """The verdicts are corrected for the rows of all versions."""
    third = write_side(tmp_path / "c", BASE, turn=1)
    comparison = compare(capsys, *sides, third)
    assert [row(one, "toy/batch/decode")["verdict"] for one in comparison["versions"]] == ["slower", "same"]
    assert comparison["rows_tested"] == 12
    assert compare(capsys, *sides, third, "--stage", "decode")["rows_tested"] == 2


def test_one_launch_a_side_proves_nothing(tmp_path: Path, capsys: Captured) -> None:
    base, new = write_side(tmp_path / "a", BASE[:1]), write_side(tmp_path / "b", [20.0], turn=1)
    version = first(capsys, base, new)
    assert {one["verdict"] for one in version["rows"]} == {"undecided"}
    decode = row(version, "toy/batch/decode")
    assert (decode["ratio"], decode["base"]["spread"]) == (pytest.approx(2.0), None)
    assert row(first(capsys, base, new, "--spread", "5%"), "toy/batch/decode")["verdict"] == "slower"


def test_launches_after_one_another_allow_for_a_drift(tmp_path: Path, capsys: Captured) -> None:
    base = write_side(tmp_path / "a", BASE)
    widths = []
    for name, turn in (("b", 1), ("c", 1000)):
        new = write_side(tmp_path / name, [1.01 * time for time in BASE], turn=turn)
        version = first(capsys, base, new, "--stage", "decode")
        judged = row(version, "toy/batch/decode")["judged_by"]
        widths.append(judged["high"] - judged["low"])
        assert (version["order"] == "in-turns", version["allows_drift"]) == (turn == 1, turn != 1)
        assert all(one["ratio"] == pytest.approx(one["new"]["mean"] / one["base"]["mean"]) for one in version["rows"])
    assert widths[1] > 1.5 * widths[0]


def test_a_stage_that_was_not_measured_everywhere(tmp_path: Path, capsys: Captured) -> None:
    runs = [
        write_launch(tmp_path / "b" / f"launch_{number}", {"decode": None, "infer": 20.0}, start_s=10 * number + 5)
        for number in range(3)
    ]
    version = first(capsys, write_side(tmp_path / "a", BASE), ",".join(map(str, runs)))
    missing = [(one["stage"], one["metric"]) for one in version["not_compared"]]
    assert missing.count(("toy/batch/decode", "cpu_time")) == 1
    assert ("toy/batch/decode", "cpu_time_per_item") not in missing


def test_renamed_stages_are_matched(tmp_path: Path, capsys: Captured) -> None:
    base, new = write_side(tmp_path / "a", BASE), write_side(tmp_path / "b", BASE, turn=1, name="predict")
    unmatched = {(one["side"], one["stage"]): one["cpu_ms"] for one in first(capsys, base, new)["unmatched"]}
    assert unmatched == {
        ("base", "toy/batch/infer"): pytest.approx(20.0, rel=0.01),
        ("new", "toy/batch/predict"): pytest.approx(20.0, rel=0.01),
    }
    version = first(capsys, base, new, "--map", "infer=predict")
    infer = row(version, "toy/batch/infer")
    assert (version["unmatched"], infer["new_stage"], infer["verdict"]) == ([], "toy/batch/predict", "same")


# ---- sides ----


def test_launches_that_failed_or_are_in_doubt_are_named(tmp_path: Path, capsys: Captured) -> None:
    base = write_side(tmp_path / "a", BASE)
    new = write_side(tmp_path / "b", BASE[:3], turn=1, errors=["ranges-missing"])
    failed = write_launch(tmp_path / "b" / "failed", {"decode": 1.0, "infer": 1.0}, ended="failed")
    version = first(capsys, base, f"{new},{failed}")
    launches = version["side"]["launches"]
    assert [(one["problem"] is None, one["errors"]) for one in launches[2:]] == [
        (True, ["ranges-missing"]),
        (False, []),
    ]
    assert row(version, "toy/batch/decode")["new"]["launches"] == [time / 4 for time in BASE[:3]]
    assert len(version["remarks"]) == 2
    assert run(["compare", base, str(failed)]) == 1


def test_a_launch_counts_once(tmp_path: Path, capsys: Captured) -> None:
    base = write_side(tmp_path / "a", BASE)
    shutil.copytree(tmp_path / "a" / "launch_0", tmp_path / "copy")
    for again in (tmp_path / "a" / "launch_0", tmp_path / "copy", tmp_path / "a" / "launch_0" / "proc_0_gpu_0"):
        assert run(["compare", base, f"{base},{again}"]) == 2
    assert first(capsys, base, base)["remarks"]
    process = str(tmp_path / "a" / "launch_0" / "proc_0_gpu_0")  # it stands for its launch
    assert row(first(capsys, process, base), "toy/batch/decode")["ratio"] == pytest.approx(1.0, rel=0.01)


def test_bare_traces_are_sides(tmp_path: Path, capsys: Captured) -> None:
    traces = [
        ",".join(str(recorded_trace(tmp_path / f"{side}{number}.sqlite")) for number in range(3)) for side in "ab"
    ]
    version = first(capsys, *traces, "-w", "1")
    # One of three batches is no warm-up: 4 items in 9 ms, 1 ms of it in `load`; equal traces do not differ.
    assert row(version, "toy/pipeline/batch")["base"]["mean"] == pytest.approx(9 / 4)
    assert row(version, "toy/pipeline/batch/load")["verdict"] == "same"
    assert row(version, "toy/pipeline/batch/infer", "gpu_time_per_item")["base"]["mean"] is not None


def test_sides_that_are_none(sides: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    sweep = str(series_of_runs(tmp_path / "sweep", "processes", ("1 process", "np_1"), ("2 processes", "np_2")))
    (tmp_path / "empty").mkdir()
    table = [
        ([], 2, "BASE"), ([sides[0]], 2, "NEW"), ([*sides, "-w", "1"], 2, "perfharness analyze"),
        ([sides[0], str(tmp_path / "nothing")], 1, "nothing"), ([sides[0], sweep], 1, "np_1"),
        ([sides[0], str(tmp_path / "empty")], 1, "empty"),
    ]  # fmt: skip
    for words, code, named in table:
        assert run(["compare", *words]) == code
        assert named in capsys.readouterr().err


# ---- what else differs ----


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gpu", {"environment": {"gpus": GPUS}}),
        ("cpu", {"environment": {"cpu": "Intel Xeon"}}),
        ("tracer", {"tracer": {"kind": "nsys", "version": "2025.3"}}),
        ("warm-up", {"warmup_batches": 3}),
        ("clocks", {"companions": {"clocks": {"steps": []}}}),
    ],
)
def test_what_makes_a_comparison_meaningless(
    tmp_path: Path, name: str, change: dict[str, Any], capsys: Captured
) -> None:
    base, new = write_side(tmp_path / "a", BASE), write_side(tmp_path / "b", SLOWER, turn=1, **change)
    if name == "gpu":
        for path in (tmp_path / "b").glob("*/manifest.json"):
            path.write_text(path.read_text().replace('"gpu_uuid":null', '"gpu_uuid":"GPU-1"'))
    version = first(capsys, base, new, "--fail-on", "slower", code=3)
    assert [one["name"] for one in version["differences"] if one["decides"]] == [name]
    assert {one["verdict"] for one in version["rows"]} == {"not-comparable"}
    assert row(version, "toy/batch/decode")["ratio"] == pytest.approx(1.1)
    assert "Cannot compare" in version["conclusion"]
    assert [one["code"] for one in version["findings"]] == (["other-gpu"] if name == "gpu" else [])
    allowed = first(capsys, base, new, "--allow", name)
    assert row(allowed, "toy/batch/decode")["verdict"] == "slower"


def test_other_differences_are_listed(tmp_path: Path, capsys: Captured) -> None:
    """Times per batch are not compared where batches have another size."""

    def made(commit: str, torch: str, digest: str, batch: str) -> dict[str, Any]:
        source = {"git_commit": commit, "git_dirty": commit == "2", "script_sha256": digest}
        return {"environment": {"packages": {"torch": torch}}, "source": source, "script_arguments": [batch]}

    base = write_side(tmp_path / "a", BASE, **made("1", "2.4", "abc", "4"))
    twice = [2 * time for time in BASE]
    new = write_side(tmp_path / "b", twice, infer_ms=40.0, turn=1, items=8, **made("2", "2.5", "def", "8"))
    version = first(capsys, base, new)
    assert {one["name"]: (one["new"], one["decides"]) for one in version["differences"]} == {
        "package torch": (["2.5"], False),
        "git commit": (["2 with changes"], False),
        "script's digest": (["def"], False),
        "arguments": (["8"], False),
    }
    assert row(version, "toy/batch")["verdict"] == "same"
    assert {"p50": "4 and 8 items per batch"}.items() <= {
        one["metric"]: one["reason"] for one in version["not_compared"] if one["stage"] == "toy/batch"
    }.items()
    assert [text for text in version["remarks"] if "8 items" in text and "4 before" in text]


def test_processes_and_their_ranks_are_counted(tmp_path: Path, capsys: Captured) -> None:
    """As under torchrun: two launched, of two ranks each, against one; and one of two ranks against one of four."""

    def launch(name: str, launched: int, ranks: int) -> str:
        processes = [
            process(number, measured=[
                MeasuredProcess(folder=f"proc_{number}_gpu_0/rank_{rank}", launched_index=number, pid=rank, rank=rank)
                for rank in range(ranks)
            ])
            for number in range(launched)
        ]  # fmt: skip
        return str(write_launch(tmp_path / name, {"decode": 1.0}, processes=processes))

    for base, new in ((launch("a", 1, 2), launch("b", 2, 2)), (launch("c", 1, 2), launch("d", 1, 4))):
        version = first(capsys, base, new, code=3)
        assert [one["name"] for one in version["differences"] if one["decides"]] == ["processes"]


def test_an_old_base_and_another_driver_are_findings(tmp_path: Path, capsys: Captured) -> None:
    made: dict[str, Any] = {"environment": {"driver": "550"}, "created": "2026-09-01T12:00:00+00:00"}
    base = write_side(tmp_path / "a", BASE, **made)
    recent = write_side(tmp_path / "b", BASE, **made)
    new = write_side(tmp_path / "c", BASE, turn=1, environment={"driver": "570"})
    found = first(capsys, base, new)["findings"]
    assert [one["code"] for one in found] == ["old-baseline", "other-driver"]
    assert "83 days" in found[0]["message"]
    assert first(capsys, base, recent)["findings"] == []


# ---- the conclusion, the machine, the advice ----


def machine(wall_ms: float) -> dict[str, Any]:
    loop = {"wall_ms": wall_ms, "cpu_ms": 1.0}
    return {"companions": {"yardstick": {"cpus": 2, "loop_before": loop, "loop_after": loop}}}


@pytest.mark.parametrize(
    ("factor", "turn", "wall_ms", "expected"),
    [
        (1.0, 1, 1.0, "No difference"),
        (1.1, 1, 1.0, "3.2 % slower"),
        (0.5, 1, 1.0, "20 % faster"),
        (40.0, 1, 1.0, "x14 slower"),
        (1.02, 1000, 1.0, "No change above 2 % proven: throughput"),
        (1.1, 1, 1.62, "Cannot tell: the machine was 62 % slower during"),
        (0.5, 1, 1.3, "20 % faster"),
    ],
)
def test_the_conclusion(
    tmp_path: Path, factor: float, turn: int, wall_ms: float, expected: str, capsys: Captured
) -> None:
    base = write_side(tmp_path / "a", BASE, **machine(1.0))
    new = write_side(tmp_path / "b", [factor * time for time in BASE], turn=turn, **machine(wall_ms))
    version = first(capsys, base, new)
    assert expected in version["conclusion"]
    assert version["machine_ratio"] == (None if wall_ms == 1.0 else pytest.approx(wall_ms))
    assert any("reference loop" in text for text in version["remarks"]) == (wall_ms != 1.0)
    assert run(["compare", base, new]) == 0
    out = capsys.readouterr().out
    assert out.startswith(version["conclusion"])


@pytest.mark.parametrize(
    ("factor", "wall_ms", "words", "verdict", "code"),
    [
        (1.1, 1.62, [], "undecided", 0),
        (1.1, 1.62, ["--fail-on", "slower"], "undecided", 3),
        (1.1, 1.62, ["--fail-on", "faster"], "undecided", 0),
        (0.9, 0.6, ["--fail-on", "faster"], "undecided", 3),
        (1.1, 0.6, ["--fail-on", "slower"], "slower", 3),
        (1.1, 1.01, ["--fail-on", "slower"], "slower", 3),
    ],
)
def test_a_change_that_may_be_the_machine_is_undecided(
    tmp_path: Path, factor: float, wall_ms: float, words: list[str], verdict: str, code: int, capsys: Captured
) -> None:
    base = write_side(tmp_path / "a", BASE, **machine(1.0))
    new = write_side(tmp_path / "b", [factor * time for time in BASE], turn=1, **machine(wall_ms))
    version = first(capsys, base, new, *words, code=code)
    assert row(version, "toy/batch/decode")["verdict"] == verdict


def test_advice_is_graded(tmp_path: Path, capsys: Captured) -> None:
    base, new = write_side(tmp_path / "a", BASE), write_side(tmp_path / "b", [0.8 * time for time in BASE], turn=1)
    cause = {
        "code": "cpu-bound", "share": 0.9, "saves_ms": 2.5, "least": 0.5, "what": "It computes.",
        "step": "Decode smaller: Image.draft before load; or decode in worker threads.",
    }  # fmt: skip
    stage = {
        "path": ["toy", "batch", "decode"], "batches": 40, "wall_ms": 10.0, "gpu_busy_ms": None, "activities": {},
        "samples": 0, "causes": [cause],
    }  # fmt: skip
    for path in (tmp_path / "a").glob("*/proc_0_gpu_0/benchmark.json"):
        tree = json.loads(path.read_text())
        path.write_text(json.dumps({**tree, "diagnosis": {"slowdown": None, "stages": [stage], "warmup": []}}))
    (graded,) = first(capsys, base, new)["advice"]
    assert graded == {
        "stage": "toy/batch/decode", "cause": "cpu-bound", "advice": "Decode smaller", "promised_ms": 2.5,
        "got_ms": pytest.approx(2.0), "is_proven": True,
    }  # fmt: skip
    assert run(["compare", base, new]) == 0
    assert "decode smaller: predicted up to 2.50 ms, saved 2.00 ms" in capsys.readouterr().out
    assert first(capsys, new, base)["advice"] == []


# ---- gates ----


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--fail-on", "slower"], 3),
        (["--fail-on", "faster,not-comparable"], 0),
        (["--fail-on", "slower", "--min-effect", "20%"], 0),
        (["--fail-on", "slower", "--stage", "infer"], 0),
        (["--fail-if", "decode.p95 > 20ms", "--fail-if", "decode.cpu > +5%"], 3),
    ],
)
def test_gates(sides: tuple[str, str], arguments: list[str], code: int) -> None:
    assert run(["compare", *sides, *arguments]) == code


@pytest.mark.parametrize(
    ("limit", "failed", "value", "unit"),
    [
        ("decode.p95 > 11ms", False, 11.0 * 0.9999, "ms"),
        ("toy/batch/decode.cpu < 2600us", True, 2.5, "ms"),
        ("'decode'.cpu >= 0.1s", False, 2.5, "ms"),
        ("'model.0 > x'.p50 > 1ms", True, 19.8, "ms"),
        ("model.0 > 1", None, None, None),
        ("p50 > 1ms", True, 29.7, "ms"),
        ("throughput < 140 items/s", True, 133.33, "items/s"),
        ("decode.cpu > -5%", True, 0.0, "%"),
        ("decode.gpu > 1ms", False, 0.0, "ms"),
        ("host_memory > 2GiB", True, None, None),
        ("decode", None, None, None),
        ("decode..p95 > 5ms", None, None, None),
        ("decode.p95 = 5ms", None, None, None),
        ("decode.p95 > fast", None, None, None),
        ("decode.p95 > 5 parsecs", None, None, None),
        ("decode.p42 > 5ms", None, None, None),
        ("decode.throughput > 5", None, None, None),
        ("decode.p95 > 5MB", None, None, None),
        ("decoed.p95 > 5ms", None, None, None),
        ("latency.p95 > 5ms", None, None, None),
    ],
)
def test_limits(
    tmp_path: Path, limit: str, failed: bool | None, value: float | None, unit: str | None, capsys: Captured
) -> None:
    """`failed` None: it is no limit, or of nothing that is there."""
    base, new = (write_side(tmp_path / side, BASE, turn=turn, name="model.0 > x") for turn, side in enumerate("ab"))
    code = run(["compare", base, new, "--fail-if", limit, "--format", "json"])
    out, err = capsys.readouterr()
    assert code == (2 if failed is None else 3 * failed)
    if failed is None:
        assert (out, f"'{limit}'" in err or "no stage" in err) == ("", True)
        return
    (result,) = json.loads(out)["limits"]
    assert (result["failed"], result["unit"], result["launches"]) == (failed, unit, 5 if value is not None else 0)
    assert result["value"] == (value if value is None else pytest.approx(value, rel=1e-3, abs=1e-9))
    assert (result["reason"] is None) == (value is not None)


def test_a_change_in_percent_is_of_what_is_comparable(tmp_path: Path, capsys: Captured) -> None:
    base = write_side(tmp_path / "a", BASE, name="old")
    new = write_side(tmp_path / "b", BASE, infer_ms=30.0, turn=1, name="new")
    renamed = compare(capsys, base, new, "--map", "old=new", "--fail-if", "new.cpu > 5%", code=3)["limits"]
    assert [one["value"] for one in renamed] == [pytest.approx(50.0, rel=1e-3)]
    swapped = write_side(tmp_path / "c", [time + 10 for time in BASE], infer_ms=BASE[0], turn=1, name="old")
    options = ("--map", "decode=old", "--map", "old=decode", "--fail-if", "old.cpu > 5%")
    assert compare(capsys, base, swapped, *options)["limits"][0]["value"] == pytest.approx(0.0, abs=1.0)
    other = write_side(tmp_path / "d", BASE, turn=1, environment={"cpu": "Xeon"})
    limits = ("--fail-if", "decode.cpu > 5%", "--fail-if", "decode.cpu > 1s")
    results = compare(capsys, base, other, *limits, code=3)["limits"]
    assert [(one["failed"], one["value"] is None) for one in results] == [(True, True), (False, False)]
    allowed = compare(capsys, base, other, *limits, "--allow", "cpu")["limits"]
    assert not any(one["failed"] for one in allowed)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--fail-on", "worse"], "worse"),
        (["--min-effect", "2ms"], "--min-effect"),
        (["--min-effect", "2"], "--min-effect 2"),
        (["--alpha", "0"], "--alpha"),
        (["--spread", "3"], "--spread 3"),
        (["--spread", "0"], "--spread"),
        (["--map", "decode"], "--map"),
        (["--map", "decoed=decode"], "decoed"),
        (["--stage", "decoed"], "decoed"),
        (["--allow", "weather"], "weather"),
        (["--repeat", "3"], "--run"),
        (["--run", "x.py", "--run", "y.py"], "--run"),
        (["--rev", "HEAD", "x.py"], "--rev"),
    ],
)
def test_wrong_options(sides: tuple[str, str], capsys: Captured, arguments: list[str], named: str) -> None:
    assert run(["compare", *sides, *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, named in err) == ("", True)


# ---- forms ----


@pytest.mark.parametrize("form", ["text", "md", "json"])
def test_names_do_not_steer_what_shows_them(tmp_path: Path, capsys: Captured, form: str) -> None:
    name = "\x1b[31m<script>|`x`|</script>\u202e"
    base, new = (write_side(tmp_path / side, BASE, turn=turn, name=name) for turn, side in enumerate("ab"))
    assert run(["compare", base, new, "--format", form]) == 0
    out = capsys.readouterr().out
    assert not {"\x1b", "\u202e"}.intersection(out)
    if form == "md":
        assert ("<script>" in out.replace(r"\<script", ""), "<details>" in out) == (False, True)


def test_wide_intervals_and_large_changes(tmp_path: Path, capsys: Captured) -> None:
    base = write_side(tmp_path / "a", [1.0, 3.0, 9.0])
    new = write_side(tmp_path / "b", [3.0, 1.0, 9.0], infer_ms=800.0, turn=1)
    alike = write_side(tmp_path / "c", [9.0, 1.0, 3.0], turn=1)
    assert "differ too much" in first(capsys, base, alike, "--stage", "decode")["conclusion"]
    assert run(["compare", base, new]) == 0
    lines = capsys.readouterr().out.splitlines()
    (decode,) = [line for line in lines if "/decode " in line]
    (infer,) = [line for line in lines if "/infer " in line]
    assert ("not proven" in decode, " to " in decode) == (True, False)
    assert " x40 " in infer


def test_from_python(sides: tuple[str, str]) -> None:
    found = perfharness.compare(*sides, min_effect=0.2, stages=["decode"], limits=["decode.cpu > 1ms"])
    assert [one.verdict for one in found.versions[0].rows] == ["same"]
    assert found.limits[0].failed
