"""Faults while connections are made: what connect() and accept() say, and how soon."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import rdmatx
from rdmatx import errors
from tests.faults.scene import PATIENCE
from tests.faults.victims import Nursery, Test, Victim
from tests.launch import TIME_SCALE

SHORT = 0.3
OUTLIVES = 1.0 * TIME_SCALE
HELLO = b"RDMX\x02\x00\x01\x00"  # the start of a record that never ends


def listen_and_accept(test: Test, provider: str, device: str | None) -> None:
    """Accepts two connections, when told to, and sends over each."""
    with (
        rdmatx.Context(device, provider, timeout=PATIENCE) as context,
        context.listen("127.0.0.1:0") as listener,
    ):
        test.tell(listener.address)
        while test.listen() == "accept":
            with listener.accept() as connection:
                connection.send(b"welcome")
                test.tell("accepted")
                test.listen()
            test.tell("closed")


def connect_and(test: Test, provider: str, device: str | None, address: str, then: str) -> None:
    """Dies with a connection half made, or just made."""
    if then == "die half way":
        stranger = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
        stranger.sendall(HELLO)
        test.tell("half way")
        test.listen()
        os._exit(1)
    context = rdmatx.Context(device, provider, timeout=PATIENCE)
    context.connect(address)
    os._exit(2)


@contextlib.contextmanager
def timed(limit: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < limit


@pytest.fixture
def context(provider: str, device_name: str | None) -> Iterator[rdmatx.Context]:
    with rdmatx.Context(device_name, provider, timeout=PATIENCE) as context:
        yield context


@pytest.fixture
def far(nursery: Nursery, provider: str, device_name: str | None) -> Iterator[Victim]:
    """A process that listens."""
    with nursery.start(listen_and_accept, provider, device_name) as victim:
        yield victim


def test_connecting_to_one_that_is_stopped(context: rdmatx.Context, far: Victim) -> None:
    address = far.hear()
    far.signal(signal.SIGSTOP)
    with timed(SHORT + OUTLIVES), pytest.raises(errors.TimeoutError) as caught:
        context.connect(address, timeout=SHORT)
    assert address in str(caught.value)
    far.signal(signal.SIGCONT)
    with context.connect(address, timeout=PATIENCE) as connection:
        far.tell("accept")
        # The one that gave up may have got as far as the queue of those that wait for accept().
        while True:
            assert far.hear() == "accepted"
            far.tell("done")
            assert far.hear() == "closed"
            try:
                assert connection.recv(bytearray(7), timeout=SHORT) == 7
                break
            except errors.TimeoutError:
                far.tell("accept")


def test_connecting_to_one_that_is_killed_meanwhile(
    context: rdmatx.Context, far: Victim, known_within: float
) -> None:
    address = far.hear()
    far.signal(signal.SIGSTOP)
    killer = threading.Timer(0.1, far.signal, args=(signal.SIGKILL,))
    killer.start()
    with timed(known_within + 0.1), pytest.raises(errors.PeerLostError) as caught:
        context.connect(address, timeout=PATIENCE)
    killer.join()
    assert address in str(caught.value)
    with timed(known_within), pytest.raises(errors.PeerLostError):
        context.connect(address, timeout=PATIENCE)


CLOSERS: dict[str, Callable[[rdmatx.Context, rdmatx.Listener], None]] = {
    "listener": lambda context, listener: listener.close(),
    "context": lambda context, listener: context.close(),
}


@pytest.mark.parametrize("closer", CLOSERS)
def test_accept_while_another_thread_closes(
    context: rdmatx.Context, nursery: Nursery, closer: str
) -> None:
    with context.listen() as listener:
        thread = threading.Timer(0.1, CLOSERS[closer], args=(context, listener))
        thread.start()
        with timed(0.1 + OUTLIVES), pytest.raises(errors.ClosedError):
            listener.accept(timeout=PATIENCE)
        thread.join()


def test_connect_while_another_thread_closes_the_context(
    context: rdmatx.Context, far: Victim
) -> None:
    address = far.hear()
    far.signal(signal.SIGSTOP)
    thread = threading.Timer(0.1, context.close)
    thread.start()
    with timed(0.1 + OUTLIVES), pytest.raises(errors.ClosedError):
        context.connect(address, timeout=PATIENCE)
    thread.join()


@pytest.mark.parametrize("stopped", [False, True], ids=["dead", "stopped"])
def test_accept_with_one_that_came_half_way(
    context: rdmatx.Context,
    nursery: Nursery,
    provider: str,
    device_name: str | None,
    stopped: bool,
) -> None:
    """accept() waits for one that comes all the way, and takes it at once."""
    with (
        context.listen() as listener,
        nursery.start(connect_and, provider, device_name, listener.address, "die half way") as half,
    ):
        assert half.hear() == "half way"
        half.signal(signal.SIGSTOP if stopped else signal.SIGKILL)
        with timed(SHORT + OUTLIVES), pytest.raises(errors.TimeoutError):
            listener.accept(timeout=SHORT)
        with (
            timed(PATIENCE),
            context.connect(listener.address) as near,
            listener.accept() as there,
        ):
            near.send(b"all the way")
            assert there.recv(bytearray(11)) == 11


def test_accepting_one_that_died_in_the_queue(
    context: rdmatx.Context,
    nursery: Nursery,
    provider: str,
    device_name: str | None,
    known_within: float,
) -> None:
    with (
        context.listen() as listener,
        nursery.start(connect_and, provider, device_name, listener.address, "die") as dead,
    ):
        assert dead.status() == 2
        with (
            listener.accept(timeout=PATIENCE) as connection,
            timed(known_within),
            pytest.raises(errors.PeerLostError),
        ):
            connection.recv(bytearray(1), timeout=PATIENCE)
        with context.connect(listener.address) as near, listener.accept() as there:
            near.send(b"x")
            assert there.recv(bytearray(1)) == 1
