"""Remove names of machines and users from a report, and all but the last part of paths."""

from __future__ import annotations

import contextlib
import getpass
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from perfharness.analysis.host_samples.frames import inside_library
from perfharness.runs.report.model import Report

HOME = re.compile(r"/(?:home|Users)/([^/\s\"':;,]+)")
PATH = re.compile(r"(?<![\w.:/])/(?!(?:proc|sys|dev)/)(?:[\w.@+~%-]+/)+[\w.@+~%-]*")
"""An absolute path of two parts or more, except paths of the kernel."""

OF_NOBODY = {"root", "user", "localhost", "127.0.0.1", "::1"}
LEAST_LETTERS = 3
"""Shorter names may be other words."""


def anonymous(report: Report) -> Report:
    """Return a report without hosts, users and folders."""
    aliases = dict.fromkeys(_users(report), "(user)") | dict.fromkeys(_hosts(report), "(host)")
    names = _any_of((one for one in aliases if len(one) >= LEAST_LETTERS and one not in OF_NOBODY), r"(?![\w-])")
    short = _short_paths(report)
    folders = _any_of((path.rpartition("/")[0] for path in short if path.count("/") > 1), "/")

    def text(value: str) -> str:
        value = folders.sub("", short.get(value, value))
        value = PATH.sub(lambda found: inside_library(found[0]) or Path(found[0]).name, value)
        return names.sub(lambda found: aliases[found[0]], value)

    made: Report = _replaced(report, text)
    return made


def _any_of(words: Iterable[str], end: str) -> re.Pattern[str]:
    """Compile a pattern for whole words, longest first; it matches nothing without words."""
    longest_first = sorted({*words}, key=len, reverse=True)
    return re.compile("|".join(rf"(?<![\w.-]){re.escape(one)}{end}" for one in longest_first) or "(?!)")


def _hosts(report: Report) -> set[str]:
    """Names of measured machines, and of services under load."""
    runs = [run.measured for run in report.runs]
    found = {of.environment.hostname for of in runs if of.environment is not None}
    found |= {node.environment.hostname for of in runs for node in of.nodes}
    found |= {one.suite.machine.hostname for one in report.suites}
    found |= {run.machine.hostname for one in report.merged for run in one.merged.runs}
    found |= {urlsplit(of.script).hostname for of in runs if of.script is not None and "://" in of.script}
    names = {name for name in found if name}
    return names | {first for name in names if not (first := name.partition(".")[0]).isdigit()}


def _users(report: Report) -> set[str]:
    """Names of the current user, and of users whose home folders are in the report."""
    found: set[str] = set()
    with contextlib.suppress(KeyError, OSError, RuntimeError):  # not in the system's list of users
        found |= {getpass.getuser(), Path.home().name}

    def look(value: str) -> str:
        found.update(HOME.findall(value))
        return value

    _replaced(report, look)
    return found


def _short_paths(report: Report) -> dict[str, str]:
    """Paths on command lines and their short forms: `-o=a/b` -> `-o=b`."""
    words = [word for run in report.runs for word in (run.path, run.measured.script or "", *run.measured.command)]
    words += [word for one in report.suites for word in one.suite.command]
    found = {}
    for word in words:
        option, equals, path = word.partition("=") if word.startswith("-") else ("", "", word)
        if "/" in path and "://" not in path:
            found[word] = f"{option}{equals}{path.rstrip('/').rpartition('/')[2]}"
    return found


def _replaced(value: Any, text: Callable[[str], str]) -> Any:
    """Copy a value with all texts replaced."""
    if type(value) is str:
        return text(value)
    if isinstance(value, BaseModel):
        made = {name: _replaced(getattr(value, name), text) for name in type(value).model_fields}
        return value.model_copy(update=made)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{one.name: _replaced(getattr(value, one.name), text) for one in fields(value) if one.init}
        )
    if type(value) in (list, tuple):
        return type(value)(_replaced(one, text) for one in value)
    if type(value) is dict:
        return {_replaced(key, text): _replaced(one, text) for key, one in value.items()}
    return value
