"""Messages between two ranks of a group."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rdmatx.errors import SizeMismatchError, TimeoutError, UsageError
from tests.launch import Rank, launch
from tests.multiprocess.groups import make_group, one_on_verbs

SIZES = (0, 1, 1000, 1 << 20)


def around_a_ring(rank: Rank, provider: str, device: str | None) -> int:
    with make_group(rank, provider, device) as group:
        following, before = (rank.index + 1) % rank.world, (rank.index - 1) % rank.world
        for size in SIZES:
            mine = np.arange(size, dtype=np.float32) + rank.index
            got = np.empty_like(mine)
            work = group.send(mine, following, tag=size, async_op=True)
            received = group.recv(got, before, tag=size)
            work.wait()
            assert np.array_equal(got, np.arange(size, dtype=np.float32) + before)
            assert (received.peer, received.nbytes) == (before, 4 * size)
            assert work.peer == following
        # Strided memory on either end, that need not lie alike.
        matrix = np.arange(60, dtype=np.int64).reshape(6, 10) * (rank.index + 1)
        columns = np.zeros((10, 6), np.int64)
        work = group.send(matrix, following, async_op=True)
        group.recv(columns.T, before)
        work.wait()
        assert np.array_equal(columns.T, np.arange(60).reshape(6, 10) * (before + 1))
        group.barrier()
        return group.sequence


@pytest.mark.parametrize("world", one_on_verbs((2, 3, 5), 3))
def test_messages_around_a_ring(provider: str, device_name: str | None, world: int) -> None:
    """Messages are no collectives: they do not count among them."""
    assert launch(around_a_ring, provider, device_name, ranks=world) == [1] * world


def first_comers(rank: Rank, provider: str, device: str | None) -> list[int]:
    with make_group(rank, provider, device) as group:
        heard = []
        if rank.index == 0:
            for _ in range(rank.world - 1):
                who = np.empty(2000, np.int32)
                work = group.recv(who, tag=3)
                assert np.all(who == work.peer)
                heard.append(work.peer)
        else:
            group.send(np.full(2000, rank.index, np.int32), 0, tag=3)
        group.barrier()
        return sorted(heard)


def test_from_whoever_sends(provider: str, device_name: str | None) -> None:
    assert launch(first_comers, provider, device_name, ranks=4)[0] == [1, 2, 3]


def in_vain(rank: Rank, provider: str, device: str | None) -> str:
    with make_group(rank, provider, device) as group:
        other = 1 - rank.index
        said = ""
        if rank.index == 0:
            with pytest.raises(TimeoutError, match="the group lives on"):
                group.recv(bytearray(10), other, tag=1, timeout=0.1)
            with pytest.raises(SizeMismatchError, match="does not fit") as caught:
                group.recv(bytearray(10), other, tag=2)
            said = str(caught.value)
        else:
            group.send(bytes(11), other, tag=2)
        for destination in (rank.index, 2, -1):
            with pytest.raises(UsageError, match="rank"):
                group.send(b"", destination)
        group.barrier()
        # And what was withdrawn takes nothing away.
        if rank.index == 0:
            group.recv(data := bytearray(10), other, tag=1)
            assert data == b"0123456789"
        else:
            group.send(b"0123456789", other, tag=1)
        return said


def test_what_goes_wrong_with_one_message(provider: str, device_name: str | None) -> None:
    said = launch(in_vain, provider, device_name, ranks=2)[0]
    assert "11" in said
    assert "10" in said


def awaited(rank: Rank, provider: str, device: str | None) -> int:
    async def both() -> int:
        got = bytearray(100_000)
        received = group.recv(got, 1 - rank.index, async_op=True)
        await group.send(bytes([rank.index]) * 100_000, 1 - rank.index, async_op=True)
        await received
        assert set(got) == {1 - rank.index}
        return received.nbytes

    with make_group(rank, provider, device) as group:
        return asyncio.run(both())


def test_awaited(provider: str, device_name: str | None) -> None:
    assert launch(awaited, provider, device_name, ranks=2) == [100_000] * 2
