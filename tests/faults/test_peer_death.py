"""kill -9 of the other side in the middle of transfers, over and over.

The survivor is this process, so that anything a round leaves behind is still there for the next ones and for
no_leaks. Each round a fresh process connects, moves data without end, and is killed at some moment of it. The
survivor must get an error that names the peer, and every object, thread, descriptor and shared-memory file of
both sides must be gone. RDMATX_SOAK_ROUNDS=200 runs that many rounds (make soak); 10 without it.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

import rdmatx
from rdmatx import errors
from tests import leaks
from tests.launch import TIME_SCALE, Rank, Ranks

ROUNDS = int(os.environ.get("RDMATX_SOAK_ROUNDS", "10"))
NBYTES = 1 << 20
# Seconds within which the survivor must know, on any machine: this is promised, so it is not stretched.
KNOWN_WITHIN = 3.0


def victim(rank: Rank, provider: str, address: str, role: str) -> None:
    """Connects and takes its part of `role` until it is killed."""
    context = rdmatx.Context(provider=provider)
    connection = context.connect(address, timeout=20.0)
    memory = bytearray(NBYTES)
    region = context.register(memory, access="rw")
    connection.send(bytes(region.key()))
    rank.tell("ready")
    while True:
        if role == "survivor sends":
            connection.recv(memory, timeout=60.0)
        elif role == "survivor receives":
            connection.send(memory, timeout=60.0)
        else:
            time.sleep(0.01)


Action = Callable[[rdmatx.Connection, bytearray, rdmatx.RemoteKey], object]
ROLES: dict[str, Action] = {
    "survivor sends": lambda connection, memory, key: connection.send(memory, timeout=KNOWN_WITHIN),
    "survivor receives": lambda connection, memory, key: connection.recv(
        memory, timeout=KNOWN_WITHIN
    ),
    "survivor writes": lambda connection, memory, key: connection.write(
        memory, key, timeout=KNOWN_WITHIN
    ),
    "survivor reads": lambda connection, memory, key: connection.read(
        memory, key, timeout=KNOWN_WITHIN
    ),
    "survivor waits": lambda connection, memory, key: connection.recv(
        memory, tag=77, timeout=KNOWN_WITHIN + 0.5
    ),
}


def one_round(context: rdmatx.Context, provider: str, role: str, delay: float) -> None:
    """One victim, from its connection to the survivor's error."""
    with (
        context.listen("127.0.0.1:0") as listener,
        Ranks(victim, provider, listener.address, role, ranks=1, timeout=60) as ranks,
        listener.accept(timeout=30.0 * TIME_SCALE) as connection,
    ):
        token = bytearray(256)
        nbytes = connection.recv(token, timeout=30.0 * TIME_SCALE)
        key = rdmatx.RemoteKey.from_bytes(bytes(token[:nbytes]))
        assert ranks.hear(0) == "ready"
        error = fail_by_death(connection, key, role, ranks, delay)
        peer = error.peer
        assert peer, f"{error!r} does not say which peer"
        assert peer in str(error)


def fail_by_death(
    connection: rdmatx.Connection, key: rdmatx.RemoteKey, role: str, ranks: Ranks, delay: float
) -> errors.PeerLostError | errors.CompletionError:
    """Does the survivor's part until the death of the peer ends it; the error it ended with."""
    memory = bytearray(NBYTES)
    killer = threading.Timer(delay, ranks.kill, args=(0,))
    killer.start()
    until = time.monotonic() + delay + 3 * KNOWN_WITHIN
    try:
        while time.monotonic() < until:
            ROLES[role](connection, memory, key)
    except (errors.PeerLostError, errors.CompletionError) as error:
        return error
    finally:
        killer.join()
    raise AssertionError("the peer is dead, and every operation with it still succeeds")


def resources() -> dict[str, int]:
    """How many objects the kernel holds, all processes together; empty without the rdma tool or a
    device."""
    if shutil.which("rdma") is None:
        return {}
    text = subprocess.run(
        ["rdma", "resource", "show"], capture_output=True, text=True, timeout=30
    ).stdout
    found: dict[str, int] = {}
    for kind, count in re.findall(r"\b(pd|cq|qp|mr|cm_id|ctx|srq) (\d+)", text):
        found[kind] = found.get(kind, 0) + int(count)
    return found


@pytest.mark.timeout(60 + 8 * ROUNDS)
@pytest.mark.parametrize("role", ROLES)
def test_killed_in_the_middle(provider: str, device_name: str | None, role: str) -> None:
    rounds = max(1, ROUNDS // len(ROLES))
    chance = random.Random(f"{role} {ROUNDS}")
    kernel_before = resources()
    with rdmatx.Context(device_name, provider=provider) as context:
        before = None
        for _ in range(rounds):
            one_round(context, provider, role, delay=chance.uniform(0.0, 0.15))
            # The first round may start what a context keeps as long as it lives.
            if before is not None:
                leaks.check(before)
            before = leaks.snapshot()
    settled_until = time.monotonic() + 5.0 * TIME_SCALE
    while resources() != kernel_before:
        assert time.monotonic() < settled_until, f"{kernel_before} became {resources()}"
        time.sleep(0.1)


def survive(rank: Rank, provider: str, address: str) -> str:
    """The connecting side as the survivor: its listener's process is killed while it waits."""
    with (
        rdmatx.Context(provider=provider) as context,
        context.connect(address, timeout=20.0) as connection,
    ):
        rank.tell("connected")
        with pytest.raises((errors.PeerLostError, errors.CompletionError)) as caught:
            connection.recv(bytearray(8), timeout=20.0 * TIME_SCALE)
        assert caught.value.peer
        assert caught.value.peer in str(caught.value)
        return type(caught.value).__name__


def listen_until_killed(rank: Rank, provider: str) -> None:
    context = rdmatx.Context(provider=provider)
    listener = context.listen("127.0.0.1:0")
    rank.tell(listener.address)
    connection = listener.accept(timeout=20.0)
    rank.tell("accepted")
    connection.recv(bytearray(8), timeout=60.0)


def test_listening_side_is_killed(provider: str) -> None:
    with Ranks(listen_until_killed, provider, ranks=1) as listening:
        address = listening.hear(0)
        with Ranks(survive, provider, address, ranks=1) as surviving:
            assert surviving.hear(0) == "connected"
            assert listening.hear(0) == "accepted"
            listening.kill(0)
            assert surviving.result(0) in ("PeerLostError", "CompletionError")


def send_until_it_fails(connection: rdmatx.Connection) -> errors.Error | None:
    for _ in range(1000):
        try:
            connection.send(bytes(NBYTES), timeout=KNOWN_WITHIN)
        except errors.Error as error:
            return error
    return None


def test_connecting_again_after_a_death(provider: str, device_name: str | None) -> None:
    """A dead connection is dead and says so; a new one from the same context works."""
    with (
        rdmatx.Context(device_name, provider=provider) as context,
        context.listen("127.0.0.1:0") as listener,
    ):
        with (
            Ranks(victim, provider, listener.address, "survivor sends", ranks=1) as ranks,
            listener.accept(timeout=30.0) as connection,
        ):
            connection.recv(bytearray(256), timeout=30.0 * TIME_SCALE)
            assert ranks.hear(0) == "ready"
            ranks.kill(0)
            error = send_until_it_fails(connection)
            assert isinstance(error, (errors.PeerLostError, errors.CompletionError))
            with pytest.raises(errors.Error):
                connection.send(b"to the dead", timeout=KNOWN_WITHIN)
        with (
            Ranks(victim, provider, listener.address, "survivor receives", ranks=1) as ranks,
            listener.accept(timeout=30.0) as connection,
        ):
            connection.recv(bytearray(256), timeout=30.0 * TIME_SCALE)
            assert connection.recv(bytearray(NBYTES), timeout=30.0 * TIME_SCALE) == NBYTES
            ranks.kill(0)
