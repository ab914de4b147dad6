"""Waiting in an event loop: asyncio's own, and uvloop's."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

import rdmatx
from rdmatx import errors
from tests.launch import Rank, launch
from tests.multiprocess.conftest import PATIENCE, Pair
from tests.multiprocess.messages import content

# The first of a process opens descriptors that stay.
uvloop.new_event_loop().close()

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine to its end, within bounds."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        loop = factory()
        try:
            return loop.run_until_complete(asyncio.wait_for(coroutine, PATIENCE))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    return run


def test_messages(pair: Pair, run: Run) -> None:
    async def both() -> None:
        for size in (0, 8, 8192, 8193, 3_000_000):
            buffer = bytearray(size)
            sent, received = await asyncio.gather(
                pair.near.isend(content(size), tag=4), pair.far.irecv(buffer, tag=4)
            )
            assert sent == received == size
            assert buffer == content(size)

    run(both())


def test_many_at_once_and_one_after_another(pair: Pair, run: Run) -> None:
    async def all_of_them() -> None:
        buffers = [bytearray(index * 97) for index in range(300)]
        receives = [pair.far.irecv(buffer, tag=index) for index, buffer in enumerate(buffers)]
        sends = [pair.near.isend(content(index * 97, index), tag=index) for index in range(300)]
        await asyncio.gather(*receives, *sends)
        for index, buffer in enumerate(buffers):
            assert buffer == content(index * 97, index)
        for _ in range(300):
            await pair.near.isend(b"x")
            assert await pair.far.irecv(bytearray(1)) == 1

    run(all_of_them())


def test_one_sided_and_notifications(pair: Pair, run: Run) -> None:
    memory = bytearray(64)

    async def write(key: rdmatx.RemoteKey) -> None:
        for number in range(100):
            await pair.near.iwrite(content(8, number), key, offset=8, notify=number)
            await asyncio.sleep(0)
        assert await pair.near.ifetch_add(key, -key.address % 8, 5) >= 0

    async def listen() -> list[int]:
        got = []
        async for number in pair.far.notifications():
            got.append(number)
            if len(got) == 100:
                break
        return got

    async def both() -> list[int]:
        with pair.context.register(memory, access="rwa") as region:
            _, got = await asyncio.gather(write(region.key()), listen())
        return got

    assert run(both()) == list(range(100))


def test_notifications_end_with_the_connection(pair: Pair, run: Run) -> None:
    async def listen(connection: rdmatx.Connection) -> int:
        return sum([1 async for _ in connection.notifications()])

    async def both() -> None:
        mine = asyncio.ensure_future(listen(pair.near))
        theirs = asyncio.ensure_future(listen(pair.far))
        await asyncio.sleep(0.05)
        await asyncio.get_running_loop().run_in_executor(None, pair.near.close)
        assert await mine == 0
        with pytest.raises(errors.PeerLostError):
            await theirs

    run(both())


def test_connecting_and_accepting(context: rdmatx.Context, run: Run) -> None:
    async def meet() -> None:
        with context.listen() as listener:
            accepting = asyncio.ensure_future(listener.accept_async())
            await asyncio.sleep(0.02)
            near, far = await asyncio.gather(context.connect_async(listener.address), accepting)
            with near, far:
                await asyncio.gather(near.isend(b"hello"), far.irecv(bytearray(5)))
            accepting = asyncio.ensure_future(listener.accept_async())
            await asyncio.sleep(0.02)
            listener.close()
            with pytest.raises(errors.ClosedError):
                await accepting
            with pytest.raises(errors.PeerLostError):
                await context.connect_async(listener.address)

    run(meet())


def test_errors_are_raised_where_they_are_awaited(pair: Pair, run: Run) -> None:
    async def too_small() -> None:
        sending = pair.near.isend(bytes(20_000))
        receiving = pair.far.irecv(bytearray(10_000))
        for work in (sending, receiving):
            with pytest.raises(errors.SizeMismatchError):
                await work

    run(too_small())


def test_cancelling_leaves_the_operation_and_its_buffer(pair: Pair, run: Run) -> None:
    """The task is gone, the operation is not: its buffer lives until the message has come."""

    class Buffer(bytearray):
        pass

    buffer = Buffer(100_000)
    alive = weakref.ref(buffer)

    async def cancel() -> None:
        nonlocal buffer
        task = asyncio.ensure_future(wait(pair.far.irecv(buffer, tag=1)))
        del buffer
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
        assert alive() is not None
        await pair.near.isend(content(100_000), tag=1)

    async def wait(work: rdmatx.Work) -> int:
        return await work

    run(cancel())
    until = time.monotonic() + PATIENCE
    while alive() is not None and time.monotonic() < until:
        assert pair.far.iprobe() is None
        gc.collect()
    assert alive() is None


def test_a_thread_and_a_loop_share_a_context(pair: Pair, run: Run) -> None:
    """Whoever makes progress wakes the other; neither waits for a timer."""
    rounds = 300

    def answer() -> None:
        buffer = bytearray(20_000)
        for _ in range(rounds):
            nbytes = pair.far.recv(buffer, tag=1)
            pair.far.send(buffer[:nbytes], tag=2)

    async def ask() -> None:
        buffer = bytearray(20_000)
        for index in range(rounds):
            size = index * 61 % 20_000
            receiving = pair.near.irecv(buffer, tag=2)
            await pair.near.isend(content(size, index), tag=1)
            assert await receiving == size
            assert buffer[:size] == content(size, index)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        run(ask())
    finally:
        thread.join(PATIENCE)
    assert not thread.is_alive()


def ping_pong(rank: Rank, provider: str, device: str | None, rounds: int) -> int:
    async def play() -> int:
        with rdmatx.Context(device, provider, timeout=PATIENCE) as context:
            if rank.index == 0:
                with context.listen() as listener:
                    rank.send(1, listener.address)
                    connection = await listener.accept_async()
            else:
                connection = await context.connect_async(rank.receive(0))
            with connection:
                for index in range(rounds):
                    size = 100_000 if index % 10 == 0 else 50
                    buffer = bytearray(size)
                    if rank.index == 0:
                        await connection.isend(content(size, index))
                        await connection.irecv(buffer)
                    else:
                        await connection.irecv(buffer)
                        await connection.isend(bytes(buffer))
                    assert buffer == content(size, index)
                return rounds

    return asyncio.run(play())


def test_loops_of_two_processes(provider: str, device_name: str | None) -> None:
    assert launch(ping_pong, provider, device_name, 300) == [300, 300]


def killed(rank: Rank, provider: str, device: str | None) -> str:
    async def wait() -> str:
        with (
            rdmatx.Context(device, provider, timeout=PATIENCE) as context,
            context.listen() as listener,
        ):
            rank.send(1, listener.address)
            with await listener.accept_async() as connection:
                rank.send(1, "go")
                try:
                    await connection.irecv(bytearray(10))
                except errors.PeerLostError:
                    return "lost"
                return "received"

    if rank.index == 0:
        return asyncio.run(wait())
    context = rdmatx.Context(device, provider)
    connection = context.connect(rank.receive(0))
    rank.receive(0)
    connection.close()
    context.close()
    return "left"


def test_the_end_of_the_peer_wakes_the_loop(provider: str, device_name: str | None) -> None:
    assert launch(killed, provider, device_name) == ["lost", "left"]
