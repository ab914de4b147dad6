"""Faults that meet a crowd: hundreds of operations of every kind outstanding at once, each with one end."""

from __future__ import annotations

import contextlib
import struct
import threading
import time

import pytest

import rdmatx
from rdmatx import errors
from tests.faults.scene import (
    ASIDE,
    LARGE,
    NEVER,
    PATIENCE,
    SMALL,
    Scene,
    outcome,
    scene,
)
from tests.faults.test_fault_table import FAULTS
from tests.faults.victims import Nursery, Test
from tests.launch import TIME_SCALE
from tests.multiprocess.messages import content
from tests.multiprocess.test_region_access import forged

NOBODYS = 500
LATE = 5000
TINY = 100_000 if TIME_SCALE == 1 else 20_000


def crowd(at: Scene) -> list[rdmatx.Work]:
    """Operations of every kind that can be started, 20 of each."""
    near, key = at.near, at.key
    works = [near.irecv(bytearray(n), tag=NOBODYS + n) for n in range(20)]
    works += [near.isend(content(100_000, n), tag=NEVER) for n in range(20)]
    for n in range(20):
        works.append(near.iwrite(content(9_000, n), key, offset=9_000 * n))
        works.append(near.iread(bytearray(5_000), key))
        works.append(near.iwrite_many([(content(100, n), key, 100 * k) for k in range(30)]))
        works.append(near.ifetch_add(key, 8 * n, n))
    return works


def test_a_queue_pair_in_error_ends_all_of_them(
    nursery: Nursery, provider: str, device_name: str | None
) -> None:
    """One forged key among hundreds of operations: what was posted before it is done, all else fails."""
    with scene(nursery, provider, device_name) as at:
        before = [at.near.iwrite(content(8_000, n), at.key, offset=8_000 * n) for n in range(100)]
        works = crowd(at)
        wrong = at.near.iwrite(bytes(64), forged(at.key, number=0xDEAD))
        with contextlib.suppress(errors.CompletionError):  # it may be known already
            works += crowd(at)
        kind, words = outcome(wrong)
        assert kind == "CompletionError"
        assert "remote access error" in words
        assert [outcome(work)[0] for work in before] == ["done"] * 100
        kinds = {outcome(work)[0] for work in works}
        assert "CompletionError" in kinds
        assert kinds <= {"CompletionError", "done"}
        assert {kind for kind, _ in at.peer.ask("outcomes")} == {"PeerLostError"}
        at.still_connects()


@pytest.mark.parametrize("fault", ["killed", "closed", "closed_here"])
def test_a_fault_ends_all_of_them(
    nursery: Nursery, provider: str, device_name: str | None, known_within: float, fault: str
) -> None:
    with scene(nursery, provider, device_name) as at:
        works = crowd(at)
        started = time.monotonic()
        FAULTS[fault].strike(at)
        kinds = {outcome(work)[0] for work in works}
        assert time.monotonic() - started < known_within
        assert FAULTS[fault].here.__name__ in kinds
        assert kinds <= {FAULTS[fault].here.__name__, "done"}
        at.still_connects()


def test_threads_that_wait_are_all_told(
    nursery: Nursery, provider: str, device_name: str | None
) -> None:
    """Eight threads wait in eight ways when another one closes the connection under them."""
    with scene(nursery, provider, device_name) as at:
        ended: dict[int, str] = {}
        stuck = [at.near.isend(content(100_000), tag=NEVER), at.near.irecv(bytearray(8), tag=NEVER)]
        waits = [
            lambda: at.near.recv(bytearray(8), tag=NEVER),
            lambda: at.near.recv(bytearray(100_000), tag=NOBODYS),
            lambda: at.near.send(content(100_000), tag=NEVER),
            lambda: at.near.probe(tag=NOBODYS),
            lambda: at.near.next_notification(),
            *(work.wait for work in stuck),
            *(work.wait for work in stuck[:1]),
        ]

        def wait(number: int) -> None:
            try:
                waits[number]()
                ended[number] = "done"
            except errors.Error as error:
                ended[number] = type(error).__name__

        threads = [threading.Thread(target=wait, args=(n,)) for n in range(len(waits))]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        assert not ended
        at.near.close()
        for thread in threads:
            thread.join(PATIENCE)
        assert ended == dict.fromkeys(range(len(waits)), "ClosedError")
        assert {kind for kind, _ in at.peer.ask("outcomes")} == {"PeerLostError"}


def send_again_and_again(at: Scene) -> None:
    for _ in range(int(PATIENCE * 100)):
        at.near.send(b"", tag=ASIDE + 1, timeout=PATIENCE)
        at.near.iprobe()
        time.sleep(0.01)


def test_a_receive_too_small_ends_one_operation(
    nursery: Nursery, provider: str, device_name: str | None
) -> None:
    """Both sides are told, and nothing else ends."""
    with scene(nursery, provider, device_name) as at:
        at.start_bystanders()
        at.peer.tell(("receive_too_small", LARGE))
        with pytest.raises(errors.SizeMismatchError) as caught:
            at.near.send(content(100_000), tag=LARGE)
        assert (caught.value.needed_bytes, caught.value.available_bytes) == (100_000, 7)
        assert at.peer.hear() == (100_000, 7)
        at.near.send(b"8 bytes.", tag=SMALL)
        assert at.peer.ask("receive_too_small", SMALL) == (8, 7)
        # The send of a small one is over by then, so the next one says it.
        with pytest.raises(errors.SizeMismatchError):
            send_again_and_again(at)
        assert not any(work.done() for work in at.bystanders)
        at.peer.tell(("receive", at.counts))
        assert [outcome(work)[0] for work in at.bystanders] == ["done"] * 3
        assert at.peer.hear() == "right"


def test_a_late_receiver_costs_waiting(
    nursery: Nursery, provider: str, device_name: str | None
) -> None:
    """Thousands of messages for a peer that does not look: none fails, none is lost."""
    with scene(nursery, provider, device_name) as at:
        at.start_bystanders()
        works = [at.near.isend(struct.pack("<Q", n), tag=SMALL) for n in range(LATE)]
        large = [at.near.isend(content(1 << 20, n), tag=LARGE) for n in range(4)]
        time.sleep(0.3)
        assert not all(work.done() for work in works)
        at.counts.small, at.counts.large = LATE, 4
        at.peer.tell(("receive", at.counts))
        for work in [*works, *large, *at.bystanders]:
            work.wait(timeout=PATIENCE)
        assert at.peer.hear() == "right"


def count_bytes(test: Test, provider: str, device: str | None, address: str, count: int) -> None:
    """Lends as many bytes as come, and looks at each when told that they are there."""
    with (
        rdmatx.Context(device, provider, timeout=3 * PATIENCE) as context,
        context.connect(address) as connection,
    ):
        memory = bytearray(count)
        with context.register(memory, access="w") as region:
            connection.send(bytes(region.key()))
            assert connection.next_notification() == count
            assert memory == content(count, 5), "a byte is missing"
            connection.send(b"all there")
            test.listen()


@pytest.mark.timeout(120)
def test_tiny_writes_without_waiting(
    nursery: Nursery, provider: str, device_name: str | None
) -> None:
    """A hundred thousand writes of a byte are outstanding: all wait for room and none is lost."""
    with (
        rdmatx.Context(device_name, provider, timeout=3 * PATIENCE) as context,
        context.listen() as listener,
        nursery.start(count_bytes, provider, device_name, listener.address, TINY) as peer,
        listener.accept(timeout=PATIENCE) as near,
    ):
        token = bytearray(256)
        key = rdmatx.RemoteKey.from_bytes(bytes(token[: near.recv(token)]))
        source = memoryview(content(TINY, 5))
        works = [near.iwrite(source[n : n + 1], key, offset=n) for n in range(TINY)]
        works.append(near.iwrite(b"", key, notify=TINY))
        near.flush()
        assert all(work.done() for work in works)
        assert near.recv(bytearray(9)) == 9
        assert near.stats()["bytes_written"] == TINY
        peer.tell("end")
        assert peer.hear() is None
