"""The error state: what was posted is flushed, in order (ibv_modify_qp(3), ibv_poll_cq(3))."""

from __future__ import annotations

from collections.abc import Callable

from rdmatx.verbs import SendWork
from tests.conformance.ends import (
    SUCCESS,
    End,
    all_succeeded,
    connect,
    status_of_send,
    statuses,
    work_ids,
)

Pair = tuple[End, End]
MakePair = Callable[..., Pair]


def test_flush_in_order(pair: Pair) -> None:
    """In the error state all that was posted completes with a flush error, in the order it was posted."""
    other = pair[1]
    memory = other.memory(64)
    for index in range(20):
        other.receive(memory, work_id=index)
    other.qp.to_error()
    completions = other.received(20)
    assert work_ids(completions) == list(range(20))
    assert set(statuses(completions)) == {"FLUSHED"}
    assert {completion.queue_pair_number for completion in completions} == {other.qp.number}


def test_what_follows_a_failure_is_flushed(pair: Pair) -> None:
    """Work behind a failed request is flushed, also unsignaled work; nothing of it is carried out."""
    one, other = pair
    source, target = one.memory(b"!" * 64), other.memory(64)
    one.qp.post_send(
        [
            SendWork.write(target.address, target.key ^ 0x5A5A00, work_id=0)
            .add(source.region)
            .signaled(),
            *(
                SendWork.write(target.address, target.key, work_id=index)
                .add(source.region)
                .signaled(index % 2 == 0)
                for index in range(1, 10)
            ),
        ]
    )
    completions = one.sent(10)
    assert work_ids(completions) == list(range(10))
    assert statuses(completions) == ["REMOTE_ACCESS_ERROR"] + ["FLUSHED"] * 9
    assert bytes(target) == bytes(64)


def test_work_before_a_failure_succeeds(pair: Pair) -> None:
    one, other = pair
    source, target = one.memory(b"ok"), other.memory(8)
    for index in range(4):
        one.write(source, target, 2 * index, work_id=index)
    one.qp.post_send(
        SendWork.write(target.address, target.key ^ 0x5A5A00, work_id=4)
        .add(source.region)
        .signaled()
    )
    completions = one.sent(5)
    assert statuses(completions) == ["SUCCESS"] * 4 + ["REMOTE_ACCESS_ERROR"]
    assert bytes(target) == b"ok" * 4


def test_receives_are_flushed_after_a_failed_send(pair: Pair) -> None:
    """A failure of the send queue takes the queue pair's receives along."""
    one, other = pair
    for index in range(5):
        one.receive(one.memory(8), work_id=index)
    target = other.memory(8)
    one.qp.post_send(
        SendWork.write(target.address, target.key ^ 0x5A5A00).add(one.memory(8).region).signaled()
    )
    assert status_of_send(one) == "REMOTE_ACCESS_ERROR"
    completions = one.received(5)
    assert work_ids(completions) == list(range(5))
    assert set(statuses(completions)) == {"FLUSHED"}


def test_posting_in_the_error_state(pair: Pair) -> None:
    """Work may be posted in ERR; it is flushed. (A device may look at receives when the next send comes.)"""
    one, _ = pair
    one.qp.to_error()
    memory = one.memory(8)
    for index in range(3):
        one.receive(memory, work_id=100 + index)
    for index in range(3):
        one.send(memory, work_id=index)
    sent, received = one.sent(3), one.received(3)
    assert work_ids(sent) == [0, 1, 2]
    assert work_ids(received) == [100, 101, 102]
    assert set(statuses(sent + received)) == {"FLUSHED"}


def test_destroyed_with_work_outstanding(make_pair: MakePair) -> None:
    """A queue pair may be destroyed with work posted; its peer goes on living."""
    one, other = make_pair({"timeout": 8, "retry_count": 1})
    for _ in range(4):
        other.receive(other.memory(8))
    other.qp.close()
    one.send(one.memory(8))
    assert status_of_send(one) in ("RETRY_EXCEEDED", "REMOTE_OPERATION_ERROR")


def test_a_pair_lives_on_beside_a_failed_one(make_pair: MakePair) -> None:
    """The error state is one queue pair's own."""
    broken, healthy = make_pair(), make_pair()
    broken[0].qp.to_error()
    source, target = healthy[0].memory(b"alive"), healthy[1].memory(5)
    healthy[0].write(source, target)
    all_succeeded(healthy[0].sent())
    assert bytes(target) == b"alive"


def test_connecting_again_after_the_peer_failed(make_pair: MakePair) -> None:
    one, other = make_pair()
    other.qp.to_error()
    for end in (one, other):
        end.qp.to_reset()
    connect(one, other)
    one.write(one.memory(b"again"), target := other.memory(5))
    assert one.sent()[0].status == SUCCESS
    assert bytes(target) == b"again"
