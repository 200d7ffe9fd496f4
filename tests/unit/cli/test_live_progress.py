"""What is printed while something runs: numbers of a load's last second, of a case, of the launched processes."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import pytest

from perfharness.cli.support.bench_progress import BenchProgress
from perfharness.cli.support.live import LaunchView
from perfharness.cli.support.load_progress import LoadProgress
from perfharness.render.console import Console
from perfharness_launcher.process import STDOUT_LOG
from perfharness_launcher.supervise import Phase
from tests.integration.launches import wait_for
from tests.unit.bench_results import made_up

S = 1_000_000_000


def window(second: int, file: int, **more: Any) -> str:
    counts = {"arrivals": 10 * (second + 1), "completed": 8, "open": 2, "p50_ms": 1.5 + file, "p99_ms": 4.0 - file}
    times = {"start_ns": second * S, "end_ns": (second + 1) * S}
    return json.dumps({"kind": "window", **times, **counts, "errors": {"reset": 1, "unanswered": file}, **more}) + "\n"


def test_the_last_second_of_a_load(tmp_path: Path) -> None:
    """Asked, answered, p50, p99, open, errors and unanswered of two processes.

    A line may come in parts. The last window is too short to say anything about a second.
    """
    files = [tmp_path / name for name in "ab"]
    progress = LoadProgress(files)
    assert (progress.text(), progress.times()) == (None, None)
    later = perf_counter_ns() + 100 * S
    phase = {"kind": "phase", "name": "load", "loop": "open", "end_ns": later, "later_s": 50.0}
    for number, file in enumerate(files):
        file.write_text(json.dumps(phase) + "\n" + window(0, number) + window(1, number)[:20])
    first = progress.text()
    for number, file in enumerate(files):
        file.write_text(file.read_text()[:-20] + window(1, number) + window(2, number, end_ns=2 * S + 1000, errors={}))
    second = progress.text()
    numbers = [re.findall(r"\b\d+(?:\.\d+)?", text or "") for text in (first, second)]
    assert [[float(one) for one in each[:-1]] for each in numbers] == [
        [20, 16, 2.5, 4, 4, 2, 1],
        [40, 16, 2.5, 4, 4, 4, 2],
    ]
    passed_s, total_s = progress.times() or (0.0, 0.0)
    assert (0 < passed_s < 60, 140 < total_s < 151) == (True, True)


def test_a_case_has_its_median_rate_and_the_time_left() -> None:
    output = io.StringIO()
    with BenchProgress(Console(file=output), is_search=False) as progress:
        cases = [made_up("a", 4, rate=500.0, duration_s=3.0), made_up("b", status="failed", reason="it broke")]
        planned: list[Any] = [SimpleNamespace(case=one.case) for one in cases]
        progress.begin(planned, [])
        for one in cases:
            progress.done(one)
    first, second = output.getvalue().splitlines()
    assert re.findall(r"\d+(?:\.\d+)?", first.partition(": ")[2]) == ["8", "500", "3"]
    assert (first[:5], second[:5], "it broke" in second) == ("[1/2]", "[2/2]", True)


def test_the_table_of_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setenv("FORCE_COLOR", "1")
    processes: list[Any] = []
    for name in ("proc_0", "proc_1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / STDOUT_LOG).write_text(f"first\nlast of {name}\n")
        processes.append(SimpleNamespace(folder=tmp_path / name, spec=SimpleNamespace(folder=name), pid=None))
    with LaunchView(Console(file=output, width=80)) as view:
        view.started(processes)
        view.poll([Phase.RUNNING, Phase.DONE])
        view.message("drawn")
        wait_for(lambda: "last of proc_1" in output.getvalue())
    lines = re.sub(r"\x1b\[[\d?]*[a-zA-Z]", "", output.getvalue()).splitlines()
    table = [re.split(r"  +", line.strip()) for line in lines]
    assert ["process", "state", "CPU", "memory", "last output"] in table
    assert ["proc_0", "running", "last of proc_0"] in table
    assert ["proc_1", "done", "last of proc_1"] in table
