"""Server middleware: each request of a load becomes a batch of the server's trace, with the request's id as index.

    app = AsgiMiddleware(app)  # FastAPI, Starlette: app.add_middleware(AsgiMiddleware)
    app.wsgi_app = WsgiMiddleware(app.wsgi_app)  # Flask; Django: application = WsgiMiddleware(application)

Requests without the header `X-Perfharness-Request` pass unchanged: probes, health checks, other users' requests.
Outside of a launch a batch is a plain NVTX range. Runs in the measured process: standard library and recorder only.
"""

from __future__ import annotations

import atexit
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import nullcontext, suppress
from typing import Any

from perfharness.errors import RecorderError
from perfharness.recorder import BatchBlock, PerfRecorder

REQUEST_HEADER = "X-Perfharness-Request"
"""The id of a request."""

ITEMS_HEADER = "X-Perfharness-Items"
"""Number of items of a request."""

REQUEST_RANGE = "request"
"""Name of the batches."""

Scope = MutableMapping[str, Any]
AsgiApplication = Callable[[Scope, Callable[..., Awaitable[Any]], Callable[..., Awaitable[None]]], Awaitable[None]]
WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_REQUEST, _ITEMS = REQUEST_HEADER.lower().encode(), ITEMS_HEADER.lower().encode()
_WSGI_REQUEST, _WSGI_ITEMS = ("HTTP_" + name.upper().replace("-", "_") for name in (REQUEST_HEADER, ITEMS_HEADER))


class AsgiMiddleware:
    """An ASGI application that wraps another one.

    Args:
        app: the application to wrap.
        recorder: recorder of the batches; None: one with the name `server`. For stages of a request, the application
            must use ranges of a recorder with the same name.
    """

    def __init__(self, app: AsgiApplication, recorder: PerfRecorder | None = None) -> None:
        self.app = app
        self.recorder = recorder or _own_recorder()

    async def __call__(
        self, scope: Scope, receive: Callable[..., Awaitable[Any]], send: Callable[..., Awaitable[None]]
    ) -> None:
        """Serve one connection."""
        batch = None
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            batch = _batch(self.recorder, headers.get(_REQUEST), headers.get(_ITEMS))
        with nullcontext() if batch is None else batch:
            await self.app(scope, receive, send)


class WsgiMiddleware:
    """A WSGI application that wraps another one; the batch ends when the server has sent the answer.

    Args:
        app, recorder: as for `AsgiMiddleware`.
    """

    def __init__(self, app: WsgiApplication, recorder: PerfRecorder | None = None) -> None:
        self.app = app
        self.recorder = recorder or _own_recorder()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serve one request."""
        batch = _batch(self.recorder, environ.get(_WSGI_REQUEST), environ.get(_WSGI_ITEMS))
        if batch is None:
            return self.app(environ, start_response)
        batch.__enter__()
        try:
            return _Answer(self.app(environ, start_response), batch)
        except BaseException as error:
            batch.__exit__(type(error), error, error.__traceback__)
            raise


class _Answer:
    """The parts of an answer; the batch ends when the server closes them."""

    def __init__(self, parts: Iterable[bytes], batch: BatchBlock) -> None:
        self._parts = parts
        self._batch: BatchBlock | None = batch

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parts)

    def close(self) -> None:
        """Called by the server in every case, also after an error."""
        close = getattr(self._parts, "close", None)
        try:
            if close is not None:
                close()
        finally:
            if self._batch is not None:
                self._batch.__exit__(None, None, None)
                self._batch = None


def _own_recorder() -> PerfRecorder:
    """A recorder that is finalized when the server ends."""
    recorder = PerfRecorder("server")

    def finalize() -> None:
        with suppress(RecorderError):  # the end of the server interrupted a request
            recorder.finalize()

    atexit.register(finalize)
    return recorder


def _batch(recorder: PerfRecorder, request: str | bytes | None, items: str | bytes | None) -> BatchBlock | None:
    """The batch of a request; None: the request is not part of a load."""
    number = _count(request)
    return None if number is None else recorder.batch(number, _count(items), message=REQUEST_RANGE)


def _count(text: str | bytes | None) -> int | None:
    return int(text) if text and len(text) < 18 and text.isdigit() and text.isascii() else None
