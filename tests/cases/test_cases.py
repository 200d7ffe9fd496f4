"""Programs of reported and wrong numbers, run as their authors ran them: `table.py` has the rows.

What is right of a row is one test; each thing that is wrong is an expected failure of its own, with the letter of its
kind. The change that mends it flips the row: it moves the check from `wrong` to `right`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.cases.checks import Check, Ran, exits, named, only, read, took
from tests.cases.table import CASES, GPU_CASES, KINDS, TRUTHS, Case
from tests.contract import tiny_models
from tests.integration import forked_command
from tests.integration.launches import NSYS, NVTX_SITE, environment, perfharness
from tests.support.nvml_cards import gpu_uuid, h100_machine
from tests.support.replayed_nvml import replay_environment

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "traces"
TIMEOUT_S = 280.0
TRACED = ("launch", "stress")
"""Verbs that trace."""


def rows_of(cases: tuple[Case, ...]) -> Iterator[Any]:
    """A row for what is right, and one for each thing that is wrong."""
    for case in cases:
        for tracer in case.tracers:
            marks = [] if case.quick and tracer == "embedded" else [pytest.mark.slow]
            if case.folder == "gpu":
                marks.append(pytest.mark.gpu)
            elif tracer == "nsys" or case.needs_nsys:
                marks.append(pytest.mark.nsys)
            name = f"{case.name}-{tracer}"
            right = case.right if case.exit is None else (exits(case.exit), *case.right)
            if right:
                yield pytest.param(case, tracer, right, marks=marks, id=name)
            for number, (kind, check) in enumerate((*case.wrong, *case.sometimes)):
                strict = number < len(case.wrong)
                expected = pytest.mark.xfail(reason=f"{kind}: {KINDS[kind]}", raises=AssertionError, strict=strict)
                yield pytest.param(case, tracer, (check,), marks=[*marks, expected], id=f"{name}-{kind}-{number}")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the programs, some of which write beside themselves."""
    folder = tmp_path_factory.mktemp("cases")
    for name in ("cpu", "truth", "gpu"):
        shutil.copytree(HERE / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def ran(programs: Path) -> Any:
    """Each row is run once, whichever of its tests asks first."""
    return cache(lambda case, tracer: run(case, tracer, programs))


def run(case: Case, tracer: str, programs: Path) -> Ran:
    out = programs / f"{case.name}-{tracer}"
    truth = programs / f"{case.name}-{tracer}-truth"
    truth.mkdir()
    folder = programs / case.folder
    for name, text in case.files:
        (folder / name).write_text(text)
    options = ["--tracer", tracer, *(["--nsys", NSYS] if tracer == "nsys" and NSYS else [])]
    sites = [NVTX_SITE] if tracer == "nsys" and NVTX_SITE else []
    environ = environment(*sites, TRUTH=str(truth), **dict(case.environ))
    if case.site:
        environ["PYTHONPATH"] += os.pathsep + str(folder / case.site)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done: list[CompletedProcess[str]] = []
    for line in (case.run, *case.then):
        verb, *words = shlex.split(line.format(out=out, port=port, tiny=f"{tiny_models.__file__}:create", nsys=NSYS))
        if verb in TRACED:
            telemetry = () if "--telemetry" in words else ("--no-telemetry",)
            place = out if not done else out.with_name(f"{out.name}-{len(done)}")
            words = [*options, *telemetry, "-o", str(place), *words]
        done.append(forked_command.run((verb, *words), environ, folder, TIMEOUT_S))
    return Ran(out, tuple(done), truth)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("case", "tracer", "checks"), [*rows_of(CASES), *rows_of(TRUTHS), *rows_of(GPU_CASES)])
def test_a_case(case: Case, tracer: str, checks: tuple[Check, ...], ran: Any) -> None:
    for module in case.modules:
        pytest.importorskip(module)
    for program in case.programs:
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
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
    case = Case("31", "launch c24_service.py")
    launched = run(case, "nsys", programs)
    shutil.copy(launched.out / "proc_0_gpu_0" / "trace.nsys-rep", tmp_path / "report.nsys-rep")
    shutil.copy(GOLDEN / "cpu.sqlite", tmp_path / "report.sqlite")
    os.utime(tmp_path / "report.sqlite", (0, 0))
    done = perfharness("analyze", "-w", 1, tmp_path / "report.nsys-rep", "--nsys", NSYS, "--format", "json")
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
