"""A real HTTP server whose behaviour is known: `python tests/load_server.py --service-ms 10 --errors 0.1`.

It serves plain requests (`/`) and OpenAI (`/v1/chat/completions`), all through one queue with known service times. The
queue is computed, not run: a request's service begins when it arrives or when a server is free, and its answer is sent
at the deadline that follows. So a machine that is busy delays single answers, and never the queue behind them.

Seconds of faults count from the first request of a load, which has an id in its header. Which request gets
an error follows from its id and the seed alone, so a test can count the errors beforehand (`draws`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import json
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from aiohttp import web

REQUEST_HEADER = "X-Perfharness-Request"
CHECKOUT = Path(__file__).resolve().parents[1]
MODEL = "doubling"
LEAK_STEP_S = 0.02
ANSWERS = ("error", "reset", "wrong")


@dataclass
class Options:
    """What the server does.

    Args:
        service_ms: of each request.
        servers: requests that are served concurrently.
        leak_mb_s: memory that is taken, touched and kept.
        crash_s: the process ends then.
        errors, resets, wrong: shares of the requests.
        token_ms: between two tokens of a stream; `service_ms` is the time to the first.
    """

    service_ms: float = 0.0
    servers: int = 1
    leak_mb_s: float = 0.0
    crash_s: float | None = None
    errors: float = 0.0
    resets: float = 0.0
    wrong: float = 0.0
    token_ms: float = 0.0
    seed: int = 0


def draws(options: Options, request: int) -> str | None:
    """What happens to a request: one of `ANSWERS`, or None where it is answered well."""
    drawn = random.Random(f"{options.seed}:{request}").random()
    for name, share in zip(ANSWERS, (options.errors, options.resets, options.wrong), strict=True):
        if drawn < share:
            return name
        drawn -= share
    return None


class Server:
    """The application."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.free_at = [0.0] * options.servers
        self.has_begun = False
        self.kept: list[bytearray] = []
        self.leaking: asyncio.Task[None] | None = None

    def application(self) -> web.Application:
        application = web.Application(client_max_size=1 << 30)
        application.add_routes(
            [
                web.route("*", "/", self.plain),
                web.get("/v1/models", self.models),
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.complete),
            ]
        )
        return application

    # ---- what every request goes through ----

    async def served(self, request: web.Request, answer: Callable[[bool], Awaitable[web.StreamResponse]]) -> Any:
        loop = asyncio.get_running_loop()
        if not self.has_begun and REQUEST_HEADER in request.headers:
            self.has_begun = True
            self._begin_faults(loop)
        end = max(loop.time(), self.free_at[0]) + self.options.service_ms / 1e3
        heapq.heapreplace(self.free_at, end)
        await _until(loop, end)
        number = request.headers.get(REQUEST_HEADER)
        drawn = None if number is None else draws(self.options, int(number))
        if drawn == "error":
            return web.json_response({"error": "planted"}, status=500)
        if drawn == "reset":
            assert request.transport is not None
            request.transport.abort()
        return await answer(drawn == "wrong")

    def _begin_faults(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.options.crash_s is not None:
            loop.call_later(self.options.crash_s, os._exit, 70)
        if self.options.leak_mb_s:
            self.leaking = loop.create_task(self._leak(loop.time()))

    async def _leak(self, began: float) -> None:
        kept = 0
        while True:
            await asyncio.sleep(LEAK_STEP_S)
            due = int((asyncio.get_running_loop().time() - began) * self.options.leak_mb_s * 1e6) - kept
            self.kept.append(bytearray(b"x") * due)  # each byte is written, so that it is resident
            kept += due

    # ---- plain ----

    async def plain(self, request: web.Request) -> Any:
        sent = await request.read()

        async def answer(wrong: bool) -> web.Response:
            return web.json_response({"result": {"value": 13 if wrong else 42, "bytes": len(sent)}})

        return await self.served(request, answer)

    # ---- OpenAI ----

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "tests"}]})

    async def chat(self, request: web.Request) -> Any:
        def piece(text: str, streamed: bool) -> dict[str, Any]:
            return {"delta" if streamed else "message": {"role": "assistant", "content": text}}

        return await self._tokens(request, "chat.completion", piece)

    async def complete(self, request: web.Request) -> Any:
        return await self._tokens(request, "text_completion", lambda text, _streamed: {"text": text})

    async def _tokens(self, request: web.Request, kind: str, piece: Callable[[str, bool], dict[str, Any]]) -> Any:
        asked = await request.json()
        count = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 16)
        usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
        loop = asyncio.get_running_loop()

        async def whole(wrong: bool) -> web.Response:
            await _until(loop, loop.time() + (count - 1) * self.options.token_ms / 1e3)
            text = " ".join(["no" if wrong else "yes"] * count)
            choice = {"index": 0, "finish_reason": "length", **piece(text, False)}
            return web.json_response({"id": "1", "object": kind, "model": MODEL, "choices": [choice], "usage": usage})

        async def stream(wrong: bool) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            began = loop.time()
            for index in range(count):
                await _until(loop, began + index * self.options.token_ms / 1e3)
                choice = {"index": 0, "finish_reason": None, **piece("no " if wrong else "yes ", True)}
                await _event(response, {"id": "1", "object": f"{kind}.chunk", "model": MODEL, "choices": [choice]})
            if asked.get("stream_options", {}).get("include_usage"):
                await _event(response, {"id": "1", "object": f"{kind}.chunk", "choices": [], "usage": usage})
            await response.write(b"data: [DONE]\n\n")
            return response

        return await self.served(request, stream if asked.get("stream") else whole)


async def _event(response: web.StreamResponse, content: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(content).encode() + b"\n\n")


async def _until(loop: asyncio.AbstractEventLoop, deadline: float) -> None:
    remaining = deadline - loop.time()
    if remaining > 0:
        await asyncio.sleep(remaining)


@contextlib.contextmanager
def served_by(*arguments: object) -> Iterator[tuple[str, int]]:
    """A server in a process of its own: its address, `http://127.0.0.1:PORT`, and its pid."""
    command = [sys.executable, str(Path(__file__)), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.kill()


@contextlib.contextmanager
def serving(*arguments: object) -> Iterator[str]:
    """Its address alone."""
    with served_by(*arguments) as (url, _):
        yield url


def parse(arguments: Sequence[str] | None = None) -> tuple[int, Options]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0: a free one, which is printed")
    for one in fields(Options):
        kind = float if one.default is None else type(one.default)
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=kind, default=one.default)
    given = vars(parser.parse_args(arguments))
    return given.pop("port"), Options(**given)


async def main() -> None:
    port, options = parse()
    runner = web.AppRunner(Server(options).application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=4096)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    while True:
        await asyncio.sleep(3600)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
