"""`python wsgi_server.py PORT SECONDS`: a server of one thread, each of whose answers takes that long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from perfharness.load.middleware import WsgiMiddleware


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    del environ
    time.sleep(float(sys.argv[2]))
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"ok"]


class Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Nothing."""


class Server(WSGIServer):
    request_queue_size = 1024


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        make_server("127.0.0.1", int(sys.argv[1]), WsgiMiddleware(app), Server, Quiet).serve_forever()
