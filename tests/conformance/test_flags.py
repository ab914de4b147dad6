"""The flags of ibv_post_send(3): inline, signaled (and sq_sig_all of ibv_create_qp(3)), fence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rdmatx.errors import TimeoutError as RdmatxTimeoutError
from rdmatx.errors import VerbsError
from rdmatx.verbs import SendWork
from tests.conformance.ends import QUIET, SUCCESS, End, all_succeeded, pattern, work_ids
from tests.lanes import unsupported

Pair = tuple[End, End]
MakePair = Callable[..., Pair]


@pytest.fixture
def inline_pair(make_pair: MakePair) -> Pair:
    return make_pair(max_inline_bytes=64)


@pytest.mark.parametrize("nbytes", [0, 1, 33, 64])
def test_inline_send_frees_the_buffer_at_once(inline_pair: Pair, nbytes: int) -> None:
    """With IBV_SEND_INLINE the buffer can be reused as soon as the call returns."""
    one, other = inline_pair
    source, target = one.memory(b"a" * 64), other.memory(64)
    other.receive(target)
    one.send(source, nbytes=nbytes, inlined=True)
    source.content[:] = b"b" * 64
    assert one.sent()[0].status == SUCCESS
    assert other.received()[0].nbytes == nbytes
    assert bytes(target) == b"a" * nbytes + bytes(64 - nbytes)


def test_inline_needs_no_registration(inline_pair: Pair) -> None:
    """The L_Key of inline data is not checked: any memory will do."""
    one, other = inline_pair
    target = other.memory(64)
    other.receive(target)
    one.qp.post_send(SendWork.send().add_inline(b"never ").add_inline(b"registered").signaled())
    all_succeeded(one.sent())
    assert other.received()[0].nbytes == 16
    assert bytes(target)[:16] == b"never registered"


def test_inline_write(inline_pair: Pair) -> None:
    one, other = inline_pair
    source, target = one.memory(b"c" * 64), other.memory(64)
    for index in range(8):
        source.content[:8] = bytes([index]) * 8
        one.write(source, target, 8 * index, nbytes=8, inlined=True)
    all_succeeded(one.sent(8))
    assert bytes(target) == b"".join(bytes([index]) * 8 for index in range(8))


def test_inline_longer_than_the_queue_pair_allows(inline_pair: Pair) -> None:
    """max_inline_data bounds inline work; more is refused while posting."""
    one, _ = inline_pair
    limit = one.qp.capabilities.max_inline_bytes
    source = one.memory(limit + 1)
    with pytest.raises(VerbsError, match="ibv_post_send"):
        one.send(source, inlined=True)
    assert one.send_queue.poll() == []


def test_unsignaled_work_completes_silently(pair: Pair) -> None:
    """Without IBV_SEND_SIGNALED a success makes no completion; a signaled request that completes says that
    all before it have."""
    one, other = pair
    source, target = one.memory(pattern(640)), other.memory(640)
    for index in range(9):
        one.write(
            source, target, 64 * index, offset=64 * index, nbytes=64, signaled=False, work_id=index
        )
    one.write(source, target, 576, offset=576, nbytes=64, work_id=9)
    assert work_ids(all_succeeded(one.sent())) == [9]
    assert target.content == source.content
    assert one.send_queue.poll() == []


def test_unsignaled_work_alone(pair: Pair) -> None:
    """Unsignaled work is done without anybody asking for it."""
    one, other = pair
    source, target = one.memory(b"quiet!"), other.memory(6)
    other.receive(target)
    one.send(source, signaled=False)
    assert other.received()[0].status == SUCCESS
    with pytest.raises(RdmatxTimeoutError):
        one.send_queue.wait(1, timeout=QUIET)


def test_unsignaled_failure_completes(pair: Pair) -> None:
    """A failure makes a completion, signaled or not."""
    one, other = pair
    source, target = one.memory(64), other.memory(64)
    address, key = target.address, target.key
    target.region.close()
    one.qp.post_send(SendWork.write(address, key, work_id=8).add(source.region))
    completion = one.sent()[0]
    assert (completion.work_id, completion.status.name) == (8, "REMOTE_ACCESS_ERROR")


def test_signal_all(make_pair: MakePair) -> None:
    """sq_sig_all: each request generates a completion entry, whatever its flags."""
    one, other = make_pair(signal_all=True)
    source, target = one.memory(64), other.memory(64)
    for index in range(5):
        one.write(source, target, signaled=False, work_id=index)
    assert work_ids(all_succeeded(one.sent(5))) == list(range(5))


def test_unsignaled_work_is_bounded_by_the_queue_only(make_pair: MakePair) -> None:
    """A signaled request now and then is enough to go on for ever: 40 rounds of a full queue."""
    one, other = make_pair(max_send_requests=16)
    source, target = one.memory(8), other.memory(8)
    for round_number in range(40):
        for index in range(16):
            one.write(source, target, signaled=index == 15, work_id=round_number)
        assert work_ids(all_succeeded(one.sent())) == [round_number]


def test_fence_waits_for_reads(pair: Pair) -> None:
    """IBV_SEND_FENCE: the request waits for the reads and atomics before it, so what a read brings can be
    sent on without waiting for its completion."""
    one, other = pair
    nbytes = 256 << 10
    fresh, relay, target = other.memory(pattern(nbytes)), one.memory(nbytes), other.memory(nbytes)
    for _ in range(10):
        relay.content[:] = bytes(nbytes)
        one.read(relay, fresh, signaled=False)
        one.write(relay, target, fenced=True)
        all_succeeded(one.sent())
        assert target.content == fresh.content
        target.content[:] = bytes(nbytes)


def test_fence_after_an_atomic(pair: Pair) -> None:
    one, other = pair
    if not one.device.limits.atomics:
        unsupported(one.device.name, "atomic operations")
    counter, ticket, target = other.memory(8), one.memory(8), other.memory(8)
    for expected in range(20):
        one.fetch_add(ticket, counter, 1, signaled=False)
        one.write(ticket, target, fenced=True)
        all_succeeded(one.sent())
        assert int.from_bytes(target.content, "little") == expected


def test_fence_with_nothing_before_it(pair: Pair) -> None:
    one, other = pair
    source, target = one.memory(b"fenced.."), other.memory(8)
    one.write(source, target, fenced=True)
    all_succeeded(one.sent())
    assert bytes(target) == b"fenced.."
