"""The order of transfers and of the work in a stream: a thousand times, with random delays."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import pytest

from rdmatx.errors import UsageError
from tests.gpu.conftest import Pair
from tests.gpu.fake_driver import ANY_ORDER, Array, Memory, Stream, call, delays, faults
from tests.launch import TIME_SCALE

pytestmark = pytest.mark.soft_only

ROUNDS = 1000
SMALL, LARGE = 600, 20_000  # in a message of its own, and straight to its place


@pytest.fixture
def stream(fake_gpu: None) -> Iterator[Stream]:
    stream = Stream()
    yield stream
    stream.close()


def sends_in_order(pair: Pair, stream: Stream, nbytes: int, rounds: int, *, ordered: bool) -> int:
    """Sends what a kernel computes, without waiting for it; how many rounds got what was there before."""
    array = Array(Memory(nbytes), stream=ANY_ORDER)
    landing = bytearray(nbytes)
    array.set(bytes(nbytes))
    stale = 0
    for number in range(rounds):
        work = pair.far.irecv(landing, 0)
        stream.add(array, 1, microseconds=100)
        pair.near.send(array, stream=stream if ordered else None)
        work.wait()
        stale += landing != bytes([(number + 1) % 256]) * nbytes
        stream.synchronize()
    return stale


@pytest.mark.timeout(240)
@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_a_send_waits_for_the_work_before_it(pair: Pair, stream: Stream, nbytes: int) -> None:
    with delays(100):
        assert sends_in_order(pair, stream, nbytes, ROUNDS, ordered=True) == 0


@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_and_without_the_wait_it_would_not(pair: Pair, stream: Stream, nbytes: int) -> None:
    """The test above is one that can fail."""
    with delays(100):
        assert sends_in_order(pair, stream, nbytes, 50, ordered=False) > 0


def receives_in_order(
    pair: Pair, stream: Stream, nbytes: int, rounds: int, *, ordered: bool
) -> int:
    """A receive into memory that a kernel of before still reads, and a kernel that reads what came."""
    array, before, after = (Array(Memory(nbytes), stream=ANY_ORDER) for _ in range(3))
    array.set(bytes(nbytes))
    wrong = 0
    for number in range(rounds):
        value = (number + 1) % 256
        stream.add(before, 0, microseconds=100)
        stream.copy(before, array)
        work = pair.far.irecv(array, stream=stream if ordered else None)
        pair.near.send(bytes([value]) * nbytes)
        work.wait()
        stream.copy(after, array)
        stream.synchronize()
        wrong += before.get() != bytes([number % 256]) * nbytes
        assert after.get() == bytes([value]) * nbytes
    return wrong


@pytest.mark.timeout(240)
@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_a_receive_is_between_the_work_before_and_after(
    pair: Pair, stream: Stream, nbytes: int
) -> None:
    with delays(100):
        assert receives_in_order(pair, stream, nbytes, ROUNDS, ordered=True) == 0


@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_and_without_the_order_it_would_not_be(pair: Pair, stream: Stream, nbytes: int) -> None:
    with delays(100):
        assert receives_in_order(pair, stream, nbytes, 50, ordered=False) > 0


def test_starting_a_send_does_not_wait_for_the_stream(pair: Pair, stream: Stream) -> None:
    array = Array(Memory(LARGE))
    array.set(bytes(LARGE))
    landing = bytearray(LARGE)
    receive = pair.far.irecv(landing)
    stream.add(array, 5, microseconds=int(200_000 * TIME_SCALE))
    send = pair.near.isend(array, stream=stream.ptr)
    assert not send.done()  # the kernel has not run yet
    receive.synchronize()
    assert landing == bytes([5]) * LARGE
    assert send.wait() == LARGE


def test_messages_stay_in_order_behind_one_that_waits(pair: Pair, stream: Stream) -> None:
    array = Array(Memory(SMALL), stream=stream.ptr)
    array.set(bytes(SMALL))
    stream.add(array, 1, microseconds=20_000)
    first = pair.near.isend(array, 7)
    pair.near.send(b"second", 7)
    landing = bytearray(SMALL)
    assert pair.far.recv(landing, 7) == SMALL
    assert landing == bytes([1]) * SMALL
    assert pair.far.recv(landing, 7) == 6
    first.wait()

    stream.add(array, 1, microseconds=20_000)
    waiting = pair.far.irecv(array, 8)
    behind = pair.far.irecv(landing, 8)
    pair.near.send(b"one", 8)
    pair.near.send(b"two", 8)
    assert (waiting.wait(), behind.wait()) == (3, 3)
    assert (array.get(3), bytes(landing[:3])) == (b"one", b"two")


def test_writes_stay_in_order_behind_one_that_waits(pair: Pair, stream: Stream) -> None:
    array = Array(Memory(LARGE), stream=stream.ptr)
    array.set(bytes(LARGE))
    landing = bytearray(LARGE)
    with pair.context.register(landing) as region:
        stream.add(array, 3, microseconds=20_000)
        pair.near.iwrite(array, region.key(), notify=1)
        pair.near.iwrite(b"x", region.key(), notify=2)
        assert pair.far.next_notification() == 1
        assert pair.far.next_notification() == 2
        assert landing == b"x" + bytes([3]) * (LARGE - 1)
        stream.add(array, 1, microseconds=20_000)
        pair.near.iwrite(array, region.key())
        pair.near.flush()
        assert landing == bytes([4]) * LARGE


def test_an_array_dropped_in_flight_is_not_used_again(pair: Pair, stream: Stream) -> None:
    """Freed memory is filled with other bytes by the fake driver, and a copy that meets it is a fault."""
    before = faults()
    with delays(1000):
        for number in range(30):
            array = Array(Memory(LARGE), stream=stream.ptr)
            array.set(bytes(LARGE))
            landing = bytearray(LARGE)
            stream.add(array, number + 1, microseconds=500)
            send = pair.near.isend(array)
            del array
            gc.collect()
            pair.far.recv(landing)
            assert landing == bytes([number + 1]) * LARGE
            send.wait()
            del send
    assert faults() == before


def test_a_stream_that_is_captured_is_refused(pair: Pair, stream: Stream) -> None:
    array = Array(Memory(LARGE), stream=stream.ptr)
    call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.ptr), ctypes.c_int(0))
    for operation in (pair.near.isend, pair.near.irecv):
        with pytest.raises(UsageError, match="captured into a CUDA graph"):
            operation(array)
    graph = ctypes.c_void_p()
    call("cuStreamEndCapture", ctypes.c_void_p(stream.ptr), ctypes.byref(graph))
    work = pair.far.irecv(bytearray(LARGE))
    pair.near.send(array)
    work.wait()


@pytest.mark.parametrize("gpu_direct", ["auto"])
def test_streams_of_every_kind(pair: Pair, stream: Stream) -> None:
    class Torch:
        cuda_stream = stream.ptr

    class Agreed:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, stream.ptr)

    array = Array(Memory(LARGE), stream=ANY_ORDER)
    array.set(bytes(LARGE))
    landing = bytearray(LARGE)
    for number, kind in enumerate((stream, stream.ptr, Torch(), Agreed())):
        stream.add(array, 1, microseconds=3000)
        work = pair.far.irecv(landing)
        pair.near.send(array, stream=kind)
        work.wait()
        assert landing == bytes([number + 1]) * LARGE
    with pytest.raises(UsageError, match="a stream of torch or CuPy"):
        pair.near.isend(array, stream="stream")
    with pytest.raises(UsageError, match=r"stream= is for memory of a GPU"):
        pair.near.isend(b"host", stream=stream)
