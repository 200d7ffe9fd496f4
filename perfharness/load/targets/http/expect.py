"""What a right answer is: `status=200`, `length>=10`, `text=ok`, `contains=ok`, `json:result.value=42`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from perfharness.errors import UsageError

FORMS = "status=200, length=10, length>=10, text=exact answer, contains=words, json:path[0].name=value or json:path"

_LENGTHS: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_LENGTH = re.compile(r"length\s*(>=|<=|=|>|<)\s*(\d+)")
_STATUS = re.compile(r"status\s*=\s*(\d{3})")
_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]")
_PATH = re.compile(r"(?:[^.\[\]=]+|\[-?\d+\])(?:\.[^.\[\]=]+|\[-?\d+\])*")
_SHOWN = 80


@dataclass(frozen=True)
class Received:
    """What came back.

    Args:
        body: all of it.
        text: of the answer: the generated text of a model that writes, else the body.
    """

    status: int
    body: bytes
    text: str | None = None

    @property
    def answer(self) -> str:
        """The text that expectations compare."""
        return self.body.decode(errors="replace") if self.text is None else self.text


Check = Callable[[Received], "str | None"]
"""Says what is wrong with an answer, or None."""


@dataclass(frozen=True)
class Expectation:
    """All that is expected of an answer."""

    status: int | None = None
    checks: tuple[Check, ...] = ()

    def problem(self, received: Received) -> str | None:
        """What is wrong with an answer, its status apart; None: nothing."""
        return next((found for check in self.checks if (found := check(received)) is not None), None)


def parse_expectations(texts: Sequence[str]) -> Expectation:
    """The expectations that texts stand for, all of which must hold. Raises `UsageError`."""
    status, checks = None, []
    for text in texts:
        if found := _STATUS.fullmatch(text.strip()):
            status = int(found[1])
        else:
            checks.append(_check(text))
    return Expectation(status, tuple(checks))


def _check(text: str) -> Check:
    if found := _LENGTH.fullmatch(text.strip()):
        return _length(found[1], int(found[2]))
    kind, separator, wanted = text.partition("=")
    if separator and kind == "text":
        return lambda got: None if got.answer == wanted else f"the text is {_short(got.answer)}, not {_short(wanted)}"
    if separator and kind == "contains":
        return lambda got: None if wanted in got.answer else f"{_short(got.answer)} does not contain {_short(wanted)}"
    if text.startswith("json:"):
        path, separator, wanted = text.removeprefix("json:").partition("=")
        if _PATH.fullmatch(path):
            return _member(path, _value(wanted) if separator else _ANY)
    raise UsageError(f"--expect {text!r} is no expectation; write one of {FORMS}")


def _length(sign: str, wanted: int) -> Check:
    def check(got: Received) -> str | None:
        length = len(got.body) if got.text is None else len(got.text)
        return None if _LENGTHS[sign](length, wanted) else f"the length is {length}, not {sign.lstrip('=')}{wanted}"

    return check


_ANY = object()


def _member(path: str, wanted: object) -> Check:
    steps = [int(found[2]) if found[2] else found[1] for found in _STEP.finditer(path)]

    def check(got: Received) -> str | None:
        try:
            value: Any = orjson.loads(got.body)
        except orjson.JSONDecodeError:
            return f"the answer is no JSON: {_short(got.answer)}"
        try:
            for step in steps:
                value = value[step]
        except (KeyError, IndexError, TypeError):
            return f"the answer has no {path}"
        same = wanted is _ANY or (value == wanted and isinstance(value, bool) == isinstance(wanted, bool))
        return None if same else f"{path} is {_short(value)}, not {_short(wanted)}"

    return check


def _value(text: str) -> object:
    """JSON, or the text itself where it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
