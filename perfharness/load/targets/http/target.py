"""The target of `perfharness stress http://…`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from yarl import URL

from perfharness.errors import LaunchError, UsageError
from perfharness.load.middleware import ITEMS_HEADER, REQUEST_HEADER
from perfharness.load.request import TIMEOUT, Answer, LoadRequest, MakeTarget
from perfharness.load.targets.http.client import (
    CUT_OFF,
    DNS,
    INVALID_RESPONSE,
    NO_SOCKETS,
    REFUSED,
    RESET,
    TLS,
    WRONG_ANSWER,
    Client,
    Message,
    allow_many_connections,
    kind_of_failure,
    speaks_tls,
)
from perfharness.load.targets.http.openai import OpenAiProtocol
from perfharness.load.targets.http.protocol import HttpProtocol, PlainProtocol
from perfharness.load.targets.http.settings import HttpSettings

PROTOCOLS: dict[str, type[HttpProtocol]] = {"plain": PlainProtocol, "openai": OpenAiProtocol}
READY_POLL_S = 0.1
CHECK_S = 60.0
"""How long the answer to a request before the run may take."""

_SHOWN = 200


@dataclass
class HttpTarget:
    """Sends requests; all workers of a process share one pool of connections."""

    protocol: HttpProtocol
    client: Client

    is_async = True

    def open(self) -> None:
        """Lift the limit of connections; they are made as requests need them."""
        allow_many_connections()

    async def call_async(self, request: LoadRequest) -> Answer:
        """Send one request and read its answer."""
        headers = {REQUEST_HEADER: str(request.id), ITEMS_HEADER: str(request.items)}
        return await self._ask(request, headers)

    async def _ask(self, request: LoadRequest, headers: dict[str, str]) -> Answer:
        answer, has_begun = Answer(), False
        wanted, text = self.protocol.settings.expect_status, self.protocol.settings.expect_text
        try:
            async with self.client.send(self.protocol.message(request), headers) as response:
                status, has_begun = response.status, True
                if status != wanted if wanted is not None else not 200 <= status < 300:
                    body = await response.read()
                    answer.done_ns = time.perf_counter_ns()
                    answer.error = f"http-{status}" if wanted is None or status >= 400 else WRONG_ANSWER
                    to = f", to {response.headers['Location']}" if "Location" in response.headers else ""
                    answer.message = f"{status} {response.reason}{to}: {body[:_SHOWN].decode(errors='replace')}"
                    return answer
                received = await self.protocol.read(response, answer, request)
                answer.done_ns = answer.done_ns or time.perf_counter_ns()
        except Exception as error:
            kind = kind_of_failure(error)
            if kind is None:
                raise
            answer.error = CUT_OFF if has_begun and kind == RESET else kind
            answer.message = f"{type(error).__name__}: {error}{self._hint(error)}"
            return answer
        if text is not None and text.encode() not in received:
            shown = received[:_SHOWN].decode(errors="replace")
            answer.error, answer.message = WRONG_ANSWER, f"{shown!r} does not contain {text!r}"
        return answer

    def _hint(self, error: Exception) -> str:
        """Of a connection that was closed instead of an answer: it may have been idle for too long."""
        if not isinstance(error, aiohttp.ServerDisconnectedError):
            return ""
        kept_s = self.protocol.settings.keep_alive_s
        return f"; where it closes idle connections sooner than after {kept_s:g} s, lower keep-alive in [target]"

    async def close_async(self) -> None:
        """Close the connections; on the loop that used them."""
        await self.client.close()

    def close(self) -> None:
        """Nothing is left to do."""

    async def wait_ready(self) -> None:
        """Wait until a server that was started answers. Raises `LaunchError` where it does not in time."""
        settings = self.protocol.settings
        path = settings.ready
        url = self.protocol.url.join(URL(path)) if path is not None else self.protocol.url
        deadline = time.monotonic() + settings.ready_timeout_s
        last = "nothing was tried"
        while time.monotonic() < deadline:
            try:
                async with self.client.send(Message("GET", url)) as response:
                    if response.status < (500 if path is None else 300):
                        return
                    last = f"it answered {response.status}"
            except Exception as error:
                last = kind_of_failure(error) or repr(error)
            await asyncio.sleep(READY_POLL_S)
        raise LaunchError(
            f"the server was not ready after {settings.ready_timeout_s:g} s: {_shown(url)} was asked, and {last}; "
            "ready and ready-timeout in [target] say what is asked, and how long"
        )

    async def check(self, inputs: Mapping[str | None, int], timeout_s: float) -> Answer:
        """Prepare, and send one request of each input before the clock starts, without an id.

        Args:
            inputs: entries of the mix, and the items of each.

        Raises:
            UsageError: the server says that the request itself is wrong, or it cannot be made.
            LaunchError: no answer comes from where the URL points.
        """
        answer = Answer()
        try:
            await asyncio.wait_for(self.protocol.prepare(self.client), timeout_s)
            for name, items in inputs.items():
                request = LoadRequest(id=0, items=items, input=name, phase="", intended_ns=time.perf_counter_ns())
                answer = await asyncio.wait_for(self._ask(request, {}), timeout_s)
                await self._refuse_plain_to_tls(answer)
                self._refuse(answer, timeout_s)
        except (UsageError, LaunchError):
            raise
        except Exception as error:
            kind = kind_of_failure(error)
            if kind is None:
                raise
            self._refuse(Answer(error=kind, message=str(error)), timeout_s)
        return answer

    async def _refuse_plain_to_tls(self, answer: Answer) -> None:
        """Raise where plain HTTP got no answer for the server speaks TLS, which such servers say in no way."""
        url = self.protocol.url
        if url.scheme == "http" and answer.error in (RESET, INVALID_RESPONSE) and await speaks_tls(url):
            raise LaunchError(f"{_shown(url)}: this port speaks TLS; write https://")

    def _refuse(self, answer: Answer, timeout_s: float) -> None:
        """Raise where no request can be answered; an answer that is an error counts when it comes under load."""
        url, kind = self.protocol.url, answer.error or ""
        place = f"{url.host} port {url.port}"
        causes = {
            REFUSED: f"nothing listens at {place}; start the server, or let --start 'COMMAND' start it",
            DNS: f"the name {url.host} is not known ({answer.message})",
            TLS: f"no secure connection ({answer.message}); verify-tls = false in [target] does not check certificates",
            "unreachable": f"{place} cannot be reached ({answer.message})",
            TIMEOUT: f"no answer within {timeout_s:g} s",
            NO_SOCKETS: f"this machine has no socket left ({answer.message})",
        }
        if kind in causes:
            raise LaunchError(f"{_shown(url)}: {causes[kind]}")
        if kind.startswith("http-4") and kind not in ("http-408", "http-429"):
            raise UsageError(f"{_shown(url)} refuses the request: {answer.message}")


def http_target(settings: HttpSettings) -> HttpTarget:
    """The target of all workers. Raises `UsageError` where the settings are wrong."""
    return HttpTarget(PROTOCOLS[settings.kind](settings), Client(settings))


def http_targets(settings: HttpSettings, inputs: Mapping[str | None, int], *, is_started: bool) -> MakeTarget:
    """Makes the target of each worker, the same for all, once the server has answered a request of each input.

    Args:
        inputs: entries of the mix, and the items of each.
        is_started: the server was started for this, and may not be ready yet.

    Raises:
        UsageError: the settings are wrong, or the server refuses the request itself.
        LaunchError: no answer comes from there.
    """
    target = http_target(settings)

    async def get_ready() -> None:
        try:
            if is_started:
                await target.wait_ready()
            await target.check(inputs, CHECK_S)
        finally:
            await target.close_async()  # on the loop of the workers it is opened again

    asyncio.run(get_ready())
    return lambda: target


def _shown(url: URL) -> str:
    return str(url.with_user(None).with_query(None))
