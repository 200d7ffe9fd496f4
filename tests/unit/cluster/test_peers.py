"""What hostile peers send to node 0: the launch goes on, and nothing is read or written that no node sent."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

import pytest

from perfharness.cluster.meeting import Meeting, meeting
from perfharness.cluster.member import join
from perfharness.cluster.node import Node
from perfharness.cluster.wire import Wire
from perfharness.model.manifest import MANIFEST_NAME
from tests.integration.launches import wait_for
from tests.unit.run_records import manifest_of

TOKEN, PATIENCE_S = b"the secret of this launch", 60.0
DEEP = b"[" * 200_000
GIB = struct.pack("!i", 1 << 30)
"""The length of a message, as `multiprocessing.connection` announces it."""


@contextmanager
def node_0(out: Path) -> Iterator[tuple[Meeting, Node, list[str]]]:
    said: list[str] = []
    with meeting(Node(0, 2, "", ("127.0.0.1", 0), TOKEN), out, PATIENCE_S, said.append) as (met, known):
        yield met, known, said


def connected(stack: ExitStack, node: Node) -> socket.socket:
    assert node.address is not None
    return stack.enter_context(socket.create_connection(node.address))


def proven(below: socket.socket, stack: ExitStack, token: bytes = TOKEN) -> Wire:
    wire = Wire(below, PATIENCE_S)
    stack.callback(wire.close)
    wire.prove(token, listening=False)
    return wire


def raw(content: bytes) -> Callable[[ExitStack, Node], None]:
    return lambda stack, node: connected(stack, node).sendall(content)


def many(stack: ExitStack, node: Node) -> None:
    for number in range(100):
        connected(stack, node).sendall(b"\x80\x05garbage\r\n\r\n" * (number % 2))


def wrong_token(stack: ExitStack, node: Node) -> None:
    with pytest.raises(AuthenticationError):
        proven(connected(stack, node), stack, b"wrong")


def hello(rank: Any, count: Any = 2) -> Callable[[ExitStack, Node], None]:
    def act(stack: ExitStack, node: Node) -> None:
        with suppress(EOFError):
            answer = proven(connected(stack, node), stack).ask(type="hello", rank=rank, count=count, host="evil")
            assert answer["refused"] is not None

    return act


def after_proof(content: bytes) -> Callable[[ExitStack, Node], None]:
    def act(stack: ExitStack, node: Node) -> None:
        wire = proven(connected(stack, node), stack)
        wire.send_bytes(content)
        with pytest.raises((OSError, EOFError)):
            wire.receive()

    return act


STRANGERS: dict[str, Callable[[ExitStack, Node], None]] = {
    "wrong token": wrong_token,
    "garbage": raw(b"GET / HTTP/1.1\r\n\r\n"),
    "hangs in the handshake": raw(b""),
    "1 GiB announced": raw(GIB),
    "100 connections": many,
    "node 7 of 2": hello(7),
    "node 1 of 3": hello(1, 3),
    "node -1": hello(-1),
    "no number": hello([]),
    "deep JSON": after_proof(DEEP),
    "no JSON": after_proof(b"\x80\x05."),
    "no object": after_proof(b"[]"),
}


@pytest.mark.parametrize("case", STRANGERS)
def test_strangers_do_not_disturb_the_nodes(tmp_path: Path, case: str) -> None:
    own = tmp_path / "node_1"
    own.mkdir()
    (own / MANIFEST_NAME).write_text(manifest_of().model_dump_json())
    with node_0(tmp_path) as (met, known, said), ExitStack() as stack:
        STRANGERS[case](stack, known)
        member = join(Node(1, 2, "", known.address, TOKEN), tmp_path, PATIENCE_S, said.append)
        assert member.hand_over(own, "r1") is not None
        assert met.wait_for_results(tmp_path / "inbox") == {1: own}
        member.close()
    assert sum("refused a connection" in line for line in said) <= 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == [MANIFEST_NAME, "node_1"]


def test_who_is_here_and_who_has_left_may_not_join(tmp_path: Path) -> None:
    greeting = {"type": "hello", "rank": 1, "count": 2}
    with node_0(tmp_path) as (_, known, said), ExitStack() as stack:
        first, again, last = (proven(connected(stack, known), stack) for _ in range(3))
        assert first.ask(**greeting, host="early")["refused"] is None
        assert "early" in again.ask(**greeting, host="late")["refused"]
        first.close()
        wait_for(lambda: any("early" in line and "lost" in line for line in said))
        assert "early" not in last.ask(**greeting, host="late")["refused"]


def file(name: str, content: bytes = b"x") -> Callable[[Wire, Path], None]:
    def act(wire: Wire, out: Path) -> None:
        wire.ask(type="results", folder=str(out / "none"), run_id="r1")
        wire.send(file=name, bytes=len(content))
        with suppress(OSError):  # node 0 may have hung up already
            wire.send_bytes(content)
            wire.send(file=None)

    return act


def linked(wire: Wire, out: Path) -> None:
    """The results are said to be in the output folder, by a link that leads out of it."""
    elsewhere = out.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / MANIFEST_NAME).write_text(manifest_of().model_dump_json())
    (out / "node_1").symlink_to(elsewhere)
    assert wire.ask(type="results", folder=str(out / "node_1"), run_id="r1")["send"] is True


def message(content: bytes) -> Callable[[Wire, Path], None]:
    return lambda wire, out: wire.send_bytes(content)


IMPOSTORS: dict[str, Callable[[Wire, Path], None]] = {
    "a path upwards": file("../x"),
    "a path upwards, inside": file("proc_0_gpu_0/../../x"),
    "an absolute path": file("/tmp/perfharness-x"),
    "no name": file(""),
    "a link": linked,
    "deep JSON": message(DEEP),
    "an unknown message": message(json.dumps({"type": "shell"}).encode()),
}


@pytest.mark.parametrize("case", [*IMPOSTORS, "1 GiB announced"])
def test_a_node_that_misbehaves_is_left_out(tmp_path: Path, case: str) -> None:
    out, inbox = tmp_path / "out", tmp_path / "inbox"
    out.mkdir()
    inbox.mkdir()
    with node_0(out) as (met, known, said), ExitStack() as stack:
        met.inbox = inbox
        below = connected(stack, known)
        wire = proven(below, stack)
        assert wire.ask(type="hello", rank=1, count=2, host="evil")["refused"] is None
        if case in IMPOSTORS:
            IMPOSTORS[case](wire, out)
        else:
            below.sendall(GIB)
        wire.close()
        assert met.wait_for_results(inbox) == {}
        assert any("lost node 1 (evil)" in line for line in said)
    written = [path for path in tmp_path.rglob("x") if path.is_file()]
    assert written == []
    assert not Path("/tmp/perfharness-x").exists()
