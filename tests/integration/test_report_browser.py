"""Reports in a real headless Chromium (scripts/install_chromium): every chart drawn, no error, every width."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from tests.unit.bench_results import whole_suite
from tests.unit.cli.test_verbs import SOURCES
from tests.unit.load.test_load_report import hostile as hostile_load
from tests.unit.load.test_load_report import hostile_loadgen
from tests.unit.render.test_report import hostile_trace

CHROMIUM = os.environ.get("PERFHARNESS_TEST_CHROMIUM", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="PERFHARNESS_TEST_CHROMIUM names no Chromium"),
]
TRACES = Path(__file__).parents[1] / "golden" / "traces"

WIDTHS = (375, 768, 1280, 1920)
DRAWN = """[...document.querySelectorAll(".picture")].every(
    (one) => !one.clientWidth || one.querySelector("svg") && one.dataset.width === String(one.clientWidth))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with pytest.importorskip("playwright.sync_api").sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    (folder / "suite").mkdir()
    (folder / "suite" / "bench.json").write_text(whole_suite().model_dump_json())
    reports = {
        "gpu": [TRACES / "graphs.sqlite", TRACES / "threads.sqlite"],
        "hostile": [hostile_trace(folder / "run")],
        "sweep": [SOURCES["sweep"][0](folder / "sweep")],
        "load": [hostile_load(folder / "load")],
        "loadgen": [hostile_loadgen(folder / "loadgen")],
        "suite": [folder / "suite"],
    }
    for name, runs in reports.items():
        assert run(["report", *map(str, runs), "-o", str(folder / f"{name}.html")]) in (0, 3)
    return {name: folder / f"{name}.html" for name in reports}


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("gpu", "light"), ("gpu", "dark"), ("hostile", "light"), ("sweep", "light"), ("load", "light"),
        ("loadgen", "light"), ("suite", "light"),
    ],
)  # fmt: skip
def test_every_chart_is_drawn_at_every_width(browser: Any, pages: dict[str, Path], name: str, scheme: str) -> None:
    page = browser.new_page(viewport={"width": WIDTHS[-1], "height": 900}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
    page.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(pages[name].as_uri())
    figures = page.locator("figure.chart")
    for width in reversed(WIDTHS):
        page.set_viewport_size({"width": width, "height": 900})
        for _ in range(600):  # the page's own policy forbids `wait_for_function`, which evaluates text there
            if page.evaluate(DRAWN):
                break
            page.wait_for_timeout(100)
        assert page.evaluate(DRAWN)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        marks = page.evaluate(
            "[...document.querySelectorAll('figure.chart')].map((one) =>"
            " one.querySelectorAll('.role-mark path, .role-mark line, .role-mark text').length)"
        )
        assert len(marks) == figures.count() > 0
        assert all(marks), marks
    assert said == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert (lightness < 80) is (scheme == "dark")
    page.close()
