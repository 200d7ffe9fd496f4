"""What is at the other end of pipes and sockets: real ones, and addresses as the system's tables have them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from perfharness.host_probe import peers
from perfharness.host_probe.peers import LOOPBACK, PIPE, REMOTE, Peers


def link(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


@pytest.mark.parametrize(
    ("local", "remote", "is_here"),
    [
        ("0100007F:1F90", "0100007F:D2F0", True),
        ("0200A8C0:D2F0", "0100A8C0:1F90", False),  # 192.168.0.2 to 192.168.0.1
        ("0200A8C0:D2F0", "0200A8C0:1F90", True),  # to itself
        ("0100007F:1F90", "00000000:0000", True),  # listens
        ("00000000:1F90", "00000000:0000", False),  # for anybody
        ("00000000000000000000000001000000:1F90", "00000000000000000000000001000000:D2F0", True),
        ("0000000000000000FFFF00000200A8C0:D2F0", "0000000000000000FFFF00000100007F:1F90", True),
        ("B80D0120000000000000000001000000:1F90", "B80D0120000000000000000002000000:D2F0", False),  # 2001:db8::1
    ],
)
def test_addresses_of_this_machine(local: str, remote: str, is_here: bool) -> None:
    assert peers._is_here(local, remote) is is_here


@pytest.mark.parametrize("kernel_says", [True, False])
def test_kinds_of_sockets(kernel_says: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel_says:
        monkeypatch.setattr(peers, "_ask_kernel", lambda number: (None, ""))
    ends = Peers(os.getpid())
    one, other = socket.socketpair()
    with (
        one, other, socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client, socket.socket(type=socket.SOCK_DGRAM) as any_,
    ):  # fmt: skip
        any_.bind(("0.0.0.0", 0))
        found = [ends.kind(link(each.fileno())) for each in (one, client, listener, any_)]
    assert found == [PIPE, LOOPBACK, LOOPBACK, REMOTE]


def test_who_has_the_other_end() -> None:
    ends = Peers(os.getpid())
    reading, writing = os.pipe()
    one, other = socket.socketpair()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child, one, other:
        assert child.stdin is not None
        assert child.stdout is not None
        assert ends.process(link(child.stdout.fileno()), reads=True) == child.pid
        assert ends.process(link(child.stdin.fileno()), reads=False) == child.pid
        assert ends.process(link(reading), reads=True) == os.getpid()
        if peers._ask_kernel(int(link(one.fileno())[len("socket:[") : -1]))[0]:
            assert ends.process(link(one.fileno()), reads=True) == os.getpid()
        assert peers.name_of(child.pid)
        assert child.pid in peers.family(os.getpid())
        child.stdin.close()
    for descriptor in (reading, writing):
        os.close(descriptor)
    assert peers.name_of(child.pid) == ""
