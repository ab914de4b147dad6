"""Reads and writes of a peer's registered memory."""

from __future__ import annotations

import pickle

import pytest

import rdmatx
from rdmatx import errors
from tests.launch import Rank, launch
from tests.multiprocess.conftest import PATIENCE, Pair
from tests.multiprocess.messages import content
from tests.multiprocess.test_messages import connect

SIZES = [0, 1, 8, 255, 256, 257, 4096, 65536, (3 << 20) + 1]


def one_sided(rank: Rank, provider: str, device: str | None) -> int:
    """Rank 0 owns the memory and does nothing; rank 1 writes and reads all of it."""
    context, connection = connect(rank, provider, device)
    with context, connection:
        nbytes = 4 << 20
        memory = bytearray(nbytes)
        with context.register(memory, access="rw") as region:
            if rank.index == 0:
                connection.send(bytes(region.key()))
                assert connection.recv(bytearray(1)) == 1
                for index, size in enumerate(SIZES):
                    at = 1000 + index
                    assert connection.recv(bytearray(1)) == 1
                    assert memory[at : at + size] == content(size, index)
                    connection.send(b".")
                return len(SIZES)
            token = bytearray(64)
            key = rdmatx.RemoteKey.from_bytes(bytes(token[: connection.recv(token)]))
            assert key.nbytes == nbytes
            connection.send(b".")
            for index, size in enumerate(SIZES):
                connection.write(content(size, index), key, offset=1000 + index)
                back = bytearray(size)
                connection.read(back, key, offset=1000 + index)
                assert back == content(size, index)
                connection.send(b".")
                connection.recv(bytearray(1))
            return len(SIZES)


def test_write_and_read(provider: str, device_name: str | None) -> None:
    assert launch(one_sided, provider, device_name) == [len(SIZES)] * 2


def test_many_writes_and_reads_outstanding(pair: Pair) -> None:
    memory = bytearray(2000 * 64)
    with pair.context.register(memory, access="rw") as region:
        key = region.key()
        works = [
            pair.near.iwrite(content(64, index), key, offset=index * 64) for index in range(2000)
        ]
        for work in works:
            assert work.wait() == 64
        assert memory == b"".join(content(64, index) for index in range(2000))
        blocks = [bytearray(64) for _ in range(2000)]
        works = [pair.near.iread(block, key, index * 64) for index, block in enumerate(blocks)]
        for work in works:
            work.wait()
        assert b"".join(blocks) == memory
        stats = pair.near.stats()
        assert stats["bytes_written"] == stats["bytes_read"] == len(memory)


def test_regions_as_sources_and_targets(pair: Pair) -> None:
    memory, local = bytearray(100000), bytearray(content(100000))
    with (
        pair.context.register(memory, access="rw") as remote,
        pair.context.register(local, access="") as region,
    ):
        pair.near.write(region[20000:70000], remote.key(), offset=100)
        assert memory[100:50100] == local[20000:70000]
        memory[:] = content(100000, 5)
        pair.near.read(region, remote.key())
        assert local == memory


def test_what_the_key_forbids_is_refused_before_it_is_posted(pair: Pair) -> None:
    memory = bytearray(1000)
    with (
        pair.context.register(memory, access="r") as readable,
        pair.context.register(memory, access="w") as writable,
    ):
        with pytest.raises(errors.UsageError, match='needs access "w"'):
            pair.near.write(b"x", readable.key())
        with pytest.raises(errors.UsageError, match='needs access "r"'):
            pair.near.read(bytearray(1), writable.key())
        for nbytes, offset in ((1001, 0), (1, 1000), (1000, 1), (1, 2**64 - 1)):
            with pytest.raises(errors.UsageError, match="passes the end"):
                pair.near.write(bytes(nbytes), writable.key(), offset=offset)
        with pytest.raises(errors.UsageError, match="offset is"):
            pair.near.write(b"x", writable.key(), offset=-1)
        pair.near.write(b"", writable.key(), offset=1000)
    pair.near.send(b"alive")
    assert pair.far.recv(bytearray(5)) == 5


def test_what_the_device_refuses_ends_the_connection(pair: Pair) -> None:
    """A key whose region is gone: the device finds out, and both ends say so."""
    region = pair.context.register(bytearray(4096), access="rw")
    key = region.key()
    region.close()
    pending = pair.near.irecv(bytearray(10))
    with pytest.raises(errors.CompletionError) as caught:
        pair.near.write(bytes(4096), key)
    error = caught.value
    assert error.status != 0
    assert error.peer == pair.near.peer
    assert "write of 4096 bytes" in error.operation
    for part in (pair.near.peer, "GID", "connection is dead", "write of 4096 bytes"):
        assert part in str(error)
    with pytest.raises(errors.CompletionError):
        pending.wait()
    with pytest.raises(errors.CompletionError):
        pair.near.send(b"x")
    with pytest.raises((errors.PeerLostError, errors.CompletionError)):
        pair.far.recv(bytearray(10))
    # A new one from the same context works.
    with (
        pair.context.connect(pair.listener.address) as near,
        pair.listener.accept(timeout=PATIENCE) as far,
    ):
        near.send(b"again")
        assert far.recv(bytearray(5)) == 5


def test_keys_travel_as_bytes(pair: Pair) -> None:
    with pair.context.register(bytearray(100), access="rw") as region:
        key = region.key()
        assert rdmatx.RemoteKey.from_bytes(bytes(key)) == key
        assert pickle.loads(pickle.dumps(key)) == key
        assert hash(pickle.loads(pickle.dumps(key))) == hash(key)
        assert (key.nbytes, key.access) == (100, "rw")
        assert key != b"no key"
        for wrong in (b"", bytes(32), bytes(key)[:-1], bytes(key) + b"x"):
            with pytest.raises(errors.UsageError, match="remote key"):
                rdmatx.RemoteKey.from_bytes(wrong)


def test_registering_asks_for_what_is_possible(context: rdmatx.Context) -> None:
    with pytest.raises(errors.UsageError, match="read-only"):
        context.register(b"read-only", access="w")
    with context.register(b"read-only", access="r") as region:
        assert region.access == "r"
    with pytest.raises(errors.UsageError, match="access is"):
        context.register(bytearray(1), access="rwx")
    with context.register(bytearray(0)) as empty:
        assert empty.nbytes == 0
    with (
        context.register(bytearray(10)) as region,
        pytest.raises(errors.UsageError, match="without a step"),
    ):
        region[::2]
