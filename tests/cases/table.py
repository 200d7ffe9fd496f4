"""Reads `cases.txt`: its head says what a row holds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.cases import checks
from tests.cases.checks import Check, Ran

FILE = Path(__file__).with_name("cases.txt")
TRACERS = {"E": ("embedded",), "N": ("nsys",), "E/N": ("embedded", "nsys")}
WORDS = {"none": None, "true": True, "false": False}


@dataclass
class Case:
    name: str
    tracers: tuple[str, ...]
    run: str
    folder: str
    settings: dict[str, str] = field(default_factory=dict)
    """Of `with`: a word without a value has an empty one."""
    then: list[str] = field(default_factory=list)
    right: list[Check] = field(default_factory=lambda: [*read_checks("exits 0")])
    wrong: list[tuple[str, list[Check], bool]] = field(default_factory=list)
    """Kind, checks, and whether they fail in every run."""


def read_cases(text: str) -> tuple[dict[str, str], list[Case]]:
    """Kinds with what they mean, and the rows."""
    kinds: dict[str, str] = {}
    cases: list[Case] = []
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line.startswith("  "):
            add(cases[-1], *line.split(maxsplit=1))
        elif section == "kinds" and line:
            kind, meaning = line.split(": ", 1)
            kinds[kind] = meaning
        elif line and not line.startswith("#"):
            name, tracers, run = line.split(maxsplit=2)
            cases.append(Case(name, TRACERS[tracers], run, section))
    return kinds, cases


def add(case: Case, key: str, value: str) -> None:
    if key == "with":
        case.settings = {name: rest for name, _, rest in (word.partition("=") for word in value.split())}
    elif key == "then":
        case.then.append(value)
    elif key == "right":
        case.right = [*([] if value.startswith("exits") else case.right), *read_checks(value)]
    else:
        case.wrong.append((key.rstrip("?"), list(read_checks(value)), not key.endswith("?")))


def read_checks(text: str) -> Iterator[Check]:
    """`NAME WORD… KEY=WORD…; …`: a name, and what the function of that name takes. `A or B`: either holds."""
    words = shlex.shlex(text, posix=True, punctuation_chars=";")
    words.whitespace_split, words.escape = True, ""
    either: list[Check] = []
    one: list[str] = []
    for word in [*words, ";"]:
        if word not in {";", "or"}:
            one.append(word)
            continue
        either.append(read_check(*one))
        one = []
        if word == ";":
            yield checks.any_of(either)
            either = []


def read_check(name: str, *words: str) -> Check:
    pairs = [re.fullmatch(r"(?:([a-z_]+)=)?(.*)", word, re.DOTALL) for word in words]
    positional = [typed(pair[2]) for pair in pairs if pair and not pair[1]]
    named = {pair[1]: typed(pair[2]) for pair in pairs if pair and pair[1]}

    def check(ran: Ran) -> None:
        getattr(checks, name)(ran, *positional, **named)

    return check


def typed(word: str) -> object:
    if word in WORDS:
        return WORDS[word]
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        return word
