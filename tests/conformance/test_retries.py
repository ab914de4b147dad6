"""A receiver that is not ready, or not there: min_rnr_timer, rnr_retry, timeout, retry_cnt of
ibv_modify_qp(3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rdmatx.errors import TimeoutError as RdmatxTimeoutError
from rdmatx.verbs import Address, QueuePairState
from tests.conformance.ends import (
    QUIET,
    End,
    all_succeeded,
    status_of_send,
    wait_for_state,
    work_ids,
)

Pair = tuple[End, End]
MakePair = Callable[..., Pair]


def test_receiver_not_ready_without_retries(make_pair: MakePair) -> None:
    """rnr_retry 0: a message that finds no receive fails at once."""
    one, other = make_pair({"rnr_retry": 0, "min_rnr_timer": 1})
    one.send(one.memory(8))
    assert status_of_send(one) == "RECEIVER_NOT_READY_RETRY_EXCEEDED"
    wait_for_state(one, QueuePairState.ERROR)
    assert other.qp.state == QueuePairState.READY_TO_SEND


def test_receiver_not_ready_after_some_retries(make_pair: MakePair) -> None:
    one, _ = make_pair({"rnr_retry": 2, "min_rnr_timer": 1})
    one.send(one.memory(8))
    assert status_of_send(one) == "RECEIVER_NOT_READY_RETRY_EXCEEDED"


def test_write_with_immediate_needs_a_receive_too(make_pair: MakePair) -> None:
    one, other = make_pair({"rnr_retry": 0, "min_rnr_timer": 1})
    one.write(one.memory(8), other.memory(8), immediate=3)
    assert status_of_send(one) == "RECEIVER_NOT_READY_RETRY_EXCEEDED"


def test_one_sided_work_needs_no_receive(make_pair: MakePair) -> None:
    one, other = make_pair({"rnr_retry": 0})
    source, target = one.memory(b"no wait!"), other.memory(8)
    one.write(source, target)
    one.read(source, target)
    all_succeeded(one.sent(2))


@pytest.mark.parametrize("messages", [1, 20])
def test_late_receiver_with_retries_for_ever(make_pair: MakePair, messages: int) -> None:
    """rnr_retry 7 is without limit: the messages wait for the receives, and then go in order."""
    one, other = make_pair({"rnr_retry": 7, "min_rnr_timer": 1})
    source, target = one.memory(bytes(range(64))), other.memory(64)
    for index in range(messages):
        one.send(source, offset=index, nbytes=1, work_id=index)
    with pytest.raises(RdmatxTimeoutError):
        one.send_queue.wait(1, timeout=QUIET)
    for index in range(messages):
        other.receive(target, index, 1, work_id=index)
    assert work_ids(all_succeeded(one.sent(messages))) == list(range(messages))
    assert work_ids(all_succeeded(other.received(messages))) == list(range(messages))
    assert target.content[:messages] == source.content[:messages]


def test_peer_that_is_not_there(make_end: Callable[..., End]) -> None:
    """No answer within timeout × retry_cnt: retry exceeded, as for a peer that has died."""
    one = make_end()
    own = one.address()
    # A number that no queue pair has: the last one there can be.
    nobody = Address(
        queue_pair_number=0xFFFFFE,
        packet_sequence_number=1,
        gid=own.gid,
        gid_index=own.gid_index,
        gid_type=own.gid_type,
        lid=own.lid,
        port=own.port,
        link_layer=own.link_layer,
        mtu=own.mtu,
    )
    one.connect(nobody, timeout=8, retry_count=1)
    one.send(one.memory(8), work_id=2)
    completion = one.sent()[0]
    assert (completion.work_id, completion.status.name) == (2, "RETRY_EXCEEDED")
    wait_for_state(one, QueuePairState.ERROR)


def test_peer_in_the_error_state(make_pair: MakePair) -> None:
    """A queue pair in ERR answers nothing: its peer's retries run out."""
    one, other = make_pair({"timeout": 8, "retry_count": 1})
    other.qp.to_error()
    one.write(one.memory(8), other.memory(8))
    assert status_of_send(one) == "RETRY_EXCEEDED"
