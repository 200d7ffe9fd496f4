"""OpenAI-style servers: chat and plain completions, as vLLM, SGLang, TensorRT-LLM, llama.cpp and TGI serve them."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson

from perfharness.errors import UsageError
from perfharness.load.request import Answer, LoadRequest
from perfharness.load.targets.http.client import Client, CutOffError, InvalidResponseError, Message, StreamError
from perfharness.load.targets.http.protocol import JSON, HttpProtocol, read_body

CHAT = "/chat/completions"
DATA = b"data:"
DONE = b"[DONE]"
PROMPT = "Describe, in a few sentences, what a queue is and why it grows."
_SHOWN = 120


class OpenAiProtocol(HttpProtocol):
    """A prompt, and the tokens that come back: streamed, so that it is known when each came, unless told otherwise."""

    async def prepare(self, client: Client) -> None:
        """Find the model's name, where it is not given."""
        path = self.url.path.rstrip("/")
        if not path.endswith("/completions"):
            self.url = self.url.with_path(f"{path}{'' if path.endswith('/v1') else '/v1'}{CHAT}")
        self._is_chat = self.url.path.rstrip("/").endswith(CHAT)
        self._model = self.settings.model
        if self._model is None:
            self._model = await self._first_model(client)

    async def _first_model(self, client: Client) -> str:
        root = self.url.path.rstrip("/").removesuffix("/completions").removesuffix("/chat")
        url = self.url.with_path(f"{root}/models")
        async with client.send(Message("GET", url)) as response:
            body = await response.read()
        try:
            name: str = orjson.loads(body)["data"][0]["id"]
        except (orjson.JSONDecodeError, LookupError, TypeError):
            raise UsageError(f"{url} lists no model ({response.status}); name one: model in [target]") from None
        return name

    def make_message(self, name: str | None, items: int) -> Message:
        """One prompt, whatever the number of items."""
        del items
        given = self.settings.input_of(name)
        if given.body is not None:
            return Message("POST", self.url, read_body(given.body), {"Content-Type": JSON})
        prompt = given.text or PROMPT
        content: dict[str, Any] = {"model": self._model, "max_tokens": given.max_tokens or 64}
        content |= {"messages": [{"role": "user", "content": prompt}]} if self._is_chat else {"prompt": prompt}
        if self.settings.stream:
            content |= {"stream": True, "stream_options": {"include_usage": True}}
        return Message("POST", self.url, orjson.dumps(content | self.settings.parameters), {"Content-Type": JSON})

    async def read(self, response: aiohttp.ClientResponse, answer: Answer, request: LoadRequest) -> bytes:
        """Count tokens: as the server's usage says, else one for each part of the stream that has text."""
        if response.content_type == "text/event-stream":
            return await self._read_stream(response, answer)
        body = await super().read(response, answer, request)
        content = _parsed(body)
        try:
            text = _text_of(content["choices"][0])
            answer.tokens = _tokens(content["usage"]) if content.get("usage") else None
        except (LookupError, TypeError, AttributeError):
            raise InvalidResponseError(f"no completion: {body[:_SHOWN]!r}") from None
        return text.encode()

    async def _read_stream(self, response: aiohttp.ClientResponse, answer: Answer) -> bytes:
        texts: list[str] = []
        times: list[int] = []
        counted: int | None = None
        is_done, reason = False, None
        async for data, came_ns, is_cut in _events(response):
            if data == DONE:
                answer.done_ns, is_done = came_ns, True  # the server may keep the connection open
                break
            try:
                part = _parsed(data)
            except InvalidResponseError:
                if is_cut:
                    break
                raise
            try:
                if part.get("error"):
                    raise StreamError(f"the stream says: {str(part['error'])[:_SHOWN]}")
                if part.get("usage"):
                    counted = _tokens(part["usage"])
                choice = part["choices"][0] if part["choices"] else {}
                text = _text_of(choice)
                reason = choice.get("finish_reason") or reason
            except (LookupError, TypeError, AttributeError):
                raise InvalidResponseError(f"no part of a completion: {data[:_SHOWN]!r}") from None
            if text:
                texts.append(text)
                times.append(came_ns)
        if not is_done and (reason is None or self.settings.done):
            last = "" if reason is None else f" and finish_reason {reason!r}"
            raise CutOffError(f"the stream ended after {len(times)} parts with text{last}, without [DONE]")
        answer.first_token_ns = times[0] if times else None
        answer.token_gaps_ns = [after - before for before, after in itertools.pairwise(times)]
        answer.tokens = counted if counted is not None else len(times)
        return "".join(texts).encode()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[bytes, int, bool]]:
    """The data of each event of a stream, when it came, and whether the stream ended in its line."""
    rest = b""
    async for chunk in response.content.iter_any():
        came_ns = time.perf_counter_ns()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                yield line[len(DATA) :].strip(), came_ns, False
    if rest.startswith(DATA):
        yield rest[len(DATA) :].strip(), time.perf_counter_ns(), True


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise InvalidResponseError(f"no JSON: {data[:_SHOWN]!r}") from None


def _tokens(usage: dict[str, Any]) -> int | None:
    """What the server counted; None: it says that it did not. Raises `TypeError` where that is no count."""
    count = usage["completion_tokens"]
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
        raise TypeError("no number of tokens")
    return count


def _text_of(choice: dict[str, Any]) -> str:
    """The text of a choice, of chat or not, whole or a part; a model's reasoning is text too."""
    holder = choice.get("delta") or choice.get("message") or choice
    return "".join(holder.get(name) or "" for name in ("reasoning_content", "content", "text"))
