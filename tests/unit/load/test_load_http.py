"""HTTP targets against real servers."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from perfharness.errors import UsageError
from perfharness.load.http import TARGETS
from perfharness.load.http_settings import HttpSettings, http_settings
from perfharness.load.profile import profile_of
from perfharness.load.request import Answer, LoadRequest
from perfharness.load.stress import plan_stress
from tests.load_server import serving


async def asked(settings: HttpSettings, count: int = 1, *, name: str | None = None, checked: bool = False) -> Any:
    """The answers to that many requests, one after the other."""
    target = TARGETS[settings.kind](settings)
    try:
        if checked:
            await target.check([name], 20.0)
        else:
            await target.prepare()
        return [await target.call_async(LoadRequest(index, 1, name, "p", 0)) for index in range(count)]
    finally:
        await target.close_async()


def kinds(settings: HttpSettings, *arguments: Any, **more: Any) -> list[str | None]:
    return [answer.error for answer in asyncio.run(asked(settings, *arguments, **more))]


def raw(
    *answers: bytes, count: int = 1, path: str = "/", tls: trustme.LeafCert | None = None, scheme: str = "http",
    checked: bool = False, **settings: Any,
) -> tuple[list[Answer], int]:  # fmt: skip
    """The answers of a server that gives these bytes on each connection, then closes it; and how often it was asked."""
    requests = 0

    async def run() -> list[Answer]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal requests
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                for answer in answers:
                    await reader.readuntil(b"\r\n\r\n")
                    requests += 1
                    writer.write(answer)
                    await writer.drain()
            writer.close()

        context = None if tls is None else ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if tls is not None and context is not None:
            tls.configure_cert(context)
        listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}{path}"
        async with listening:
            found: list[Answer] = await asked(HttpSettings(url=url, **settings), count, checked=checked)
        return found

    return asyncio.run(run()), requests


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving() as url:
        yield url


# ---- errors by kind ----

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"220 mail.example ESMTP\r\n\r\n", "invalid-response"),
        (b"", "reset"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "cut-off"),
        (CHUNKED, "cut-off"),
        (CHUNKED + b"0\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", "invalid-response"),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "http-302"),
    ],
)
def test_answers_that_are_none(answer: bytes, error: str | None) -> None:
    (found,), requests = raw(answer)
    assert (found.error, requests) == (error, 1)


def test_a_server_that_drops_a_kept_connection_is_counted_and_not_asked_again() -> None:
    """Its second request on a connection finds it closed; the next one gets a new connection."""
    found, requests = raw(OK, b"", count=4)
    assert ([answer.error for answer in found], requests) == ([None, "reset", None, "reset"], 4)


def test_nobody_listens_and_a_name_that_is_not_known() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        refusing = HttpSettings(url=f"http://127.0.0.1:{taken.getsockname()[1]}/")
        assert kinds(refusing) == ["refused"]
        with pytest.raises(UsageError, match="--start"):
            kinds(refusing, checked=True)
    unknown = HttpSettings(url="http://no-such-host.invalid/")
    assert kinds(unknown) == ["dns"]
    with pytest.raises(UsageError, match=r"no-such-host\.invalid"):
        kinds(unknown, checked=True)


def test_tls_that_is_not_trusted_or_not_spoken(server: str) -> None:
    own = trustme.CA().issue_cert("127.0.0.1")
    (found,), _ = raw(OK, tls=own, scheme="https")
    assert found.error == "tls"
    (found,), _ = raw(OK, tls=own, scheme="https", verify_tls=False, checked=True)
    assert found.error is None
    (found,), _ = raw(OK, tls=own)
    assert found.error in ("reset", "invalid-response")
    plain = HttpSettings(url=server.replace("http:", "https:"))
    assert kinds(plain) == ["tls"]
    with pytest.raises(UsageError, match="verify-tls"):
        kinds(plain, checked=True)


def test_an_answer_that_does_not_come_is_a_timeout() -> None:
    with serving("--service-ms", 60_000) as url:
        assert kinds(HttpSettings(url=url, read_timeout_s=0.2)) == ["timeout"]


def test_a_request_that_the_server_refuses_is_told_before_the_run(server: str) -> None:
    with pytest.raises(UsageError, match="404"):
        kinds(HttpSettings(url=f"{server}/nowhere"), checked=True)
    assert kinds(HttpSettings(url=f"{server}/nowhere", expect_status=404)) == [None]
    assert kinds(HttpSettings(url=f"{server}/", expect_status=404)) == ["wrong-answer"]


def test_an_error_of_the_server_before_the_run_is_a_result() -> None:
    busy = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
    (found,), requests = raw(busy, busy, checked=True)
    assert (found.error, requests) == ("http-503", 2)


# ---- protocols ----


def test_what_a_plain_request_sends(server: str, tmp_path: Path) -> None:
    body, long = tmp_path / "request.json", tmp_path / "long.txt"
    body.write_text('{"a": 1}')
    long.write_bytes(b"x" * 3_000_000)
    settings = HttpSettings(url=f"{server}/", body=body, inputs={"long": long}, expect_text='"bytes": 8}')
    assert kinds(settings) == [None]
    assert kinds(settings, name="long") == ["wrong-answer"]
    longer = settings.model_copy(update={"expect_text": '"bytes": 3000000}'})
    assert kinds(longer, name="long") == [None]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_tokens_of_a_stream_and_of_a_whole_answer(path: str) -> None:
    with serving("--service-ms", 30, "--token-ms", 20) as url:
        settings = HttpSettings(url=f"{url}{path}", protocol="openai", max_tokens=5, expect_text="yes yes")
        begun = time.perf_counter_ns()
        (streamed,) = asyncio.run(asked(settings))
        (whole,) = asyncio.run(asked(settings.model_copy(update={"stream": False})))
        wrong = kinds(settings.model_copy(update={"expect_text": "no"}))
    assert (streamed.error, streamed.tokens, whole.error, whole.tokens) == (None, 5, None, 5)
    assert whole.first_token_ns is None  # nothing was streamed
    assert wrong == ["wrong-answer"]
    assert streamed.first_token_ns - begun >= 30_000_000
    assert len(streamed.token_gaps_ns) == 4
    assert streamed.done_ns >= streamed.first_token_ns + sum(streamed.token_gaps_ns)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n', None),
        (b': ping\r\n\r\ndata: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\ndata: [DONE]\r\n\r\n', None),
        (b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}', "cut-off"),
        (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', "cut-off"),
        (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choi', "cut-off"),
        (b'data: {"error":{"message":"CUDA out of memory"}}\n\n', "stream-error"),
        (b"data: {half\n\n", "invalid-response"),
        (b'data: {"choices":[],"usage":{"completion_tokens":"12"}}\n\ndata: [DONE]\n\n', "invalid-response"),
        (b"", "cut-off"),
    ],
)
def test_a_stream_that_is_cut_or_has_an_error_is_no_answer(body: bytes, error: str | None) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    (found,), _ = raw(head + body, path="/v1/chat/completions", model="m")
    assert found.error == error
    assert (found.tokens, found.first_token_ns is None) == ((1, False) if error is None else (None, True))


# ---- settings ----


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://h/predict", "plain"),
        ("https://h:1/v1/chat/completions", "openai"),
        ("http://h/v1/completions/", "openai"),
    ],
)
def test_the_protocol_by_the_path(url: str, kind: str) -> None:
    assert HttpSettings(url=url).kind == kind


def test_no_secret_is_in_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = HttpSettings(url="http://h/", headers={"X-Api-Key": "Bearer ${MY_KEY}", "X-Tenant": "8"})
    with pytest.raises(UsageError, match="MY_KEY"):
        settings.all_headers()
    monkeypatch.setenv("MY_KEY", "s3cret")
    assert settings.all_headers() == {"X-Tenant": "8", "X-Api-Key": "Bearer s3cret"}
    assert "s3cret" not in settings.model_dump_json()


def test_the_table_of_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "load.toml"
    file.write_text('[target]\nbody = "a.json"\nconnect-timeout = 2\nexpect-status = 200\n')
    found = http_settings("http://h/", file, {"expect_status": 404, "stream": None})
    assert found.body == tmp_path / "a.json"
    assert (found.connect_timeout_s, found.expect_status, found.stream) == (2.0, 404, True)


@pytest.mark.parametrize(
    ("settings", "connections"),
    [
        ({"rate": 5}, 1000),
        ({"rate": 5, "concurrency": 3}, 3),
        ({}, 1),  # a closed loop of one user
        ({"rates": "5,10"}, 1000),
    ],
)
def test_an_open_loop_has_as_many_connections_as_it_takes(settings: dict[str, Any], connections: int) -> None:
    http = HttpSettings(url="http://127.0.0.1:9/")
    plan = plan_stress(http.url, profile_of(settings), {"telemetry": False, "history": False}, http=http)
    assert plan.spec.profile.concurrency == connections
    assert plan.launch.tracer.kind == "none"
