"""A real HTTP server whose behaviour is known: `python tests/load_server.py --service-ms 10 --stall 5:2`.

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
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
        service_ms: of each request, fixed or the mean of an exponential distribution.
        servers: requests that are served concurrently.
        queue: places to wait in; beyond them the answer is 503.
        stall: (at, for) seconds: nothing is served in that time.
        leak_mb_s: memory that is taken, touched and kept.
        crash_s: the process ends then.
        errors, resets, wrong: shares of the requests.
        token_ms: between two tokens of a stream; `service_ms` is the time to the first.
    """

    service_ms: float = 0.0
    exponential: bool = False
    servers: int = 1
    queue: int | None = None
    stall: tuple[float, float] | None = None
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


@dataclass
class Queue:
    """First come, first served, by several servers that stall together; in seconds."""

    servers: int = 1
    limit: int | None = None
    stall: tuple[float, float] | None = None
    _free_at: list[float] = field(default_factory=list)
    _begins: list[float] = field(default_factory=list)

    def serve(self, now: float, service_s: float) -> tuple[float, float] | None:
        """When the service of a request that comes now begins and ends; None: there is no place left."""
        while self._begins and self._begins[0] <= now:
            heapq.heappop(self._begins)
        free_at = self._free_at[0] if len(self._free_at) == self.servers else now
        begin = self._not_stalled(max(now, free_at))
        if begin > now and self.limit is not None and len(self._begins) >= self.limit:
            return None
        end = begin + service_s
        if self.stall is not None and begin < self.stall[0] < end:
            end += self.stall[1]
        if len(self._free_at) == self.servers:
            heapq.heapreplace(self._free_at, end)
        else:
            heapq.heappush(self._free_at, end)
        heapq.heappush(self._begins, begin)
        return begin, end

    def _not_stalled(self, begin: float) -> float:
        if self.stall is None:
            return begin
        at, lasts = self.stall
        return at + lasts if at <= begin < at + lasts else begin


class Server:
    """The application, and what it has counted."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.queue = Queue(options.servers, options.queue)
        self.random = random.Random(options.seed)
        self.has_begun = False
        self.kept: list[bytearray] = []
        self.leaking: asyncio.Task[None] | None = None
        self.counts = {"requests": 0, "answered": 0, "rejected": 0, **dict.fromkeys(ANSWERS, 0)}

    def application(self) -> web.Application:
        application = web.Application(client_max_size=1 << 30)
        application.add_routes(
            [
                web.get("/health", self.healthy),
                web.get("/counts", self.counted),
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
        now = loop.time()
        if not self.has_begun and REQUEST_HEADER in request.headers:
            self.has_begun = True
            self._begin_faults(loop)
        number = int(request.headers.get(REQUEST_HEADER, self.counts["requests"]))
        self.counts["requests"] += 1
        mean_s = self.options.service_ms / 1e3
        service_s = self.random.expovariate(1 / mean_s) if self.options.exponential and mean_s else mean_s
        times = self.queue.serve(now, service_s)
        if times is None:
            self.counts["rejected"] += 1
            return web.json_response({"error": "the queue is full"}, status=503)
        await _until(loop, times[1])
        drawn = draws(self.options, number)
        if drawn is not None:
            self.counts[drawn] += 1
        if drawn == "error":
            return web.json_response({"error": "planted"}, status=500)
        if drawn == "reset":
            assert request.transport is not None
            request.transport.abort()
        response = await answer(drawn == "wrong")
        self.counts["answered"] += drawn is None
        return response

    def _begin_faults(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.options.stall is not None:
            self.queue.stall = (loop.time() + self.options.stall[0], self.options.stall[1])
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

    async def healthy(self, _request: web.Request) -> web.Response:
        return web.json_response({"ready": True})

    async def counted(self, _request: web.Request) -> web.Response:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return web.json_response({**self.counts, "cpu_s": usage.ru_utime + usage.ru_stime})

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
    parser.add_argument("--service-ms", type=float, default=0.0)
    parser.add_argument("--exponential", action="store_true")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--queue", type=int)
    parser.add_argument("--stall", type=lambda text: tuple(map(float, text.split(":"))), metavar="AT_S:FOR_S")
    parser.add_argument("--leak-mb-s", type=float, default=0.0)
    parser.add_argument("--crash-s", type=float)
    parser.add_argument("--errors", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--resets", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--wrong", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--token-ms", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
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
