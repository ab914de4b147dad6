"""How connections end: closed, broken, timed out; and that nothing is left of them."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time

import pytest

import rdmatx
from rdmatx import errors
from tests import leaks
from tests.launch import TIME_SCALE
from tests.multiprocess.conftest import PATIENCE, Pair
from tests.multiprocess.messages import content
from tests.shutdown import run_script

SHORT = 0.1


def test_close_delivers_what_was_sent(pair: Pair) -> None:
    for index in range(50):
        pair.near.send(content(5000, index))
    pair.near.close()
    buffer = bytearray(5000)
    for index in range(50):
        assert pair.far.recv(buffer) == 5000
        assert buffer == content(5000, index)
    with pytest.raises(errors.PeerLostError, match="the peer closed it"):
        pair.far.recv(buffer)
    with pytest.raises(errors.PeerLostError, match="closed"):
        pair.far.send(b"too late")


def test_close_ends_what_is_pending(pair: Pair) -> None:
    here = [pair.near.irecv(bytearray(10)), pair.near.isend(content(100000), tag=1)]
    there = [pair.far.irecv(bytearray(10)), pair.far.irecv(bytearray(100000), tag=2)]
    pair.near.close()
    pair.near.close()
    for work in here:
        with pytest.raises(errors.ClosedError):
            work.wait()
    for work in there:
        with pytest.raises(errors.PeerLostError, match="closed"):
            work.wait()
    for call in (lambda: pair.near.send(b"x"), lambda: pair.near.recv(bytearray(1))):
        with pytest.raises(errors.ClosedError):
            call()
    assert pair.near.closed
    assert not pair.far.closed


def test_closing_the_context_closes_all(provider: str, device_name: str | None) -> None:
    context = rdmatx.Context(device_name, provider, timeout=PATIENCE)
    listener = context.listen()
    near, far = context.connect(listener.address), listener.accept()
    region = context.register(bytearray(100))
    context.close()
    context.close()
    assert all(each.closed for each in (context, listener, near, far, region))
    for call in (
        lambda: context.listen(),
        lambda: context.connect("127.0.0.1:1"),
        lambda: context.register(bytearray(1)),
        lambda: listener.accept(),
        lambda: near.send(b"x"),
        lambda: region.key(),
    ):
        with pytest.raises(errors.ClosedError):
            call()


def test_a_receive_that_times_out_is_withdrawn(pair: Pair) -> None:
    with pytest.raises(errors.TimeoutError, match="withdrawn") as caught:
        pair.far.recv(bytearray(10), tag=3, timeout=SHORT)
    assert caught.value.seconds == SHORT
    assert caught.value.operation == "recv"
    assert caught.value.peer == pair.far.peer
    # Had it not been withdrawn, it would take this message.
    pair.near.send(b"new", tag=3)
    buffer = bytearray(10)
    assert pair.far.recv(buffer, tag=3) == 3
    assert buffer[:3] == b"new"


def test_work_that_times_out_goes_on(pair: Pair) -> None:
    work = pair.near.isend(content(100000))
    with pytest.raises(errors.TimeoutError, match="goes on"):
        work.wait(timeout=SHORT)
    assert not work.done()
    buffer = bytearray(100000)
    assert pair.far.recv(buffer) == 100000
    assert work.wait() == 100000
    assert buffer == content(100000)


def test_a_send_that_timed_out_still_arrives(pair: Pair) -> None:
    with pytest.raises(errors.TimeoutError, match="goes on"):
        pair.near.send(bytes(content(100000)), timeout=SHORT)
    gc.collect()
    buffer = bytearray(100000)
    assert pair.far.recv(buffer) == 100000
    assert buffer == content(100000)


def test_timeouts_tell_what_waits(pair: Pair) -> None:
    pair.near.send(b"other", tag=1)
    with pytest.raises(errors.TimeoutError, match="1 messages with other tags"):
        pair.far.recv(bytearray(10), tag=2, timeout=SHORT)


@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_wrong_timeouts(pair: Pair, wrong: float) -> None:
    with pytest.raises(errors.UsageError, match="timeout"):
        pair.far.recv(bytearray(10), timeout=wrong)
    with pytest.raises(errors.UsageError, match="timeout"):
        pair.listener.accept(timeout=wrong)


def test_the_default_timeout_is_the_contexts(provider: str, device_name: str | None) -> None:
    with (
        rdmatx.Context(device_name, provider, timeout=SHORT) as context,
        context.listen() as listener,
    ):
        assert context.timeout == SHORT
        with pytest.raises(errors.TimeoutError, match="nobody connected"):
            listener.accept()


def test_no_timeout_at_all(pair: Pair) -> None:
    late = threading.Timer(0.3, pair.near.send, args=(b"late",))
    late.start()
    assert pair.far.recv(bytearray(10), timeout=math.inf) == 4
    late.join()


def test_control_c_ends_a_wait(pair: Pair) -> None:
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Timer(0.3, os.kill, args=(os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            pair.far.recv(bytearray(10), tag=5, timeout=PATIENCE)
    finally:
        interrupt.join()
        signal.signal(signal.SIGINT, previous)
    # The receive went with it.
    pair.near.send(b"after", tag=5)
    assert pair.far.recv(bytearray(10), tag=5) == 5


def test_control_c_ends_accept_and_connect(context: rdmatx.Context) -> None:
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with context.listen() as listener:
            interrupt = threading.Timer(0.3, os.kill, args=(os.getpid(), signal.SIGINT))
            interrupt.start()
            with pytest.raises(KeyboardInterrupt):
                listener.accept(timeout=PATIENCE)
            interrupt.join()
    finally:
        signal.signal(signal.SIGINT, previous)


def test_connecting_and_closing_again_and_again(context: rdmatx.Context) -> None:
    """A thousand connections one after another leave nothing behind."""
    with context.listen() as listener:
        before = None
        for index in range(1000 if TIME_SCALE == 1 else 200):
            with context.connect(listener.address) as near, listener.accept() as far:
                near.send(b"hello")
                assert far.recv(bytearray(5)) == 5
            if index == 10:
                before = leaks.snapshot()
        assert before is not None
        del near, far
        leaks.check(before)


def test_a_peer_that_closes_as_soon_as_it_has_all(context: rdmatx.Context) -> None:
    """Its goodbye may be here before the device tells that the message has arrived: it has arrived."""

    def receive(address: str) -> None:
        with context.connect(address) as far:
            far.recv(bytearray(40_000))

    with context.listen() as listener:
        for _ in range(50):
            receiver = threading.Thread(target=receive, args=(listener.address,))
            receiver.start()
            with listener.accept() as near:
                near.send(bytes(40_000))
            receiver.join()


def test_many_connections_at_once(context: rdmatx.Context) -> None:
    with context.listen() as listener:
        pairs = [(context.connect(listener.address), listener.accept()) for _ in range(20)]
        receives = [far.irecv(bytearray(50000)) for _, far in pairs]
        sends = [near.isend(content(50000)) for near, _ in pairs]
        for work in [*sends, *receives]:
            assert work.wait() == 50000
        for near, far in pairs:
            near.close()
            far.close()


def test_dropping_a_connection_closes_it(context: rdmatx.Context) -> None:
    with context.listen() as listener:
        near = context.connect(listener.address)
        with listener.accept() as far:
            del near
            gc.collect()
            with pytest.raises(errors.PeerLostError):
                far.recv(bytearray(1))


def test_threads_share_a_connection(pair: Pair) -> None:
    failures: list[BaseException] = []

    def talk(end: rdmatx.Connection, tag: int) -> None:
        try:
            buffer = bytearray(30000)
            for index in range(100):
                nbytes = (index * 313) % 30000
                work = end.isend(content(nbytes, index), tag=tag)
                assert end.recv(buffer, tag=tag) == nbytes
                assert buffer[:nbytes] == content(nbytes, index)
                work.wait()
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=talk, args=(end, tag))
        for tag in range(4)
        for end in (pair.near, pair.far)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_closing_wakes_a_waiting_thread(pair: Pair) -> None:
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            pair.far.recv(bytearray(1), timeout=PATIENCE)
        except errors.Error as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    pair.far.close()
    thread.join(PATIENCE)
    assert [type(error) for error in caught] == [errors.ClosedError]


@pytest.mark.soft_only
def test_a_forked_child_is_told(provider: str) -> None:
    run_script(
        """
        import os, sys
        import rdmatx
        from rdmatx import errors
        context = rdmatx.Context(provider=sys.argv[1], timeout=10)
        listener = context.listen()
        near, far = context.connect(listener.address), listener.accept()
        region = context.register(bytearray(100))
        child = os.fork()
        if child == 0:
            calls = [lambda: near.send(b"x"), lambda: far.recv(bytearray(1)), lambda: listener.accept(),
                     lambda: context.connect(listener.address), lambda: region.key(),
                     lambda: context.register(bytearray(1))]
            told = 0
            for call in calls:
                try:
                    call()
                except errors.UsageError as error:
                    told += "forked" in str(error)
            near.close(); far.close(); context.close()
            del near, far, region, listener, context
            sys.exit(told)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 6, status
        near.send(b"still there")
        buffer = bytearray(11)
        assert far.recv(buffer) == 11 and buffer == b"still there"
        print("ok")
        """,
        provider,
    ).clean(stdout="ok\n")


@pytest.mark.soft_only
def test_a_forked_child_does_not_hide_its_parents_death(context: rdmatx.Context) -> None:
    """The child has copies of the parent's sockets; were they left open, nobody would see the parent die."""
    with context.listen() as listener:
        script = """
            import os, signal, sys, time
            import rdmatx
            context = rdmatx.Context(provider="soft", timeout=10)
            connection = context.connect(sys.argv[1])
            if os.fork() == 0:
                os.setsid(); os.close(0); os.close(1); os.close(2)
                time.sleep(5)
                os._exit(0)
            connection.send(b"ready")
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        thread = threading.Thread(target=run_script, args=(script, listener.address))
        thread.start()
        try:
            with listener.accept() as connection:
                connection.recv(bytearray(5))
                with pytest.raises((errors.PeerLostError, errors.CompletionError)):
                    connection.recv(bytearray(5), timeout=3.0 * TIME_SCALE)
        finally:
            thread.join()
