"""Reports: figures by hand, every section and chart of recorded runs, every format, names that try to break out."""

from __future__ import annotations

import json
import re
import shutil
import webbrowser
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import vl_convert

import perfharness
from perfharness.cli.main import run
from perfharness.errors import UsageError
from perfharness.runs.report.model import RunReport
from tests.support.documents import markdown_table
from tests.support.trace_builder import Recorded, TraceBuilder
from tests.unit.bench_results import made_up, suite_of, whole_suite
from tests.unit.charts import report_charts
from tests.unit.cli.test_verbs import SOURCES, cpu_only
from tests.unit.export_runs import process_record, recorded_trace, run_folder, two_processes
from tests.unit.ranks.test_ranks_run import late, made_run

Captured = pytest.CaptureFixture[str]
GOLDEN = Path(__file__).parents[2] / "golden"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b]52;c;Zm9v\x07\u202e[red]{{7*7}}=1+1|`x`"
REST = "(outside of stages)"


def written(path: Path, ending: str = "html", code: int = 0) -> str:
    """The report that the command line writes of it."""
    file = path.parent / f"{path.name}-report.{ending}"
    assert run(["report", str(path), "-o", str(file)]) == code
    return file.read_text()


def only(path: Path, **options: Any) -> RunReport:
    (found,) = perfharness.report(path, **options).runs
    return found


def stages(found: RunReport) -> list[tuple[Any, ...]]:
    """Name, batches, time and share of each."""
    return [(line.path[-1], line.batches, line.cpu.mean, line.cpu_share) for line in found.stages]


# ---- figures ----


def test_two_processes_are_pooled(tmp_path: Path) -> None:
    """Of each process one batch counts (-w 1): 9 ms, 4 items; load 1 ms, infer 2 ms with 4 us busy in 4 us."""
    folder = two_processes(tmp_path / "out")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = only(folder, price_per_hour=3.6)
    assert stages(found) == [
        ("batch", 2, 9.0, 1.0),
        ("load", 2, 1.0, pytest.approx(1 / 9)),
        ("infer", 2, 2.0, pytest.approx(2 / 9)),
        (REST, 2, 6.0, pytest.approx(6 / 9)),
    ]
    assert [line.cpu_per_item for line in found.stages] == [2.25, 0.25, 0.5, 1.5]
    infer = found.stages[2]
    assert infer.gpu_busy is not None
    assert infer.gpu_busy.mean == pytest.approx(0.004)
    assert [line.gpu_busy_share for line in found.stages] == [1.0, 0.0, 1.0, None]
    assert [(one.process, one.series.batches, one.series.warmup) for one in found.series] == [
        (f"proc_{number}_gpu_0", 3, [(0, 1), (2, 3)]) for number in (0, 1)
    ]
    assert [(one.which, one.batch_index, one.cpu_ms) for one in found.timelines] == [("typical", 1, 9.0)]
    assert found.cost is not None
    assert (found.cost.machine is None) == (found.throughput["items_per_second"] is None)
    alone = only(folder / "proc_1_gpu_0")
    assert ({one.process for one in alone.series}, alone.stages[0].batches) == ({"proc_1_gpu_0"}, 1)
    written(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_process_that_failed_is_left_out_as_in_the_mean(tmp_path: Path) -> None:
    """The other process's batches take 4 ms, all of it in a stage; they count nowhere."""
    folder = two_processes(tmp_path / "out")
    builder = Recorded()
    for index in range(5):
        builder.batch(index, 20 * index, 20 * index + 4)
        builder.stage("load", 20 * index, 20 * index + 4)
    builder.write(folder / "proc_1_gpu_0" / "trace.sqlite")
    run_folder(folder, process_record(0), process_record(1, ended="failed", exit_code=1))
    found = only(folder)
    assert [line[1:3] for line in stages(found)] == [(1, 9.0), (1, 1.0), (1, 2.0), (1, 6.0)]
    assert {one.process for one in found.series} == {one.process for one in found.timelines} == {"proc_0_gpu_0"}
    assert [one.ended for one in found.measured.processes] == ["ok", "failed"]
    assert "processes-failed" in {one.code for one in found.findings}


def test_the_share_of_stages_that_do_not_always_occur(tmp_path: Path) -> None:
    """`rare` takes 4 ms in one of two batches of 10 ms: its mean is 4 ms, and its share 4 of 20. There are no items."""
    builder = Recorded(gpu=False)
    for index in range(2):
        builder.batch(index, 20 * index, 20 * index + 10, None)
    builder.stage("rare", 1, 5)
    path = builder.write(tmp_path / "t.sqlite")
    assert stages(only(path))[1:] == [("rare", 1, 4.0, 0.2), (REST, 2, 8.0, 0.8)]
    assert re.search(r"\brare \| 1 \| 4\.000 \| 20\.0 % \|", written(path, "md"))


def test_a_run_without_batches_has_its_ranges(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for place in range(3):
        builder.range("load", place * 1_000_000, place * 1_000_000 + 500_000)
    path = builder.write(tmp_path / "t.sqlite")
    found = only(path)
    assert found.stages == []
    assert found.throughput["reason"]
    assert found.throughput["reason"] in written(path, "md")
    (one,) = found.ranges
    assert (one.path[-1], one.count) == ("load", 3.0)
    assert one.cpu == pytest.approx(1.5)


def test_of_a_repeat_the_launch_in_the_middle_is_shown(tmp_path: Path) -> None:
    folder = shutil.copytree(GOLDEN / "runs" / "repeat_base", tmp_path / "repeat")
    report = perfharness.report(folder)
    assert [one.name for one in report.runs] == [f"repeat/{report.series[0].shown}"]
    rows = json.loads((folder / "series.json").read_text())["rows"]
    times = sorted((row["figures"]["video/pipeline/batch"]["cpu_time"], row["folder"]) for row in rows)
    assert report.series[0].shown == times[len(times) // 2][1]


def test_how_it_was_measured_is_the_manifest(tmp_path: Path) -> None:
    """Columns of the processes and the nodes."""
    gpu = {"index": 0, "uuid": "GPU-1", "name": "H200"}
    folder = two_processes(tmp_path / "out")
    path = folder / "manifest.json"
    tree = json.loads(path.read_text())
    tree["processes"][1] |= {"ended": "failed", "duration_s": 2.5, "max_rss_bytes": 3_000_000}
    tree["processes"][1]["placement"] = {"cpus": "4-7"}
    tree["nodes"] = [
        {
            "rank": rank,
            "count": 2,
            "launch": "x",
            "clock_error_ns": 1_500_000 * rank,
            "environment": {"hostname": f"host{rank}", "driver": "580.1", "gpus": [gpu] * rank},
        }
        for rank in (0, 1)
    ]
    path.write_text(json.dumps(tree))
    text = written(folder, "md")
    assert [list(row.values())[:5] for row in markdown_table(text, "process", "resident")] == [
        ["proc_0_gpu_0", "ok", "-", "-", "-"],
        ["proc_1_gpu_0", "failed", "2.5", "2.861 MiB", "4-7"],
    ]
    assert [list(row.values()) for row in markdown_table(text, "node", "driver")] == [
        ["0", "host0", "-", "580.1", "0"],
        ["1", "host1", "H200", "580.1", "1.5"],
    ]


# ---- sections and charts ----

RUN = ["Stages", "What limits each stage", "Batches over time", "A typical, the best and the worst batch"]
SLOW, END = "The slowest batches", "How it was measured"
OF_A_RUN = {"stages": 1, "series": 1, "timeline": 3}


@pytest.mark.parametrize(
    ("name", "sections", "charts"),
    [
        ("explained", [*RUN, SLOW, END], {**OF_A_RUN, "distribution": 4, "flame": 1}),
        ("two_processes", [*RUN, SLOW, "Telemetry", "Findings", END],
         {**OF_A_RUN, "series": 2, "distribution": 3, "telemetry": 1}),
        ("stress", ["Under load", "The slowest requests", *RUN, "Telemetry", END],
         {**OF_A_RUN, "distribution": 1, "load": 2, "slowest": 2, "telemetry": 1}),
        ("plain_nvtx", ["Ranges", "What limits each stage", END], {}),
        ("bench", ["Cases", "Charts", END], {"bench": 4}),
        ("repeat_new", [*RUN, SLOW, END], {**OF_A_RUN, "distribution": 3}),
    ],
)  # fmt: skip
def test_a_page_has_every_section_and_chart(
    name: str, sections: list[str], charts: dict[str, int], tmp_path: Path
) -> None:
    """Vega-Lite accepts each chart."""
    folder = shutil.copytree(GOLDEN / "runs" / name, tmp_path / name)
    page = written(folder)
    assert re.findall(r"<h2>(.*?)</h2>", page.partition("<noscript>")[0]) == sections
    found = report_charts(folder)
    assert Counter(chart.partition("_")[0] for chart in found) == charts
    for specification in found.values():
        assert "mark" in vl_convert.vegalite_to_svg(specification)
        text = json.dumps(specification)
        keys = {key for rows in specification["datasets"].values() for row in rows for key in row}
        made = re.findall(r"\w+", " ".join(re.findall(r'"as": (\[[^]]*\]|"\w+")', text)))
        missing = set(re.findall(r'"field": "(\w+)"', text)) - keys - {*made}
        assert not missing or not all(specification["datasets"].values()), missing


def test_the_numbers_of_a_profiled_run(tmp_path: Path, capsys: Captured) -> None:
    folder = shutil.copytree(GOLDEN / "runs" / "explained", tmp_path / "explained")
    text, page = written(folder, "md"), written(folder)
    of = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", text, re.MULTILINE))
    assert "| 14 | 96.039 | 100.0 % |" in of["Stages"]
    assert re.search(r"\| encode \|.*_iterencode_dict.* 4\d\.\d %", of["What limits each stage"])
    assert "| encode |" in of[SLOW]
    warning = capsys.readouterr().err.partition("profiling pass")[2].split(";")[0]
    assert page.count(warning) == 1, "a warning is on the page once"
    assert "GPU" not in re.sub(r"(?s)<script.*?</script>|<style.*?</style>", "", page)
    assert len(page) < 1_000_000


@pytest.mark.parametrize("batches", [30, 3000])
@pytest.mark.parametrize(("warmup_ms", "top"), [(700, 12.0), (20, None)])
def test_a_long_warm_up_does_not_flatten_the_batches(
    batches: int, warmup_ms: int, top: float | None, tmp_path: Path
) -> None:
    """The axis ends at the longest measured batch where warm-up took far longer, and a note says how long."""
    trace, at = Recorded(gpu=False), 0
    for index in range(batches):
        length = warmup_ms if index == 0 else 12 if index == batches - 2 else 10
        trace.batch(index, at, at + length)
        at += length
    path = trace.write(tmp_path / "t.sqlite")
    page = tmp_path / "r.html"
    assert run(["report", str(path), "-w", "1", "-o", str(page)]) == 0
    (chart,) = re.findall(
        r'data-name="series_0_0".*?<script type="application/json">(.*?)</script>', page.read_text(), re.S
    )
    made = json.loads(chart)
    scales = [layer["encoding"]["y"]["scale"] for layer in made["layer"] if "y" in layer["encoding"]]
    assert [scale.get("domain") for scale in scales] == [top and [0, top]] * len(scales)
    assert ("700" in re.sub(r"(?s)<script.*?</script>", "", page.read_text())) == (top is not None)
    assert 30 <= len(made["datasets"]["series_0_0_batches"]) <= 1000


def test_a_comparison_and_the_ranks_are_drawn(tmp_path: Path) -> None:
    """One wide interval does not flatten the others."""
    names = ("repeat_base", "repeat_new")
    sides = [shutil.copytree(GOLDEN / "runs" / name, tmp_path / name) for name in names]
    for side in sides:
        assert run(["analyze", str(side), "-q"]) == 0
    assert run(["report", *map(str, sides), "-o", str(tmp_path / "both.html")]) == 0
    chart = re.findall(r'data-name="comparison_0".*?json">(.*?)</script>', (tmp_path / "both.html").read_text(), re.S)[
        0
    ]
    assert "mark" in vl_convert.vegalite_to_svg(chart)
    rows = json.loads(chart)["datasets"]["comparison_0_intervals"]
    assert {row["verdict"] for row in rows} == {"slower", "undecided"}
    cut = [(row["figure"], row["high"] > 800) for row in rows if row["end"] < row["high"]]
    assert cut == [("video/pipeline/batch/infer wall/item", True)]
    assert max(row["end"] for row in rows) < 400
    ranks = report_charts(made_run(tmp_path / "ranks", late(100.0, 300.0)))["ranks_0_0"]
    assert "mark" in vl_convert.vegalite_to_svg(ranks)
    times = {(row["rank"], row["time"]): row["ms"] for row in ranks["datasets"]["ranks_0_0_ranks"]}
    assert [times[f"rank {rank}", "other work"] for rank in (0, 1)] == [0.78, 0.98]
    assert [times[f"rank {rank}", "waiting for the last rank"] for rank in (0, 1)] == [0.2, 0.0]


def test_a_suite_is_reported_with_what_to_take(tmp_path: Path) -> None:
    suite = suite_of(
        made_up("torch", rate=100.0), made_up("torch", 4, rate=200.0), made_up("tensorrt", rate=300.0),
        made_up("tensorrt", 4, rate=100.0, cosine=0.5, equal=False), baseline="torch/plain/fp32",
    )  # fmt: skip
    for name, made in (("suite", suite), ("whole", whole_suite())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench.json").write_text(made.model_dump_json())
    assert re.search(r"tensorrt.*\| 4 \|.*wrong answer", written(tmp_path / "suite", "md"))
    charts = report_charts(tmp_path / "whole")
    assert next(iter(charts)) == "bench_speedup"
    for specification in charts.values():
        assert "mark" in vl_convert.vegalite_to_svg(specification)
    assert suite._repr_html_()


# ---- names that try to break out ----


class _Page(HTMLParser):
    """Scripts, and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts.append(data)


def hostile_trace(folder: Path) -> Path:
    builder = Recorded(recorder=HOSTILE)
    for index in range(12):
        builder.batch(index, 20 * index, 20 * index + 10)
        builder.stage(HOSTILE, 20 * index, 20 * index + 5)
        builder.kernel((20 * index * 1_000_000 + 9, 20 * index * 1_000_000 + 19),
                       (20 * index * 1_000_000 + 99, 20 * index * 1_000_000 + 5_000_000), name=HOSTILE)  # fmt: skip
    path = folder / "proc_0_gpu_0" / "trace.sqlite"
    path.parent.mkdir(parents=True)
    builder.write(path)
    manifest = json.loads((run_folder(folder, process_record(0)) / "manifest.json").read_text())
    manifest |= {"script": HOSTILE, "command": [HOSTILE]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_no_name_becomes_a_part_of_the_page_which_needs_nothing_else(tmp_path: Path) -> None:
    page = written(hostile_trace(tmp_path / "<b>x"))
    parsed = _Page(page)
    assert not {"img", "b", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in parsed.tags}
    kinds = Counter(attributes.get("type") for tag, attributes in parsed.tags if tag == "script")
    assert (kinds.pop(None), set(kinds)) == (1, {"application/json", "application/gzip"})
    names = {name for _, attributes in parsed.tags for name in attributes}
    assert not {name for name in names if name.startswith("on")} | names & {"src", "srcset", "data"}
    assert not re.search("[\x1b\x07\u202e]", page)
    assert "49=1+1" not in page
    assert "&lt;img src=x onerror=alert(2)&gt;" in page
    for text in parsed.scripts:
        if text.lstrip().startswith("{"):
            assert "mark" in vl_convert.vegalite_to_svg(text)
    policy = next(one["content"] or "" for tag, one in parsed.tags if tag == "meta" and "http-equiv" in one)
    assert ("default-src 'none'" in policy, "unsafe-eval" in policy, policy.count("'sha256-")) == (True, False, 2)


def test_no_name_becomes_a_part_of_markdown_or_breaks_the_pdf(tmp_path: Path) -> None:
    folder = hostile_trace(tmp_path / "run")
    text = written(folder, "md")
    assert not re.search("[\x1b\x07\u202e]", text)
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", text)
    for row in re.findall(r"^\|.*\|$", text, re.MULTILINE):
        assert len(re.findall(r"(?<!\\)\|", row)) > 2
    assert "\\[red\\]" in text
    assert run(["report", str(folder), "-o", str(tmp_path / "r.pdf")]) == 0
    made = (tmp_path / "r.pdf").read_bytes()
    assert made.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", made)) >= 3


# ---- the verb, and Python ----


@pytest.mark.parametrize("kind", ["run", "process", "sweep", "cold starts", "repeat", "trace"])
def test_it_takes_whatever_holds_results(kind: str, tmp_path: Path, capsys: Captured) -> None:
    path = SOURCES[kind][0](tmp_path / "out")
    assert run(["report", str(path), "-o", str(tmp_path / "r.md")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "r.md")
    assert {one.stages[0].cpu.mean for one in perfharness.report(path).runs} == {9.0}


def test_several_runs_are_on_one_page_and_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = [two_processes(tmp_path / name) for name in ("old", "new")]
    assert run(["report", *map(str, paths), "-o", "-"]) == 0
    assert re.findall(r"^## (.*)", capfd.readouterr().out, re.MULTILINE) == ["old", "new"]
    for path in paths:
        assert run(["analyze", str(path), "-q"]) == 0
    report = perfharness.report(*paths)
    assert (report.comparison is None) != (report.comparison_reason is None)
    alone = perfharness.report(paths[0], recorded_trace(tmp_path / "t.sqlite"))
    assert (alone.comparison, alone.comparison_reason) == (None, None)


def test_nothing_measured_is_3_and_no_gpu_has_no_columns(tmp_path: Path) -> None:
    empty = run_folder(tmp_path / "out", process_record(0, trace=None, ended="failed", exit_code=1))
    assert len(written(empty, code=3)) > 1000
    text = written(cpu_only(tmp_path / "cpu.sqlite"), "md")
    assert ("wall/item" in text, "GPU/item" in text) == (True, False)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["-o", "a.HTML"], 0),
        (["-o", "x.docx"], 2),
        (["-o", "x.json"], 2),
        (["--price-per-hour", "-1"], 2),
        (["--open", "-o", "-"], 2),
        (["--open", "-o", "my page.html"], 0),
        (["--open", "-o", "no browser.html"], 1),
    ],
)
def test_the_ending_and_the_browser(
    options: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown: list[str] = []

    def show(address: str) -> bool:
        shown.append(address)
        return "no" not in address

    monkeypatch.setattr(webbrowser, "open", show)
    trace = recorded_trace(tmp_path / "t.sqlite")
    assert run(["report", str(trace), *options]) == code
    pages = [path for path in tmp_path.iterdir() if path != trace]
    assert [path.name for path in pages] == ([] if code == 2 else [options[-1]])
    assert all(path.read_text().startswith("<!doctype html>") for path in pages)
    assert shown == ([path.as_uri() for path in pages] if "--open" in options else [])


def test_a_run_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    folder = two_processes(tmp_path / "<i>out")
    opened = perfharness.open_run(folder)
    assert "perfharness analyze" in (opened._repr_html_() or "")
    assert run(["analyze", str(folder), "-q"]) == 0
    text = opened._repr_html_() or ""
    assert ["9.000" in text, "<script" in text, "<i>" in text] == [True, False, False]
    shutil.copytree(GOLDEN / "runs" / "explained", tmp_path / "explained")
    assert run(["analyze", str(tmp_path / "explained"), "-q"]) == 0
    text = perfharness.open_run(tmp_path / "explained")._repr_html_() or ""
    assert ("<ol>" in text, "→" in text) == (True, True)


def test_from_python_it_is_what_the_command_writes(tmp_path: Path) -> None:
    trace = recorded_trace(tmp_path / "t.sqlite")
    made = perfharness.report(trace, output=tmp_path / "report.md", price_per_hour=3.6)
    assert run(["report", str(trace), "--price-per-hour", "3.6", "-o", str(tmp_path / "same.md")]) == 0
    both = [re.sub(r"\d+:\d+:\d+", "", (tmp_path / name).read_text()) for name in ("report.md", "same.md")]
    assert (both[0] == both[1], "| machine, per hour | 3.6 |" in re.sub(r"3\.60*", "3.6", both[0])) == (True, True)
    assert perfharness.report(trace, anonymous=True).runs[0].stages == made.runs[0].stages
    with pytest.raises(UsageError):
        perfharness.report()
    with pytest.raises(UsageError):
        perfharness.report(trace, output=tmp_path / "report.docx")
