"""ibv_create_srq(3), ibv_modify_srq(3), ibv_post_srq_recv(3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rdmatx.errors import VerbsError
from rdmatx.verbs import Device, ProtectionDomain, ReceiveWork
from tests.conformance.ends import (
    PATIENCE,
    RECEIVE_TOO_SHORT,
    SUCCESS,
    End,
    all_succeeded,
    connect,
    make_shared_queue,
    pattern,
    skip_where_unsupported,
    statuses,
    work_ids,
)

Pair = tuple[End, End]
MakePair = Callable[..., Pair]


@pytest.fixture
def shared_pair(make_pair: MakePair) -> Pair:
    return make_pair(shared_receives=64)


def test_size_is_at_least_what_was_asked(device: Device) -> None:
    """ibv_create_srq(3): max_wr and max_sge will be greater than or equal to the values requested."""
    with (
        ProtectionDomain(device) as domain,
        make_shared_queue(domain, 50, max_elements=3) as queue,
    ):
        assert queue.max_requests >= 50
        assert queue.max_elements >= 3


def test_more_than_the_device_can(device: Device) -> None:
    with ProtectionDomain(device) as domain:
        make_shared_queue(domain, 1).close()
        with pytest.raises(VerbsError, match="ibv_create_srq"):
            make_shared_queue(domain, device.limits.max_srq_wr + 1)
        with pytest.raises(VerbsError, match="ibv_create_srq"):
            make_shared_queue(domain, 1, max_elements=device.limits.max_srq_sge + 1)


@pytest.mark.parametrize("nbytes", [0, 1, 4097, 1 << 20])
def test_message_takes_a_shared_receive(shared_pair: Pair, nbytes: int) -> None:
    one, other = shared_pair
    source, target = one.memory(pattern(nbytes or 1)), other.memory(nbytes or 1)
    other.receive(target, work_id=31)
    one.send(source, nbytes=nbytes)
    all_succeeded(one.sent())
    completion = other.received()[0]
    assert (completion.status, completion.work_id, completion.nbytes) == (SUCCESS, 31, nbytes)
    assert completion.queue_pair_number == other.qp.number
    if nbytes:
        assert target.content == source.content


def test_write_with_immediate_takes_one_too(shared_pair: Pair) -> None:
    one, other = shared_pair
    source, target = one.memory(b"imm"), other.memory(3)
    other.receive(work_id=4)
    one.write(source, target, immediate=11)
    all_succeeded(one.sent())
    completion = other.received()[0]
    assert (completion.work_id, completion.immediate) == (4, 11)
    assert bytes(target) == b"imm"


def test_several_queue_pairs_draw_from_one_queue(make_end: Callable[..., End]) -> None:
    """Each message takes the next receive, whichever queue pair it comes in on; the completion tells
    which."""
    first = make_end(shared_receives=64)
    assert first.shared is not None
    receivers = [first]
    for _ in range(2):
        receivers.append(
            make_end(
                domain=first.domain,
                queue=first.receive_queue,
                shared_receive_queue=first.shared,
            )
        )
    senders = [make_end() for _ in receivers]
    for sender, receiver in zip(senders, receivers, strict=True):
        connect(sender, receiver)
    target = first.memory(8 * 30)
    for index in range(30):
        first.shared.post_receive(ReceiveWork(work_id=index).add(target.region, 8 * index, 8))
    sources = [sender.memory(bytes([65 + index]) * 8) for index, sender in enumerate(senders)]
    for _ in range(10):
        for sender, source in zip(senders, sources, strict=True):
            sender.send(source)
    for sender in senders:
        all_succeeded(sender.sent(10))
    completions = all_succeeded(first.receive_queue.wait(30, timeout=PATIENCE))
    assert sorted(work_ids(completions)) == list(range(30))
    letter = {receiver.qp.number: 65 + index for index, receiver in enumerate(receivers)}
    for completion in completions:
        at = 8 * completion.work_id
        assert target.content[at : at + 8] == bytes([letter[completion.queue_pair_number]]) * 8


def test_posting_to_the_queue_pair_itself_is_refused(shared_pair: Pair) -> None:
    """ibv_post_recv(3): a queue pair with a shared receive queue has no receive queue of its own to post
    to."""
    _, other = shared_pair
    with pytest.raises(VerbsError, match="ibv_post_recv"):
        other.qp.post_receive(ReceiveWork())


def test_full_queue(device: Device) -> None:
    with ProtectionDomain(device) as domain, make_shared_queue(domain, 8) as queue:
        for index in range(queue.max_requests):
            queue.post_receive(ReceiveWork(work_id=index))
        with pytest.raises(VerbsError, match="ibv_post_srq_recv"):
            queue.post_receive(ReceiveWork())


def test_limit_event(shared_pair: Pair, device: Device) -> None:
    """ibv_modify_srq(3): once the number of receives drops below srq_limit, one event comes of the
    device."""
    one, other = shared_pair
    assert other.shared is not None
    source, target = one.memory(8), other.memory(8)
    for index in range(10):
        other.receive(target, work_id=index)
    try:
        other.shared.set_limit(8)
    except VerbsError as error:
        skip_where_unsupported(error, "limits of shared receive queues")
        raise
    for _ in range(4):
        one.send(source)
    all_succeeded(one.sent(4))
    all_succeeded(other.received(4))
    event = device.next_async_event(timeout=PATIENCE)
    assert "limit" in event.name.lower()


def test_errors_of_one_queue_pair_leave_the_queue_usable(make_end: Callable[..., End]) -> None:
    """A queue pair that fails takes only the receives it had begun to use; the rest serve the others."""
    first = make_end(shared_receives=64)
    assert first.shared is not None
    second = make_end(
        domain=first.domain, queue=first.receive_queue, shared_receive_queue=first.shared
    )
    one, two = make_end(), make_end()
    connect(one, first)
    connect(two, second)
    target = first.memory(64)
    for index in range(4):
        first.receive(target, 16 * index, 16, work_id=index)
    too_long = one.memory(32)
    one.send(too_long)
    assert statuses(one.sent()) != ["SUCCESS"]
    failed = first.received()[0]
    assert failed.work_id == 0
    assert failed.status.name in RECEIVE_TOO_SHORT
    two.send(two.memory(b"still works"))
    all_succeeded(two.sent())
    completion = first.received()[0]
    assert (completion.work_id, completion.nbytes) == (1, 11)
    assert completion.queue_pair_number == second.qp.number


def test_resize(shared_pair: Pair) -> None:
    """ibv_modify_srq(3) with IBV_SRQ_MAX_WR; what is posted stays."""
    one, other = shared_pair
    assert other.shared is not None
    target = other.memory(8)
    other.receive(target, work_id=3)
    try:
        other.shared.resize(200)
    except VerbsError as error:
        skip_where_unsupported(error, "resizing shared receive queues")
        raise
    assert other.shared.max_requests >= 200
    for index in range(100, 250):
        other.receive(target, work_id=index)
    for _ in range(2):
        one.send(one.memory(8))
    all_succeeded(one.sent(2))
    assert work_ids(all_succeeded(other.received(2))) == [3, 100]
