"""Queues that are full, and lists of requests that are refused: ibv_post_send(3), ibv_post_recv(3)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from rdmatx.errors import TimeoutError as RdmatxTimeoutError
from rdmatx.errors import VerbsError
from rdmatx.verbs import SendWork
from tests.conformance.ends import (
    QUIET,
    End,
    all_succeeded,
    work_ids,
)

Pair = tuple[End, End]
MakePair = Callable[..., Pair]


def posted_until_full(post: Callable[[int], object], capacity: int) -> int:
    """Posts until the queue refuses, with ENOMEM, and returns how many it took."""
    for number in range(capacity + 1):
        try:
            post(number)
        except VerbsError as error:
            if error.errno != errno.ENOMEM:
                raise
            return number
    pytest.fail(f"a queue of {capacity} took {capacity + 1} requests")


def test_full_send_queue(make_pair: MakePair) -> None:
    """Posting more than the queue holds is refused (ENOMEM); what was posted before completes."""
    one, other = make_pair({"rnr_retry": 7, "min_rnr_timer": 1}, max_send_requests=8)
    source, target = one.memory(8), other.memory(8)
    # No receive is posted, so nothing leaves the queue meanwhile.
    posted = posted_until_full(
        lambda number: one.send(source, work_id=number), one.qp.capabilities.max_send_requests
    )
    assert posted >= 8
    for _ in range(posted):
        other.receive(target)
    assert work_ids(all_succeeded(one.sent(posted))) == list(range(posted))
    one.write(source, target)
    all_succeeded(one.sent())


def test_full_receive_queue(make_pair: MakePair) -> None:
    one, other = make_pair(max_receive_requests=8)
    target = other.memory(8)
    posted = posted_until_full(
        lambda number: other.receive(target, work_id=number),
        other.qp.capabilities.max_receive_requests,
    )
    assert posted >= 8
    one.send(one.memory(8))
    all_succeeded(one.sent())
    assert other.received()[0].work_id == 0
    other.receive(target)


def test_list_stops_at_the_first_that_is_refused(pair: Pair) -> None:
    """ibv_post_send(3) stops at the first request that fails: those before it are posted, those after are
    not."""
    one, other = pair
    source, target = one.memory(64), other.memory(64)
    too_many = SendWork.write(target.address, target.key, work_id=2)
    for index in range(one.qp.capabilities.max_send_elements + 1):
        too_many.add(source.region, index, 1)
    good = [
        SendWork.write(target.address, target.key, work_id=index).add(source.region).signaled()
        for index in (0, 1, 3)
    ]
    with pytest.raises(VerbsError, match="ibv_post_send"):
        one.qp.post_send([good[0], good[1], too_many, good[2]])
    assert work_ids(all_succeeded(one.sent(2))) == [0, 1]
    with pytest.raises(RdmatxTimeoutError):
        one.send_queue.wait(1, timeout=QUIET)
