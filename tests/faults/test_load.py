"""Many of everything: rounds of connections and deaths, threads on a connection, connections of a context.

RDMATX_SOAK_ROUNDS=1000 kills that many peers; RDMATX_SOAK_MESSAGES=10000 sends that many messages a thread.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
from collections.abc import Iterator

import pytest

import rdmatx
from rdmatx import errors
from tests import leaks
from tests.faults.scene import PATIENCE
from tests.faults.test_peer_death import resources
from tests.faults.victims import Nursery, Test
from tests.launch import TIME_SCALE
from tests.multiprocess.messages import content

ROUNDS = int(os.environ.get("RDMATX_SOAK_ROUNDS", "50" if TIME_SCALE == 1 else "20"))
MESSAGES = int(os.environ.get("RDMATX_SOAK_MESSAGES", "300" if TIME_SCALE == 1 else "60"))
THREADS = 16
LARGEST = 40_000
# What a process may grow by from the tenth round on, whatever their number: the allocator's own.
GROWTH_BYTES = 12 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def transfer_until_killed(test: Test, provider: str, device: str | None, address: str) -> None:
    context = rdmatx.Context(device, provider, timeout=PATIENCE)
    connection = context.connect(address)
    memory = bytearray(1 << 20)
    region = context.register(memory)
    connection.send(bytes(region.key()))
    while True:
        connection.send(memory, tag=1)


@pytest.mark.timeout(60 + ROUNDS)
def test_connect_transfer_kill(nursery: Nursery, provider: str, device_name: str | None) -> None:
    """Descriptors, threads, shared memory, the kernel's objects and memory stay what they were."""
    kernel_before = resources()
    buffer = bytearray(1 << 20)
    chance = random.Random(ROUNDS)
    with (
        rdmatx.Context(device_name, provider, timeout=PATIENCE) as context,
        context.listen() as listener,
    ):
        before, resident = leaks.snapshot(), 0
        for number in range(ROUNDS):
            if number == 10:
                before, resident = leaks.snapshot(), resident_bytes()
            one_round(nursery, context, listener, buffer, chance.randrange(5))
            if number > 10 and number % 10 == 0:
                leaks.check(before)
        leaks.check(before)
        assert resident_bytes() - resident < GROWTH_BYTES
    leaks_of_the_kernel = {
        kind: count - kernel_before.get(kind, 0)
        for kind, count in resources().items()
        if count > kernel_before.get(kind, 0)
    }
    assert not leaks_of_the_kernel


def one_round(
    nursery: Nursery,
    context: rdmatx.Context,
    listener: rdmatx.Listener,
    buffer: bytearray,
    transfers: int,
) -> None:
    name = "system" if context.provider == "system" else "soft"
    with (
        nursery.start(transfer_until_killed, name, context.device, listener.address) as victim,
        listener.accept() as connection,
    ):
        token = bytearray(256)
        key = rdmatx.RemoteKey.from_bytes(bytes(token[: connection.recv(token)]))
        for _ in range(transfers):
            connection.recv(buffer, tag=1)
            connection.write(buffer, key)
        victim.signal(signal.SIGKILL)
        with pytest.raises((errors.PeerLostError, errors.CompletionError)):
            receive_on_and_on(connection, buffer)


def receive_on_and_on(connection: rdmatx.Connection, buffer: bytearray) -> None:
    """What the peer sent before its end, and more than it can have sent."""
    for _ in range(1000):
        connection.recv(buffer, tag=1)


# ---- threads that share a connection ----------------------------------------------------------------


def sizes(thread: int, side: int) -> Iterator[int]:
    chance = random.Random(1000 * side + thread)
    for _ in range(MESSAGES):
        yield chance.choice(
            (chance.randrange(300), chance.randrange(9000), chance.randrange(LARGEST))
        )


def talk(connection: rdmatx.Connection, thread: int, side: int, pool: bytes) -> None:
    """Sends this side's messages of one tag and looks at every byte of the other side's."""
    buffer = bytearray(LARGEST)
    for number, (mine, theirs) in enumerate(
        zip(sizes(thread, side), sizes(thread, 1 - side), strict=True)
    ):
        at = (number * 7919 + thread * 31) % (len(pool) // 2)
        work = connection.isend(pool[at + side : at + side + mine], tag=thread)
        assert connection.recv(buffer, tag=thread) == theirs, (thread, number)
        other = 1 - side
        assert buffer[:theirs] == pool[at + other : at + other + theirs]
        work.wait()


def talk_in_threads(connection: rdmatx.Connection, side: int) -> None:
    pool = content(4 * LARGEST, 11)
    failures: list[BaseException] = []

    def run(thread: int) -> None:
        try:
            talk(connection, thread, side, pool)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def talkative(test: Test, provider: str, device: str | None, address: str) -> None:
    with (
        rdmatx.Context(device, provider, timeout=3 * PATIENCE) as context,
        context.connect(address) as connection,
    ):
        talk_in_threads(connection, 1)
        test.tell("all right")
        test.listen()


@pytest.mark.timeout(60 + MESSAGES // 10)
def test_threads_send_both_ways(nursery: Nursery, provider: str, device_name: str | None) -> None:
    """Sixteen threads on each side, each with a tag of its own, messages of random sizes."""
    with (
        rdmatx.Context(device_name, provider, timeout=3 * PATIENCE) as context,
        context.listen() as listener,
        nursery.start(talkative, provider, device_name, listener.address) as other,
        listener.accept(timeout=PATIENCE) as connection,
    ):
        talk_in_threads(connection, 0)
        assert other.hear(3 * PATIENCE) == "all right"
        assert connection.stats()["messages_received"] == THREADS * MESSAGES
        other.tell("end")
        assert other.hear() is None


# ---- connections of one context ---------------------------------------------------------------------

CONNECTIONS = 256
# Before them nothing is measured: the first ones bring what all share.
FIRST = 16


def connect_many(
    test: Test, provider: str, device: str | None, address: str, count: int
) -> tuple[int, int]:
    """Connects one by one and keeps all; returns the resident bytes of one and the descriptors of most."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    with rdmatx.Context(device, provider, timeout=3 * PATIENCE) as context:
        connections = []
        resident = descriptors = 0
        for number in range(count):
            if number == FIRST:
                resident, descriptors = resident_bytes(), len(os.listdir("/proc/self/fd"))
            connections.append(context.connect(address))
        resident = (resident_bytes() - resident) // (count - FIRST)
        descriptors = len(os.listdir("/proc/self/fd")) - descriptors
        buffer = bytearray(20_000)
        for number, connection in enumerate(connections):
            connection.send(content(20_000, number))
        for number, connection in enumerate(connections):
            assert connection.recv(buffer) == 20_000
            assert buffer == content(20_000, count + number)
        for connection in connections:
            connection.close()
        del connection, connections
    return resident, descriptors


@pytest.mark.timeout(150)
def test_many_connections_of_one_context(
    nursery: Nursery, provider: str, device_name: str | None
) -> None:
    """256 connections between two processes that may have 1,024 descriptors open each."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    try:
        with (
            rdmatx.Context(device_name, provider, timeout=3 * PATIENCE) as context,
            context.listen() as listener,
            nursery.start(
                connect_many, provider, device_name, listener.address, CONNECTIONS
            ) as other,
        ):
            connections = [listener.accept() for _ in range(CONNECTIONS)]
            buffer = bytearray(20_000)
            for number, connection in enumerate(connections):
                assert connection.recv(buffer) == 20_000
                assert buffer == content(20_000, number)
                connection.isend(content(20_000, CONNECTIONS + number))
            for connection in connections:
                with pytest.raises(errors.PeerLostError):
                    connection.recv(buffer)
                connection.close()
            resident, descriptors = other.hear(3 * PATIENCE)
            print(f"a connection costs {resident} bytes of resident memory")
            # Two, or over TCP three and what is on its way out.
            assert descriptors < 4 * (CONNECTIONS - FIRST)
            assert resident < 3 << 20
            del connection, connections
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
