"""RDMA write, read and atomics: ibv_post_send(3). Nothing is posted or polled on the target's side."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rdmatx.errors import TimeoutError as RdmatxTimeoutError
from rdmatx.errors import VerbsError
from rdmatx.verbs import CompletionOpcode, SendWork
from tests.conformance.ends import (
    QUIET,
    SUCCESS,
    End,
    Memory,
    all_succeeded,
    connect,
    pattern,
    work_ids,
)
from tests.lanes import unsupported

Pair = tuple[End, End]
MakePair = Callable[..., Pair]

SIZES = [1, 7, 4096, 4097, 65536, 1 << 20, 16 << 20]
WORD = (1 << 64) - 1


def word(memory: Memory, at: int = 0) -> int:
    return int.from_bytes(memory.content[at : at + 8], "little")


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


@pytest.fixture
def atomic_pair(pair: Pair) -> Pair:
    if not pair[0].device.limits.atomics:
        unsupported(pair[0].device.name, "atomic operations")
    return pair


@pytest.mark.parametrize("nbytes", SIZES)
def test_write(pair: Pair, nbytes: int) -> None:
    """The bytes are in the target's memory once the write has completed; the target is told nothing."""
    one, other = pair
    source, target = one.memory(pattern(nbytes)), other.memory(nbytes + 16)
    one.write(source, target, 8, work_id=5)
    completion = one.sent()[0]
    assert (completion.status, completion.work_id) == (SUCCESS, 5)
    assert completion.opcode == CompletionOpcode.RDMA_WRITE
    assert bytes(target) == bytes(8) + bytes(source) + bytes(8)
    assert other.receive_queue.poll() == []


@pytest.mark.parametrize("nbytes", SIZES)
def test_read(pair: Pair, nbytes: int) -> None:
    """The target's bytes are in local memory once the read has completed."""
    one, other = pair
    target, source = one.memory(nbytes + 16), other.memory(pattern(nbytes + 16))
    one.read(target, source, 3, offset=8, nbytes=nbytes, work_id=6)
    completion = one.sent()[0]
    assert (completion.status, completion.work_id) == (SUCCESS, 6)
    assert completion.opcode == CompletionOpcode.RDMA_READ
    expected = bytes(8) + bytes(source)[3 : 3 + nbytes] + bytes(8)
    assert bytes(target) == expected
    assert other.receive_queue.poll() == []


@pytest.mark.parametrize("nbytes", [0, 1, 5000, 1 << 20])
def test_write_with_immediate(pair: Pair, nbytes: int) -> None:
    """Write with immediate also takes a receive of the target, whose buffers stay untouched: its
    completion has the immediate, the bytes written, and an opcode of its own."""
    one, other = pair
    source, target = one.memory(pattern(nbytes or 1)), other.memory(nbytes or 1)
    unused = other.memory(b"untouched")
    other.receive(unused, work_id=77)
    one.write(source if nbytes else None, target, immediate=0xCAFE)
    sent = one.sent()[0]
    assert (sent.status, sent.opcode) == (SUCCESS, CompletionOpcode.RDMA_WRITE)
    received = other.received()[0]
    assert (received.status, received.work_id, received.immediate) == (SUCCESS, 77, 0xCAFE)
    assert received.opcode == CompletionOpcode.RECEIVE_WRITE_WITH_IMMEDIATE
    assert received.nbytes == nbytes
    assert received.queue_pair_number == other.qp.number
    if nbytes:
        assert target.content == source.content
    assert bytes(unused) == b"untouched"


def test_write_and_read_of_no_bytes(pair: Pair) -> None:
    """No bytes are moved, so the remote address and key are not looked at; the work completes all the
    same."""
    one, _ = pair
    one.qp.post_send(
        [
            SendWork.write(0, 0, work_id=1).signaled(),
            SendWork.read(0, 0, work_id=2).signaled(),
        ]
    )
    assert work_ids(all_succeeded(one.sent(2))) == [1, 2]


def test_write_gathers(pair: Pair) -> None:
    one, other = pair
    source, target = one.memory(pattern(9000)), other.memory(9000)
    work = SendWork.write(target.address + 100, target.key).signaled()
    parts = [(4000, 10), (0, 3000), (8000, 1000), (3000, 1)]
    for offset, nbytes in parts:
        work.add(source.region, offset, nbytes)
    one.qp.post_send(work)
    all_succeeded(one.sent())
    message = b"".join(bytes(source.content[at : at + size]) for at, size in parts)
    assert bytes(target)[100 : 100 + len(message)] == message


def test_read_scatters(pair: Pair) -> None:
    one, other = pair
    target, source = one.memory(16384), other.memory(pattern(9000))
    work = SendWork.read(source.address + 11, source.key).signaled()
    parts = [(10, 4097), (8192, 1), (9000, 3000)]
    for offset, nbytes in parts:
        work.add(target.region, offset, nbytes)
    one.qp.post_send(work)
    all_succeeded(one.sent())
    at = 11
    for offset, nbytes in parts:
        assert target.content[offset : offset + nbytes] == source.content[at : at + nbytes]
        at += nbytes


def test_target_need_not_do_anything(pair: Pair) -> None:
    """One-sided work goes on while the target neither posts nor polls: 200 writes, then reads of them."""
    one, other = pair
    source, target, back = one.memory(pattern(8000)), other.memory(8000), one.memory(8000)
    for start in range(0, 200, 50):
        for index in range(start, start + 50):
            one.write(source, target, 40 * index, offset=40 * index, nbytes=40)
        all_succeeded(one.sent(50))
    one.read(back, target)
    all_succeeded(one.sent())
    assert back.content == source.content


def test_later_write_wins(pair: Pair) -> None:
    """Writes of one queue pair take effect in the order they were posted."""
    one, other = pair
    sources = [one.memory(bytes([value]) * 10000) for value in range(16)]
    target = other.memory(10000)
    for source in sources:
        one.write(source, target)
    all_succeeded(one.sent(16))
    assert bytes(target) == bytes([15]) * 10000


def test_write_is_seen_before_the_send_that_follows(pair: Pair) -> None:
    """A send posted after a write arrives after the write's bytes are in place."""
    one, other = pair
    source, target = one.memory(pattern(100_000)), other.memory(100_000)
    note = other.memory(8)
    other.receive(note)
    one.write(source, target, signaled=False)
    one.send(source, nbytes=8)
    all_succeeded(other.received())
    assert target.content == source.content
    all_succeeded(one.sent())


def test_many_reads_outstanding(make_pair: MakePair) -> None:
    """More reads than max_rd_atomic may be posted; the queue pair holds the rest back."""
    one, other = make_pair({"max_rd_atomic": 2})
    target, source = one.memory(64 * 100), other.memory(pattern(64 * 100))
    for index in range(50):
        one.read(target, source, 128 * index, offset=128 * index, nbytes=128, work_id=index)
    assert work_ids(all_succeeded(one.sent(50))) == list(range(50))
    assert target.content == source.content


def test_fetch_add(atomic_pair: Pair) -> None:
    """The value before comes back; the sum wraps at 64 bits."""
    one, other = atomic_pair
    result = one.memory(8)
    target = other.memory(number(5) + number(WORD))
    one.fetch_add(result, target, 37, work_id=3)
    completion = one.sent()[0]
    assert (completion.status, completion.work_id) == (SUCCESS, 3)
    assert completion.opcode == CompletionOpcode.FETCH_ADD
    assert (word(result), word(target)) == (5, 42)
    one.fetch_add(result, target, 2, 8)
    all_succeeded(one.sent())
    assert (word(result), word(target, 8)) == (WORD, 1)
    assert word(target) == 42


@pytest.mark.parametrize("matches", [True, False])
def test_compare_swap(atomic_pair: Pair, matches: bool) -> None:
    """The new value is stored only where the old one is as expected; the old one comes back either way."""
    one, other = atomic_pair
    result, target = one.memory(8), other.memory(number(0x1122334455667788))
    expected = 0x1122334455667788 if matches else 7
    one.compare_swap(result, target, expected, 99)
    completion = one.sent()[0]
    assert (completion.status, completion.opcode) == (SUCCESS, CompletionOpcode.COMPARE_SWAP)
    assert word(result) == 0x1122334455667788
    assert word(target) == (99 if matches else 0x1122334455667788)


def test_atomics_do_not_lose_additions(atomic_pair: Pair, make_end: Callable[..., End]) -> None:
    """Atomics of several queue pairs on one word: every addition counts, and no two see the same value."""
    first, second = atomic_pair
    initiators, target = [first], second.memory(8)
    for _ in range(3):
        one, other = make_end(), make_end(domain=second.domain)
        connect(one, other)
        initiators.append(one)
    results = [end.memory(8 * 50) for end in initiators]
    for index in range(50):
        for end, result in zip(initiators, results, strict=True):
            work = SendWork.fetch_add(target.address, target.key, 1, work_id=index).signaled()
            end.qp.post_send(work.add(result.region, 8 * index, 8))
    for end in initiators:
        all_succeeded(end.sent(50))
    assert word(target) == 200
    seen = [word(result, 8 * index) for result in results for index in range(50)]
    assert sorted(seen) == list(range(200))


def test_atomic_on_an_odd_address(atomic_pair: Pair) -> None:
    """Atomics work on 8 aligned bytes. Where posting does not refuse an odd address, the target does, and
    its memory stays as it was."""
    one, other = atomic_pair
    result, target = one.memory(8), other.memory(bytes(24))
    try:
        one.fetch_add(result, target, 1, 4 + (-target.address) % 8)
    except VerbsError:
        pass
    else:
        assert one.sent()[0].status.name == "REMOTE_INVALID_REQUEST"
    assert bytes(target) == bytes(24)


def test_nothing_arrives_at_the_target_queue(pair: Pair) -> None:
    """Only a write with immediate is told to the target."""
    one, other = pair
    source, target = one.memory(64), other.memory(64)
    other.receive(other.memory(64))
    one.write(source, target)
    one.read(source, target)
    all_succeeded(one.sent(2))
    with pytest.raises(RdmatxTimeoutError):
        other.receive_queue.wait(1, timeout=QUIET)
