"""Reports: their content by hand, and every format with names that try to break out of it."""

from __future__ import annotations

import json
import re
import shutil
import webbrowser
from html.parser import HTMLParser
from pathlib import Path

import pytest

import perfharness
from perfharness.analysis.suites.recommend import recommend
from perfharness.cli.main import run
from perfharness.errors import UsageError
from perfharness.runs.series.machine import LaunchConditions
from perfharness.runs.series.model import read_series
from perfharness.runs.series.summary import LaunchFacts, new_series
from perfharness.runs.stage_lines import REST
from tests.support.trace_builder import Recorded, TraceBuilder
from tests.unit.bench_results import made_up, suite_of
from tests.unit.cli.test_verbs import SOURCES, cpu_only
from tests.unit.export_runs import process_record, recorded_trace, run_folder, series_of_runs, two_processes

Captured = pytest.CaptureFixture[str]
GOLDEN = Path(__file__).parents[2] / "golden"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b]52;c;Zm9v\x07\u202e[red]{{7*7}}=1+1|`x`"


def written(path: Path, ending: str = "html") -> str:
    """The report that the command line writes of it."""
    file = path.parent / f"{path.name}-report.{ending}"
    assert run(["report", str(path), "-o", str(file)]) == 0
    return file.read_text()


# ---- content ----


def test_two_processes_are_pooled(tmp_path: Path) -> None:
    """Of each process one batch counts (-w 1): 9 ms, 4 items; load 1 ms, infer 2 ms with 4 us busy in 4 us."""
    (found,) = perfharness.report(two_processes(tmp_path / "out"), price_per_hour=3.6).runs
    lines = {line.path[2:]: line for line in found.stages}
    assert list(lines) == [("batch",), ("batch", "load"), ("batch", "infer"), ("batch", REST)]
    assert [line.batches for line in lines.values()] == [2, 2, 2, 2]
    assert [line.cpu.mean for line in lines.values()] == [9.0, 1.0, 2.0, 6.0]
    assert [line.cpu_per_item for line in lines.values()] == [2.25, 0.25, 0.5, 1.5]
    shares = [line.cpu_share for line in lines.values()]
    assert shares == [1.0, pytest.approx(1 / 9), pytest.approx(2 / 9), pytest.approx(6 / 9)]
    busy = lines["batch", "infer"].gpu_busy
    assert busy is not None
    assert busy.mean == pytest.approx(0.004)
    assert [line.gpu_busy_share for line in lines.values()] == [1.0, 0.0, 1.0, None]
    assert [line.cpu_mean.low if line.cpu_mean else None for line in lines.values()] == [None] * 4
    assert [(one.process, one.series.batches, one.series.warmup) for one in found.series] == [
        ("proc_0_gpu_0", 3, [(0, 1), (2, 3)]), ("proc_1_gpu_0", 3, [(0, 1), (2, 3)]),
    ]  # fmt: skip
    assert [(one.which, one.batch_index, one.cpu_ms) for one in found.timelines] == [("typical", 1, 9.0)]
    assert found.cost is not None
    assert (found.cost.machine is None) == (found.throughput["items_per_second"] is None)


def test_a_process_that_failed_is_left_out_as_in_the_mean(tmp_path: Path) -> None:
    """The other process's batches take 4 ms, all of it in a stage; they count nowhere."""
    folder = tmp_path / "out"
    recorded_trace(folder / "proc_0_gpu_0" / "trace.sqlite")
    builder = Recorded()
    for index in range(5):
        builder.batch(index, 20 * index, 20 * index + 4)
        builder.stage("load", 20 * index, 20 * index + 4)
    (folder / "proc_1_gpu_0").mkdir()
    builder.write(folder / "proc_1_gpu_0" / "trace.sqlite")
    run_folder(folder, process_record(0), process_record(1, ended="failed", exit_code=1))
    (found,) = perfharness.report(folder).runs
    assert [(line.cpu.mean, line.batches) for line in found.stages if line.is_batch] == [(9.0, 1)]
    assert [line.cpu_share for line in found.stages] == pytest.approx([1.0, 1 / 9, 2 / 9, 6 / 9])
    assert {one.process for one in found.series} == {one.process for one in found.timelines} == {"proc_0_gpu_0"}
    assert [one.ended for one in found.measured.processes] == ["ok", "failed"]
    assert "mean-without-failed" in {one.code for one in found.findings}


def test_without_items_the_breakdown_is_of_batches(tmp_path: Path) -> None:
    builder = Recorded(gpu=False)
    for index in range(2):
        builder.batch(index, 20 * index, 20 * index + 10, None)
        builder.stage("a", 20 * index, 20 * index + 4)
    text = written(builder.write(tmp_path / "t.sqlite"), "md")
    assert re.search(r"\ba \| 2 \| 4\.000 \| 40\.0 % \|", text)


def test_nothing_is_written_into_the_run(tmp_path: Path) -> None:
    folder = two_processes(tmp_path / "out")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    written(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_pdf_has_its_charts_and_survives_hostile_names(tmp_path: Path) -> None:
    """Its first page is the summary."""
    assert run(["report", str(hostile_trace(tmp_path / "run")), "-o", str(tmp_path / "r.pdf")]) == 0
    made = (tmp_path / "r.pdf").read_bytes()
    assert made.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", made)) >= 3


def test_a_process_of_a_run_is_reported_alone(tmp_path: Path) -> None:
    (found,) = perfharness.report(two_processes(tmp_path / "out") / "proc_1_gpu_0").runs
    assert [one.folder for one in found.measured.processes] == ["proc_1_gpu_0"]
    assert {one.process for one in found.series} == {"proc_1_gpu_0"}
    assert found.stages[0].batches == 1


def test_the_share_of_stages_that_do_not_always_occur(tmp_path: Path) -> None:
    """`rare` takes 4 ms in one of two batches of 10 ms: its mean is 4 ms, and its share 4 of 20."""
    builder = Recorded(gpu=False)
    for index in range(2):
        builder.batch(index, 20 * index, 20 * index + 10)
    builder.stage("rare", 1, 5)
    (found,) = perfharness.report(builder.write(tmp_path / "t.sqlite")).runs
    rare = found.stages[1]
    assert (rare.batches, rare.cpu.mean, rare.cpu_share) == (1, 4.0, 0.2)
    rest = found.stages[2]
    assert (rest.path[-1], rest.cpu.mean, rest.cpu_share) == (REST, 8.0, 0.8)


def test_a_run_without_batches_has_its_ranges(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for place in range(3):
        builder.range("load", place * 1_000_000, place * 1_000_000 + 500_000)
    path = builder.write(tmp_path / "t.sqlite")
    (found,) = perfharness.report(path).runs
    assert found.stages == []
    assert [(one.path[-1], one.count) for one in found.ranges] == [("load", 3.0)]
    assert found.ranges[0].cpu == pytest.approx(1.5)
    assert "load" in written(path)


# ---- formats ----


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


def test_no_name_becomes_a_part_of_the_page(tmp_path: Path) -> None:
    page = written(hostile_trace(tmp_path / "<b>x"))
    parsed = _Page(page)
    tags = [tag for tag, _ in parsed.tags]
    assert "img" not in tags
    assert "b" not in tags
    kinds = [attributes.get("type") for tag, attributes in parsed.tags if tag == "script"]
    assert kinds.count(None) == 2
    assert set(kinds) == {None, "application/json"}
    assert not [name for _, attributes in parsed.tags for name in attributes if name.startswith("on")]
    assert not re.search("[\x1b\x07\u202e]", page)
    assert "49=1+1" not in page
    assert "&lt;img src=x onerror=alert(2)&gt;" in page
    for text in parsed.scripts:
        if text.lstrip().startswith("{"):
            assert json.loads(text)["$schema"]


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    parsed = _Page(written(two_processes(tmp_path / "out")))
    for tag, attributes in parsed.tags:
        assert not {"src", "srcset", "data"} & set(attributes)
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
    policy = next(one["content"] for tag, one in parsed.tags if tag == "meta" and "http-equiv" in one)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert policy.count("'sha256-") == 2


def test_no_name_becomes_a_part_of_markdown(tmp_path: Path) -> None:
    text = written(hostile_trace(tmp_path / "run"), "md")
    assert not re.search("[\x1b\x07\u202e]", text)
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", text)
    for row in re.findall(r"^\|.*\|$", text, re.MULTILINE):
        assert len(re.findall(r"(?<!\\)\|", row)) > 2
    assert "\\[red\\]" in text


SECTIONS = [
    "Stages",
    "What limits each stage",
    "Batches over time",
    "A typical, the best and the worst batch",
    "The slowest batches",
    "How it was measured",
]


def test_a_page_has_every_section_with_its_numbers(tmp_path: Path) -> None:
    """Of a recorded run with a profiling pass."""
    folder = Path(shutil.copytree(GOLDEN / "runs" / "explained", tmp_path / "explained"))
    text, page = written(folder, "md"), written(folder)
    assert re.findall(r"<h2>(.*?)</h2>", page.partition("<noscript>")[0]) == SECTIONS
    of = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", text, re.MULTILINE))
    assert "| 14 | 96.039 | 100.0 % |" in of["Stages"]
    assert re.search(r"\| encode \|.*_iterencode_dict.* 4\d\.\d %", of["What limits each stage"])


# ---- the verb ----


@pytest.mark.parametrize("kind", ["run", "process", "sweep", "cold starts", "repeat", "trace"])
def test_it_takes_whatever_holds_results(kind: str, tmp_path: Path, capsys: Captured) -> None:
    path = SOURCES[kind][0](tmp_path / "out")
    assert run(["report", str(path), "-o", str(tmp_path / "r.md")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "r.md")
    report = perfharness.report(path)
    assert len(report.runs) >= 1
    assert {one.stages[0].cpu.mean for one in report.runs} == {9.0}


def test_several_runs_are_on_one_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = [str(two_processes(tmp_path / name)) for name in ("old", "new")]
    assert run(["report", *paths, "-o", "-"]) == 0
    assert re.findall(r"^## (.*)", capfd.readouterr().out, re.MULTILINE) == ["old", "new"]


def test_the_format_is_that_of_the_ending(tmp_path: Path) -> None:
    trace = str(recorded_trace(tmp_path / "t.sqlite"))
    assert run(["report", trace, "-o", str(tmp_path / "a.HTML")]) == 0
    assert (tmp_path / "a.HTML").read_text().startswith("<!doctype html>")
    for ending in ("docx", "json", "csv", "xlsx"):
        assert run(["report", trace, "-o", str(tmp_path / f"x.{ending}")]) == 2
    assert run(["report", trace, "--price-per-hour", "-1"]) == 2
    assert not list(tmp_path.glob("x.*"))


def test_nothing_measured_is_3_and_no_gpu_has_no_columns(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    empty = run_folder(tmp_path / "out", process_record(0, trace=None, ended="failed", exit_code=1))
    assert run(["report", str(empty), "-o", str(tmp_path / "r.html")]) == 3
    assert (tmp_path / "r.html").stat().st_size > 1000
    assert run(["report", str(cpu_only(tmp_path / "cpu.sqlite")), "-o", "-"]) == 0
    printed = capfd.readouterr().out
    assert "CPU/item" in printed
    assert "GPU/item" not in printed


# ---- several, suites, notebooks, PDF ----


def test_a_suite_is_reported_with_what_to_take(tmp_path: Path) -> None:
    suite = suite_of(
        made_up("torch", rate=100.0), made_up("torch", 4, rate=200.0), made_up("tensorrt", rate=300.0),
        made_up("tensorrt", 4, rate=100.0, cosine=0.5, equal=False), baseline="torch/plain/fp32",
    )  # fmt: skip
    suite = suite.model_copy(update={"recommendations": recommend(suite.cases, suite.constraints, suite.baseline)})
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "bench.json").write_text(suite.model_dump_json())
    text = written(tmp_path / "suite", "md")
    assert re.search(r"tensorrt.*\| 4 \|.*wrong answer", text)
    page = written(tmp_path / "suite")
    names = re.findall(r'data-name="([^"]+)"', page)
    assert names[0] == "bench_speedup"
    assert "bench_throughput" in names
    assert suite._repr_html_()


def test_several_runs_are_compared_and_traces_are_not(tmp_path: Path) -> None:
    paths = [two_processes(tmp_path / name) for name in ("old", "new")]
    for path in paths:
        assert run(["analyze", str(path), "-q"]) == 0
    report = perfharness.report(*paths)
    assert (report.comparison is None) != (report.comparison_reason is None)
    trace = recorded_trace(tmp_path / "t.sqlite")
    alone = perfharness.report(paths[0], trace)
    assert (alone.comparison, alone.comparison_reason) == (None, None)


def test_of_a_repeat_the_launch_in_the_middle_is_shown(tmp_path: Path) -> None:
    batch = "toy/pipeline/batch"
    folder = series_of_runs(tmp_path / "repeat", "repeat", *(("launch", f"launch_{number}") for number in range(3)))
    series = read_series(folder)
    assert series is not None
    rows = [
        row.model_copy(update={"figures": {"": {"items_per_second": None}, batch: {"cpu_time": time}}})
        for row, time in zip(series.rows, (5.0, 9.0, 7.0), strict=True)
    ]
    loops = {row.folder: LaunchFacts(LaunchConditions(row.folder, None, None), [batch]) for row in rows}
    found = new_series("repeat", rows, [], "x.py", facts=loops)
    (folder / "series.json").write_text(found.model_dump_json())
    report = perfharness.report(folder)
    assert [one.name for one in report.runs] == ["repeat/launch_2"]
    assert report.series[0].shown == "launch_2"
    assert "| 7.000 ±4.968 |" in written(folder, "md")


def test_a_run_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    folder = two_processes(tmp_path / "<i>out")
    opened = perfharness.open_run(folder)
    assert "perfharness analyze" in (opened._repr_html_() or "")
    assert run(["analyze", str(folder), "-q"]) == 0
    text = opened._repr_html_()
    assert text is not None
    assert "9.000" in text
    assert "<script" not in text
    assert "<i>" not in text


def test_a_notebook_shows_the_advice(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(GOLDEN / "runs" / "explained", folder)
    assert run(["analyze", str(folder), "-q"]) == 0
    text = perfharness.open_run(folder)._repr_html_() or ""
    assert ("<ol>" in text, "→" in text) == (True, True)


def test_open_shows_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = str(recorded_trace(tmp_path / "t.sqlite"))
    shown: list[str] = []

    def show(address: str) -> bool:
        shown.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", show)
    assert run(["report", trace, "--open", "-o", str(tmp_path / "my page.html")]) == 0
    assert shown == [(tmp_path / "my page.html").as_uri()]
    assert run(["report", trace, "--open", "-o", "-"]) == 2
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert run(["report", trace, "--open", "-o", str(tmp_path / "again.html")]) == 1
    assert (tmp_path / "again.html").is_file()


def test_from_python_it_is_what_the_command_writes(tmp_path: Path) -> None:
    trace = Recorded()
    trace.batch(0, 0, 10)
    trace.stage("infer", 0, 5)
    path = trace.write(tmp_path / "t.sqlite")
    made = perfharness.report(path, output=tmp_path / "report.md", price_per_hour=3.6)
    assert "infer" in (tmp_path / "report.md").read_text()
    assert [line.path[-1] for line in made.runs[0].stages][:2] == ["batch", "infer"]
    assert made.runs[0].cost is not None
    assert perfharness.report(path, anonymous=True).runs[0].stages == made.runs[0].stages
    with pytest.raises(UsageError):
        perfharness.report()
    with pytest.raises(UsageError):
        perfharness.report(path, output=tmp_path / "report.docx")
