"""Several launches: what they come to by hand, which options ask for them, and the folders that a series lists."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from perfharness.cli.main import run
from perfharness.render.charts.scaling import scaling_picture
from perfharness.runs.series.model import SeriesRow, read_series
from perfharness.runs.series.summary import new_series
from tests.schemas import valid
from tests.support.trace_builder import Recorded
from tests.unit.charts import drawn
from tests.unit.export_runs import process_record, run_folder, series_of_runs, two_processes

BATCH = "toy/batch"
Captured = pytest.CaptureFixture[str]


def write_launch(folder: Path, batch_ms: float | None, period_ms: float, **manifest: Any) -> None:
    """A launch whose batches took that long; None: it has a range, and no batch."""
    trace = Recorded(gpu=False)
    for index in range(5):
        start = period_ms * index
        trace.stage("other", start, start + 1) if batch_ms is None else trace.batch(index, start, start + batch_ms)
    (folder / "proc_0_gpu_0").mkdir(parents=True)
    trace.write(folder / "proc_0_gpu_0" / "trace.sqlite")
    run_folder(folder, process_record(0, duration_s=2.0, user_s=1.0, system_s=0.5), **manifest)


def series(folder: Path, kind: str, *rows: dict[str, Any]) -> Any:
    """`series.json` of these rows after `analyze`; rows that failed have no folder."""
    content = {
        "kind": kind,
        "created": "2026-01-01T00:00:00+00:00",
        "command": [],
        "script": "x.py",
        "confidence": 0.95,
    }
    made = [{"label": "launch", "place": place, "run_id": "r1", **row} for place, row in enumerate(rows)]
    (folder / "series.json").write_text(json.dumps({**content, "rows": made}))
    assert run(["analyze", str(folder), "-q"]) in (0, 3)
    return valid("series", folder / "series.json")


def repeat(folder: Path, times: Sequence[float | None], *, disturbed: int | None = None, **row: Any) -> Any:
    """A repeat; the reference loop took twice as long around the disturbed launch."""
    for number, time in enumerate(times):
        loop = {"wall_ms": 2.0 if number == disturbed else 1.0, "cpu_ms": 1.0}
        load = {"cpus": 2, "loop_before": loop, "loop_after": loop}
        write_launch(folder / f"launch_{number}", time, 20.0, companions={"yardstick": load})
    return series(folder, "repeat", *({"folder": f"launch_{number}", **row} for number in range(len(times))))


# ---- repeats ----


def test_means_medians_and_intervals_by_hand(tmp_path: Path, capsys: Captured) -> None:
    found = repeat(tmp_path, (9.0, 10.0, 11.0))
    batch = found["summary"]["launch"][BATCH]["cpu_time"]
    assert [batch[name] for name in ("count", "mean", "std", "median", "min", "max")] == [3, 10.0, 1.0, 10.0, 9.0, 11.0]
    assert batch["low"] == pytest.approx(10 - 4.302653 / 3**0.5, rel=1e-6)
    whole = found["summary"]["launch"][""]
    assert [whole[name]["mean"] for name in ("duration_s", "cpu_s", "items_per_second")] == [2.0, 1.5, 50.0]
    assert "gpu_time" not in found["summary"]["launch"][BATCH], "the GPU did nothing"
    assert (found["loops"], found["findings"], found["created"]) == ([BATCH], [], "2026-01-01T00:00:00+00:00")
    assert run(["analyze", str(tmp_path), "--format", "md"]) == 0
    assert "| batch | 10.0 ±2.5 |" in capsys.readouterr().out


@pytest.mark.parametrize(("times", "mean", "median"), [((9.0,), 9.0, 9.0), ((9.0, None, 10.0), None, 9.5)])
def test_what_has_no_interval_has_a_reason(
    tmp_path: Path, times: tuple[float | None, ...], mean: float | None, median: float
) -> None:
    found = repeat(tmp_path, times)["summary"]["launch"][BATCH]["cpu_time"]
    assert [found[name] for name in ("mean", "std", "low", "high", "median")] == [mean, None, None, None, median]
    assert found["reason"]


OTHERS = (10.0, 10.2, 9.9, 10.1, 10.05)


@pytest.mark.parametrize(
    ("times", "disturbed", "codes"),
    [
        ((10.0, 11.0, 12.0, 13.0, 14.0), None, {"launches-drift"}),
        ((10.0, 14.0, 12.0, 11.0, 13.0), None, set()),
        ((14.0, *OTHERS), None, {"first-launch-differs"}),
        ((None, *OTHERS), None, set()),
        ((10.0, 10.1, 9.9, 10.0), 2, {"machine-noisy"}),
        ((5.0, 10.0, 15.0), 2, set()),  # the interval of ±124 % is wider
    ],
)
def test_findings(tmp_path: Path, times: tuple[float | None, ...], disturbed: int | None, codes: set[str]) -> None:
    found = repeat(tmp_path, times, disturbed=disturbed)
    assert {finding["code"] for finding in found["findings"]} == codes
    if disturbed is not None:
        assert (found["machine"][0]["worst"], found["machine"][0]["relative"]) == ("launch_2", 1.0)


def test_launches_that_began_warm_are_a_finding(tmp_path: Path) -> None:
    wait = {"gpu_uuid": "GPU-1", "target_c": 40.0, "begin_c": 60, "end_c": 50, "waited_s": 300.0, "reached": False}
    found = repeat(tmp_path, (10.0, 10.0), waits=[wait])["findings"]
    assert [one["code"] for one in found] == ["launches-began-warm"]
    assert "launch_1 at 50" in found[0]["message"]


# ---- numbers of processes ----


@pytest.mark.parametrize(
    ("rates", "figures", "knee", "word"),
    [
        # speedup, efficiency, slowdown: each of four gets 50 items/s where one alone got 100
        ({1: 100, 2: 180, 4: 200}, [(1, 1, 1), (1.8, 0.9, 1 / 0.9), (2, 0.5, 2)], 2, "-np 2"),
        ({8: 340, 1: 100, 4: 300, 2: 190}, None, 4, "-np 4"),  # in whatever order they ran
        ({1: 100, 2: 74}, None, 1, "26 %"),
        ({1: 100, 2: 150, 3: 200}, None, None, "grows"),  # half is enough
        ({2: 200, 1: None, 4: 300}, [(1, 1, 1), (None, None, None), (1.5, 0.75, 1 / 0.75)], None, "grows"),
        ({1: 100, 2: None, 4: 110, 8: None}, None, 1, "-np 1"),  # a launch that failed is stepped over
        ({1: 100, 2: None}, None, None, "unknown"),
    ],
)
def test_scaling(
    tmp_path: Path, rates: dict[int, float | None], figures: list[tuple[float | None, ...]] | None, knee: int | None,
    word: str, capsys: Captured,
) -> None:  # fmt: skip
    rows = []
    for number, rate in rates.items():
        row = {"label": f"{number}", "folder": f"np_{number}", "num_processes": number}
        if rate is None:
            row |= {"status": "failed", "reason": "it broke", "run_id": None}
        else:
            write_launch(tmp_path / f"np_{number}", 900 / rate, 1000 / rate)
        rows.append(row)
    found = series(tmp_path, "processes", *rows)
    assert (found["knee"], word in found["conclusion"]) == (knee, True)
    if figures is not None:
        made = [[row["figures"].get("", {}).get(name) for name in FIGURES] for row in found["rows"]]
        assert made == [[None if one is None else pytest.approx(one, rel=1e-5) for one in each] for each in figures]
    assert run(["analyze", str(tmp_path), "--format", "md"]) == 0
    assert ("it broke" in capsys.readouterr().out) == (None in rates.values())


FIGURES = ("speedup", "efficiency", "slowdown")

# ---- what tracing costs ----

BASE = np.array([10.0, 10.1, 9.9, 10.05])


def overhead(untraced: Sequence[float], traced: Sequence[float]) -> Any:
    """Launches in turns; analysed again, they keep what the launch made of them."""
    rows = [
        SeriesRow(
            label=label, folder=f"{label}/launch_{number}", place=2 * number + (label == "traced"),
            figures={"": {"items_per_second": 1000 / time}, BATCH: {"cpu_time": time}},
        )
        for label, times in (("untraced", untraced), ("traced", traced))
        for number, time in enumerate(times)
    ]  # fmt: skip
    made = new_series("overhead", sorted(rows, key=lambda row: row.place), ["perfharness"], "x.py")
    return json.loads(made.model_dump_json())


@pytest.mark.parametrize(
    ("factors", "is_decided", "severities"),
    [
        ((1.05, 1.05, 1.05, 1.05), True, []),
        ((1.15, 1.15, 1.15, 1.15), True, ["warning"]),
        ((1.3, 1.3, 1.3, 1.3), True, ["error"]),
        ((1.15, 1.3, 1.4, 1.25), True, ["warning"]),  # 27 %, and 11 % at least
        ((0.8, 1.0, 2.2, 1.6), False, []),  # 29 %, of launches that differ too much to say so
        ((0.7, 0.7, 0.7, 0.7), False, []),
    ],
)
def test_what_tracing_costs(factors: tuple[float, ...], is_decided: bool, severities: list[str]) -> None:
    traced = BASE * factors
    found = overhead(list(BASE), list(traced))
    batch = found["overhead"][BATCH]["cpu_time"]
    wanted = stats.ttest_ind(np.log(traced), np.log(BASE), equal_var=False).confidence_interval(0.95)
    assert batch["overhead"] == pytest.approx(stats.gmean(traced) / stats.gmean(BASE) - 1, abs=2e-6)
    assert (batch["low"], batch["high"]) == pytest.approx((np.exp(wanted.low) - 1, np.exp(wanted.high) - 1), rel=1e-3)
    assert ("Undecided" not in found["conclusion"]) == is_decided
    assert all(f"{100 * batch[end]:+.1f} %" in found["conclusion"] for end in ("low", "high"))
    assert [one["severity"] for one in found["findings"] if one["code"] == "tracing-costs-much"] == severities
    assert batch["launches_needed"] is None or not is_decided


def test_undecided_and_unknown_overheads(tmp_path: Path) -> None:
    wide, near = (
        overhead(list(BASE), traced)["overhead"][BATCH]["cpu_time"]["launches_needed"]
        for traced in ([8.0, 10.1, 21.8, 16.1], [10.3, 10.9, 9.8, 10.45])
    )
    assert wide > near > len(BASE)
    one, none = overhead([10.0], [20.0])["overhead"], overhead([], [10.0, 10.1])["overhead"]
    assert (one[BATCH]["cpu_time"]["overhead"], one[""]["items_per_second"]["overhead"]) == (1.0, -0.5)
    assert one[BATCH]["cpu_time"]["low"] is none[BATCH]["cpu_time"]["overhead"] is None
    assert one[BATCH]["cpu_time"]["reason"]
    assert none[BATCH]["cpu_time"]["reason"]


# ---- how it is shown ----


@pytest.mark.parametrize("kind", ["overhead", "cold"])
def test_what_a_reader_sees(kind: Any, tmp_path: Path, capsys: Captured) -> None:
    if kind == "overhead":
        content, launches = overhead(list(BASE[:2]), list(1.2 * BASE[:2])), KINDS
    else:
        times = (("cold", 300.0), ("warm", 3.0), ("warm", 1.0), ("warm", 8.0), ("warm", None))
        launches = [(label, f"{label}_{place}") for place, (label, _) in enumerate(times)]
        rows = [
            SeriesRow(label=label, folder=folder, place=place, figures={"": {"model_load_ms": times[place][1]}})
            for place, (label, folder) in enumerate(launches)
        ]
        content = json.loads(new_series("cold", rows, [], "x.py").model_dump_json())
    content["rows"] = [row | {"run_id": "r1"} for row in content["rows"]]
    series_of_runs(tmp_path / "out", content.pop("kind"), *launches, **content)
    assert run(["report", str(tmp_path / "out"), "-o", str(tmp_path / "r.md")]) in (0, 3)
    text = (tmp_path / "r.md").read_text()
    wanted = ["by +20.0 % (95 %:", "| 10.05 ±0.64 | 12.06 ±0.76 | +20.0 % |"]
    assert [one for one in (wanted if kind == "overhead" else [" 3.0 (1.0 to 8.0) |"]) if one not in text] == [], text


def test_the_picture_of_a_sweep_has_a_panel_for_each_quantity(tmp_path: Path) -> None:
    for number, rate in ((1, 100.0), (2, 140.0)):
        write_launch(tmp_path / f"np_{number}", 500 / rate, 1000 / rate)
    rows = [{"label": f"{number}", "folder": f"np_{number}", "num_processes": number} for number in (1, 2)]
    failed = {"label": "4", "folder": "np_4", "num_processes": 4, "status": "failed", "run_id": None}
    series(tmp_path, "processes", *rows, failed)
    found = read_series(tmp_path)
    assert found is not None
    picture = scaling_picture(found)
    assert "mark" in drawn(picture)
    marks = [(row["processes"], row["text"]) for row in picture.rows["scaling_marks"]]
    assert marks == [(4, "failed"), (1, "knee")]
    values = [[row["value"] for row in panel if "line" in row] for panel in picture.rows.values()]
    wanted: list[list[float | None]] = [
        [100, 140, None, 100, 200, 400],
        [5, 25 / 7, None],
        [1, 0.7, None],
    ]  # the ideal rates; p50, efficiency
    near = [[None if one is None else pytest.approx(one, rel=1e-5) for one in each] for each in wanted]
    assert [one for one in values if one] == near


# ---- what is launched ----


@pytest.mark.parametrize(
    ("options", "folders"),
    [
        (["--repeat", "2"], ["launch_0", "launch_1"]),
        (["--repeat", "2", "--cold"], ["first", "cold_0", "warm_0", "cold_1", "warm_1"]),
        (["--np-sweep", "1,2"], ["np_1", "np_2", "np_2"]),
        (["--repeat", "1", "--overhead"], ["traced/launch_0", "untraced/launch_0"]),
    ],
)
def test_folders_of_launches(options: list[str], folders: list[str], tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "x.py").touch()
    words = ["launch", "--tracer", "embedded", "--dry-run", "-o", str(tmp_path), *options, str(tmp_path / "x.py")]
    assert run(words) == 0
    out = capsys.readouterr().out
    found = re.findall(rf"OUTPUT_DIR={tmp_path}/(.*)/proc_\d_gpu_0\n(?:.*\n)*?.*TRACER=(\w+)", out)
    wanted = [(name, "ranges" if name.startswith("untraced") else "embedded") for name in folders]
    assert (sorted(found) if "--overhead" in options else found) == wanted


@pytest.mark.parametrize(
    "options",
    [
        *(["--repeat", count] for count in ("0", "-1", str(10**20), "two")),
        *(["--np-sweep", numbers] for numbers in ("", "1,", "0,1", "1,1", "a", "1;2")),
        ["--np-sweep", "1,2", "-np", "2"],
        ["--np-sweep", "1,2", "--repeat", "2"],
        ["--cold", "--overhead"],
        ["--cold", "-np", "2"],
        ["--cold", "-ng", "2"],
        ["--cold", "--gpus", "0,1"],
        ["--overhead", "--tracer", "none"],
        *([option, *more, "--explain"] for option, *more in (("--overhead",), ("--repeat", "2"))),
    ],
    ids=" ".join,
)
def test_what_cannot_be_asked_for(options: list[str], tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "x.py").touch()
    assert run(["launch", *options, "--dry-run", "-o", str(tmp_path / "out"), str(tmp_path / "x.py")]) == 2
    assert options[0] in capsys.readouterr().err


# ---- the file and its folders ----

LAUNCHES = [("launch", "launch_0"), ("launch", "launch_1")]
KINDS = [(label, f"{label}/launch_{number}") for number in range(2) for label in ("traced", "untraced")]
TURNS = [("base", "base/launch_0"), ("new", "new/launch_0")]


@pytest.mark.parametrize(
    ("kind", "launches", "below", "found"),
    [
        ("repeat", LAUNCHES, "", ["launch_0", "launch_1"]),
        ("overhead", KINDS, "", ["traced/launch_0", "traced/launch_1"]),
        ("overhead", KINDS, "untraced", ["untraced/launch_0", "untraced/launch_1"]),
        ("repeat", TURNS, "new", ["new/launch_0"]),
        ("repeat", TURNS, "", None),  # of which version?
    ],
)
def test_the_launches_of_a_folder(
    kind: Any,
    launches: Sequence[tuple[str, str]],
    below: str,
    found: list[str] | None,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    two_processes(tmp_path / "launch_10")  # of an earlier, longer repeat
    series_of_runs(tmp_path, kind, *launches)
    assert run(["analyze", str(tmp_path / below), "--format", "json"]) == (0 if found else 1)
    out = capsys.readouterr().out
    if found:
        paths = list(json.loads(out)) if len(found) > 1 else [str(tmp_path / found[0])]
        assert paths == [str(tmp_path / name) for name in found]


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [{"label": "launch", "folder": "launch_0/../../launch_1", "place": 0}]},
        {"rows": [{"label": "launch", "folder": "launch_0", "place": 0, "run_id": "another"}]},
        {"summary": 3},
    ],
)
def test_a_damaged_file_and_launches_of_another_series_are_refused(
    change: Mapping[str, Any], tmp_path: Path, capsys: Captured
) -> None:
    series_of_runs(tmp_path, "repeat", *LAUNCHES, **change)
    assert run(["analyze", str(tmp_path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
