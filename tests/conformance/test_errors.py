"""What goes wrong on the wire: the statuses of ibv_poll_cq(3) at both ends, and the flush that follows.

The manual names the statuses; which fault gives which is from the InfiniBand Architecture Specification,
volume 1, chapter 9.9 (reliable service: requester and responder fault behaviour) and 10.10.4 (completion
types)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rdmatx.errors import CompletionError
from rdmatx.errors import TimeoutError as RdmatxTimeoutError
from rdmatx.verbs import Access, QueuePairState, ReceiveWork, SendWork
from tests.conformance.ends import (
    ALL,
    LOCAL_FAULT,
    QUEUE_PAIR_REFUSES,
    RECEIVE_TOO_SHORT,
    SENT_TOO_MUCH,
    End,
    Memory,
    status_of_send,
    wait_for_state,
)
from tests.lanes import unsupported

Pair = tuple[End, End]
MakePair = Callable[..., Pair]


# ---- faults of the request's own memory ----


@pytest.mark.parametrize("operation", ["send", "write"])
@pytest.mark.parametrize("fault", ["unknown key", "beyond the region", "before the region"])
def test_bad_source(pair: Pair, operation: str, fault: str) -> None:
    """The local key of every element is checked, and its bounds; the queue pair then is in the error
    state."""
    one, other = pair
    source, target = one.memory(4096), other.memory(4096)
    other.receive(target)
    work = (
        SendWork.send(work_id=3)
        if operation == "send"
        else SendWork.write(target.address, target.key, work_id=3)
    )
    if fault == "unknown key":
        work.add_raw(source.address, 64, source.region.local_key ^ 0x5A5A00)
    elif fault == "beyond the region":
        work.add_raw(source.address + 4096 - 32, 64, source.region.local_key)
    else:
        work.add_raw(source.address - 32, 64, source.region.local_key)
    one.qp.post_send(work.signaled())
    completion = one.sent()[0]
    assert completion.work_id == 3
    assert completion.status.name in LOCAL_FAULT
    wait_for_state(one, QueuePairState.ERROR)
    assert bytes(target) == bytes(4096)


def test_source_of_another_domain(pair: Pair, make_end: Callable[..., End]) -> None:
    """Memory is reached only from queue pairs of its own protection domain (ibv_alloc_pd(3))."""
    one, other = pair
    stranger = make_end()
    source, target = stranger.memory(64), other.memory(64)
    other.receive(target)
    one.qp.post_send(
        SendWork.send().add_raw(source.address, 64, source.region.local_key).signaled()
    )
    assert status_of_send(one) in LOCAL_FAULT


def test_read_into_memory_without_local_write(pair: Pair) -> None:
    """A read writes local memory: its region needs local write access."""
    one, other = pair
    target, source = one.memory(64, Access.REMOTE_READ), other.memory(b"z" * 64)
    one.read(target, source)
    assert status_of_send(one) in LOCAL_FAULT
    assert bytes(target) == bytes(64)


def test_receive_into_memory_without_local_write(pair: Pair) -> None:
    """A receive into such memory fails at the receiver, and the sender hears of a remote operation
    error."""
    one, other = pair
    target = other.memory(64, Access.REMOTE_READ)
    other.receive(target, work_id=9)
    one.send(one.memory(b"q" * 64))
    received = other.received()[0]
    assert received.work_id == 9
    assert received.status.name in LOCAL_FAULT
    assert status_of_send(one) == "REMOTE_OPERATION_ERROR"
    assert bytes(target) == bytes(64)


def test_receive_with_an_unknown_key(pair: Pair) -> None:
    one, other = pair
    target = other.memory(64)
    other.qp.post_receive(
        ReceiveWork(work_id=2).add_raw(target.address, 64, target.region.local_key ^ 0x5A5A00)
    )
    one.send(one.memory(b"q" * 64))
    assert other.received()[0].status.name in LOCAL_FAULT
    assert status_of_send(one) == "REMOTE_OPERATION_ERROR"


# ---- faults at the target of one-sided work ----


def operate(end: End, operation: str, local: Memory, address: int, key: int, nbytes: int) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "write": lambda: SendWork.write(address, key),
        "write with immediate": lambda: SendWork.write(address, key).immediate(1),
        "read": lambda: SendWork.read(address, key),
        "fetch_add": lambda: SendWork.fetch_add(address, key, 1),
        "compare_swap": lambda: SendWork.compare_swap(address, key, 0, 1),
    }
    if operation in ("fetch_add", "compare_swap"):
        if not end.device.limits.atomics:
            unsupported(end.device.name, "atomic operations")
        nbytes = 8
    work = makers[operation]()
    end.qp.post_send(work.add(local.region, 0, nbytes).signaled())


OPERATIONS = ["write", "write with immediate", "read", "fetch_add", "compare_swap"]
NEEDED = {
    "write": Access.REMOTE_WRITE,
    "write with immediate": Access.REMOTE_WRITE,
    "read": Access.REMOTE_READ,
    "fetch_add": Access.REMOTE_ATOMIC,
    "compare_swap": Access.REMOTE_ATOMIC,
}


def refused(one: End, other: End, target: Memory) -> None:
    """The requester has a remote access error and is in the error state; the target's memory is as it
    was."""
    assert status_of_send(one) == "REMOTE_ACCESS_ERROR"
    wait_for_state(one, QueuePairState.ERROR)
    assert bytes(target) == bytes(len(target))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_unknown_remote_key(pair: Pair, operation: str) -> None:
    one, other = pair
    local, target = one.memory(64), other.memory(64)
    other.receive()
    operate(one, operation, local, target.address, target.key ^ 0x5A5A00, 64)
    refused(one, other, target)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("where", ["beyond", "across the end", "before"])
def test_outside_the_region(pair: Pair, operation: str, where: str) -> None:
    one, other = pair
    local, target = one.memory(64), other.memory(4096)
    other.receive()
    start = {"beyond": 4096, "across the end": 4096 - 32, "before": -64}[where]
    if "_" in operation and where == "across the end":
        start = 4096  # eight aligned bytes lie either inside or outside
    address = target.address + start
    if "_" in operation:
        address += -address % 8
    operate(one, operation, local, address, target.key, 64)
    refused(one, other, target)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_region_without_the_access(pair: Pair, operation: str) -> None:
    """The region's access flags say which remote operations it allows (ibv_reg_mr(3))."""
    one, other = pair
    local, target = one.memory(64), other.memory(64, ALL & ~NEEDED[operation])
    other.receive()
    operate(one, operation, local, target.address, target.key, 64)
    refused(one, other, target)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_queue_pair_without_the_access(make_end: Callable[..., End], operation: str) -> None:
    """The target queue pair's own access flags (ibv_modify_qp(3)) bound what its regions allow."""
    one, other = make_end(), make_end()
    addresses = one.address(), other.address()
    one.connect(addresses[1])
    other.connect(addresses[0], access=ALL & ~NEEDED[operation])
    local, target = one.memory(64), other.memory(64)
    other.receive()
    operate(one, operation, local, target.address, target.key, 64)
    status = status_of_send(one)
    assert status in QUEUE_PAIR_REFUSES
    assert bytes(target) == bytes(64)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_key_of_another_domain(pair: Pair, make_end: Callable[..., End], operation: str) -> None:
    one, other = pair
    stranger = make_end()
    local, target = one.memory(64), stranger.memory(64)
    other.receive()
    operate(one, operation, local, target.address, target.key, 64)
    refused(one, other, target)


def test_message_longer_than_the_receive(pair: Pair) -> None:
    """Receiver: local length error. Sender: remote invalid request. Both queue pairs are in the error
    state."""
    one, other = pair
    target = other.memory(b"." * 64)
    other.receive(target, 0, 16, work_id=6)
    one.send(one.memory(b"#" * 17), work_id=5)
    received, sent = other.received()[0], one.sent()[0]
    assert received.work_id == 6
    assert received.status.name in RECEIVE_TOO_SHORT
    assert sent.work_id == 5
    assert sent.status.name in SENT_TOO_MUCH
    assert bytes(target)[16:] == b"." * 48
    for end in pair:
        wait_for_state(end, QueuePairState.ERROR)


def test_long_message_longer_than_the_receive(pair: Pair) -> None:
    """The same over many packets: nothing is written beyond the receive."""
    one, other = pair
    target = other.memory(b"." * 100_000)
    other.receive(target, 0, 50_000)
    one.send(one.memory(b"#" * 60_000))
    assert other.received()[0].status.name in RECEIVE_TOO_SHORT
    assert status_of_send(one) in SENT_TOO_MUCH
    assert bytes(target)[50_000:] == b"." * 50_000


def test_the_error_of_a_completion(pair: Pair) -> None:
    """raise_for_status() says what failed, and what to look at."""
    one, other = pair
    target = other.memory(64)
    one.qp.post_send(
        SendWork.write(target.address, target.key ^ 0x5A5A00).add(one.memory(8).region).signaled()
    )
    with pytest.raises(CompletionError, match="remote access error") as caught:
        one.sent()[0].raise_for_status()
    assert caught.value.status == 10


def test_async_event_for_a_failed_responder(pair: Pair) -> None:
    """A request that violates a region at the responder is told there as an event of the queue pair, where
    the device reports it (ibv_get_async_event(3))."""
    one, other = pair
    target = other.memory(64)
    one.qp.post_send(
        SendWork.write(target.address, target.key ^ 0x5A5A00).add(one.memory(8).region).signaled()
    )
    assert status_of_send(one) == "REMOTE_ACCESS_ERROR"
    try:
        event = other.device.next_async_event(timeout=1.0)
    except RdmatxTimeoutError:
        return  # an event is a device's courtesy; nothing depends on it
    assert event.queue_pair_number in (0, one.qp.number, other.qp.number)
