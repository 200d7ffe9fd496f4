"""Requests of a load become batches of the server's trace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest

from perfharness import PerfRecorder
from perfharness.load.middleware import AsgiMiddleware, Scope, WsgiMiddleware
from perfharness.tracer.range_log import RangeLog
from tests.unit.recorder_events import events, recording


@pytest.fixture
def log() -> Iterator[RangeLog]:
    with recording() as log:
        yield log


def ranges(log: RangeLog) -> list[tuple[str, str | None, int | None]]:
    return [(event.op, event.message, event.payload) for event in events(log) if event.op != "mark"]


def scope(*headers: tuple[bytes, bytes], kind: str = "http") -> Scope:
    return {"type": kind, "headers": list(headers)}


async def receive() -> dict[str, Any]:
    return {"type": "http.request"}


async def send(_message: Any) -> None: ...


def test_requests_of_an_asgi_server_that_interleave_are_batches_of_their_own(log: RangeLog) -> None:
    perf = PerfRecorder("server")
    both = asyncio.Event()

    async def app(scope: Scope, receive: Callable[..., Awaitable[Any]], send: Callable[..., Awaitable[None]]) -> None:
        del receive, send
        with perf.range("stage"):
            if scope["type"] == "http":
                both.set() if scope.get("second") else await both.wait()

    async def main() -> None:
        wrapped = AsgiMiddleware(app, perf)
        first = scope((b"x-perfharness-request", b"41"), (b"x-perfharness-items", b"8"))
        second = {**scope((b"x-perfharness-request", b"42")), "second": True}
        await asyncio.gather(wrapped(first, receive, send), wrapped(second, receive, send))
        await wrapped(scope(kind="lifespan"), receive, send)
        await wrapped(scope((b"host", b"h")), receive, send)
        await wrapped(scope((b"x-perfharness-request", b"-1")), receive, send)

    asyncio.run(main())
    begun = [(message, payload) for op, message, payload in ranges(log) if op == "start" and message == "request"]
    assert begun == [("request", 41), ("request", 42)]
    assert [message for op, message, _ in ranges(log) if op in ("push", "start")].count("stage") == 5
    perf.finalize()


def test_a_batch_of_a_wsgi_server_ends_with_its_answer(log: RangeLog) -> None:
    perf = PerfRecorder("server")

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [])
        if environ.get("PATH_INFO") == "/fails":
            raise ValueError("fails")
        with perf.range("part"):
            yield b"a"

    def asked(path: str, **environ: str) -> bytes:
        parts = WsgiMiddleware(app, perf)({"PATH_INFO": path, **environ}, lambda *_: None)
        try:
            return b"".join(parts)
        finally:
            getattr(parts, "close", lambda: None)()

    assert asked("/", HTTP_X_PERFHARNESS_REQUEST="7", HTTP_X_PERFHARNESS_ITEMS="3") == b"a"
    assert asked("/") == b"a"  # a probe
    assert asked("/", HTTP_X_PERFHARNESS_REQUEST="²") == b"a"  # a digit, and no number
    with pytest.raises(ValueError, match="fails"):
        asked("/fails", HTTP_X_PERFHARNESS_REQUEST="8")
    assert ranges(log) == [
        ("push", "request", 7), ("push", "part", None), ("pop", None, None), ("pop", None, None),
        *[("push", "part", None), ("pop", None, None)] * 2,
        ("push", "request", 8), ("pop", None, None),
    ]  # fmt: skip
    perf.finalize()


def test_an_application_that_fails_before_it_answers_leaves_no_open_batch(log: RangeLog) -> None:
    perf = PerfRecorder("server")

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        raise KeyError("nothing")

    with pytest.raises(KeyError):
        WsgiMiddleware(app, perf)({"HTTP_X_PERFHARNESS_REQUEST": "1"}, lambda *_: None)
    assert [op for op, *_ in ranges(log)] == ["push", "pop"]
    perf.finalize()
