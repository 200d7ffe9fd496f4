"""A report as PDF: the page, printed by a headless Chromium that the machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from perfharness.errors import ResultError, ToolNotFoundError
from perfharness.files import replacing
from perfharness.render.report.document import Document
from perfharness.render.report.html import html_page

BROWSERS = (
    "chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable", "chrome",
    "headless_shell", "microsoft-edge", "brave-browser",
)  # fmt: skip
"""Programs that print pages, by name."""

BROWSER_VARIABLE = "PERFHARNESS_CHROMIUM"
"""Path of the Chromium or Chrome that prints a report as PDF, preferred to those on PATH."""

PATIENCE_S = 120.0
PAPER_PX = 710
"""Width of a sheet without its margins, at 96 per inch: charts are drawn for the width that they are printed at."""

TIME_TO_DRAW_MS = 60_000
"""Of the page's own clock, which runs faster than that of the machine: printing waits until nothing is left to do."""


def find_browser() -> Path:
    """The program that prints pages: the one that the environment names, or one on PATH. Raises `ToolNotFoundError`."""
    named = os.environ.get(BROWSER_VARIABLE)
    found = named or next(filter(shutil.which, BROWSERS), None)
    program = None if found is None else shutil.which(found)
    if program is None:
        if named:
            raise ToolNotFoundError(f"{BROWSER_VARIABLE} names {named}, which is no program; name a Chromium or Chrome")
        raise ToolNotFoundError(
            "--format pdf needs Chromium or Chrome, and none is on PATH; install one, name it with "
            f"{BROWSER_VARIABLE}, or write html and print that"
        )
    return Path(program)


def write_pdf(document: Document, path: Path) -> Path:
    """Print the page. Raises `ToolNotFoundError` without a browser, `ResultError` where it fails."""
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="perfharness-", ignore_cleanup_errors=True) as folder:
        page, printed = Path(folder) / "report.html", Path(folder) / "report.pdf"
        page.write_text(html_page(document), encoding="utf-8")
        command = [
            str(browser), "--headless", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
            f"--window-size={PAPER_PX},1000",
            f"--user-data-dir={folder}/profile", "--no-pdf-header-footer", f"--virtual-time-budget={TIME_TO_DRAW_MS}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []), f"--print-to-pdf={printed}", page.as_uri(),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL,
                env={**os.environ, "HOME": folder},
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ResultError(f"{browser.name} did not print the page within {PATIENCE_S:.0f} s") from error
        except OSError as error:
            raise ResultError(f"{browser} cannot be run: {error.strerror}") from error
        if not printed.is_file() or not printed.stat().st_size:
            last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise ResultError(f"{browser.name} did not print the page: {last[0]}")
        with replacing(path) as temporary:
            shutil.copyfile(printed, temporary)
    return path
