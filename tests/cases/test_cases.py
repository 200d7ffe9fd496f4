"""Programs of reported and wrong numbers, run as their authors ran them: `table.py` has the rows.

What is right of a row is one test; each thing that is wrong is an expected failure of its own, with the letter of its
kind. The change that mends it flips the row: it moves the check from `wrong` to `right`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.cases.checks import Check, Ran, exits
from tests.cases.table import CASES, GPU_CASES, KINDS, TRUTHS, Case
from tests.contract import tiny_models
from tests.integration import forked_command
from tests.integration.launches import NSYS, NVTX_SITE, environment

HERE = Path(__file__).parent
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
                expected = pytest.mark.xfail(reason=f"{kind}: {KINDS[kind]}", strict=strict)
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
