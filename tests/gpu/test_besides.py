"""Arrays on a GPU together with the rest: several rails, checksums, event loops, DLPack, closing."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

import rdmatx
from rdmatx.errors import ClosedError, TimeoutError, UsageError
from tests.dlpack import DLTensor, capsule_of
from tests.gpu.conftest import PATIENCE, Pair
from tests.gpu.fake_driver import Array, Memory, Stream, delays, faults

pytestmark = pytest.mark.soft_only

NBYTES = 5_000_000
CONTENT = bytes(i * 11 % 253 for i in range(NBYTES))


@pytest.fixture
def stream(fake_gpu: None) -> Iterator[Stream]:
    stream = Stream()
    yield stream
    stream.close()


def moves(near: rdmatx.Connection, far: rdmatx.Connection) -> None:
    source, target = Array(Memory(NBYTES)), Array(Memory(pieces=[1 << 20] * 5), 3)
    source.set(CONTENT)
    work = far.irecv(target)
    near.send(source)
    assert work.wait() == NBYTES
    assert target.get(NBYTES) == CONTENT


@pytest.mark.parametrize("rails", [1, 3])
@pytest.mark.parametrize("verify", [False, True])
def test_rails_and_checksums(fake_gpu: None, gpu_direct: str, rails: int, verify: bool) -> None:
    before = faults()
    with (
        rdmatx.Context(
            devices=["soft0"] * rails,
            provider="soft",
            timeout=PATIENCE,
            verify=verify,
            gpu_direct=gpu_direct,
        ) as context,
        context.listen() as listener,
        context.connect(listener.address) as near,
        listener.accept() as far,
        delays(100),
    ):
        for _ in range(3):
            moves(near, far)
        target = Array(Memory(NBYTES))
        if gpu_direct == "auto":
            source = Array(Memory(pieces=[1 << 20] * 5), 5)
            with context.register(source, "rw") as region:
                near.write(CONTENT, region.key())
                assert source.get(NBYTES) == CONTENT
                near.read(target, region.key())
        else:
            with context.register(bytearray(CONTENT), "r") as region:
                near.read(target, region.key())
        assert target.get() == CONTENT
    assert faults() == before


def test_in_an_event_loop(pair: Pair, stream: Stream) -> None:
    array = Array(Memory(50_000), stream=stream.ptr)
    array.set(bytes(50_000))

    async def exchange() -> None:
        landing = bytearray(50_000)
        for number in range(5):
            receive = pair.far.irecv(landing)
            stream.add(array, 1, microseconds=20_000)
            sent = await asyncio.wait_for(pair.near.isend(array), PATIENCE)
            assert (sent, await receive) == (50_000, 50_000)
            assert landing == bytes([number + 1]) * 50_000

    asyncio.run(exchange())


def test_a_receive_that_times_out_is_withdrawn(pair: Pair, stream: Stream) -> None:
    array = Array(Memory(50_000), stream=stream.ptr)
    array.set(bytes(50_000))
    with pytest.raises(TimeoutError):
        pair.far.recv(array, timeout=0.05)
    stream.add(array, 1, microseconds=300_000)
    with pytest.raises(TimeoutError):
        pair.far.recv(array, timeout=0.05)  # it had not begun
    landing = bytearray(10)
    work = pair.far.irecv(landing)
    pair.near.send(b"0123456789")
    work.wait()
    assert landing == b"0123456789"
    stream.synchronize()
    assert array.get() == bytes([1]) * 50_000


def test_closing_with_operations_that_wait(pair: Pair, stream: Stream) -> None:
    before = faults()
    works, arrays = [], []
    with delays(2000):
        for _ in range(5):
            array = Array(Memory(400_000), stream=stream.ptr)
            stream.add(array, 1, microseconds=10_000)
            works += [pair.near.isend(array), pair.near.irecv(array, 9)]
            arrays.append(array)
        pair.near.close()
        for work in works:
            with pytest.raises(ClosedError):
                work.wait()
        stream.synchronize()
        # Our own copies may go on: what they touch is held.
        works.clear()
        arrays.clear()
        del array
    assert faults() == before


class Dlpack:
    """A tensor on a GPU by DLPack alone."""

    def __init__(self, array: Array, offset: int = 0, stride: int = 1) -> None:
        self.array = array
        self.shape = (ctypes.c_int64 * 1)((array.nbytes - offset) // stride)
        self.strides = (ctypes.c_int64 * 1)(stride)
        self.tensor = DLTensor(
            array.address, (2, 0), 1, 1, 8, 1, self.shape, self.strides, offset, None, None
        )
        self.asked: dict[str, Any] = {}

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> object:
        if options:
            raise TypeError("older than DLPack 1.0")
        self.asked = {"stream": stream}
        return capsule_of(self.tensor)


def test_dlpack(pair: Pair) -> None:
    array = Array(Memory(100_000))
    array.set(CONTENT[:100_000])
    tensor = Dlpack(array, offset=7)
    landing = bytearray(100_000 - 7)
    work = pair.far.irecv(landing)
    pair.near.send(tensor)
    work.wait()
    assert landing == CONTENT[7:100_000]
    assert tensor.asked == {"stream": -1}  # no order with a stream of the producer's choice
    with pytest.raises(UsageError, match="not C-contiguous"):
        pair.near.isend(Dlpack(array, stride=2))
