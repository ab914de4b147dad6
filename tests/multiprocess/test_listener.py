"""Listeners: addresses, strangers at the door, and connections from every side."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

import rdmatx
from rdmatx import errors
from tests.launch import Rank, launch
from tests.multiprocess.conftest import PATIENCE

MAGIC = b"RDMX"
VERSION = 2


@contextmanager
def knock(address: str) -> Iterator[socket.socket]:
    host, port = address.rsplit(":", 1)
    with closing(socket.create_connection((host, int(port)), timeout=PATIENCE)) as stranger:
        yield stranger


def still_serves(context: rdmatx.Context, listener: rdmatx.Listener) -> None:
    with context.connect(listener.address) as near, listener.accept() as far:
        near.send(b"fine")
        assert far.recv(bytearray(4)) == 4


def answer_to(listener: rdmatx.Listener, words: bytes) -> bytes:
    """What a stranger that says `words` is told before the door is shut."""
    with knock(listener.address) as stranger:
        stranger.sendall(words)
        answer = b""
        while piece := stranger.recv(4096):
            answer += piece
        return answer


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"no rdmatx handshake"),
        (MAGIC + struct.pack("<HHI", VERSION, 1, 0xFFFFFFFF), b"4294967295"),
        (MAGIC + struct.pack("<HHI", VERSION, 1, 4) + b"abcd", b"malformed"),
        (MAGIC + struct.pack("<HHI", 9, 1, 0), b"version 9"),
        (MAGIC + struct.pack("<HHI", 1, 1, 0), b"version 1 of"),
        (MAGIC + struct.pack("<HHI", VERSION, 77, 0), b"unknown kind"),
        (MAGIC + struct.pack("<HHI", VERSION, 3, 2) + b"\0\0", b"starts with a hello"),
    ],
)
def test_strangers_are_told_and_shut_out(
    context: rdmatx.Context, words: bytes, told: bytes
) -> None:
    with context.listen() as listener:
        answer = answer_to(listener, words)
        assert answer.startswith(MAGIC)
        assert told in answer
        still_serves(context, listener)


def test_strangers_that_say_nothing_keep_nobody_out(context: rdmatx.Context) -> None:
    """More silent sockets than handshakes may be half done, one of them a byte at a time."""
    with context.listen() as listener:
        host, port = listener.address.rsplit(":", 1)
        silent = [socket.create_connection((host, int(port)), PATIENCE) for _ in range(100)]
        for stranger in silent:
            stranger.sendall(b"R")
        still_serves(context, listener)
        for stranger in silent:
            stranger.close()
        still_serves(context, listener)


def test_a_peer_of_another_version_says_so(context: rdmatx.Context) -> None:
    """A listener of a later version refuses in words, and connect() hands them on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as later:

        def refuse() -> None:
            connection, _ = later.accept()
            with connection:
                connection.recv(65536)
                text = b"this side speaks version 3: install the same rdmatx on both"
                body = struct.pack("<H", len(text)) + text
                connection.sendall(MAGIC + struct.pack("<HHI", 3, 4, len(body)) + body)

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(errors.UnavailableError, match="speaks version 3"):
            context.connect(f"127.0.0.1:{later.getsockname()[1]}")
        thread.join()


def test_nobody_listens(context: rdmatx.Context) -> None:
    with context.listen() as listener:
        address = listener.address
    with pytest.raises(errors.PeerLostError, match="nothing listens there") as caught:
        context.connect(address)
    assert caught.value.peer == address
    assert isinstance(caught.value, ConnectionError)


def test_a_listener_that_says_nothing_times_out(context: rdmatx.Context) -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as mute,
        pytest.raises(errors.TimeoutError, match="no answer within"),
    ):
        context.connect(f"127.0.0.1:{mute.getsockname()[1]}", timeout=0.2)


@pytest.mark.parametrize(
    "wrong",
    ["", "localhost", "host:port", "1.2.3.4:", "1.2.3.4:70000", "::1:80", "[::1]", "[::1:80"],
)
def test_wrong_addresses(context: rdmatx.Context, wrong: str) -> None:
    with pytest.raises(errors.UsageError, match="no address"):
        context.connect(wrong)
    with pytest.raises(errors.UsageError, match="no address"):
        context.listen(wrong)


def test_addresses_in_use_and_of_others(context: rdmatx.Context) -> None:
    with (
        context.listen() as listener,
        pytest.raises(errors.Error, match="another program listens there"),
    ):
        context.listen(listener.address)
    with pytest.raises(errors.Error, match="no such address"):
        context.listen("203.0.113.7:0")


def test_names_and_ipv6(context: rdmatx.Context) -> None:
    with context.listen("localhost:0") as listener:
        port = listener.address.rsplit(":", 1)[1]
        with context.connect(f"localhost:{port}") as near, listener.accept() as far:
            near.send(b"by name")
            assert far.recv(bytearray(7)) == 7
    with context.listen(":0") as listener:
        assert listener.address.startswith("127.0.0.1:")
    with closing(socket.socket(socket.AF_INET6)) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return  # a machine without IPv6
    with context.listen("[::1]:0") as listener:
        assert listener.address.startswith("[::1]:")
        still_serves(context, listener)


def test_both_sides_connect_at_once(provider: str, device_name: str | None) -> None:
    """Each of two contexts listens and connects to the other: two connections, none in the other's way."""
    with (
        rdmatx.Context(device_name, provider, timeout=PATIENCE) as left,
        rdmatx.Context(device_name, provider, timeout=PATIENCE) as right,
        left.listen() as at_left,
        right.listen() as at_right,
    ):
        made: dict[str, rdmatx.Connection] = {}
        threads = [
            threading.Thread(target=lambda: made.update(left=left.connect(at_right.address))),
            threading.Thread(target=lambda: made.update(right=right.connect(at_left.address))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with made["left"] as a, made["right"] as b, at_left.accept() as c, at_right.accept() as d:
            for sender, receiver, text in ((a, d, b"a"), (d, a, b"d"), (b, c, b"b"), (c, b, b"c")):
                sender.send(text)
                buffer = bytearray(1)
                receiver.recv(buffer)
                assert buffer == text


def test_a_connection_says_where_it_goes(context: rdmatx.Context, provider: str) -> None:
    with (
        context.listen() as listener,
        context.connect(listener.address) as near,
        listener.accept() as far,
    ):
        assert near.peer == listener.address
        assert far.peer.startswith("127.0.0.1:")
        assert context.provider == provider
        assert context.device in near.path
        assert context.device in context.describe()
        assert context.device in repr(context)


def late_listener(rank: Rank, provider: str, device: str | None, port: int) -> bytes:
    """Rank 0 listens only after rank 1 has been trying for a while."""
    with rdmatx.Context(device, provider, timeout=PATIENCE) as context:
        if rank.index == 0:
            assert rank.receive(1) == "trying"
            time.sleep(0.3)
            with (
                context.listen(f"127.0.0.1:{port}") as listener,
                listener.accept() as connection,
            ):
                connection.send(b"at last")
                return b"at last"
        address = f"127.0.0.1:{port}"
        with pytest.raises(errors.PeerLostError, match="nothing listens"):
            context.connect(address)
        started = time.monotonic()
        with pytest.raises(errors.PeerLostError, match="nothing listens"):
            context.connect(address, timeout=0.2, retry=True)
        assert time.monotonic() - started < 1.2
        rank.send(0, "trying")
        with context.connect(address, retry=True) as connection:
            buffer = bytearray(20)
            return bytes(buffer[: connection.recv(buffer)])


def test_connecting_to_a_listener_that_comes_late(provider: str, device_name: str | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert launch(late_listener, provider, device_name, port) == [b"at last", b"at last"]
