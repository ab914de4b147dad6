"""Notifications, many writes at once, atomics, flush, probes and receives of any tag."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

import rdmatx
from rdmatx import errors
from tests.launch import Rank, launch
from tests.multiprocess.conftest import PATIENCE, Pair
from tests.multiprocess.messages import content
from tests.multiprocess.test_messages import connect

ROUNDS = 200


def ring_of_blocks(rank: Rank, provider: str, device: str | None) -> int:
    """Rank 1 writes blocks into rank 0's window, told of each by a notification alone."""
    context, connection = connect(rank, provider, device)
    slots, slot_bytes = 4, 40_000
    with context, connection:
        window = bytearray(slots * slot_bytes)
        if rank.index == 0:
            with context.register(window, access="w") as region:
                connection.send(bytes(region.key()))
                for number in range(ROUNDS):
                    assert connection.next_notification() == number
                    at = number % slots * slot_bytes
                    nbytes = number * 199 % slot_bytes
                    assert window[at : at + nbytes] == content(nbytes, number)
                    connection.send(b"", tag=1)
                return ROUNDS
        token = bytearray(64)
        key = rdmatx.RemoteKey.from_bytes(bytes(token[: connection.recv(token)]))
        for number in range(ROUNDS):
            if number >= slots:
                connection.recv(bytearray(0), tag=1)
            block = content(number * 199 % slot_bytes, number)
            connection.iwrite(block, key, number % slots * slot_bytes, notify=number)
        for _ in range(slots):
            connection.recv(bytearray(0), tag=1)
        return ROUNDS


def test_notifications_between_processes(provider: str, device_name: str | None) -> None:
    assert launch(ring_of_blocks, provider, device_name) == [ROUNDS] * 2


def test_write_many(pair: Pair) -> None:
    sizes = [0, 1, 255, 4096, 100_001, 8, 70_000]
    memory = bytearray(sum(sizes))
    with pair.context.register(memory, access="w") as region:
        key = region.key()
        offsets = [sum(sizes[:index]) for index in range(len(sizes))]
        blocks = [
            (content(nbytes, index), key, offset)
            for index, (nbytes, offset) in enumerate(zip(sizes, offsets, strict=True))
        ]
        pair.near.write_many(blocks, notify=2**32 - 1)
        assert pair.far.next_notification() == 2**32 - 1
        assert memory == b"".join(content(nbytes, index) for index, nbytes in enumerate(sizes))
        assert pair.near.iwrite_many([(b"ab", key)]).wait() == 2
        assert memory[:2] == b"ab"
        with pytest.raises(errors.UsageError, match="block 1 of write_many"):
            pair.near.write_many([(b"zz", key), (b"x", key, len(memory))])
        with pytest.raises(errors.UsageError, match=r"blocks\[0\] should be"):
            pair.near.write_many([b"x"])  # type: ignore[list-item]
        assert memory[:2] == b"ab"


def test_bad_arguments_are_named_and_not_shown_whole(pair: Pair) -> None:
    with pair.context.register(bytearray(8)) as region:
        key = region.key()
        with pytest.raises(errors.UsageError, match="notify is 4294967296"):
            pair.near.write(b"x", key, notify=2**32)
        with pytest.raises(errors.UsageError, match="key is a bytes") as caught:
            pair.near.write(bytearray(1 << 20), bytes(key))  # type: ignore[arg-type]
        assert len(str(caught.value)) < 500
        with pytest.raises(errors.UsageError, match="tag is"):
            pair.near.send(b"x", tag=None)  # type: ignore[arg-type]


def test_atomics(pair: Pair) -> None:
    memory = bytearray(64)
    with pair.context.register(memory, access="rwa") as region:
        key = region.key()
        at = -key.address % 8
        assert pair.near.fetch_add(key, at, 5) == 0
        assert pair.far.fetch_add(key, at, 2**64 - 1) == 5
        assert struct.unpack_from("Q", memory, at) == (4,)
        assert pair.near.compare_swap(key, at, expected=9, desired=1) == 4
        assert pair.near.compare_swap(key, at, expected=4, desired=2**63) == 4
        assert struct.unpack_from("Q", memory, at) == (2**63,)
        works = [pair.near.ifetch_add(key, at + 8, 1) for _ in range(500)]
        assert [work.wait() for work in works] == list(range(500))
        with pytest.raises(errors.UsageError, match="multiple of 8"):
            pair.near.fetch_add(key, at + 1, 1)
    with (
        pair.context.register(memory, access="rw") as region,
        pytest.raises(errors.UsageError, match='needs access "a"'),
    ):
        pair.near.fetch_add(region.key(), at, 1)


def test_flush_waits_for_all_that_was_started(pair: Pair) -> None:
    memory = bytearray(3 << 20)
    with pair.context.register(memory, access="rw") as region:
        pair.near.flush()
        blocks = [content(1 << 20, index) for index in range(3)]
        works = [
            pair.near.iwrite(block, region.key(), index << 20) for index, block in enumerate(blocks)
        ]
        pair.near.flush()
        assert memory == b"".join(blocks)
        assert all(work.done() for work in works)


def test_any_tag_and_probe(pair: Pair) -> None:
    buffer = bytearray(100_000)
    assert pair.far.iprobe() is None
    with pytest.raises(errors.TimeoutError, match="of any tag"):
        pair.far.probe(timeout=0.01)
    pair.near.send(b"first", tag=7)
    waiting = pair.near.isend(content(50_000), tag=9)
    message = pair.far.probe()
    assert (message.tag, message.nbytes) == (7, 5)
    message = pair.far.probe(tag=9, timeout=PATIENCE)
    assert (message.tag, message.nbytes) == (9, 50_000)
    assert pair.far.recv(buffer, tag=None) == 5
    work = pair.far.irecv(buffer, tag=None)
    pending = pair.far.irecv(bytearray(1), tag=4)
    with pytest.raises(errors.UsageError, match="pending"):
        _ = pending.tag
    assert work.wait() == 50_000
    assert work.tag == 9
    assert buffer[:50_000] == content(50_000)
    waiting.wait()


def test_checked_messages(provider: str, device_name: str | None) -> None:
    """Either side's wish is enough; damage is found before the receive ends."""
    with (
        rdmatx.Context(device_name, provider, timeout=PATIENCE, verify=True) as checking,
        rdmatx.Context(device_name, provider, timeout=PATIENCE) as plain,
        checking.listen() as listener,
        plain.connect(listener.address) as near,
        listener.accept() as far,
        ThreadPoolExecutor(1) as threads,
    ):
        data = bytearray(content(1 << 20))
        buffer = bytearray(1 << 20)
        # Two contexts: each has to be waited on for its side to make progress.
        for size in (0, 5, 8192, 8193, 1 << 20):
            sending = threads.submit(near.send, data[:size])
            assert far.recv(buffer) == size
            sending.result()
            assert buffer[:size] == data[:size]
        near.isend(data, tag=1)
        data[12345] ^= 1
        waiting = threads.submit(near.recv, bytearray(1))
        with pytest.raises(errors.CompletionError, match="damaged"):
            far.recv(buffer, tag=1)
        with pytest.raises((errors.PeerLostError, errors.CompletionError), match="damaged"):
            waiting.result()
