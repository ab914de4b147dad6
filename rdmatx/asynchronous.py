"""How asyncio waits for rdmatx: on a descriptor, in the loop's own thread.

    value = await conn.isend(tensor, tag=3)
    peer = await listener.accept_async()
    conn = await ctx.connect_async(address)
    async for number in conn.notifications():
        ...

Any loop with `add_reader` will do, uvloop's too. Use the methods; this module is what is behind them.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeVar

from rdmatx import _C
from rdmatx.errors import ClosedError

__all__ = ["accept", "connect", "finished", "notifications"]

T = TypeVar("T")

#: Seconds between looks while something is awaited, for what no descriptor tells.
TICK = 0.1

_PENDING: Any = object()


class _Waitable(Protocol):
    @property
    def _progress_id(self) -> int: ...
    def _watch_events(self) -> _C.EventWatch: ...


class _LoopWatch:
    """What one event loop awaits of one context; lives while there is something."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watch: _C.EventWatch) -> None:
        self._loop = loop
        self._watch = watch
        self._attempts: dict[asyncio.Future[Any], Callable[[], Any]] = {}
        self._tick: asyncio.TimerHandle | None = None
        loop.add_reader(watch.fileno(), self._serve)
        self._again()

    def add(self, attempt: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._attempts[future] = attempt
        self._serve()
        return future

    def _serve(self) -> None:
        self._watch.serve()
        for future, attempt in list(self._attempts.items()):
            if future.done() or _settle(future, attempt):
                del self._attempts[future]
        if not self._attempts:
            # Behind the tasks that were just woken: they may await the next thing.
            self._loop.call_soon(self._end_if_idle)

    def _again(self) -> None:
        self._tick = self._loop.call_later(TICK, self._on_tick)

    def _on_tick(self) -> None:
        self._again()
        self._serve()

    def _end_if_idle(self) -> None:
        if self._attempts or self._tick is None:
            return
        self._tick.cancel()
        self._tick = None
        self._loop.remove_reader(self._watch.fileno())
        watches = _watches.get(self._loop, {})
        for key in [key for key, watch in watches.items() if watch is self]:
            del watches[key]
        del self._watch


#: By loop, and by what the waits of one context have in common.
_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, _LoopWatch]] = (
    weakref.WeakKeyDictionary()
)


def _settle(future: asyncio.Future[Any], attempt: Callable[[], Any]) -> bool:
    """Whether the attempt had a result, or failed, which is then the future's."""
    try:
        result = attempt()
    except BaseException as error:
        future.set_exception(error)
        return True
    if result is _PENDING:
        return False
    future.set_result(result)
    return True


async def _wait(subject: _Waitable, attempt: Callable[[], Any]) -> Any:
    """Waits until `attempt` returns something other than _PENDING, or raises."""
    result = attempt()
    if result is not _PENDING:
        return result
    loop = asyncio.get_running_loop()
    watches = _watches.setdefault(loop, {})
    watch = watches.get(subject._progress_id)
    if watch is None:
        watch = watches[subject._progress_id] = _LoopWatch(loop, subject._watch_events())
    return await watch.add(attempt)


def _or_pending(value: T | None) -> T:
    return _PENDING if value is None else value


async def finished(work: _C.Work) -> int:
    """What `work.wait()` gives, once it has ended."""
    if not work._finished:
        work.done()  # it may be through already, and most short ones are
    result: int = await _wait(work, lambda: work.wait(0) if work._finished else _PENDING)
    return result


async def accept(listener: _C.Listener) -> _C.Connection:
    """The listener's next connection."""
    connection: _C.Connection = await _wait(listener, lambda: _or_pending(listener._try_accept()))
    return connection


async def notifications(connection: _C.Connection) -> AsyncIterator[int]:
    """The notifications of the peer's writes, in order."""
    while True:
        try:
            yield await _wait(connection, lambda: _or_pending(connection._take_notification()))
        except ClosedError:
            return


async def connect(attempt: Callable[[], _C.Connection]) -> _C.Connection:
    """What `attempt`, a call of `Context.connect()`, gives, in a thread of its own while it lasts.

    Where the awaiting task is cancelled, a connection that still comes about is closed.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_C.Connection] = loop.create_future()

    def deliver(connection: _C.Connection | None, error: BaseException | None) -> None:
        if future.done():
            if connection is not None:
                connection.close()
        elif connection is not None:
            future.set_result(connection)
        elif error is not None:
            future.set_exception(error)

    def run() -> None:
        connection: _C.Connection | None = None
        failure: BaseException | None = None
        try:
            connection = attempt()
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(deliver, connection, failure)
        except RuntimeError:  # the loop was closed meanwhile
            if connection is not None:
                connection.close()

    threading.Thread(target=run, name="rdmatx-connect", daemon=True).start()
    return await future
