"""HTTP targets: plain requests and OpenAI-style servers; all workers share one connection pool."""

from __future__ import annotations

import asyncio
import errno
import itertools
import mimetypes
import resource
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from typing import Any, NamedTuple

import aiohttp
import orjson
from yarl import URL

from perfharness.errors import LaunchError, UsageError
from perfharness.files import reason_of
from perfharness.load.http_settings import HttpSettings, Kind
from perfharness.load.middleware import ITEMS_HEADER, REQUEST_HEADER
from perfharness.load.profile import MixEntry
from perfharness.load.request import TIMEOUT, Answer, LoadRequest, MakeTarget, Target

REFUSED, RESET, DNS, TLS, UNREACHABLE = "refused", "reset", "dns", "tls", "unreachable"
NO_SOCKETS = "no-sockets"
"""The generator's machine has no free socket; not a fault of the server."""

CUT_OFF = "cut-off"
"""An incomplete answer."""

INVALID, WRONG = "invalid-response", "wrong-answer"

STREAMED_BYTES = 1 << 20
"""A larger body is sent in pieces, with other requests in between."""

KEEP_ALIVE_S = 4.0
"""An idle connection is closed after this, before the server closes it (uvicorn: after 5 s)."""

END_S = 0.1
"""Maximum wait for the rest of an answer that is not read; then its connection is closed."""

READY_POLL_S = 0.1
CHECK_S = 60.0
"""Timeout of the request that is sent before the run."""

JSON = "application/json"
SHOWN = 200
"""Maximum bytes of an answer quoted in a message."""


class ResponseError(Exception):
    """The answer violates its protocol."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


FAILURES: tuple[tuple[str, tuple[type[BaseException], ...], tuple[int, ...]], ...] = (
    (TIMEOUT, (TimeoutError, asyncio.TimeoutError), ()),
    (DNS, (aiohttp.ClientConnectorDNSError,), ()),
    (TLS, (aiohttp.ClientSSLError, ssl.SSLError), ()),
    (NO_SOCKETS, (), (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)),
    (REFUSED, (ConnectionRefusedError,), (errno.ECONNREFUSED,)),
    (
        RESET,
        (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError),
        (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ESHUTDOWN),
    ),
    (CUT_OFF, (aiohttp.ClientPayloadError,), ()),
    (INVALID, (aiohttp.ClientResponseError, aiohttp.http.HttpProcessingError), ()),
    (UNREACHABLE, (aiohttp.ClientConnectionError, OSError), ()),
)
"""Kinds of errors with their exceptions and `errno`; the first that fits counts."""


def kind_of_failure(error: BaseException) -> str | None:
    """The error kind of an exception of the connection; None for other exceptions."""
    if isinstance(error, ResponseError):
        return error.kind
    if isinstance(error.__cause__, aiohttp.http_exceptions.ContentEncodingError):
        return INVALID
    number = getattr(error, "errno", None)
    fitting = (kind for kind, types, numbers in FAILURES if isinstance(error, types) or number in numbers)
    return next(fitting, None)


class Message(NamedTuple):
    """Content of a request."""

    method: str
    url: URL
    body: bytes | None = None
    headers: Mapping[str, str] = {}


class HttpTarget(Target):
    """Plain HTTP: the same bytes for every request of an input; all workers share one connection pool.

    The pool has no limit: a request never waits for the connection of another.
    """

    is_async = True

    def __init__(self, settings: HttpSettings) -> None:
        self.settings = settings
        self.url = URL(settings.url)
        self._headers = settings.all_headers()
        self._messages: dict[str | None, Message] = {}
        self._session: aiohttp.ClientSession | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Raise the limit of open files as far as permitted."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def close_async(self) -> None:
        """Close all connections; runs on their loop."""
        if self._session is not None:
            await asyncio.gather(*self._ending)
            await self._session.close()
            self._session = None

    # ---- the protocol ----

    async def prepare(self) -> None:
        """Get what is needed before the first request. Raises `UsageError`, and as `send`."""

    def make_message(self, body: bytes | None, kind: str | None) -> Message:
        """The message for the content of a file, or without one."""
        if body is None and (text := self.settings.text) is not None:
            body, kind = text.encode(), JSON if text.lstrip()[:1] in ("{", "[") else "text/plain"
        is_set = "content-type" in map(str.lower, self.settings.headers)
        headers = {} if kind is None or is_set else {"Content-Type": kind}
        return Message(self.settings.method or ("GET" if body is None else "POST"), self.url, body, headers)

    async def read(self, response: aiohttp.ClientResponse, answer: Answer) -> bytes:
        """Read an answer with the expected status, and fill `answer` from the protocol, including `done_ns` if it ends
        before the body. Returns the body, or the generated text. Raises `ResponseError`.
        """
        del answer
        return await response.read()

    # ---- requests ----

    async def call_async(self, request: LoadRequest) -> Answer:
        """Send one request and read its answer."""
        headers = {REQUEST_HEADER: str(request.id), ITEMS_HEADER: str(request.items)}
        return await self._ask(self._message(request.input), headers)

    def _message(self, name: str | None) -> Message:
        """The message for an entry of the mix; None: no mix. Raises `UsageError`."""
        if name not in self._messages:
            path = self.settings.inputs.get(name or "", self.settings.body)
            try:
                body = None if path is None else path.read_bytes()
            except OSError as error:
                raise UsageError(f"cannot read the body {path}: {reason_of(error)}") from error
            kind = mimetypes.guess_type(path)[0] or "application/octet-stream" if path is not None else None
            self._messages[name] = self.make_message(body, kind)
        return self._messages[name]

    async def _ask(self, message: Message, headers: Mapping[str, str]) -> Answer:
        answer, has_begun = Answer(), False
        wanted, text = self.settings.expect_status, self.settings.expect_text
        try:
            async with self.send(message, headers) as response:
                status, has_begun = response.status, True
                if status != wanted if wanted is not None else not 200 <= status < 300:
                    body = await response.read()
                    answer.done_ns = time.perf_counter_ns()
                    answer.error = f"http-{status}" if wanted is None or status >= 400 else WRONG
                    to = f", to {response.headers['Location']}" if "Location" in response.headers else ""
                    answer.message = f"{status} {response.reason}{to}: {body[:SHOWN].decode(errors='replace')}"
                    return answer
                received = await self.read(response, answer)
                answer.done_ns = answer.done_ns or time.perf_counter_ns()
        except Exception as error:
            kind = kind_of_failure(error)
            if kind is None:
                raise
            answer.error = CUT_OFF if has_begun and kind == RESET else kind
            answer.message = f"{type(error).__name__}: {error}"
            return answer
        if text is not None and text.encode() not in received:
            shown = received[:SHOWN].decode(errors="replace")
            answer.error, answer.message = WRONG, f"{shown!r} does not contain {text!r}"
        return answer

    def _opened(self) -> aiohttp.ClientSession:
        """The session, made on the loop that uses it."""
        if self._session is None:
            settings = self.settings
            connector = aiohttp.TCPConnector(
                limit=0, ttl_dns_cache=None, keepalive_timeout=KEEP_ALIVE_S, ssl=settings.verify_tls
            )
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=settings.connect_timeout_s, sock_read=settings.read_timeout_s
            )
            cookies = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=self._headers, cookie_jar=cookies
            )
            self._session._retry_connection = False  # else a GET is silently sent twice after a connection reset
        return self._session

    @asynccontextmanager
    async def send(self, message: Message, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a message; yields when the head of the answer has arrived. Redirects are not followed.

        The unread rest of the body is read in the background, so that the connection can be reused.
        """
        response = await self._opened().request(
            message.method,
            message.url,
            data=message.body if len(message.body or b"") < STREAMED_BYTES else BytesIO(message.body or b""),
            headers={**message.headers, **headers},
            allow_redirects=False,
        )
        try:
            yield response
        except BaseException:
            response.close()
            raise
        if not response.content.at_eof():
            task = asyncio.create_task(_read_to_its_end(response))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    # ---- before the run ----

    async def wait_ready(self) -> None:
        """Wait until a started server answers. Raises `LaunchError` after its timeout."""
        settings = self.settings
        url = self.url if settings.ready is None else self.url.join(URL(settings.ready))
        deadline = time.monotonic() + settings.ready_timeout_s
        last = "no request was sent"
        while time.monotonic() < deadline:
            try:
                async with self.send(Message("GET", url), {}) as response:
                    if response.status < (500 if settings.ready is None else 300):
                        return
                    last = f"the answer was {response.status}"
            except Exception as error:
                last = kind_of_failure(error) or repr(error)
            await asyncio.sleep(READY_POLL_S)
        raise LaunchError(
            f"the server was not ready after {settings.ready_timeout_s:g} s: request to {_shown(url)}: {last}; "
            "set ready and ready-timeout in [target] to change the request and the limit"
        )

    async def check(self, inputs: Iterable[str | None], timeout_s: float = CHECK_S) -> None:
        """Send one request of each input, without an id. Raises `UsageError` if it cannot be answered."""
        try:
            await asyncio.wait_for(self.prepare(), timeout_s)
            for name in inputs:
                self._refuse(await asyncio.wait_for(self._ask(self._message(name), {}), timeout_s), timeout_s)
        except Exception as error:
            kind = kind_of_failure(error)
            if kind is None:
                raise
            self._refuse(Answer(error=kind, message=str(error)), timeout_s)

    def _refuse(self, answer: Answer, timeout_s: float) -> None:
        """Raise if no request can be answered; error answers are counted under load instead."""
        url, kind = self.url, answer.error or ""
        place = f"{url.host} port {url.port}"
        causes = {
            REFUSED: f"no server listens at {place}; start it, or use --start 'COMMAND'",
            DNS: f"unknown host name {url.host} ({answer.message}); check the URL",
            TLS: f"no secure connection ({answer.message}); verify-tls = false in [target] does not check certificates",
            UNREACHABLE: f"{place} cannot be reached ({answer.message}); check the URL and the network",
            TIMEOUT: f"no answer within {timeout_s:g} s; try the request manually (curl)",
            NO_SOCKETS: f"this machine has no free socket ({answer.message}); raise ulimit -n",
        }
        if kind in causes:
            raise UsageError(f"{_shown(url)}: {causes[kind]}")
        if kind.startswith("http-4") and kind not in ("http-408", "http-429"):
            raise UsageError(f"{_shown(url)} refuses the request: {answer.message}")


async def _read_to_its_end(response: aiohttp.ClientResponse) -> None:
    with suppress(aiohttp.ClientError, asyncio.TimeoutError, OSError):
        await asyncio.wait_for(response.read(), END_S)
    response.release()


def _shown(url: URL) -> str:
    return str(url.with_user(None).with_query(None))


# ---- OpenAI-style servers: vLLM, SGLang, TensorRT-LLM, llama.cpp, TGI ----

CHAT = "/chat/completions"
DATA = b"data:"
DONE = b"[DONE]"
PROMPT = "Describe, in a few sentences, what a queue is and why it grows."


class OpenAiTarget(HttpTarget):
    """A prompt and the returned tokens; streamed by default, to get the time of each token."""

    async def prepare(self) -> None:
        """Find the model's name if it is not given."""
        path = self.url.path.rstrip("/")
        if not path.endswith("/completions"):
            self.url = self.url.with_path(f"{path}{'' if path.endswith('/v1') else '/v1'}{CHAT}")
        self._is_chat = self.url.path.rstrip("/").endswith(CHAT)
        self._model = self.settings.model
        if self._model is not None:
            return
        root = self.url.path.rstrip("/").removesuffix("/completions").removesuffix("/chat")
        url = self.url.with_path(f"{root}/models")
        async with self.send(Message("GET", url), {}) as response:
            body = await response.read()
        try:
            self._model = orjson.loads(body)["data"][0]["id"]
        except (orjson.JSONDecodeError, LookupError, TypeError):
            raise UsageError(f"{url} lists no model ({response.status}); name one: model in [target]") from None

    def make_message(self, body: bytes | None, kind: str | None) -> Message:
        """A request from a file, or one prompt."""
        settings, headers = self.settings, {"Content-Type": JSON}
        if body is not None:
            return Message("POST", self.url, body, headers)
        prompt = settings.text or PROMPT
        content: dict[str, Any] = {"model": self._model, "max_tokens": settings.max_tokens}
        content |= {"messages": [{"role": "user", "content": prompt}]} if self._is_chat else {"prompt": prompt}
        if settings.stream:
            content |= {"stream": True, "stream_options": {"include_usage": True}}
        return Message("POST", self.url, orjson.dumps(content | settings.parameters), headers)

    async def read(self, response: aiohttp.ClientResponse, answer: Answer) -> bytes:
        """Count tokens: from the server's usage, otherwise the parts of the stream that have text."""
        if response.content_type == "text/event-stream":
            return await self._read_stream(response, answer)
        body = await super().read(response, answer)
        content = _parsed(body)
        try:
            text = _text_of(content["choices"][0])
            answer.tokens = _tokens(content["usage"]) if content.get("usage") else None
        except (LookupError, TypeError, AttributeError):
            raise ResponseError(INVALID, f"not a completion: {body[:SHOWN]!r}") from None
        return text.encode()

    async def _read_stream(self, response: aiohttp.ClientResponse, answer: Answer) -> bytes:
        texts: list[str] = []
        times: list[int] = []
        counted: int | None = None
        is_done, reason = False, None
        async for data, came_ns in _events(response):
            if data == DONE:
                answer.done_ns, is_done = came_ns, True  # the server may keep the connection open
                break
            part = _parsed(data)
            try:
                if part.get("error"):
                    raise ResponseError("stream-error", f"error in the stream: {str(part['error'])[:SHOWN]}")
                if part.get("usage"):
                    counted = _tokens(part["usage"])
                choice = part["choices"][0] if part["choices"] else {}
                text = _text_of(choice)
                reason = choice.get("finish_reason") or reason
            except (LookupError, TypeError, AttributeError):
                raise ResponseError(INVALID, f"not part of a completion: {data[:SHOWN]!r}") from None
            if text:
                texts.append(text)
                times.append(came_ns)
        if not is_done:
            last = "" if reason is None else f" and finish_reason {reason!r}"
            raise ResponseError(CUT_OFF, f"the stream ended after {len(times)} parts with text{last}, without [DONE]")
        answer.first_token_ns = times[0] if times else None
        answer.token_gaps_ns = [after - before for before, after in itertools.pairwise(times)]
        answer.tokens = counted if counted is not None else len(times)
        return "".join(texts).encode()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[bytes, int]]:
    """Data and arrival time of each event; an incomplete last line counts only if it is [DONE]."""
    rest = b""
    async for chunk in response.content.iter_any():
        came_ns = time.perf_counter_ns()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                yield line[len(DATA) :].strip(), came_ns
    if rest.startswith(DATA) and rest[len(DATA) :].strip() == DONE:
        yield DONE, time.perf_counter_ns()


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ResponseError(INVALID, f"not JSON: {data[:SHOWN]!r}") from None


def _tokens(usage: dict[str, Any]) -> int | None:
    """The server's token count; None if it has none. Raises `TypeError` if the value is not a count."""
    count = usage["completion_tokens"]
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
        raise TypeError("not a number of tokens")
    return count


def _text_of(choice: dict[str, Any]) -> str:
    """The text of a choice, chat or not, whole or part; a model's reasoning is text too."""
    holder = choice.get("delta") or choice.get("message") or choice
    return "".join(holder.get(name) or "" for name in ("reasoning_content", "content", "text"))


TARGETS: dict[Kind, type[HttpTarget]] = {"plain": HttpTarget, "openai": OpenAiTarget}


def http_targets(settings: HttpSettings, mix: Iterable[MixEntry], *, is_started: bool = False) -> MakeTarget:
    """Makes the target, the same for all workers, after the server has answered one request of each input.

    Raises as `HttpTarget.check`, and `LaunchError` if a server that was started for this run does not get ready.
    """
    target = TARGETS[settings.kind](settings)
    names: list[str | None] = [entry.name for entry in mix]

    async def get_ready() -> None:
        try:
            if is_started:
                await target.wait_ready()
            await target.check(names or [None])
        finally:
            await target.close_async()  # the workers open it again on their loop

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(get_ready())
    else:  # in a notebook
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, get_ready()).result()
    return lambda: target
