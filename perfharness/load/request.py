"""Request, answer and target."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from time import perf_counter_ns

from perfharness.model.load import UNANSWERED as UNANSWERED

TIMEOUT = "timeout"
OUT_OF_MEMORY = "out-of-memory"
LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One unit of load.

    Args:
        id: counts from 0 over the whole run and all its processes; the index of its batch in the trace.
        items: number of requested items.
        input: name of the entry of the mix; None: the profile has no mix.
        phase: name of the phase.
        intended_ns: due time from the profile, monotonic.
    """

    id: int
    items: int
    input: str | None
    phase: str
    intended_ns: int


@dataclass(slots=True)
class Answer:
    """The return value of a target.

    Args:
        error: its kind, for example `timeout`, `refused`, `http-503`, `wrong-answer` or `exception:ValueError`; None:
            no error.
        message: message of the error.
        items: number of answered items, if different from the request.
        begun_ns: begin of service, if the target knows it; monotonic.
        first_token_ns: when the first token of a stream arrived.
        token_gaps_ns: times between successive tokens.
        tokens: number of tokens.
        done_ns: when the answer was complete, if before the target returns.
    """

    error: str | None = None
    message: str | None = None
    items: int | None = None
    begun_ns: int | None = None
    first_token_ns: int | None = None
    token_gaps_ns: Sequence[int] = ()
    tokens: int | None = None
    done_ns: int | None = None


TEXTS = ("error", "message")
NUMBERS = ("items", "begun_ns", "first_token_ns", "tokens", "done_ns")


def check_answer(answer: Answer, begun_ns: int) -> None:
    """Raises `TypeError` or `ValueError` if a target's own answer has invalid values.

    Args:
        begun_ns: when the target was called; all times must be between this and now.
    """
    for name in TEXTS:
        if not isinstance(value := getattr(answer, name), str | None):
            raise TypeError(f"the Answer of the target has {name} = {value!r}, which must be a text or None")
    for name in NUMBERS:
        if (value := getattr(answer, name)) is None:
            continue
        if not _is_count(value):
            raise TypeError(f"the Answer of the target has {name} = {value!r}, which must be an integer of 0 or more")
        setattr(answer, name, int(value))  # also from NumPy
        if name.endswith("_ns") and not begun_ns <= value <= perf_counter_ns():
            raise ValueError(
                f"the Answer of the target has {name} = {value}, which is not between its call and its end; "
                "use time.perf_counter_ns()"
            )
    if not all(map(_is_count, answer.token_gaps_ns)):
        raise TypeError("the Answer of the target has token_gaps_ns that are not all integers of 0 or more")


def _is_count(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 0


class Target:
    """Receives requests: one object per worker, opened before the clock starts."""

    is_async = False
    """Whether `call_async` is called, on the event loop of all workers, instead of `call`."""

    def open(self) -> None:
        """Prepare: load the model, connect; not on the event loop."""

    def call(self, request: LoadRequest) -> Answer:
        """Serve one request. An exception becomes an answer by `error_of`."""
        raise NotImplementedError

    async def call_async(self, request: LoadRequest) -> Answer:
        """Serve one request on the event loop."""
        raise NotImplementedError

    async def close_async(self) -> None:
        """Release resources of the event loop."""

    def close(self) -> None:
        """Release what was opened; not on the event loop."""


MakeTarget = Callable[[], Target]
"""Makes the target of one worker."""


def error_of(error: BaseException) -> Answer:
    """The answer for an exception."""
    message = f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE]
    return Answer(error=kind_of(error), message=message)


def kind_of(error: BaseException) -> str:
    """The error kind of an exception; frameworks run out of memory by a name or message."""
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return TIMEOUT
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)):
        return "reset"
    names = {kind.__name__ for kind in type(error).__mro__}
    is_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if is_memory or "OutOfMemoryError" in names or "out of memory" in str(error).lower():
        return OUT_OF_MEMORY
    return f"exception:{type(error).__name__}"
