"""Crowds at a listener's door: whatever they do, it stays small and lets honest peers in."""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

import rdmatx
from rdmatx import _C, errors
from tests.launch import TIME_SCALE, Rank, Ranks
from tests.multiprocess import bootstrap_records as records
from tests.multiprocess.bootstrap_records import knock, knocking, receive_record, record
from tests.multiprocess.conftest import PATIENCE

SECRET = "sixteen bytes at the least"
CROWD = 1000
# What csrc/messaging/listener.cpp allows at a time.
MOST_HALF_OPEN = 256
MOST_WAITING = 1024
# How long an honest peer may wait while a crowd knocks. It is half a second on a quiet machine.
HONEST_SECONDS = 5.0 * TIME_SCALE


def serve(
    rank: Rank, provider: str, device: str | None, secret: str | None, descriptors: int | None
) -> dict[str, int]:
    """Echoes one message of each peer, until one says stop."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    stop = threading.Event()

    def answer(peer: rdmatx.Connection) -> None:
        word = bytearray(4)
        with peer, suppress(errors.PeerLostError, errors.CompletionError, errors.TimeoutError):
            peer.recv(word)
            if word == b"stop":
                stop.set()
            peer.send(word)

    threads = []
    with (
        rdmatx.Context(device, provider, timeout=PATIENCE) as context,
        context.listen(secret=secret) as listener,
    ):
        rank.tell(listener.address)
        while not stop.is_set():
            with suppress(errors.TimeoutError):
                thread = threading.Thread(target=answer, args=(listener.accept(timeout=0.2),))
                thread.start()
                threads.append(thread)
        stats = listener.stats()
        for thread in threads:
            thread.join()
    return stats


class Server:
    """The process of a listener, seen from outside."""

    def __init__(
        self,
        provider: str,
        device: str | None,
        *,
        secret: str | None = None,
        descriptors: int | None = None,
    ) -> None:
        self.secret = secret
        self.ranks = Ranks(
            serve, provider, device, secret, descriptors, ranks=1, timeout=100, environment=QUIET
        )
        self.address = str(self.ranks.hear(0))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.ranks.pid(0)}/fd"))

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.ranks.pid(0)}/statm") as pages:
            return int(pages.read().split()[1]) * resource.getpagesize()

    def honest(self, context: rdmatx.Context, word: bytes = b"fine") -> float:
        """One peer that connects and is answered; how long the connecting took, in seconds."""
        begin = time.monotonic()
        with context.connect(self.address, secret=self.secret) as peer:
            seconds = time.monotonic() - begin
            peer.send(word)
            echo = bytearray(4)
            peer.recv(echo)
            assert echo == word
        return seconds

    def stop(self, context: rdmatx.Context) -> dict[str, int]:
        self.honest(context, b"stop")
        stats = self.ranks.result(0)
        assert isinstance(stats, dict)
        return stats


QUIET = {"RDMATX_SECRET": ""}


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    """Room for the crowd's own sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CROWD
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- what crowds do: each gets the address and a stack that closes its sockets -------------------

Crowd = Callable[[str, ExitStack], None]


def each_says(words: Callable[[int], bytes], *, count: int = CROWD) -> Crowd:
    def come(address: str, sockets: ExitStack) -> None:
        for index in range(count):
            with suppress(OSError):
                stranger = sockets.enter_context(knock(address))
                stranger.sendall(words(index))

    return come


def garbage(index: int) -> bytes:
    return random.Random(index).randbytes(1 + index * 37 % 20000)


def garbage_of_ours(index: int) -> bytes:
    """A valid head, and nonsense behind it."""
    return record(1 + index % 9, garbage(index)[:16000])


def tls_hello(_: int) -> bytes:
    return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2


def close_at_once(address: str, _: ExitStack) -> None:
    for _index in range(CROWD):
        knocking(address).close()


def reset_at_once(address: str, _: ExitStack) -> None:
    for index in range(CROWD):
        with knock(address) as stranger:
            if index % 2:
                stranger.sendall(record(records.HELLO, b"abc")[: 1 + index % 15])
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


CROWDS: dict[str, Crowd] = {
    "silent": each_says(lambda _: b""),
    "one byte": each_says(lambda _: b"R"),
    "http": each_says(lambda _: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "tls": each_says(tls_hello),
    "4 GiB": each_says(lambda _: records.HEAD.pack(b"RDMX", 2, 1, 0xFFFFFFFF) + bytes(1000)),
    "garbage": each_says(garbage),
    "garbage of ours": each_says(garbage_of_ours),
    "half a record": each_says(lambda _: record(records.HELLO, bytes(16384))[:10000]),
    "greets and waits": each_says(lambda _: record(records.GREETING, bytes(32))),
    "close": close_at_once,
    "reset": reset_at_once,
}


@pytest.mark.soft_only
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("crowd", "secret"),
    [
        *((crowd, None) for crowd in CROWDS),
        *((crowd, SECRET) for crowd in ("silent", "garbage of ours", "greets and waits")),
    ],
)
def test_a_crowd_keeps_nobody_out_and_costs_little(
    provider: str, device_name: str | None, crowd: str, secret: str | None
) -> None:
    server = Server(provider, device_name, secret=secret)
    with server.ranks, rdmatx.Context(device_name, provider, timeout=PATIENCE) as context:
        server.honest(context)
        descriptors, resident = server.descriptors(), server.resident_bytes()
        with ExitStack() as sockets:
            coming = threading.Thread(target=CROWDS[crowd], args=(server.address, sockets))
            coming.start()
            waited = []
            while coming.is_alive() or len(waited) < 5:
                waited.append(server.honest(context))
                assert server.descriptors() <= descriptors + MOST_HALF_OPEN + 40
            coming.join()
            waited.append(server.honest(context))
            grown = server.resident_bytes() - resident
        print(f"honest peers waited up to {max(waited):.3f} s; {grown >> 10} KiB more")
        assert max(waited) < HONEST_SECONDS
        assert grown < 64 << 20
        stats = server.stop(context)
        assert stats["accepted"] == len(waited) + 2
        # None is forgotten; those that are there yet have been taken and not given up.
        counted = sum(stats.values()) - stats["accepted"] - stats["waiting"]
        assert counted <= CROWD
        assert stats["half_open"] <= MOST_HALF_OPEN


@pytest.mark.soft_only
@pytest.mark.timeout(120)
def test_slow_ones_are_given_up_and_fill_nothing(provider: str, device_name: str | None) -> None:
    """A byte now and then, from the moment they come until their time is up."""
    server = Server(provider, device_name)
    with (
        server.ranks,
        rdmatx.Context(device_name, provider, timeout=PATIENCE) as context,
        ExitStack() as sockets,
    ):
        server.honest(context)
        descriptors = server.descriptors()
        words = record(records.HELLO, bytes(1000))
        slow = [sockets.enter_context(knock(server.address)) for _ in range(200)]
        waited = []
        for index in range(60):
            for stranger in slow:
                with suppress(OSError):
                    stranger.sendall(words[index : index + 1])
            waited.append(server.honest(context))
            if server.descriptors() <= descriptors + 2 and index > 5:
                break
            time.sleep(0.3)
        assert server.descriptors() <= descriptors + 2
        assert max(waited) < HONEST_SECONDS
        stats = server.stop(context)
        assert stats["timed_out"] == 200
        assert stats["accepted"] == len(waited) + 2


@pytest.mark.soft_only
@pytest.mark.timeout(120)
def test_one_address_does_not_crowd_out_another(provider: str, device_name: str | None) -> None:
    """A quiet peer of another address keeps its place while a thousand of one address come."""
    server = Server(provider, device_name)
    with (
        server.ranks,
        rdmatx.Context(device_name, provider, timeout=PATIENCE) as context,
        ExitStack() as sockets,
        knock(server.address, "127.0.0.2") as quiet,
    ):
        CROWDS["silent"](server.address, sockets)
        server.honest(context)
        quiet.sendall(record(records.READY, b"\0\0"))
        assert b"starts with a hello" in receive_record(quiet)
        stats = server.stop(context)
        assert stats["refused"] == 1
        assert stats["shut_out"] >= CROWD - MOST_HALF_OPEN


def recorded_hello(context: rdmatx.Context) -> bytes:
    """What an honest connector says first."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(PATIENCE)
        said: list[bytes] = []

        def take() -> None:
            stream, _ = door.accept()
            with stream:
                stream.settimeout(PATIENCE)
                said.append(receive_record(stream))

        thread = threading.Thread(target=take)
        thread.start()
        with pytest.raises(errors.PeerLostError):
            context.connect(f"127.0.0.1:{door.getsockname()[1]}")
        thread.join()
    return said[0]


@pytest.mark.soft_only
@pytest.mark.timeout(120)
def test_those_that_say_hello_and_stop_are_bounded(provider: str, device_name: str | None) -> None:
    """Without a secret a stranger gets a queue pair for a valid hello; not for long, and not many."""
    server = Server(provider, device_name)
    with (
        server.ranks,
        rdmatx.Context(device_name, provider, timeout=PATIENCE) as context,
        ExitStack() as sockets,
    ):
        server.honest(context)
        descriptors = server.descriptors()
        hello = recorded_hello(context)
        coming = threading.Thread(
            target=each_says(lambda _: hello, count=600), args=(server.address, sockets)
        )
        coming.start()
        coming.join()
        seconds = server.honest(context)
        assert seconds < PATIENCE
        # A queue pair of the software HCA has descriptors of its own.
        assert server.descriptors() <= descriptors + 4 * MOST_HALF_OPEN
        stats = server.stop(context)
        assert stats["accepted"] == 3


@pytest.mark.soft_only
@pytest.mark.timeout(120)
def test_a_process_of_few_descriptors_keeps_some(provider: str, device_name: str | None) -> None:
    """A crowd takes a quarter of what it may open, so that honest peers find the rest."""
    server = Server(provider, device_name, descriptors=100)
    with server.ranks, rdmatx.Context(device_name, provider, timeout=PATIENCE) as context:
        server.honest(context)
        with ExitStack() as sockets:
            each_says(lambda _: b"", count=300)(server.address, sockets)
            assert server.honest(context) < HONEST_SECONDS
        server.honest(context)
        server.stop(context)


# ---- crowds of honest peers ----------------------------------------------------------------------


def connect_many(
    rank: Rank, provider: str, device: str | None, threads: int, each: int, secret: str | None
) -> float:
    """Connects from several threads at once; how long the slowest connecting took."""
    address = rank.listen()
    slowest: list[float] = []
    failures: list[BaseException] = []
    with rdmatx.Context(device, provider, timeout=PATIENCE) as context:

        def run() -> None:
            try:
                for _ in range(each):
                    begin = time.monotonic()
                    with context.connect(address, secret=secret) as peer:
                        slowest.append(time.monotonic() - begin)
                        peer.send(b"ping")
                        peer.recv(bytearray(4))
            except BaseException as error:
                failures.append(error)

        running = [threading.Thread(target=run) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if failures:
            raise failures[0]
    return max(slowest)


@pytest.mark.soft_only
@pytest.mark.timeout(150)
@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
def test_a_thousand_honest_peers(
    provider: str, device_name: str | None, secret: str | None
) -> None:
    server = Server(provider, device_name, secret=secret)
    with (
        server.ranks,
        Ranks(connect_many, provider, device_name, 25, 10, secret, ranks=4, timeout=120) as crowd,
        rdmatx.Context(device_name, provider, timeout=PATIENCE) as context,
    ):
        for index in range(4):
            crowd.tell(index, server.address)
        print(f"the slowest waited {max(crowd.results()):.3f} s")
        stats = server.stop(context)
        assert stats.pop("accepted") == 1001
        assert not any(stats.values())


@pytest.mark.soft_only
@pytest.mark.timeout(150)
def test_connections_that_nobody_accepts_are_bounded(
    provider: str, device_name: str | None
) -> None:
    """Above 1,024 of them, those that connect wait until others are accepted."""
    more = 2 * MOST_HALF_OPEN
    with (
        rdmatx.Context(device_name, provider, timeout=6 * PATIENCE) as context,
        context.listen() as listener,
        ExitStack() as made,
    ):
        lock = threading.Lock()
        count = [0] * 8
        share = (MOST_WAITING + more) // len(count)

        def connect(number: int) -> None:
            for _ in range(share):
                connection = context.connect(listener.address)
                with lock:
                    made.enter_context(connection)
                count[number] += 1

        threads = [threading.Thread(target=connect, args=(i,)) for i in range(len(count))]
        for thread in threads:
            thread.start()
        while listener.stats()["waiting"] < MOST_WAITING:
            time.sleep(0.05)
        time.sleep(0.5)
        waiting = listener.stats()["waiting"]
        assert MOST_WAITING <= waiting <= MOST_WAITING + MOST_HALF_OPEN
        assert sum(count) < share * len(count)
        for _ in range(share * len(count)):
            listener.accept().close()
        for thread in threads:
            thread.join()
        assert listener.stats()["accepted"] == share * len(count)
    assert not _C.live_objects().get("queue pair", 0)
