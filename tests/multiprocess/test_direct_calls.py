"""The methods that CPython calls without a dispatcher between: their arguments, and what they drop where."""

from __future__ import annotations

import inspect
import math
import re
import threading
from typing import Any

import pytest

import rdmatx
from rdmatx import _C, errors
from tests.multiprocess.conftest import Pair

METHODS = ("send", "isend", "recv", "irecv")


@pytest.mark.parametrize("method", METHODS)
def test_arguments_that_do_not_fit(pair: Pair, method: str) -> None:
    call = getattr(pair.near, method)
    parameters = list(inspect.signature(call).parameters)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "missing the required argument 'buffer'"),
        ((), {"tag": 1}, "missing the required argument 'buffer'"),
        ((b"",) * (len(parameters) + 1), {}, f"takes at most {len(parameters)} arguments"),
        ((b"",), {"buffer": b""}, "multiple values for argument 'buffer'"),
        ((b"",), {"tags": 1}, "unexpected keyword argument 'tags'"),
    ]
    for positional, named, text in wrong:
        with pytest.raises(TypeError, match=rf"^{method}\(\) .*{re.escape(text)}"):
            call(*positional, **named)
    with pytest.raises(errors.UsageError, match="tag is -1"):
        call(bytearray(1), -1)
    with pytest.raises(errors.UsageError, match="tag is 'x'"):
        call(bytearray(1), tag="x")
    pair.near.send(b"the connection lives on", tag=9)
    assert pair.far.recv(bytearray(64), tag=9) == 23


def test_timeouts_that_are_none(pair: Pair) -> None:
    work = pair.near.isend(b"abc")
    for call in (work.wait, lambda timeout: pair.far.recv(bytearray(8), 0, timeout)):
        with pytest.raises(TypeError, match="timeout is 'soon', and should be a number of seconds"):
            call("soon")  # type: ignore[arg-type]
    assert work.wait(timeout=math.inf) == work.wait(0) == work.wait(None) == 3
    assert pair.far.recv(bytearray(8), timeout=1) == 3


def test_another_objects_method(pair: Pair) -> None:
    for method in METHODS:
        with pytest.raises(TypeError, match="Connection"):
            getattr(_C.Connection, method)(object(), b"")
    with pytest.raises(TypeError, match="Work"):
        _C.Work.wait(pair.near)  # type: ignore[arg-type]


def test_work_is_made_by_operations_alone(pair: Pair) -> None:
    with pytest.raises(TypeError, match="cannot create"):
        _C.Work()
    work = pair.far.irecv(bytearray(8), tag=None)
    assert isinstance(work, rdmatx.Work)
    assert not work.done()
    with pytest.raises(errors.UsageError, match="still pending"):
        _ = work.nbytes
    pair.near.send(b"12345", tag=7)
    assert work.wait() == work.nbytes == 5
    assert work.tag == 7
    assert work.done()


class Owner(bytearray):
    """Memory whose end calls the connection that moved it."""

    def end_calls(self, connection: rdmatx.Connection, ended: list[Any]) -> Owner:
        self.connection, self.ended = connection, ended
        return self

    def __del__(self) -> None:
        if hasattr(self, "ended"):
            self.connection.iprobe()
            self.ended.append(self.connection.isend(b"", tag=99))


def test_memory_that_calls_back_as_it_ends(pair: Pair) -> None:
    """No Python code runs under the connection's lock: it would wait for itself."""
    ended: list[Any] = []
    for nbytes in (10, 8192, 100_000):
        sent = pair.near.isend(
            bytes(nbytes)
        )  # waits here, so that a small receive ends in its call
        receive = pair.far.irecv(Owner(nbytes).end_calls(pair.far, ended))
        assert receive.wait() == sent.wait() == nbytes
        works = [pair.near.isend(Owner(nbytes).end_calls(pair.near, ended)) for _ in range(200)]
        received = bytearray(nbytes)
        for work in works:
            assert pair.far.recv(received) == nbytes
            assert work.wait() == nbytes
    assert len(ended) == 3 * 201


def test_callers_that_meet_at_one_connection(pair: Pair) -> None:
    """A call that finds the lock taken gives the GIL up and waits for it: all arrive, each once."""
    count, threads = 2000, 4

    def send(tag: int) -> None:
        works = [pair.near.isend(number.to_bytes(4, "little"), tag) for number in range(count)]
        for work in works:
            work.wait()

    def receive(tag: int, found: list[int]) -> None:
        word = bytearray(4)
        for _ in range(count):
            pair.far.irecv(word, tag).wait()
            found.append(int.from_bytes(word, "little"))

    found: list[list[int]] = [[] for _ in range(threads)]
    running = [threading.Thread(target=send, args=(tag,)) for tag in range(threads)]
    running += [threading.Thread(target=receive, args=(tag, found[tag])) for tag in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert found == [list(range(count))] * threads
