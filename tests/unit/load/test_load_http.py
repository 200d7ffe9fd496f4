"""HTTP targets against a real server."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import trustme

from perfharness.errors import LaunchError, UsageError
from perfharness.load.http import PROTOCOLS, Client, HttpTarget
from perfharness.load.http_settings import HttpSettings, http_settings
from perfharness.load.profile import profile_of
from perfharness.load.record import memory_bytes_below
from perfharness.load.request import Answer, LoadRequest
from perfharness.load.stress import plan_stress
from tests.load_server import Options, draws, serving


def ask(
    settings: HttpSettings, count: int = 1, *, items: int = 1, name: str | None = None, checked: bool = True
) -> list[Answer]:
    """The answers to that many requests, one after the other."""

    async def run() -> list[Answer]:
        target = target_of(settings)
        try:
            if checked:
                await target.check({name: items}, 20.0)
            return [await target.call_async(LoadRequest(index, items, name, "p", 0)) for index in range(count)]
        finally:
            await target.close_async()

    return asyncio.run(run())


def target_of(settings: HttpSettings) -> HttpTarget:
    return HttpTarget(PROTOCOLS[settings.kind](settings), Client(settings))


def kinds(answers: list[Answer]) -> list[str | None]:
    return [answer.error for answer in answers]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving() as url:
        yield url


def counts(url: str) -> dict[str, Any]:
    async def get() -> Any:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/counts") as response:
            return await response.json()

    found: dict[str, Any] = asyncio.run(get())
    return found


# ---- errors by kind ----


def test_planted_errors_resets_and_wrong_answers_are_counted_by_kind(tmp_path: Path) -> None:
    options = Options(errors=0.2, resets=0.2, wrong=0.2, seed=3)
    arguments = ("--errors", 0.2, "--resets", 0.2, "--wrong", 0.2, "--seed", 3)
    names = {"error": "http-500", "reset": "reset", "wrong": "wrong-answer", None: None}
    with serving(*arguments) as url:
        found = ask(HttpSettings(url=f"{url}/", expect_text="42"), 60, checked=False)
        served = counts(url)
    assert kinds(found) == [names[draws(options, index)] for index in range(60)]
    assert served["requests"] == 60  # a GET that was reset is not sent again
    assert {answer.error for answer in found} == {None, "http-500", "reset", "wrong-answer"}
    wrong = next(answer for answer in found if answer.error == "wrong-answer")
    assert wrong.message is not None
    assert "13" in wrong.message
    assert "42" in wrong.message


def test_a_full_queue_answers_503() -> None:
    async def burst(url: str) -> list[str | None]:
        target = target_of(HttpSettings(url=url))
        calls = [target.call_async(LoadRequest(index, 1, None, "p", 0)) for index in range(6)]
        answers = await asyncio.gather(*calls)
        await target.close_async()
        return kinds(answers)

    with serving("--service-ms", 300, "--servers", 2, "--queue", 1) as url:
        found = asyncio.run(burst(url))
    assert sorted(found, key=str) == [None] * 3 + ["http-503"] * 3  # two in service, one waits


def test_nobody_listens_and_a_name_that_is_not_known() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        assert kinds(ask(HttpSettings(url=url), checked=False)) == ["refused"]
        with pytest.raises(LaunchError, match="--start"):
            ask(HttpSettings(url=url))
    assert kinds(ask(HttpSettings(url="http://no-such-host.invalid/"), checked=False)) == ["dns"]
    with pytest.raises(LaunchError, match=r"no-such-host\.invalid"):
        ask(HttpSettings(url="http://no-such-host.invalid/"))


def test_a_server_without_tls_and_one_that_speaks_something_else(server: str) -> None:
    secure = HttpSettings(url=server.replace("http:", "https:"))
    assert kinds(ask(secure, checked=False)) == ["tls"]
    with pytest.raises(LaunchError, match="verify-tls"):
        ask(secure)

    async def speak(answer: bytes) -> list[str | None]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        target = target_of(HttpSettings(url=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"))
        async with listening:
            found = await target.call_async(LoadRequest(0, 1, None, "p", 0))
            await target.close_async()
        return [found.error]

    assert asyncio.run(speak(b"220 mail.example ESMTP\r\n\r\n")) == ["invalid-response"]
    assert asyncio.run(speak(b"")) == ["reset"]
    assert asyncio.run(speak(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")) == ["cut-off"]
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    assert asyncio.run(speak(chunked)) == ["cut-off"]
    assert asyncio.run(speak(chunked + b"0\r\n\r\n")) == [None]
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"
    assert asyncio.run(speak(packed)) == ["invalid-response"]
    assert asyncio.run(speak(b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n")) == ["http-302"]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def ask_over_tls(
    scheme: str, certificate: trustme.LeafCert, host: str, *, checked: bool, **settings: Any
) -> str | None:
    """The kind of error of a request to a server that speaks TLS."""

    async def run() -> str | None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                await writer.drain()
            writer.close()

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        url = f"{scheme}://{host}:{listening.sockets[0].getsockname()[1]}/"
        target = target_of(HttpSettings(url=url, **settings))
        async with listening:
            try:
                if checked:
                    await target.check({None: 1}, 20.0)
                return (await target.call_async(LoadRequest(0, 1, None, "p", 0))).error
            finally:
                await target.close_async()

    return asyncio.run(run())


def test_certificates_that_are_not_trusted_and_plain_http_to_a_server_with_tls(
    authority: trustme.CA,
) -> None:
    named = authority.issue_cert("127.0.0.1")
    assert ask_over_tls("https", named, "127.0.0.1", checked=False) == "tls"
    with pytest.raises(LaunchError, match="verify-tls"):
        ask_over_tls("https", named, "127.0.0.1", checked=True)
    assert ask_over_tls("https", named, "127.0.0.1", checked=True, verify_tls=False) is None
    assert ask_over_tls("http", named, "127.0.0.1", checked=False) in ("reset", "invalid-response")


def test_a_server_that_drops_a_kept_connection_is_counted_and_not_asked_again() -> None:
    """Its second request on a connection finds it closed; the next one gets a new connection."""
    asked = 0

    async def run() -> list[Answer]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            for turn in range(2):
                await reader.readuntil(b"\r\n\r\n")
                asked += 1
                if not turn:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    await writer.drain()
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        target = target_of(HttpSettings(url=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"))
        async with listening:
            found = [await target.call_async(LoadRequest(index, 1, None, "p", 0)) for index in range(4)]
            await target.close_async()
        return found

    found = asyncio.run(run())
    assert kinds(found) == [None, "reset", None, "reset"]
    assert asked == 4


def test_an_answer_that_does_not_come_is_a_timeout() -> None:
    with serving("--service-ms", 60_000) as url:
        assert kinds(ask(HttpSettings(url=url, read_timeout_s=0.2), checked=False)) == ["timeout"]


def test_a_request_that_the_server_refuses_is_told_before_the_run(server: str) -> None:
    with pytest.raises(UsageError, match="404"):
        ask(HttpSettings(url=f"{server}/nowhere"))
    assert kinds(ask(HttpSettings(url=f"{server}/nowhere", expect_status=404))) == [None]
    assert kinds(ask(HttpSettings(url=f"{server}/", expect_status=404), checked=False)) == ["wrong-answer"]


# ---- protocols ----


def test_what_a_plain_request_sends(server: str, tmp_path: Path) -> None:
    body = tmp_path / "request.json"
    body.write_text('{"a": 1}')
    long = tmp_path / "long.txt"
    long.write_bytes(b"x" * 3_000_000)
    settings = HttpSettings(url=f"{server}/", body=body, inputs={"long": long}, expect_text='"bytes": 8}')
    assert kinds(ask(settings)) == [None]
    assert kinds(ask(settings, name="long")) == ["wrong-answer"]
    longer = settings.model_copy(update={"expect_text": '"bytes": 3000000}'})
    assert kinds(ask(longer, name="long")) == [None]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_tokens_of_a_stream_and_of_a_whole_answer(path: str) -> None:
    with serving("--service-ms", 30, "--token-ms", 20) as url:
        settings = HttpSettings(url=f"{url}{path}", protocol="openai", max_tokens=5, expect_text="yes yes")
        begun = time.perf_counter_ns()
        (streamed,) = ask(settings)
        (whole,) = ask(settings.model_copy(update={"stream": False}))
        (wrong,) = ask(settings.model_copy(update={"expect_text": "no"}))
    assert (streamed.error, streamed.tokens, whole.error, whole.tokens) == (None, 5, None, 5)
    assert whole.first_token_ns is None  # nothing was streamed
    assert wrong.error == "wrong-answer"
    assert streamed.first_token_ns is not None
    assert streamed.done_ns is not None
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
    found = streamed_answer(body)
    assert found.error == error
    assert (found.tokens, found.first_token_ns is None) == ((1, False) if error is None else (None, True))


@pytest.mark.parametrize("ends", [True, False])
def test_a_stream_ends_with_done_also_where_the_connection_stays_open(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is used again where the body ends soon after, and closed where it does not."""
    monkeypatch.setattr("perfharness.load.http.END_S", 60 if ends else 0.001)
    connections = 0

    async def run() -> None:
        answered = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
                    await reader.readexactly(int(length.partition(b":")[2]))
                    part = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
                    writer.write(b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(part), part))
                    if ends:
                        await answered.wait()
                        writer.write(b"0\r\n\r\n")
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/chat/completions"
        target = target_of(HttpSettings(url=url, model="m"))
        async with listening:
            await target.protocol.prepare(target.client)
            for _ in range(2):
                answered.clear()
                found = await asyncio.wait_for(target.call_async(LoadRequest(0, 1, None, "p", 0)), 60)
                assert (found.error, found.tokens) == (None, 1)
                assert found.done_ns is not None
                answered.set()
                await asyncio.gather(*target.client._ending)
            await target.close_async()

    asyncio.run(run())
    assert connections == (1 if ends else 2)


def streamed_answer(body: bytes, **settings: Any) -> Answer:
    async def run() -> Answer:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            await writer.drain()
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/chat/completions"
        target = target_of(HttpSettings(url=url, model="m", **settings))
        async with listening:
            await target.protocol.prepare(target.client)
            found = await target.call_async(LoadRequest(0, 1, None, "p", 0))
            await target.close_async()
        return found

    return asyncio.run(run())


# ---- expectations and settings ----


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


@pytest.mark.parametrize("url", ["ftp://h/", "http:///x", "h:80/x", "http://h:99999/", "http://[::1"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        HttpSettings(url=url)


def test_no_secret_is_in_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = HttpSettings(url="http://h/", headers={"X-Api-Key": "Bearer ${MY_KEY}", "X-Tenant": "8"})
    with pytest.raises(UsageError, match="MY_KEY"):
        settings.all_headers()
    monkeypatch.setenv("MY_KEY", "s3cret")
    assert settings.all_headers() == {"X-Tenant": "8", "X-Api-Key": "Bearer s3cret"}
    assert "s3cret" not in settings.model_dump_json()
    wrong: dict[str, Any]
    for wrong in ({"url": "http://u:geheim@h/"}, {"url": "http://h/", "given": {"headers": {"X-Api-Key": "abc"}}}):
        with pytest.raises(UsageError, match=r"password|X-Api-Key"):
            http_settings(**wrong)


def test_the_table_of_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "load.toml"
    file.write_text('[target]\nbody = "a.json"\nconnect-timeout = 2\nexpect-status = 200\n')
    found = http_settings("http://h/", file, {"expect_status": 404, "stream": None})
    assert found.body == tmp_path / "a.json"
    assert (found.connect_timeout_s, found.expect_status, found.stream) == (2.0, 404, True)
    for wrong in ("boddy = 1", "max-tokens = 0", 'text = "a"\nbody = "b"'):
        file.write_text(f"[target]\n{wrong}")
        with pytest.raises(UsageError, match="target"):
            http_settings("http://h/", file)


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


def test_the_memory_of_a_server_is_that_of_its_workers_too() -> None:
    program = (
        "import subprocess, sys\n"
        "held = b'x' * int(sys.argv[1])\n"
        "if len(sys.argv) > 2: subprocess.Popen([sys.executable, '-c', sys.argv[2], '60000000'])\n"
        "print('up', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, "90000000", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
        below = memory_bytes_below(process.pid)
        own = psutil.Process(process.pid).memory_info().rss
        process.stdin.close()
    assert below is not None
    assert own + 60_000_000 < below < own + 100_000_000
    assert memory_bytes_below(process.pid) is None
