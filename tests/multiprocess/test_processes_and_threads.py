"""Worker processes, however they are started, many threads, and signals, beside connections in use."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from typing import Any

import pytest

import rdmatx
from rdmatx import errors
from tests.launch import TIME_SCALE
from tests.multiprocess.conftest import PATIENCE, Pair
from tests.multiprocess.messages import content

# A helper process of multiprocessing's own, which stays.
resource_tracker.ensure_running()

SAMPLES = 24


def still_works(pair: Pair) -> None:
    work = pair.near.isend(content(20_000), tag=77)
    buffer = bytearray(20_000)
    assert pair.far.recv(buffer, tag=77) == 20_000
    work.wait()
    assert buffer == content(20_000)


class Samples:
    """A dataset whose items say what a worker may do with the parent's connection."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.parent = os.getpid()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        if os.getpid() == self.parent:
            return 0
        try:
            self.pair.near.send(b"from a worker")
        except errors.UsageError as error:
            # What it makes itself it may use.
            with (
                rdmatx.Context("soft0", timeout=PATIENCE) as context,
                context.listen() as listener,
                context.connect(listener.address) as near,
                listener.accept() as far,
            ):
                near.send(bytes([index]))
                buffer = bytearray(1)
                far.recv(buffer)
                return buffer[0] + 100 if "forked" in str(error) else -2
        return -1


@pytest.mark.torch
@pytest.mark.soft_only
def test_workers_of_a_data_loader(pair: Pair) -> None:
    """Forked workers read and write none of the parent's connections, whose traffic goes on meanwhile."""
    data = pytest.importorskip("torch.utils.data")
    loader: Any = data.DataLoader(
        Samples(pair), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=PATIENCE
    )
    seen: list[int] = []
    for batch in loader:
        still_works(pair)
        seen.extend(int(value) for value in batch)
    assert seen == [100 + index for index in range(SAMPLES)]
    assert pair.far.stats()["messages_received"] == SAMPLES // 4
    still_works(pair)


def use_inherited(pair: Pair, results: Any) -> None:
    told = 0
    for call in (
        lambda: pair.near.send(b"x"),
        lambda: pair.far.iprobe(),
        lambda: pair.near.flush(),
        lambda: pair.far.next_notification(timeout=1),
        lambda: pair.listener.accept(timeout=1),
    ):
        try:
            call()
        except errors.UsageError as error:
            told += "forked" in str(error)
    results.put(told)


@pytest.mark.soft_only
def test_a_process_forked_by_multiprocessing(pair: Pair) -> None:
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    child = fork.Process(target=use_inherited, args=(pair, results))
    child.start()
    try:
        assert results.get(timeout=PATIENCE) == 5
    finally:
        child.join(PATIENCE)
        results.close()
        results.join_thread()
    assert child.exitcode == 0
    still_works(pair)


def send_from_spawned(address: str, key: rdmatx.RemoteKey, results: Any) -> None:
    with (
        rdmatx.Context("soft0", timeout=PATIENCE) as context,
        context.connect(address) as connection,
    ):
        connection.write(b"spawned", key, notify=5)
        results.put("done")


@pytest.mark.soft_only
def test_a_process_spawned_by_multiprocessing(context: rdmatx.Context) -> None:
    """Addresses and keys go to it as they are; connections cannot, and say so."""
    spawn = multiprocessing.get_context("spawn")
    memory = bytearray(7)
    results = spawn.Queue()
    with context.listen() as listener, context.register(memory, access="w") as region:
        child = spawn.Process(
            target=send_from_spawned, args=(listener.address, region.key(), results)
        )
        child.start()
        try:
            with listener.accept() as connection:
                assert connection.next_notification() == 5
                assert memory == b"spawned"
                with pytest.raises(TypeError, match="pickle"):
                    pickle.dumps(connection)
                assert results.get(timeout=PATIENCE) == "done"
        finally:
            child.join(PATIENCE)
            results.close()
            results.join_thread()
        assert child.exitcode == 0


def test_a_connection_for_each_thread(context: rdmatx.Context) -> None:
    threads, rounds = 8, 60

    def serve(connection: rdmatx.Connection) -> None:
        buffer = bytearray(50_000)
        for _ in range(rounds):
            nbytes = connection.recv(buffer)
            connection.send(buffer[:nbytes])

    def ask(address: str, number: int) -> int:
        with context.connect(address) as connection:
            connection.send(b"hello", tag=1)
            for index in range(rounds):
                data = content(index * 997 % 50_000, number * 1000 + index)
                connection.send(data)
                buffer = bytearray(len(data))
                assert connection.recv(buffer) == len(data)
                assert buffer == data
            return number

    with context.listen() as listener, ThreadPoolExecutor(2 * threads) as pool:
        asking = [pool.submit(ask, listener.address, number) for number in range(threads)]
        serving = []
        for _ in range(threads):
            connection = listener.accept()
            assert connection.recv(bytearray(5), tag=1) == 5
            serving.append(pool.submit(serve, connection))
        assert [one.result() for one in asking] == list(range(threads))
        for one in serving:
            one.result()


def test_signals_are_handled_in_the_middle_of_a_wait(pair: Pair) -> None:
    """A handler runs while recv() waits, may use the connection itself, and the wait goes on."""
    buffer, handled = bytearray(5), []

    def on_alarm(number: int, frame: object) -> None:
        handled.append(number)
        if len(handled) == 3:
            pair.near.send(b"there", tag=1)

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        assert pair.far.recv(buffer, tag=1, timeout=10.0 * TIME_SCALE) == 5
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert buffer == b"there"
    assert len(handled) >= 3
    still_works(pair)


def test_closing_while_others_wait(context: rdmatx.Context) -> None:
    """Every waiting thread is told, and by the same words whoever they wait for."""
    with (
        context.listen() as listener,
        context.connect(listener.address) as near,
        listener.accept() as far,
        ThreadPoolExecutor(6) as pool,
    ):
        waiting = [
            pool.submit(near.recv, bytearray(10), tag=1),
            pool.submit(near.recv, bytearray(10), tag=None),
            pool.submit(near.probe, tag=5),
            pool.submit(near.next_notification),
            pool.submit(near.irecv(bytearray(100_000), tag=2).wait),
        ]
        started = threading.Event()
        pool.submit(started.set).result(PATIENCE)
        near.close()
        for one in waiting:
            with pytest.raises(errors.ClosedError):
                one.result(PATIENCE)
        with pytest.raises(errors.PeerLostError):
            far.recv(bytearray(1))
