"""The software HCA where it is stricter than some devices: what the specification says and the conformance
suite, which has to pass on those devices too, cannot ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rdmatx.errors import VerbsError
from rdmatx.verbs import Access, QueuePairState, ReceiveWork, SendWork
from tests.conformance.conftest import *  # noqa: F403
from tests.conformance.ends import (
    ALL,
    PATIENCE,
    End,
    statuses,
    wait_for_state,
    work_ids,
)

pytestmark = [pytest.mark.soft, pytest.mark.soft_only]

Pair = tuple[End, End]
MakePair = Callable[..., Pair]


@pytest.mark.parametrize("fault", ["key", "bounds", "domain"])
def test_local_protection_error(pair: Pair, make_end: Callable[..., End], fault: str) -> None:
    """A fault of the request's own memory is a local protection error, with the work that is at fault."""
    one, other = pair
    source = (make_end() if fault == "domain" else one).memory(64)
    target = other.memory(64)
    address = source.address + (32 if fault == "bounds" else 0)
    key = source.region.local_key ^ (0x5A5A00 if fault == "key" else 0)
    work = SendWork.write(target.address, target.key, work_id=4).add_raw(address, 64, key)
    one.qp.post_send(work.signaled())
    completion = one.sent()[0]
    assert (completion.work_id, completion.status.name) == (4, "LOCAL_PROTECTION_ERROR")


def test_receive_without_local_write_is_a_local_protection_error(pair: Pair) -> None:
    one, other = pair
    other.receive(other.memory(64, Access.NONE))
    one.send(one.memory(8))
    assert other.received()[0].status.name == "LOCAL_PROTECTION_ERROR"
    assert one.sent()[0].status.name == "REMOTE_OPERATION_ERROR"


def test_local_length_error(pair: Pair) -> None:
    one, other = pair
    other.receive(other.memory(4))
    one.send(one.memory(8))
    assert other.received()[0].status.name == "LOCAL_LENGTH_ERROR"
    assert one.sent()[0].status.name == "REMOTE_INVALID_REQUEST"


def test_receive_in_reset_is_refused(make_end: Callable[..., End]) -> None:
    """Receives may be posted from INIT on."""
    end = make_end()
    with pytest.raises(VerbsError, match="ibv_post_recv"):
        end.qp.post_receive(ReceiveWork())


def test_send_that_is_refused_leaves_no_trace(make_end: Callable[..., End]) -> None:
    """A send that was refused before RTS is not carried out later."""
    end = make_end()
    end.qp.to_init(access=ALL)
    with pytest.raises(VerbsError, match="ibv_post_send"):
        end.send(end.memory(8))
    end.qp.to_error()
    assert end.send_queue.poll() == []


def test_receives_posted_in_the_error_state_are_flushed_at_once(pair: Pair) -> None:
    one, _ = pair
    one.qp.to_error()
    for index in range(3):
        one.receive(work_id=index)
    completions = one.received(3)
    assert work_ids(completions) == [0, 1, 2]
    assert set(statuses(completions)) == {"FLUSHED"}


def test_flush_wakes_who_waits_for_solicited_events(make_pair: MakePair) -> None:
    """ibv_req_notify_cq(3): a completion is solicited also where its status is not successful."""
    one, _ = make_pair(channel=True)
    one.receive()
    one.receive_queue.arm(solicited_only=True)
    one.qp.to_error()
    assert one.channel is not None
    assert one.channel.get_event(timeout=PATIENCE) == one.receive_queue


def test_death_of_the_peer_queue_pair_is_told(make_pair: MakePair) -> None:
    """The peer's queue pair in ERR: no retries need to run out to say that nobody answers."""
    one, other = make_pair()
    other.qp.to_error()
    one.write(one.memory(8), other.memory(8))
    assert one.sent()[0].status.name == "RETRY_EXCEEDED"
    wait_for_state(one, QueuePairState.ERROR)
