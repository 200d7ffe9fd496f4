"""Requests over aiohttp: one pool of connections for all workers, and what goes wrong by kind."""

from __future__ import annotations

import asyncio
import errno
import resource
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO

import aiohttp
from yarl import URL

from perfharness.errors import UsageError
from perfharness.files import reason_of
from perfharness.load.request import TIMEOUT
from perfharness.load.targets.http.settings import HttpSettings

REFUSED, RESET, DNS, TLS, UNREACHABLE = "refused", "reset", "dns", "tls", "unreachable"
NO_SOCKETS = "no-sockets"
"""The generator's own machine has no socket left: no fault of the server."""

CUT_OFF = "cut-off"
"""An answer that began and did not come to its end."""

SERVER_ERROR = "stream-error"
"""What a stream says after its status was good."""

INVALID_RESPONSE = "invalid-response"
WRONG_ANSWER = "wrong-answer"

STREAMED_BYTES = 1 << 20
"""A body that is larger is sent in pieces, between which other requests go on."""

HANDSHAKE_S = 5.0
END_S = 0.1
"""How long the end of an answer is waited for of which no more is wanted; then its connection is closed."""

_OWN_LIMITS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS}
_RESETS = {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ESHUTDOWN}


class InvalidResponseError(Exception):
    """The answer is not what its protocol says."""

    kind = INVALID_RESPONSE


class CutOffError(InvalidResponseError):
    """A stream that ended before its end."""

    kind = CUT_OFF


class StreamError(InvalidResponseError):
    """A stream in which the server reports an error."""

    kind = SERVER_ERROR


@dataclass(frozen=True)
class Message:
    """What is sent."""

    method: str
    url: URL
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Client:
    """A pool of connections on one event loop, without a limit: a request never waits for another one's connection."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._headers = settings.all_headers()
        self._session: aiohttp.ClientSession | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def _opened(self) -> aiohttp.ClientSession:
        """The session, made on the loop that uses it."""
        if self._session is None:
            settings = self._settings
            connector = aiohttp.TCPConnector(
                limit=0, ttl_dns_cache=None, keepalive_timeout=settings.keep_alive_s, ssl=_tls(settings)
            )
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=settings.connect_timeout_s, sock_read=settings.read_timeout_s
            )
            session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=self._headers, cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=True,
            )  # fmt: skip
            session._retry_connection = False  # a GET whose connection was reset would silently be sent twice
            self._session = session
        return self._session

    @asynccontextmanager
    async def send(
        self, message: Message, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a message; the answer's head has come when this yields. Redirects are answers, not followed.

        What of the body is not read then is waited for while the caller goes on, so that the connection can be used
        again.
        """
        response = await self._opened().request(
            message.method,
            message.url,
            data=message.body if len(message.body or b"") < STREAMED_BYTES else BytesIO(message.body or b""),
            headers={**message.headers, **(headers or {})},
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

    async def close(self) -> None:
        """Close all connections; on the loop that used them."""
        if self._session is not None:
            await asyncio.gather(*self._ending)
            await self._session.close()
            self._session = None


async def _read_to_its_end(response: aiohttp.ClientResponse) -> None:
    with suppress(aiohttp.ClientError, asyncio.TimeoutError, OSError):
        await asyncio.wait_for(response.read(), END_S)
    response.release()


def allow_many_connections() -> None:
    """Lift the limit of open files, each connection being one, as far as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def speaks_tls(url: URL) -> bool:
    """Whether a TLS handshake succeeds where a URL points, whatever the certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        opened = asyncio.open_connection(url.host, url.port, ssl=context)
        _, writer = await asyncio.wait_for(opened, HANDSHAKE_S)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.transport.abort()
    return True


def _tls(settings: HttpSettings) -> ssl.SSLContext | bool:
    if not settings.verify_tls or settings.ca_file is None:
        return settings.verify_tls
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"ca-file {settings.ca_file} has no certificates: {reason_of(error)}") from error


def kind_of_failure(error: BaseException) -> str | None:
    """The kind of error that an exception of the connection is; None: it is none of these."""
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return TIMEOUT
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return DNS
    if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
        return TLS
    if isinstance(error, InvalidResponseError):
        return error.kind
    number = error.errno if isinstance(error, OSError) else None
    if number in _OWN_LIMITS:
        return NO_SOCKETS
    if number == errno.ECONNREFUSED or isinstance(error, ConnectionRefusedError):
        return REFUSED
    if number in _RESETS or isinstance(error, (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError)):
        return RESET
    if isinstance(error, aiohttp.ClientPayloadError):
        undecodable = isinstance(error.__cause__, aiohttp.http_exceptions.ContentEncodingError)
        return INVALID_RESPONSE if undecodable else CUT_OFF
    if isinstance(error, (aiohttp.ClientResponseError, aiohttp.http.HttpProcessingError)):
        return INVALID_RESPONSE
    if isinstance(error, (aiohttp.ClientConnectionError, OSError)):
        return UNREACHABLE
    return None
