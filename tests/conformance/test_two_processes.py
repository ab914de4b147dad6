"""The data path between two processes, a queue pair in each: what one process alone could get right by
accident (addresses, keys and wake-ups that only have to be good within it)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rdmatx.verbs import Access, Address, Device, SendWork
from tests.conformance.ends import (
    ALL,
    PATIENCE,
    SUCCESS,
    End,
    all_succeeded,
    pattern,
    statuses,
    usable_gid_index,
    work_ids,
)
from tests.lanes import unsupported
from tests.launch import Rank, Ranks, launch

SIZES = [1, 4096, 100_001, 4 << 20]


@contextmanager
def connected(rank: Rank, provider: str, name: str | None, **connection: int) -> Iterator[End]:
    """An end that is connected to the other rank's; addresses travel as bytes."""
    with Device(name, provider=provider) as device:
        end = End(device, usable_gid_index(device))
        try:
            end.connect(Address.from_bytes(rank.exchange(end.address().to_bytes())), **connection)
            rank.barrier()
            yield end
        finally:
            end.close()


def send_and_receive(rank: Rank, provider: str, name: str | None, sizes: list[int]) -> None:
    with connected(rank, provider, name) as end:
        for nbytes in sizes:
            mine, theirs = pattern(nbytes, rank.index), pattern(nbytes, 1 - rank.index)
            source, target = end.memory(mine), end.memory(nbytes)
            end.receive(target, work_id=nbytes)
            end.send(source, immediate=rank.index)
            all_succeeded(end.sent())
            completion = end.received()[0]
            assert (completion.status, completion.nbytes) == (SUCCESS, nbytes)
            assert completion.immediate == 1 - rank.index
            assert bytes(target) == theirs
        rank.barrier()


def write_and_read(rank: Rank, provider: str, name: str | None, sizes: list[int]) -> None:
    """Rank 0 writes to and reads from rank 1, which sleeps in Python all the while."""
    with connected(rank, provider, name) as end:
        for nbytes in sizes:
            if rank.index == 1:
                target, readable = end.memory(nbytes), end.memory(pattern(nbytes, 5))
                rank.send(0, (target.address, target.key, readable.address, readable.key))
                rank.receive(0)
                assert bytes(target) == pattern(nbytes)
            else:
                address, key, from_address, from_key = rank.receive(1)
                source, back = end.memory(pattern(nbytes)), end.memory(nbytes)
                end.qp.post_send(SendWork.write(address, key).add(source.region).signaled())
                end.qp.post_send(SendWork.read(from_address, from_key).add(back.region).signaled())
                all_succeeded(end.sent(2))
                assert bytes(back) == pattern(nbytes, 5)
                rank.send(1, "done")
        rank.barrier()


def write_with_immediate(rank: Rank, provider: str, name: str | None) -> None:
    with connected(rank, provider, name) as end:
        if rank.index == 1:
            target = end.memory(32 * 100)
            for number in range(32):
                end.receive(work_id=number)
            rank.send(0, (target.address, target.key))
            completions = all_succeeded(end.received(32))
            assert [completion.immediate for completion in completions] == list(range(32))
            assert bytes(target) == pattern(32 * 100)
        else:
            address, key = rank.receive(1)
            source = end.memory(pattern(32 * 100))
            for number in range(32):
                work = SendWork.write(address + 100 * number, key, work_id=number)
                end.post(
                    work, source, offset=100 * number, nbytes=100, immediate=number, solicited=True
                )
            assert work_ids(all_succeeded(end.sent(32))) == list(range(32))
        rank.barrier()


def count_together(rank: Rank, provider: str, name: str | None, rounds: int) -> list[int]:
    """Both ranks add to one counter, which lies in rank 0."""
    with connected(rank, provider, name) as end:
        if not end.device.limits.atomics:
            rank.barrier()
            return []
        counter = end.memory(8)
        address, key = counter.address, counter.key
        if rank.index == 0:
            rank.send(1, (address, key))
            results = end.memory(8)
            # A queue pair to oneself, so that the owner's additions go through the device as well.
            own = End(end.device, end.gid_index, domain=end.domain)
            own.connect(own.address())
        else:
            address, key = rank.receive(0)
            results, own = end.memory(8), end
        seen = []
        try:
            for _ in range(rounds):
                work = SendWork.fetch_add(address, key, 1).add(results.region, 0, 8).signaled()
                own.qp.post_send(work)
                all_succeeded(own.sent())
                seen.append(int.from_bytes(results.content, "little"))
            rank.barrier()
        finally:
            if own is not end:
                own.close()
        return seen


def stream(rank: Rank, provider: str, name: str | None, messages: int) -> None:
    """A window of messages one way; the receiver checks the order of every one."""
    window = 64
    with connected(rank, provider, name) as end:
        memory = end.memory(8 * window)
        if rank.index == 1:
            for slot in range(window):
                end.receive(memory, 8 * slot, 8, work_id=slot)
            rank.send(0, "ready")
            for number in range(messages):
                (completion,) = all_succeeded(end.received())
                slot = completion.work_id
                assert slot == number % window
                assert int.from_bytes(memory.content[8 * slot : 8 * slot + 8], "little") == number
                end.receive(memory, 8 * slot, 8, work_id=slot)
        else:
            rank.receive(1)
            for number in range(messages):
                slot = number % window
                if number >= window:
                    all_succeeded(end.sent())
                memory.content[8 * slot : 8 * slot + 8] = number.to_bytes(8, "little")
                end.send(memory, offset=8 * slot, nbytes=8)
            all_succeeded(end.sent(min(window, messages)))
        rank.barrier()


def forbidden(rank: Rank, provider: str, name: str | None) -> None:
    """A key without remote access is refused in the other process, and both sides agree on the error."""
    with connected(rank, provider, name) as end:
        if rank.index == 1:
            target = end.memory(64, ALL & ~(Access.REMOTE_WRITE | Access.REMOTE_ATOMIC))
            rank.send(0, (target.address, target.key))
            rank.receive(0)
            assert bytes(target) == bytes(64)
        else:
            address, key = rank.receive(1)
            source = end.memory(b"x" * 64)
            end.qp.post_send(SendWork.write(address, key, work_id=1).add(source.region).signaled())
            end.qp.post_send(SendWork.write(address, key, work_id=2).add(source.region).signaled())
            assert statuses(end.sent(2)) == ["REMOTE_ACCESS_ERROR", "FLUSHED"]
            rank.send(1, "refused")
        rank.barrier()


def send_to_the_dead(rank: Rank, provider: str, name: str | None) -> list[str]:
    with connected(rank, provider, name, timeout=10, retry_count=2) as end:
        if rank.index == 1:
            rank.tell("ready")
            rank.listen()
        rank.listen()
        source = end.memory(64)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            end.send(source)
            completion = end.sent()[0]
            if completion.status != SUCCESS:
                return [completion.status.name, end.qp.state.name]
        return ["SUCCESS", end.qp.state.name]


@pytest.fixture
def run(provider: str, device_name: str | None) -> Callable[..., list[object]]:
    def launch_two(function: Callable[..., object], *arguments: object) -> list[object]:
        return launch(function, provider, device_name, *arguments, ranks=2, timeout=50)

    return launch_two


@pytest.mark.parametrize("nbytes", SIZES)
def test_send_and_receive(run: Callable[..., list[object]], nbytes: int) -> None:
    run(send_and_receive, [nbytes])


@pytest.mark.parametrize("nbytes", SIZES)
def test_write_and_read(run: Callable[..., list[object]], nbytes: int) -> None:
    run(write_and_read, [nbytes])


def test_sizes_one_after_the_other(run: Callable[..., list[object]]) -> None:
    run(send_and_receive, [1 << power for power in range(0, 21, 2)])
    run(write_and_read, [1 << power for power in range(0, 21, 2)])


def test_write_with_immediate(run: Callable[..., list[object]]) -> None:
    run(write_with_immediate)


def test_atomics_from_both_sides(run: Callable[..., list[object]]) -> None:
    rounds = 100
    seen = run(count_together, rounds)
    if seen == [[], []]:
        unsupported("device", "atomic operations")
    assert sorted(seen[0] + seen[1]) == list(range(2 * rounds))  # type: ignore[operator]


def test_stream_in_order(run: Callable[..., list[object]]) -> None:
    run(stream, 3000)


def test_forbidden_write(run: Callable[..., list[object]]) -> None:
    run(forbidden)


def test_peer_process_is_killed(provider: str, device_name: str | None) -> None:
    """kill -9 takes the queue pair along: work for it fails at the other end, whose queue pair is in
    ERR."""
    with Ranks(send_to_the_dead, provider, device_name, ranks=2, timeout=50) as ranks:
        assert ranks.hear(1) == "ready"
        ranks.kill(1)
        ranks.tell(0, "go")
        status, state = ranks.result(0)
        assert status in ("RETRY_EXCEEDED", "REMOTE_OPERATION_ERROR", "FLUSHED")
        assert state == "ERROR"
