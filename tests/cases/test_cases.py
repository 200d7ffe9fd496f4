"""Programs of reported and wrong numbers, run as their authors ran them: `cases.txt` has the rows.

What is right of a row is one test; each thing that is wrong is an expected failure of its own, with the letter of its
kind. The change that mends it flips the row: it moves the checks to `right`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cases.checks import Check, Ran, named, only, read, took
from tests.cases.table import FILE, Case, read_cases
from tests.contract import tiny_models
from tests.integration import forked_command
from tests.integration.launches import NSYS, NVTX_SITE, environment, perfharness
from tests.support.nvml_cards import gpu_uuid, h100_machine
from tests.support.replayed_nvml import replay_environment

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "traces"
TIMEOUT_S = 600.0
TINY = f"{tiny_models.__file__}:create"
TRACED = ("launch", "stress")
"""Verbs that trace; a row may ask for `--telemetry`."""
KINDS, CASES = read_cases(FILE.read_text("utf-8"))


def rows() -> Iterator[Any]:
    """A test for what is right of a row, and one for each thing that is wrong."""
    for case in CASES:
        for tracer in case.tracers:
            marks = [] if "quick" in case.settings else [pytest.mark.slow]
            if case.folder == "gpu":
                marks.append(pytest.mark.gpu)
            elif tracer == "nsys" or "nsys" in case.settings:
                marks.append(pytest.mark.nsys)
            name = f"{case.name}-{tracer}"
            yield pytest.param(case, tracer, case.right, marks=marks, id=name)
            for number, (kind, checks, strict) in enumerate(case.wrong):
                wrong = pytest.mark.xfail(reason=f"{kind}: {KINDS[kind]}", raises=AssertionError, strict=strict)
                yield pytest.param(case, tracer, checks, marks=[*marks, wrong], id=f"{name}-{kind}-{number}")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the programs, some of which write beside themselves."""
    folder = tmp_path_factory.mktemp("cases")
    for name in ("cpu", "truth", "gpu"):
        shutil.copytree(HERE / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def ran(programs: Path) -> Callable[[Case, str], Ran]:
    """Each row is run once, whichever of its tests asks first."""
    done: dict[tuple[str, str], Ran] = {}

    def once(case: Case, tracer: str) -> Ran:
        key = case.name, tracer
        if key not in done:
            done[key] = run(case, tracer, programs)
        return done[key]

    return once


def run(case: Case, tracer: str, programs: Path) -> Ran:
    out = programs / f"{case.name}-{tracer}"
    truth = programs / f"{case.name}-{tracer}-truth"
    truth.mkdir()
    folder = programs / case.folder
    name, _, text = case.settings.get("file", "").partition(":")
    if name:
        (folder / name).write_text(text)
    environ = environment(*([NVTX_SITE] if tracer == "nsys" else []), TRUTH=str(truth))
    if "site" in case.settings:
        environ["PYTHONPATH"] += os.pathsep + str(folder / case.settings["site"])
    variable, _, value = case.settings.get("environ", "").partition("=")
    if variable:
        environ[variable] = value
    done = []
    for line in (case.run, *case.then):
        verb, *words = shlex.split(line.format(out=out, port=free_port(), tiny=TINY, nsys=NSYS))
        if verb in TRACED:
            words = ["--no-telemetry", "--tracer", tracer, "-o", str(out), *words]
            if tracer == "nsys" and NSYS:
                words = ["--nsys", NSYS, *words]
        done.append(forked_command.run((verb, *words), environ, folder, TIMEOUT_S))
    return Ran(out, tuple(done), truth)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("case", "tracer", "checks"), [*rows()])
def test_a_case(case: Case, tracer: str, checks: list[Check], ran: Callable[[Case, str], Ran]) -> None:
    for module in filter(None, case.settings.get("needs", "torch" if case.folder == "gpu" else "").split(",")):
        pytest.importorskip(module)
    command = case.settings.get("command")
    if command and not shutil.which(command):
        pytest.skip(f"{command} is not installed")
    result = ran(case, tracer)
    for check in checks:
        check(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("visible", "options", "expected"),
    [("1", (), [1]), (gpu_uuid(1), (), [1]), ("1,0", (), [1]), ("1,0", ("--num-gpus", "2"), [1, 0])],
    ids=["37-index", "37-uuid", "37-order", "37-two"],
)
def test_the_gpu_is_that_of_cuda(
    visible: str, options: tuple[str, ...], expected: list[int], programs: Path, tmp_path: Path
) -> None:
    """By UUID, where NVML's index is another; `c36_make_nvml.py` makes the same machine."""
    machine = replay_environment(h100_machine(2).write(tmp_path / "nvml.json"))
    done = forked_command.run(
        ("launch", "--tracer", "embedded", *options, "-o", tmp_path / "out", "c36_load.py"),
        environment(CUDA_VISIBLE_DEVICES=visible, **machine),
        programs / "cpu",
        TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    used = [process["gpu_uuid"] for process in read(tmp_path / "out" / "manifest.json")["processes"]]
    assert used == [gpu_uuid(index) for index in expected]


@pytest.mark.slow
@pytest.mark.nsys
def test_an_old_sqlite_beside_a_new_report_is_not_read(programs: Path, tmp_path: Path) -> None:
    """Row 31."""
    case = Case("31", ("nsys",), "launch c24_service.py", "cpu")
    launched = run(case, "nsys", programs)
    shutil.copy(launched.out / "proc_0_gpu_0" / "trace.nsys-rep", tmp_path / "report.nsys-rep")
    shutil.copy(GOLDEN / "cpu.sqlite", tmp_path / "report.sqlite")
    os.utime(tmp_path / "report.sqlite", (0, 0))
    environ = {"PERFHARNESS_NSYS": NSYS} if NSYS else {}
    done = perfharness("analyze", "-w", 1, tmp_path / "report.nsys-rep", "--format", "json", **environ)
    found = only(named(json.loads(done.stdout)["stats_minus_warmup"], "inference"))
    took(found["cpu_time"]["p50"], 5, 0.3)


@pytest.mark.xfail(reason=f"unclear: {KINDS['unclear']}", raises=AssertionError)
def test_an_unknown_table_of_ranges_is_named(tmp_path: Path) -> None:
    """Row 32."""
    trace = tmp_path / "v2.sqlite"
    shutil.copy(GOLDEN / "cpu.sqlite", trace)
    with contextlib.closing(sqlite3.connect(trace)) as database:
        database.execute("ALTER TABLE NVTX_EVENTS RENAME TO NVTX_EVENTS_V2")
    done = perfharness("analyze", trace)
    assert "NVTX_EVENTS_V2" in done.stdout + done.stderr
