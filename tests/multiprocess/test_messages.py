"""Messages between two processes: every size, many at a time, late receivers, tags, refusals."""

from __future__ import annotations

import time

import pytest

import rdmatx
from rdmatx import errors
from tests.launch import TIME_SCALE, Rank, launch
from tests.multiprocess.conftest import PATIENCE, Pair
from tests.multiprocess.messages import content, meet

# Around the borders of inline data, of eager messages and of packets.
SIZES = [
    0,
    1,
    7,
    8,
    100,
    215,
    216,
    217,
    4095,
    4096,
    8191,
    8192,
    8193,
    65536,
    1 << 20,
    (5 << 20) + 3,
]


def connect(
    rank: Rank, provider: str, device: str | None
) -> tuple[rdmatx.Context, rdmatx.Connection]:
    """Rank 0 listens and rank 1 connects."""
    context = rdmatx.Context(device, provider, timeout=PATIENCE)
    return context, meet(rank, context)


def every_size(rank: Rank, provider: str, device: str | None) -> int:
    context, connection = connect(rank, provider, device)
    with context, connection:
        for index, nbytes in enumerate(SIZES):
            buffer = bytearray(nbytes + 5)
            if rank.index == 0:
                connection.send(content(nbytes, index), tag=index)
                assert connection.recv(buffer, tag=index) == nbytes
            else:
                assert connection.recv(buffer, tag=index) == nbytes
                connection.send(content(nbytes, index), tag=index)
            assert buffer[:nbytes] == content(nbytes, index)
            assert buffer[nbytes:] == bytes(5)
        stats = connection.stats()
        assert stats["messages_sent"] == stats["messages_received"] == len(SIZES)
        assert stats["bytes_sent"] == stats["bytes_received"] == sum(SIZES)
        return len(SIZES)


def test_every_size(provider: str, device_name: str | None) -> None:
    assert launch(every_size, provider, device_name) == [len(SIZES)] * 2


def many_outstanding(rank: Rank, provider: str, device: str | None, count: int, nbytes: int) -> int:
    context, connection = connect(rank, provider, device)
    with context, connection:
        buffers = [bytearray(nbytes) for _ in range(count)]
        receives = [connection.irecv(buffer) for buffer in buffers]
        sends = [connection.isend(content(nbytes, index)) for index in range(count)]
        for work in [*sends, *receives]:
            assert work.wait() == nbytes
        assert all(work.done() for work in sends)
        for index, buffer in enumerate(buffers):
            assert buffer == content(nbytes, index)
        return count


@pytest.mark.parametrize(("count", "nbytes"), [(5000, 16), (1000, 8192), (600, 20000)])
def test_many_outstanding_both_ways(
    provider: str, device_name: str | None, count: int, nbytes: int
) -> None:
    assert launch(many_outstanding, provider, device_name, count, nbytes) == [count] * 2


def late_receiver(rank: Rank, provider: str, device: str | None) -> int:
    """The receiver sleeps while far more messages come than it has slots."""
    context, connection = connect(rank, provider, device)
    with context, connection:
        if rank.index == 0:
            works = [connection.isend(content(3000, index), tag=index % 3) for index in range(500)]
            works.append(connection.isend(content(100000, 7), tag=9))
            for work in works:
                work.wait()
        else:
            time.sleep(0.5 * TIME_SCALE)
            buffer = bytearray(100000)
            assert connection.recv(buffer, tag=9) == 100000
            assert buffer == content(100000, 7)
            for tag in (2, 0, 1):
                for index in range(tag, 500, 3):
                    assert connection.recv(buffer, tag=tag) == 3000
                    assert buffer[:3000] == content(3000, index)
            # All but the last word of the other side, which may be here already.
            assert connection.stats()["unexpected_messages"] <= 1
        connection.send(b"", tag=99)
        connection.recv(bytearray(), tag=99)
        return 1


def test_a_late_receiver(provider: str, device_name: str | None) -> None:
    assert launch(late_receiver, provider, device_name) == [1, 1]


def both_send_first(rank: Rank, provider: str, device: str | None) -> None:
    context, connection = connect(rank, provider, device)
    with context, connection:
        for index in range(300):
            connection.send(content(1000, index))
        buffer = bytearray(1000)
        for index in range(300):
            connection.recv(buffer)
            assert buffer == content(1000, index)


def test_both_send_small_messages_before_they_receive(
    provider: str, device_name: str | None
) -> None:
    launch(both_send_first, provider, device_name)


def refused(rank: Rank, provider: str, device: str | None) -> None:
    """A receive too small is an error on both ends with both sizes, and the connection lives on."""
    context, connection = connect(rank, provider, device)
    with context, connection:
        if rank.index == 0:
            with pytest.raises(errors.SizeMismatchError, match="100000 bytes") as caught:
                connection.send(content(100000), tag=4)
            sizes = caught.value
        else:
            with pytest.raises(errors.SizeMismatchError, match="connection goes on") as caught:
                connection.recv(bytearray(50), tag=4)
            sizes = caught.value
        assert (sizes.needed_bytes, sizes.available_bytes) == (100000, 50)
        # Small messages were sent long before the receiver looks: the next send tells.
        if rank.index == 0:
            connection.send(content(100), tag=5)
            connection.recv(bytearray(1), tag=6)
            with pytest.raises(errors.SizeMismatchError, match="earlier message") as caught:
                connection.send(content(200), tag=5)
            assert (caught.value.needed_bytes, caught.value.available_bytes) == (100, 50)
            connection.send(content(200), tag=5)
        else:
            with pytest.raises(errors.SizeMismatchError):
                connection.recv(bytearray(50), tag=5)
            connection.send(b"x", tag=6)
            buffer = bytearray(200)
            assert connection.recv(buffer, tag=5) == 200
            assert buffer == content(200)
        assert connection.stats()["messages_refused"] == 2


def test_a_receive_too_small(provider: str, device_name: str | None) -> None:
    launch(refused, provider, device_name)


def test_tags_out_of_order(pair: Pair) -> None:
    for tag in range(20):
        pair.near.send(content(50, tag), tag=tag)
        pair.near.send(content(60, tag), tag=tag)
    buffer = bytearray(60)
    for tag in reversed(range(20)):
        assert pair.far.recv(buffer, tag=tag) == 50
        assert buffer[:50] == content(50, tag)
        assert pair.far.recv(buffer, tag=tag) == 60
        assert buffer == content(60, tag)


def test_order_within_a_tag_across_sizes(pair: Pair) -> None:
    """Small and large messages take different ways, and still arrive as they were sent."""
    sizes = [10, 100000, 20, 30000, 8192, 8193, 0, 50000]
    sends = [pair.near.isend(content(nbytes, nbytes)) for nbytes in sizes]
    for nbytes in sizes:
        buffer = bytearray(100000)
        assert pair.far.recv(buffer) == nbytes
        assert buffer[:nbytes] == content(nbytes, nbytes)
    for work in sends:
        work.wait()


def test_the_largest_and_the_wrong_tags(pair: Pair) -> None:
    pair.near.send(b"edge", tag=2**64 - 1)
    assert pair.far.recv(bytearray(4), tag=2**64 - 1) == 4
    for wrong in (-1, 2**64, "seven", 1.5, None):
        with pytest.raises(errors.UsageError, match="tag is"):
            pair.near.send(b"x", tag=wrong)  # type: ignore[arg-type]


def test_read_only_memory_may_be_sent_and_not_received_into(pair: Pair) -> None:
    with pytest.raises(errors.UsageError, match="read-only"):
        pair.far.recv(bytes(10))
    pair.near.send(memoryview(b"read-only"))
    assert pair.far.recv(bytearray(16)) == 9


def test_regions_are_sent_from_and_received_into(pair: Pair) -> None:
    memory, landing = bytearray(content(300000)), bytearray(300000)
    with (
        pair.context.register(memory, access="") as source,
        pair.context.register(landing, access="w") as target,
    ):
        for region in (source, target):
            assert region.nbytes == len(region) == 300000
        send = pair.near.isend(source)
        assert pair.far.recv(target) == 300000
        send.wait()
        assert landing == memory
        send = pair.near.isend(source[100000:200000])
        assert pair.far.recv(target[:100000]) == 100000
        send.wait()
        assert landing[:100000] == memory[100000:200000]


def test_work_tells_its_state(pair: Pair) -> None:
    buffer = bytearray(10)
    work = pair.far.irecv(buffer)
    assert not work.done()
    with pytest.raises(errors.UsageError, match="pending"):
        work.nbytes  # noqa: B018
    pair.near.send(b"12345")
    assert work.wait() == 5
    assert work.wait() == 5
    assert work.done()
    assert work.nbytes == 5
