"""The fault programs of `programs.txt`, and the judge of what a diagnosis says of them.

Comments `# fault` mark the lines at which a diagnosis may point: a statement with that comment counts as a whole, with
its body (`for …:  # fault`, `def …:  # fault`).
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
TABLE = FOLDER / "programs.txt"
MARKER = "# fault"
CORPORA = ("cpu", "gpu")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
"""Of version 2."""


@dataclass(frozen=True)
class Fault:
    """One program, and what is right to say of it."""

    path: Path
    stage: str
    """Last name of the path of the stage that has the fault."""
    codes: tuple[str, ...]
    """Causes of which each counts as right; `CODE:DETAIL` with what limits the GPU."""
    report: str
    """The bug report that it was made from: `owner/repository#number`."""
    is_blind: bool = False
    """Written by somebody who did not know the rules."""
    options: tuple[str, ...] = ()
    """Of `perfharness launch`; names of files are relative to the program."""
    twin_options: tuple[str, ...] = ()
    twin_codes: tuple[str, ...] = ()
    """Causes that the mended twin really has: no false accusation."""
    needs_control_group: bool = False
    """Whether it makes a control group, as root may."""

    @property
    def program(self) -> str:
        return self.path.stem

    @property
    def corpus(self) -> str:
        return self.path.parent.name

    @cached_property
    def lines(self) -> list[tuple[int, int]]:
        """First and last line of each statement that carries the marker."""
        return fault_lines(self.path.read_text(encoding="utf-8"))

    def missing(self) -> list[str]:
        """What this machine lacks to run it."""
        missing = [module for module in self.modules() if importlib.util.find_spec(module) is None]
        is_version_2 = (CONTROL_GROUPS / "cgroup.controllers").exists()
        if self.needs_control_group and not (is_version_2 and os.access(CONTROL_GROUPS, os.W_OK)):
            missing.append("the right to make control groups")
        return missing

    def modules(self) -> Iterator[str]:
        """Top-level names of what it imports at its beginning."""
        for statement in ast.parse(self.path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Import):
                yield from (one.name.partition(".")[0] for one in statement.names)
            elif isinstance(statement, ast.ImportFrom):
                yield f"{statement.module}".partition(".")[0]


def read_faults(*corpora: str) -> list[Fault]:
    """The rows of the table for these corpora, in its order."""
    faults, corpus, is_blind = [], "", False
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            corpus, *rest = line.strip("[]").split()
            is_blind = bool(rest)
        elif line and not line.startswith("#") and corpus in corpora:
            faults.append(replace(read_row(FOLDER / corpus, line), is_blind=is_blind))
    return faults


def read_row(folder: Path, line: str) -> Fault:
    """`PROGRAM STAGE CAUSES REPORT` and settings, which the head of the table explains."""
    program, stage, codes, report, *words = line.split()
    settings = {key: value for key, _, value in (word.partition("=") for word in words)}
    options: tuple[str, ...] = ("-w", settings.get("w", "1" if folder.name == "cpu" else "15"))
    if "annotate" in settings:
        options = (*options, "--annotate", f"{program}.toml")
    processes, _, of_twin = settings.get("np", "1").partition("/")
    return Fault(
        folder / f"{program}.py",
        stage,
        tuple(codes.split(",")),
        report,
        options=(*options, "-np", processes),
        twin_options=(*options, "-np", of_twin or processes),
        twin_codes=tuple(filter(None, settings.get("twin", "").replace("system", ",".join(SYSTEM)).split(","))),
        needs_control_group="cgroup" in settings,
    )


def fault_lines(source: str) -> list[tuple[int, int]]:
    """First and last line of each statement that carries the marker."""
    marked = {number for number, line in enumerate(source.splitlines(), 1) if MARKER in line}
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            inner: list[ast.stmt] = getattr(node, "body", [])
            head_end = inner[0].lineno - 1 if inner else node.end_lineno or node.lineno
            if marked & set(range(node.lineno, max(head_end, node.lineno) + 1)):
                spans.append((node.lineno, node.end_lineno or node.lineno))
    return sorted(spans)


SYSTEM = ("waiting:lock", "waiting:sleep", "waiting:other")
"""Waits for the system or another thread."""

DESCRIPTIONS = ("cpu-bound", "gpu-bound", "waiting:stage", "unknown", "none")
"""What a sound program may be said to be: no accusation, unless it says of the fault's line what is right of the fault
(`gpu-bound` may do so: the line may launch the same work with other operands)."""

WAITS_FOR_GPU_WORK = ("gpu-bound", "waiting:stage", "unknown")
"""Of a stage that reads what others have started, host time that is theirs: it takes no blame away from them."""

WORTH_MENTIONING = 0.05
"""Of a batch: what takes less accuses nobody."""


@dataclass(frozen=True)
class Statement:
    """One cause of a stage. `ms` per batch; `file` and `line` where it points at one."""

    stage: tuple[str, ...]
    code: str
    """The cause's, with its detail."""
    ms: float
    file: str | None
    line: int
    is_first: bool


@dataclass(frozen=True)
class Score:
    """How good a diagnosis of a program and its mended twin is. None: there is nothing to judge."""

    verdict: bool
    """The first cause of the faulty stage is one of the right ones."""
    stage: bool
    """And no other stage is accused of more."""
    line: bool | None
    """And it points at a line of the fault; None where the fault has no line."""
    twin_is_silent: bool | None
    """None where the twin was not measured."""
    said: str
    """Of the faulty stage."""
    said_of_twin: str


def statements(diagnosis: Mapping[str, Any]) -> list[Statement]:
    """Every cause that a diagnosis, as in benchmark.json, names of a stage."""
    found = []
    for stage in diagnosis["stages"]:
        for position, cause in enumerate(stage["causes"]):
            place = cause["place"] or {"file": None, "line": None}
            code = f"{cause['code']}:{cause['detail']}" if cause["detail"] else cause["code"]
            ms = cause["share"] * stage["wall_ms"]
            found.append(
                Statement((*stage["path"],), code, ms, place["file"], place["line"] or 0, is_first=position == 0)
            )
    return found


def is_one_of(code: str, codes: Iterable[str]) -> bool:
    """Whether a cause is among others, which may leave its detail open."""
    return bool({code, without_detail(code)} & {*codes})


def is_right(code: str, fault: Fault) -> bool:
    """Whether it is a cause of the fault; what a wait is for does not matter."""
    return is_one_of(code, (one if one.startswith("gpu-bound") else without_detail(one) for one in fault.codes))


def without_detail(code: str) -> str:
    """The cause alone."""
    return code.partition(":")[0]


def judge(fault: Fault, of_fault: Mapping[str, Any], of_twin: Mapping[str, Any] | None) -> Score:
    """Score two diagnoses: that of the program and that of its mended twin."""
    said = statements(of_fault)
    about_stage = [one for one in said if one.stage[-1] == fault.stage and one.is_first]
    right = [one for one in about_stage if is_right(one.code, fault)]
    others = [
        one.ms
        for one in said
        if not is_one_of(one.code, WAITS_FOR_GPU_WORK)
        and not any(is_within(one.stage, of.stage) or is_within(of.stage, one.stage) for of in right)
    ]
    accusations = [] if of_twin is None else accusations_of_twin(fault, of_twin)
    return Score(
        verdict=bool(right),
        stage=bool(right) and max(one.ms for one in right) >= max(others, default=0.0),
        line=any(points_at_fault(fault, one) for one in right) if fault.lines else None,
        twin_is_silent=None if of_twin is None else not accusations,
        said="; ".join(map(in_short, about_stage)) or "nothing",
        said_of_twin="; ".join(map(in_short, accusations)),
    )


def accusations_of_twin(fault: Fault, diagnosis: Mapping[str, Any]) -> list[Statement]:
    """What a diagnosis blames a sound program for."""
    batch_ms = max((stage["wall_ms"] for stage in diagnosis["stages"]), default=0.0)  # the longest holds the others
    return [
        one
        for one in statements(diagnosis)
        if one.ms >= WORTH_MENTIONING * batch_ms
        and (
            not is_one_of(one.code, (*DESCRIPTIONS, *fault.twin_codes))
            or (not is_one_of(one.code, ["gpu-bound"]) and is_right(one.code, fault) and points_at_fault(fault, one))
        )
    ]


def points_at_fault(fault: Fault, statement: Statement) -> bool:
    """Whether the statement names a line of the fault, in whichever checkout it was recorded."""
    is_of_program = statement.file is not None and Path(statement.file).name == fault.path.name
    return is_of_program and any(first <= statement.line <= last for first, last in fault.lines)


def is_within(path: tuple[str, ...], outer: tuple[str, ...]) -> bool:
    """Whether a stage is another one or lies inside it."""
    return path[: len(outer)] == outer


def in_short(statement: Statement) -> str:
    """`stage: code at file:line`."""
    where = f" at {Path(statement.file).name}:{statement.line}" if statement.file else ""
    return f"{statement.stage[-1]}: {statement.code}{where}"
