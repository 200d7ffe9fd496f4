"""`python asgi_server.py PORT`: FastAPI-like, under uvicorn; each request has a stage."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import uvicorn

from perfharness import PerfRecorder
from perfharness.load.middleware import AsgiMiddleware

perf = PerfRecorder("server")


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    with perf.range("model"):
        if scope["path"] == "/blocking":  # the event loop: another connection goes to another worker
            time.sleep(0.03)
        await asyncio.sleep(0.01)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ok"})


served = AsgiMiddleware(app)

if __name__ == "__main__":
    uvicorn.run(served, host="127.0.0.1", port=int(sys.argv[1]), lifespan="off", log_level="warning")
