"""`perfharness dashboard`: its pages over HTTP, and in a real headless Chromium."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from perfharness.cli.main import run
from tests.contract.tiny_models import onnx_model
from tests.integration.launches import (
    PATIENCE_S,
    environment,
    hanging,
    launching,
    wait_for,
)
from tests.unit.compared_runs import write_launch

pytest.importorskip("dash", reason="dash is not installed")
CHROMIUM = os.environ.get("PERFHARNESS_TEST_CHROMIUM", "")

RUNS, CHANGED = 24, 12
"""Made runs in the history, and the first after a change."""

DECODE = "toy/batch/decode"
FACTS = ("script", "model", "backend", "precision", "machine", "commit")

SCRIPT = """
import sys, time
from pathlib import Path
from perfharness import PerfRecorder

perf = PerfRecorder("toy")
with perf.range("pipeline"):
    for index in range(10 ** 6):
        with perf.batch(index, total_items=3), perf.range("decode"):
            time.sleep(0.002)
        if index == 20:
            print("hanging", flush=True)
        if Path(sys.argv[1]).exists():
            break
perf.finalize()
"""
"""Runs until there is a file."""


@dataclass
class Dashboard:
    """A running one."""

    address: str
    process: subprocess.Popen[str] | None = None

    def get(self, path: str, host: str | None = None) -> tuple[int, str]:
        return self._answer(urllib.request.Request(f"{self.address}{path}", headers={"Host": host} if host else {}))

    def call(self, outputs: Sequence[str], inputs: dict[str, Any], states: dict[str, Any] | None = None) -> Any:
        """The answer of a callback, as Dash's own page asks for it."""
        parts = [dict(zip(("id", "property"), one.split("@")[0].split("."), strict=True)) for one in outputs]
        name = outputs[0] if len(outputs) == 1 else f"..{'...'.join(outputs)}.."
        body = {
            "output": name,
            "outputs": parts[0] if len(parts) == 1 else parts,
            "inputs": _values(inputs),
            "state": _values(states or {}),
            "changedPropIds": list(inputs)[:1],
        }
        request = urllib.request.Request(
            f"{self.address}/_dash-update-component", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        status, text = self._answer(request)
        return json.loads(text)["response"] if status == 200 else status

    def page(self, path: str, **query: str | Sequence[str]) -> Any:
        search = f"?{urlencode(query, doseq=True)}" if query else ""
        return self.call(["page.children"], {"url.pathname": path, "url.search": search})["page"]["children"]

    def live(self) -> tuple[str, list[str]]:
        """What the page says, and the names of its lines."""
        outputs = ["live.children", "lines-chart.data"]
        found = self.call(outputs, {"tick.n_intervals": 1, "url.search": ""})
        drawn = json.loads(found["lines-chart"]["data"] or "{}").get("datasets", {})
        return text_of(found["live"]["children"]), [row["line"] for rows in drawn.values() for row in rows]

    def _answer(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


def _values(properties: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"id": name.split(".")[0], "property": name.split(".")[1], "value": value} for name, value in properties.items()
    ]


def components(tree: Any) -> Iterator[dict[str, Any]]:
    """The properties of all components."""
    if isinstance(tree, list):
        for one in tree:
            yield from components(one)
    elif isinstance(tree, dict) and "props" in tree:
        yield {**tree["props"], "type": tree["type"]}
        yield from components(tree["props"].get("children"))


def component(tree: Any, name: str) -> dict[str, Any]:
    return next(one for one in components(tree) if one.get("id") == name)


def text_of(tree: Any) -> str:
    if isinstance(tree, list):
        return " ".join(map(text_of, tree))
    return text_of(tree["props"].get("children")) if isinstance(tree, dict) else "" if tree is None else str(tree)


@contextlib.contextmanager
def dashboard(*arguments: object) -> Iterator[Dashboard]:
    """The command."""
    words = [sys.executable, "-m", "perfharness", "dashboard", "--port", "0", *map(str, arguments)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment(), text=True) as process:
        try:
            assert process.stdout is not None
            yield Dashboard(process.stdout.readline().strip().rstrip("/"), process)
        finally:
            process.kill()


@contextlib.contextmanager
def served(*folders: Path) -> Iterator[Dashboard]:
    """Its server in a thread: what it imports takes longer than all it does here."""
    from perfharness.dashboard.app import make_app, make_server_of
    from perfharness.dashboard.known import KnownRuns

    server = make_server_of(make_app(KnownRuns(folders)), 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Dashboard(f"http://127.0.0.1:{server.port}")
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A history of made launches: the last is of another script, the one before failed."""
    folder = tmp_path_factory.mktemp("dashboard")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFHARNESS_HISTORY", str(folder / "history.db"))
        for number in range(RUNS):
            decode, commit = (8.0, "a" * 40) if number < CHANGED else (10.0, "b" * 40)
            write_launch(
                folder / "runs" / f"{number:02}",
                {"decode": decode + number % 3 / 100},
                created=created(number),
                run_id=f"run-{number:02}",
                source={"git_commit": commit, "git_dirty": False},
                start_s=60.0 * number,
                ended="failed" if number == RUNS - 2 else "ok",
                script="other.py" if number == RUNS - 1 else "toy.py",
            )
        assert run(["history", "add", *map(str, sorted((folder / "runs").iterdir()))]) == 0
        yield folder


@pytest.fixture(scope="module")
def shown(place: Path) -> Iterator[Dashboard]:
    with served() as started:
        yield started


def created(number: int) -> str:
    return f"2026-01-01T00:{number:02}:00+00:00"


# ---- history ----


def test_history_draws_a_figure_of_the_runs_and_marks_its_change(shown: Dashboard) -> None:
    page = shown.page("/", stage=DECODE, metric="cpu_time")
    drawn = json.loads(component(page, "trend-chart")["data"])["datasets"]
    lines = {row["line"]: row for row in drawn["runs"]}
    values = lines["toy.py"]
    assert (len(values["value"]), values["value"][0], values["id"][0]) == (RUNS - 2, 8.0, "run-00")
    assert lines["ended with an error"]["id"] == [f"run-{RUNS - 2}"]
    (change,) = drawn["changes"]
    assert (change["line"], change["ms"]) == ("toy.py", values["ms"][CHANGED])
    assert 24 <= float(change["text"].split()[0]) <= 26


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({"script": "other.py"}, [RUNS - 1]),
        ({"commit": "a" * 40, "sort": "created"}, range(CHANGED)),
        ({"commit": "a" * 40, "sort": "-value", "stage": DECODE, "metric": "cpu_time"}, [11, 8, 5, 2]),
        ({"model": "none"}, []),
        ({"page": "99"}, None),
        ({"sort": "nothing", "stage": "nothing", "metric": "nothing"}, None),
    ],
)
def test_history_filters_and_sorts(shown: Dashboard, query: dict[str, str], ids: Sequence[int] | None) -> None:
    page = shown.page("/", **query)
    links = [one["href"] for one in components(page) if one["type"] == "Link" and one["href"].startswith("/run?")]
    opened = [link.removeprefix("/run?run=run-") for link in links]
    if ids is None:
        assert len(opened) == RUNS
    else:
        assert opened[: len(ids)] == [f"{number:02}" for number in ids]
        status, text = shown.get(f"/history.csv?{urlencode(query)}")
        rows = list(csv.DictReader(io.StringIO(text)))
        assert (status, len(rows)) == (200, len(opened))
        assert all(row["value"] for row in rows)


def test_what_is_chosen_is_in_the_address(shown: Dashboard) -> None:
    inputs: dict[str, Any] = {f"choose-{name}.value": [] for name in FACTS}
    inputs |= {"choose-stage.value": DECODE, "choose-metric.value": "p95", "choose-script.value": ["toy.py"]}
    before = {"shown.data": [*[[]] * len(FACTS), "(run)", "throughput"], "url.search": "?page=2&run=run-01"}
    search = shown.call(["url.search"], inputs, before)["url"]["search"]
    assert search == f"?run=run-01&script=toy.py&stage={quote(DECODE, safe='')}&metric=p95"


# ---- comparisons and reports ----


def test_chosen_runs_are_compared_by_version(shown: Dashboard) -> None:
    runs = [f"run-{number:02}" for number in (2, 3, 4, 5, 14, 15, 16, 17)]
    page = shown.page("/compare", run=runs)
    (frame,) = (one["src"] for one in components(page) if one["type"] == "Iframe")
    status, text = shown.get(frame)
    assert (status, "decode" in text, "4 of aaaaaaaa and 4 of bbbbbbbb" in text) == (200, True, True)
    status, text = shown.get(f"/comparison?by=run&{urlencode({'run': runs[:3]}, doseq=True)}")
    assert (status, text.count("1 of 2026-01-01 00:02:00")) == (200, 2)


def test_the_history_shows_what_it_knows_of_a_run_whose_folder_is_gone(shown: Dashboard, place: Path) -> None:
    shutil.rmtree(place / "runs" / "00")
    status, text = shown.get("/report?run=run-00")
    assert (status, DECODE in text, ">8</td>" in text) == (200, True, True)


# ---- refusals ----


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/", "evil.example", 403),
        ("/", "evil.example:8050", 403),
        ("/_dash-layout", "127.0.0.1.evil.example", 403),
        ("/", "localhost:1234", 200),
        ("/_dash-layout", None, 200),
        ("/report?run=../../../etc/passwd", None, 404),
        ("/report?run=/etc", None, 404),
        ("/report", None, 404),
        ("/comparison?run=run-02&run=nothing", None, 404),
        ("/comparison?run=run-02", None, 404),
        ("/comparison?run=run-02&run=run-03", None, 200),
        ("/comparison", None, 404),
    ],
)
def test_only_known_runs_are_shown_and_only_to_this_machine(
    shown: Dashboard, path: str, host: str | None, status: int
) -> None:
    found, text = shown.get(path, host)
    assert (found, "Traceback" in text, "root:" in text) == (status, False, False)


def test_pages_without_runs_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFHARNESS_HISTORY", str(tmp_path / "no.db"))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    (tmp_path / "empty").mkdir()
    missing = tmp_path / "missing"
    with served(broken, tmp_path / "empty", missing) as shown:
        text = text_of(shown.page("/"))
        assert all(str(folder) in text for folder in (broken, tmp_path / "empty", missing))
        assert shown.get(f"/report?{urlencode({'run': broken})}")[0] == 404
        for path in ("/run", "/compare", "/nothing"):
            assert text_of(shown.page(path))
        assert not (tmp_path / "no.db").exists()


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["dashboard", "--port", str(taken.getsockname()[1])]
        assert run(words) == 2


def test_a_file_that_is_no_history_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PERFHARNESS_HISTORY", "off")  # set by the verb; restored afterwards
    (tmp_path / "notes.txt").write_text("no database")
    assert run(["dashboard", "--port", "0", "--history", str(tmp_path / "notes.txt")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "notes.txt" in line


def test_without_dash_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("perfharness.dashboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dash", None)
    assert run(["dashboard", "--port", "0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "[dashboard]" in line


# ---- live ----


def test_a_launch_is_watched_to_its_end_and_its_report_is_linked(tmp_path: Path) -> None:
    script, go, out = tmp_path / "toy.py", tmp_path / "go", tmp_path / "out"
    script.write_text(SCRIPT)
    with dashboard(tmp_path) as shown:
        assert "Nothing is running" in shown.live()[0]
        with launching(
            ("--telemetry", "--tracer", "embedded", "-o", out, script, go), environment(PERFHARNESS_HISTORY="off")
        ) as launcher:
            wait_for(lambda: hanging(out, 1))
            wait_for(lambda: "decode" in shown.live()[1])
            text, _ = shown.live()
            assert ("running, 1 of 1 processes" in text, "time left not known" in text) == (True, True)
            wait_for(lambda: {"items/s", "host"} <= set(shown.live()[1]))
            go.touch()
            assert launcher.wait(PATIENCE_S) == 0
        wait_for(lambda: "Nothing is running" in shown.live()[0])
        assert "ended" in shown.live()[0]
        run_id = json.loads((out / "manifest.json").read_text())["run_id"]
        status, text = shown.get(f"/report?run={run_id}")
        assert (status, "decode" in text, text.count('<figure class="chart"') > 1) == (200, True, True)
        assert shown.process is not None
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(PATIENCE_S) == 0


# ---- in a browser ----


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("PERFHARNESS_TEST_CHROMIUM names no Chromium")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@contextlib.contextmanager
def opened(browser: Any, address: str, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """A page on which nothing is requested from elsewhere, and nothing fails."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(1000 * PATIENCE_S)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    origin = "/".join(address.split("/")[:3])
    page.on("request", lambda one: None if one.url.startswith((origin, "data:", "blob:")) else wrong.append(one.url))
    page.goto(address)
    yield page
    page.close()
    assert wrong == []


POINTS = """document.getElementById('trend').drawn.then(({ view }) => {
    const [left, top] = view.origin(), padding = view.padding();
    const box = view.container().querySelector("canvas").getBoundingClientRect();
    const inside = (one) => [one, ...(one.items ?? []).flatMap(inside)];
    const points = inside(view.scenegraph().root).filter((one) => one.href);
    const [x0, y0] = [box.x + padding.left + left, box.y + padding.top + top];
    return points.map(({ x, y, href }) => ({ at: [x0 + x, y0 + y], href }));
})"""
"""Where the points of the chart are, and what they open."""

ZOOMED = """(name) => Promise.resolve(document.getElementById(name).drawn).then(
    (drawn) => Object.values(drawn?.view.signal('zoom') ?? {}).filter(Boolean))"""


def points_of(page: Any) -> list[dict[str, Any]]:
    page.locator("#trend canvas").wait_for()
    found: list[dict[str, Any]] = page.evaluate(POINTS)
    return found


def zoom_in(page: Any, name: str) -> Any:
    """Turn the wheel over a chart; returns what it then shows."""
    page.locator(f"#{name} canvas").hover()
    page.mouse.wheel(0, -200)
    assert page.evaluate(ZOOMED, name) == []  # a wheel alone scrolls the page

    def is_zoomed() -> bool:  # a chart may just be drawn anew
        page.locator(f"#{name} canvas").hover()
        page.keyboard.down("Control")
        page.mouse.wheel(0, -200)
        page.keyboard.up("Control")
        page.wait_for_timeout(300)
        return bool(page.evaluate(ZOOMED, name))

    wait_for(is_zoomed)
    return page.evaluate(ZOOMED, name)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_in_a_browser(browser: Any, shown: Dashboard, width: int, scheme: str) -> None:
    with opened(browser, f"{shown.address}/?stage={DECODE}&metric=cpu_time", width, scheme) as page:
        assert len(points_of(page)) == RUNS
        assert page.get_by_label(f"wall/batch (ms) of {RUNS} runs").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("#trend summary").click()
        assert page.locator("#trend .vega-actions a").all_inner_texts() == ["Save as SVG", "Save as PNG"]
        saved = page.get_by_text("Save as PNG")
        saved.dispatch_event("mousedown")
        wait_for(lambda: str(saved.get_attribute("href")).startswith("data:"))
        with page.expect_download() as download:
            saved.dispatch_event("click")
        assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
        page.get_by_role("link", name="commit").focus()
        page.keyboard.press("Enter")
        page.get_by_role("link", name="commit ↓").wait_for()
        for count in (1, 2):
            page.get_by_role("link", name="☐").nth(2).click()
            page.get_by_role("link", name="☑").nth(count - 1).wait_for()
        page.get_by_role("link", name="Compare the 2 chosen").click()
        page.frame_locator("iframe").get_by_text("Comparison").first.wait_for()
        page.get_by_role("link", name="History").click()
        points_of(page)
        zoom_in(page, "trend")
        page.locator("#trend canvas").scroll_into_view_if_needed()
        moved: dict[str, Any] = {}

        def moves() -> bool:  # the page may just have changed its height
            box = page.locator("#trend canvas").bounding_box()
            middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            grabbed = min(points_of(page), key=lambda one: math.dist(one["at"], middle))
            x, y = grabbed["at"]
            page.mouse.move(x, y)
            page.mouse.down()
            page.mouse.move(x + 20, y + 10, steps=4)
            page.mouse.up()
            page.wait_for_timeout(300)
            moved.update(next(one for one in points_of(page) if one["href"] == grabbed["href"]))
            return bool(moved["at"] != [x, y])

        wait_for(moves)
        page.mouse.click(*moved["at"])
        page.wait_for_url(f"**{moved['href']}")
        page.frame_locator("iframe").locator("main").wait_for()
        page.go_back()
        assert len(points_of(page)) == RUNS


LOADED = """
import time

def answer(request=None):
    time.sleep(0.004)
"""


WATCHED = {
    "launch": (["--tracer", "embedded", "toy.py", "go"], ["decode"]),
    "stress": (["app.py:answer", "--rate", "100", "--duration", "25s", "--tracer", "embedded"], ["answered", "p99"]),
    "bench": (
        ["--model", "tiny.onnx", "--backend", "onnxruntime", "--batch-size", "1..64", "--duration", "3"],
        ["tiny onnxruntime/cpu/fp32"],
    ),
}
"""Arguments of a command that lasts some seconds, and lines that the page draws meanwhile."""

DRAWS = """(line) => document.getElementById('lines')?.drawn?.then(
    ({ view }) => Object.values(view.getState().data).flat().some((row) => row.line === line))"""
HAS_CHANGED = "(before) => document.querySelector('#live .figures')?.innerText !== before"


@pytest.mark.slow
@pytest.mark.parametrize("verb", WATCHED)
def test_a_run_is_watched_in_a_browser(browser: Any, tmp_path: Path, verb: str) -> None:
    (tmp_path / "app.py").write_text(LOADED)
    (tmp_path / "toy.py").write_text(SCRIPT)
    (tmp_path / "tiny.onnx").write_bytes(onnx_model("fp32"))
    words, lines = WATCHED[verb]
    command = [sys.executable, "-m", "perfharness", verb, "-o", "out", *words]
    with dashboard(tmp_path) as shown, opened(browser, f"{shown.address}/live") as page:
        page.get_by_text("Nothing is running").wait_for()
        with measuring(command, tmp_path) as measured:
            facts = page.locator("#live .figures")
            facts.wait_for()
            for name in lines:
                page.wait_for_function(DRAWS, arg=name)
            zoomed, before = zoom_in(page, "lines"), facts.inner_text()
            page.wait_for_function(HAS_CHANGED, arg=before)
            wait_for(lambda: page.evaluate(ZOOMED, "lines") == zoomed)  # a chart with another panel is drawn anew
            (tmp_path / "go").touch()
            page.get_by_role("link", name="Open its report").click()
            page.frame_locator("iframe").locator("main").wait_for()
            assert measured.wait(PATIENCE_S) == 0


@contextlib.contextmanager
def measuring(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that the test watches; it ends with the test."""
    with subprocess.Popen(
        command, cwd=folder, env=environment(PERFHARNESS_HISTORY="off"), stderr=subprocess.DEVNULL
    ) as started:
        try:
            yield started
        finally:
            (folder / "go").touch()
            started.terminate()


@pytest.mark.slow
def test_a_killed_launch_is_shown_as_ended(browser: Any, tmp_path: Path) -> None:
    script, out = tmp_path / "toy.py", tmp_path / "out"
    script.write_text(SCRIPT)
    with dashboard(out) as shown, opened(browser, f"{shown.address}/live") as page:
        with launching(
            ("--tracer", "embedded", "-o", out, script, tmp_path / "go"), environment(PERFHARNESS_HISTORY="off")
        ) as launcher:
            page.locator("#live .figures").wait_for()
            launcher.kill()
            page.get_by_text("was killed").wait_for()
        (tmp_path / "go").touch()
        assert "perfharness analyze" in page.locator("#live .ended").inner_text()
        assert "Nothing is running" in page.locator("#live").inner_text()
