"""Comparisons of run folders: what is matched, what makes them meaningless, what is said of each figure."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfharness
from perfharness.analysis.comparison.compare import Pair, Rule, compare
from perfharness.errors import ResultError, UsageError
from perfharness.model.manifest import MeasuredProcess
from perfharness.runs.comparison.compare import compare_sides, read_side
from perfharness.runs.comparison.limits import parse_limit
from perfharness.runs.comparison.matched_sides import CompareOptions
from perfharness.runs.comparison.result import ComparedRow, ComparedVersion, Comparison
from tests.unit.compared_runs import write_launch, write_side
from tests.unit.run_records import process

BASE = [10.0, 10.05, 9.95, 10.02, 9.98]


def compared(base: str, *others: str, **options: Any) -> Comparison:
    return compare_sides(read_side(base), [read_side(other) for other in others], CompareOptions(**options))


def row(version: ComparedVersion, stage: str, metric: str = "cpu_time_per_item") -> ComparedRow:
    (found,) = [one for one in version.rows if (one.stage, one.metric) == (stage, metric)]
    return found


def test_each_figure_has_its_ratio_and_verdict(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE)
    new = write_side(tmp_path / "b", [time * 1.1 for time in BASE], turn=1)
    comparison = compared(base, new)
    (version,) = comparison.versions
    assert version.order == "in-turns"
    assert (version.remarks, version.differences) == ([], [])
    decode, infer = row(version, "toy/batch/decode"), row(version, "toy/batch/infer")
    assert (decode.verdict, decode.unit) == ("slower", "ms")
    assert decode.ratio == pytest.approx(1.1)
    assert decode.base.mean == pytest.approx(10.0 / 4, rel=1e-4)
    assert decode.base.launches == [time / 4 for time in BASE]
    assert infer.verdict == "same"
    assert infer.ratio == pytest.approx(1.0)
    throughput = row(version, "", "throughput")
    assert throughput.verdict == "slower"
    assert throughput.ratio is not None
    assert throughput.ratio < 1
    assert row(version, "toy/batch", "latency_p95").verdict == "slower"
    # Start-up was not recorded, and no stage does anything on the GPU.
    assert [one.metric for one in version.not_compared] == ["start_up"]
    assert not [one for one in version.rows if "gpu" in one.metric]
    # throughput; per item, p50 and p95 of the batch; per item of two stages
    assert (comparison.rows_tested, len(version.rows)) == (6, 6)


def test_the_verdicts_are_corrected_for_all_versions(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE)
    others = [write_side(tmp_path / name, [time * 1.1 for time in BASE], turn=1) for name in "bc"]
    assert compared(base, *others).rows_tested == 2 * compared(base, others[0]).rows_tested
    assert compared(base, *others, stages=("decode",)).rows_tested == 2


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gpu", {"environment": {"gpus": [{"index": 0, "uuid": "GPU-1", "name": "H200"}]}}),
        ("cpu", {"environment": {"cpu": "Intel Xeon"}}),
        ("tracer", {"tracer": {"kind": "nsys", "version": "2025.3"}}),
        ("warm-up", {"warmup_batches": 3}),
        ("clocks", {"companions": {"clocks": {"steps": []}}}),
    ],
)
def test_what_makes_a_comparison_meaningless(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    base = write_side(tmp_path / "a", BASE)
    other = write_side(tmp_path / "b", [time * 1.1 for time in BASE], turn=1, **change)
    if name == "gpu":
        _use_gpu(tmp_path / "b")
    (version,) = compared(base, other).versions
    assert [one.name for one in version.deciding] == [name]
    assert {one.verdict for one in version.rows} == {"not-comparable"}
    assert row(version, "toy/batch/decode").ratio == pytest.approx(1.1)
    (allowed,) = compared(base, other, allowed=frozenset({name})).versions
    assert row(allowed, "toy/batch/decode").verdict == "slower"


def _use_gpu(folder: Path) -> None:
    for path in folder.glob("*/manifest.json"):
        path.write_text(path.read_text().replace('"gpu_uuid":null', '"gpu_uuid":"GPU-1"'))


def test_other_differences_are_listed(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE, script_arguments=["--batch", "4"])
    new = write_side(tmp_path / "b", BASE, turn=1, script_arguments=["--batch", "8"])
    (version,) = compared(base, new).versions
    assert [(one.name, one.base, one.new, one.decides) for one in version.differences] == [
        ("arguments", ["--batch 4"], ["--batch 8"], False)
    ]
    assert row(version, "toy/batch/decode").verdict == "same"


def test_commits_packages_and_scripts_are_listed(tmp_path: Path) -> None:
    def made(commit: str, torch: str, digest: str) -> dict[str, Any]:
        source = {"git_commit": commit, "git_dirty": commit == "2", "script_sha256": digest}
        return {"environment": {"packages": {"torch": torch}}, "source": source}

    base = write_side(tmp_path / "a", BASE, **made("1", "2.4", "abc"))
    new = write_side(tmp_path / "b", BASE, turn=1, **made("2", "2.5", "def"))
    (version,) = compared(base, new).versions
    assert {one.name: one.new for one in version.differences} == {
        "package torch": ["2.5"],
        "git commit": ["2 with changes"],
        "script's digest": ["def"],
    }
    assert row(version, "toy/batch/decode").verdict == "same"


def test_renamed_stages_are_matched_as_the_user_says(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE)
    new = write_side(tmp_path / "b", BASE, turn=1, name="predict")
    (without,) = compared(base, new).versions
    assert (without.only_in_base, without.only_in_new) == (["toy/batch/infer"], ["toy/batch/predict"])
    (version,) = compared(base, new, renamed={"infer": "predict"}).versions
    assert (version.only_in_base, version.only_in_new) == ([], [])
    infer = row(version, "toy/batch/infer")
    assert (infer.new_stage, infer.verdict) == ("toy/batch/predict", "same")
    with pytest.raises(UsageError, match="infre"):
        compared(base, new, renamed={"infre": "predict"})


def test_batches_of_another_size_are_said(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE)
    new = write_side(tmp_path / "b", [time * 2 for time in BASE], infer_ms=40.0, turn=1, items=8)
    (version,) = compared(base, new).versions
    assert row(version, "toy/batch").verdict == "same"
    assert row(version, "toy/batch", "latency_p50").verdict == "slower"
    assert [text for text in version.remarks if "8 items" in text and "4 before" in text]
    (alike,) = compared(base, write_side(tmp_path / "c", BASE, turn=1)).versions
    assert not [text for text in alike.remarks if "items" in text]


def test_one_launch_a_side_decides_nothing(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE[:1])
    new = write_side(tmp_path / "b", [20.0], turn=1)
    (version,) = compared(base, new).versions
    assert {one.verdict for one in version.rows} == {"undecided"}
    assert row(version, "toy/batch/decode").ratio == pytest.approx(2.0)
    assert row(version, "toy/batch/decode").base.spread is None
    (stated,) = compared(base, new, rule=Rule(spread=0.05)).versions
    assert row(stated, "toy/batch/decode").verdict == "slower"


def test_launches_after_one_another_allow_for_a_drift(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE)
    new = write_side(tmp_path / "b", [time * 1.01 for time in BASE], turn=1000)
    (version,) = compared(base, new).versions
    assert (version.order, version.allows_drift) == ("one-after-the-other", True)
    decode = row(version, "toy/batch/decode")
    assert decode.judged_by is not None
    alone = compare([Pair(np.asarray(BASE), np.asarray(BASE) * 1.01)], Rule())[0].judged_by
    assert alone is not None
    assert decode.judged_by.high - decode.judged_by.low > 1.5 * (alone.high - alone.low)
    for one in version.rows:  # a reader can compute the change from the two numbers beside it
        assert one.base.mean is not None
        assert one.new.mean is not None
        assert one.ratio == pytest.approx(one.new.mean / one.base.mean)


def test_launches_that_failed_or_are_in_doubt_are_named(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE)
    new = write_side(tmp_path / "b", BASE[:3], turn=1, errors=["ranges-missing"])
    failed = write_launch(tmp_path / "b" / "failed", {"decode": 1.0, "infer": 1.0}, ended="failed")
    comparison = compared(base, f"{new},{failed}")
    (version,) = comparison.versions
    assert [one.problem is None for one in version.side.launches] == [True, True, True, False]
    assert version.side.used == 3
    assert len(version.remarks) == 2
    assert row(version, "toy/batch/decode").new.launches == [time / 4 for time in BASE[:3]]
    with pytest.raises(ResultError):
        compared(base, str(failed))


def test_a_launch_counts_once(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE)
    shutil.copytree(tmp_path / "a" / "launch_0", tmp_path / "copy")
    for again in (tmp_path / "a" / "launch_0", tmp_path / "copy", tmp_path / "a" / "launch_0" / "proc_0_gpu_0"):
        with pytest.raises(UsageError):
            read_side(f"{base},{again}")
    (version,) = compared(base, base).versions
    assert version.remarks


def test_a_stage_that_was_not_measured_everywhere(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE)
    runs = [
        write_launch(tmp_path / "b" / f"launch_{number}", {"decode": None, "infer": 20.0}, start_s=10 * number + 5)
        for number in range(3)
    ]
    (version,) = compared(base, ",".join(map(str, runs))).versions
    missing = [(one.stage, one.metric) for one in version.not_compared]
    assert missing.count(("toy/batch/decode", "cpu_time")) == 1
    assert ("toy/batch/decode", "cpu_time_per_item") not in missing


@pytest.mark.parametrize(
    ("limit", "failed", "value", "unit"),
    [
        ("decode.p95 > 11ms", False, 11.0 * 0.9999, "ms"),
        ("decode.p95>10 ms", True, 11.0, "ms"),
        ("toy/batch/decode.cpu < 2600us", True, 2.5, "ms"),
        ("'decode'.cpu >= 0.1s", False, 2.5, "ms"),
        ("p50 > 1ms", True, 29.7, "ms"),
        ("throughput < 130", False, 133.33, "items/s"),
        ("throughput < 140 items/s", True, 133.33, "items/s"),
        ("decode.cpu > +5%", False, 0.0, "%"),
        ("decode.cpu > -5%", True, 0.0, "%"),
        ("decode.gpu > 1ms", False, 0.0, "ms"),
    ],
)
def test_limits(tmp_path: Path, limit: str, failed: bool, value: float, unit: str) -> None:
    base = write_side(tmp_path / "a", BASE)
    new = write_side(tmp_path / "b", BASE, turn=1)
    (result,) = compared(base, new, limits=(parse_limit(limit),)).limits
    assert (result.failed, result.unit, result.launches) == (failed, unit, 5)
    assert result.value == pytest.approx(value, rel=1e-3, abs=1e-9)


def test_a_limit_that_cannot_be_judged_fails(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE)
    (result,) = compared(base, base, limits=(parse_limit("start_up > 1s"),)).limits
    assert (result.failed, result.value) == (True, None)
    assert result.reason
    with pytest.raises(UsageError, match="decoed"):
        compared(base, base, limits=(parse_limit("decoed.p95 > 1s"),))


def test_a_limit_in_percent_is_of_the_stage_that_was_renamed(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE, name="old")
    new = write_side(tmp_path / "b", BASE, infer_ms=30.0, turn=1, name="new")
    (result,) = compared(base, new, renamed={"old": "new"}, limits=(parse_limit("new.cpu > 5%"),)).limits
    assert result.value == pytest.approx(50.0, rel=1e-3)
    swapped = write_side(tmp_path / "c", [time + 10 for time in BASE], infer_ms=BASE[0], turn=1, name="old")
    renamed = {"decode": "old", "old": "decode"}
    (result,) = compared(base, swapped, renamed=renamed, limits=(parse_limit("old.cpu > 5%"),)).limits
    assert result.value == pytest.approx(0.0, abs=1.0)


def test_sides_that_cannot_be_compared_have_no_change_in_percent(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE)
    same = write_side(tmp_path / "b", BASE, turn=1)
    other = write_side(tmp_path / "c", BASE, turn=1, environment={"cpu": "Xeon"})
    limits = tuple(map(parse_limit, ("decode.cpu > 5%", "decode.cpu > 1s")))
    results = compared(base, same, other, limits=limits).limits
    assert [(one.failed, one.value is None) for one in results] == [
        (False, False), (False, False), (True, True), (False, False),
    ]  # fmt: skip
    allowed = compared(base, same, other, limits=limits, allowed=frozenset({"cpu"})).limits
    assert not any(one.failed for one in allowed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "decode",
        "decode.p95",
        "> 5ms",
        "decode..p95 > 5ms",
        "decode.p95 = 5ms",
        "decode.p95 >",
        "decode.p95 > fast",
        "decode.p95 > 5 parsecs",
        "decode p95 > 5ms",
        "decode.p42 > 5ms",
        "decode.throughput > 5",
        "decode.p95 > 5MB",
        "throughput > 5ms",
    ],
)
def test_a_limit_that_is_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_limit(text)


def test_names_with_dots_and_quotes() -> None:
    assert parse_limit("model.layer.0.p50 > 1ms").stage == "model.layer.0"
    assert parse_limit("'a > b'.p50 > 1ms").stage == "a > b"
    assert parse_limit("p99 > 1e-3s").quantity.value == pytest.approx(1.0)
    assert parse_limit("host_memory > 2GiB").quantity.value == 2 * 2**30
    assert parse_limit("energy > 5mJ").quantity.value == pytest.approx(5e-3)


def test_from_python(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", BASE)
    new = write_side(tmp_path / "b", [time * 1.1 for time in BASE], turn=1)
    found = perfharness.compare(base, new, min_effect=0.2, stages=["decode"], limits=["decode.cpu > 1ms"])
    assert [one.verdict for one in found.versions[0].rows] == ["same"]
    assert found.limits[0].failed


def test_a_machine_that_moved_by_more_than_the_change_is_named(tmp_path: Path) -> None:
    def machine(wall_ms: float) -> dict[str, Any]:
        loop = {"wall_ms": wall_ms, "cpu_ms": 1.0}
        made = {"cpus": 2, "loop_before": loop, "loop_after": loop}
        return {"companions": {"yardstick": made}}

    base = write_side(tmp_path / "a", BASE, **machine(1.0))
    new = write_side(tmp_path / "b", [time * 1.1 for time in BASE], turn=1, **machine(1.3))
    steady = write_side(tmp_path / "c", [time * 1.1 for time in BASE], turn=1, **machine(1.001))
    itself, moved = compared(base, new).versions[0].remarks
    assert "+30.0%" in itself
    assert "1.30 ms" in moved
    assert compared(base, steady).versions[0].remarks == []


def test_an_interval_without_bounds_can_be_written_and_read(tmp_path: Path) -> None:
    base = write_side(tmp_path / "a", [1e-6, 1e6])
    new = write_side(tmp_path / "b", [1e6, 1e-6], turn=1000)
    comparison = compared(base, new)
    decode = row(Comparison.model_validate_json(comparison.model_dump_json()).versions[0], "toy/batch/decode")
    assert decode.verdict == "undecided"
    assert decode.judged_by is not None
    assert decode.judged_by.high > 1e100


def test_launched_processes_that_measure_in_their_ranks_alone_are_counted(tmp_path: Path) -> None:
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

    pairs = [(launch("one", 1, 2), launch("two", 2, 2)), (launch("few", 1, 2), launch("many", 1, 4))]
    for base, new in pairs:
        (version,) = compared(base, new).versions
        assert [one.name for one in version.deciding] == ["processes"]
        assert {row.verdict for row in version.rows} == {"not-comparable"}
