"""What a protocol over HTTP has to say: what is sent for a request, and how its answer is read."""

from __future__ import annotations

import mimetypes
from abc import ABC, abstractmethod
from pathlib import Path

import aiohttp
from yarl import URL

from perfharness.errors import UsageError
from perfharness.load.request import Answer, LoadRequest
from perfharness.load.targets.http.client import Client, Message
from perfharness.load.targets.http.settings import HttpSettings

JSON = "application/json"


class HttpProtocol(ABC):
    """One protocol. Messages are made before the clock starts, as far as they are the same for all requests."""

    def __init__(self, settings: HttpSettings) -> None:
        self.settings = settings
        self.url = URL(settings.url)
        self._messages: dict[tuple[str | None, int], Message] = {}

    async def prepare(self, client: Client) -> None:
        """Ask the server what has to be known before the first request. Raises `UsageError`, and what `send` raises."""
        del client

    @abstractmethod
    def make_message(self, name: str | None, items: int) -> Message:
        """What is sent for an entry of the mix and a number of items. Raises `UsageError`."""

    def message(self, request: LoadRequest) -> Message:
        """What is sent for a request."""
        key = request.input, request.items
        found = self._messages.get(key)
        if found is None:
            found = self._messages[key] = self.make_message(*key)
        return found

    async def read(self, response: aiohttp.ClientResponse, answer: Answer, request: LoadRequest) -> bytes:
        """Read an answer that has a good status, and note in `answer` what the protocol shows: `done_ns` too, where its
        end is not that of the body. Returns the body, or the text that was generated.

        Raises `InvalidResponseError` where it is not one of the protocol.
        """
        del answer, request
        return await response.read()


class PlainProtocol(HttpProtocol):
    """The same bytes for every request of an input."""

    def make_message(self, name: str | None, items: int) -> Message:
        """Whatever the number of items."""
        del items
        given = self.settings.input_of(name)
        body, kind = None, None
        if given.body is not None:
            body, kind = read_body(given.body), mimetypes.guess_type(given.body)[0] or "application/octet-stream"
        elif given.text is not None:
            body, kind = given.text.encode(), JSON if given.text.lstrip()[:1] in ("{", "[") else "text/plain"
        headers = {} if kind is None or self.settings.sets("Content-Type") else {"Content-Type": kind}
        return Message(self.settings.method or ("GET" if body is None else "POST"), self.url, body, headers)


def read_body(path: Path) -> bytes:
    """A file that is sent. Raises `UsageError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"the body {path} cannot be read: {error.strerror}") from error
