"""Sends and receives: ibv_post_send(3), ibv_post_recv(3), ibv_poll_cq(3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rdmatx.errors import VerbsError
from rdmatx.verbs import CompletionOpcode, ReceiveWork, SendWork
from tests.conformance.ends import SUCCESS, End, all_succeeded, pattern, work_ids

Pair = tuple[End, End]
MakePair = Callable[..., Pair]

SIZES = [1, 3, 64, 1023, 4096, 4097, 65536, 1 << 20, 16 << 20]


@pytest.mark.parametrize("nbytes", SIZES)
def test_send(pair: Pair, nbytes: int) -> None:
    """A message of any length arrives whole, in one receive, over as many packets as it takes."""
    one, other = pair
    source, target = one.memory(pattern(nbytes)), other.memory(nbytes)
    other.receive(target, work_id=21)
    one.send(source, work_id=12)
    sent = one.sent()[0]
    assert (sent.status, sent.work_id) == (SUCCESS, 12)
    received = other.received()[0]
    assert (received.status, received.work_id, received.nbytes) == (SUCCESS, 21, nbytes)
    assert target.content == source.content


def test_completion_fields(pair: Pair) -> None:
    """wr_id, opcode, byte_len, qp_num and the immediate flag of both completions."""
    one, other = pair
    source, target = one.memory(b"fields"), other.memory(64)
    other.receive(target, work_id=(1 << 64) - 1)
    one.send(source, work_id=1 << 63)
    sent, received = one.sent()[0], other.received()[0]
    assert (sent.work_id, sent.opcode) == (1 << 63, CompletionOpcode.SEND)
    assert sent.queue_pair_number == one.qp.number
    assert not sent.is_receive
    assert (received.work_id, received.opcode) == ((1 << 64) - 1, CompletionOpcode.RECEIVE)
    assert received.queue_pair_number == other.qp.number
    assert received.is_receive
    assert received.nbytes == 6
    assert received.immediate is None
    assert sent.succeeded
    assert received.succeeded


@pytest.mark.parametrize("value", [0, 1, 0x01020304, 0xFFFFFFFF])
def test_immediate(pair: Pair, value: int) -> None:
    """Send with immediate: 32 bits travel in network order and come out as the number that went in."""
    one, other = pair
    source, target = one.memory(b"with immediate"), other.memory(64)
    other.receive(target)
    one.send(source, immediate=value)
    assert one.sent()[0].opcode == CompletionOpcode.SEND
    received = other.received()[0]
    assert (received.immediate, received.nbytes) == (value, 14)
    assert received.opcode == CompletionOpcode.RECEIVE


@pytest.mark.parametrize("immediate", [None, 7])
def test_no_bytes(pair: Pair, immediate: int | None) -> None:
    """A message may be empty; it still takes a receive."""
    one, other = pair
    target = other.memory(b"untouched")
    other.receive(target)
    one.send(immediate=immediate)
    assert one.sent()[0].status == SUCCESS
    received = other.received()[0]
    assert (received.status, received.nbytes, received.immediate) == (SUCCESS, 0, immediate)
    assert bytes(target) == b"untouched"


def test_receive_without_memory_takes_an_empty_message(pair: Pair) -> None:
    one, other = pair
    other.receive()
    one.send()
    assert one.sent()[0].status == SUCCESS
    assert (other.received()[0].status, other.qp.state.name) == (SUCCESS, "READY_TO_SEND")


def test_message_shorter_than_the_receive(pair: Pair) -> None:
    """byte_len tells how much came; the rest of the buffer stays as it was."""
    one, other = pair
    source, target = one.memory(b"short"), other.memory(b"." * 32)
    other.receive(target)
    one.send(source)
    assert other.received()[0].nbytes == 5
    assert bytes(target) == b"short" + b"." * 27
    one.sent()


@pytest.mark.parametrize(
    ("send_parts", "receive_parts"),
    [
        ([(0, 100)], [(0, 30), (64, 30), (128, 40)]),
        ([(0, 10), (100, 20), (50, 30), (200, 40)], [(7, 100)]),
        ([(0, 33), (64, 33), (128, 34)], [(0, 50), (60, 50)]),
        ([(5, 5000), (6000, 3), (9000, 7001)], [(0, 1), (10, 9000), (10000, 4000)]),
    ],
)
def test_scatter_and_gather(
    pair: Pair, send_parts: list[tuple[int, int]], receive_parts: list[tuple[int, int]]
) -> None:
    """The elements of the gather list are sent one after the other; the message fills the scatter list in
    order. The parts need not match on the two sides."""
    one, other = pair
    source, target = one.memory(pattern(16384)), other.memory(16384)
    receive = ReceiveWork(work_id=1)
    for offset, nbytes in receive_parts:
        receive.add(target.region, offset, nbytes)
    other.qp.post_receive(receive)
    work = SendWork.send(work_id=1).signaled()
    for offset, nbytes in send_parts:
        work.add(source.region, offset, nbytes)
    one.qp.post_send(work)
    assert one.sent()[0].status == SUCCESS
    message = b"".join(bytes(source.content[at : at + size]) for at, size in send_parts)
    assert other.received()[0].nbytes == len(message)
    expected, rest = bytearray(16384), message
    for offset, nbytes in receive_parts:
        expected[offset : offset + len(rest[:nbytes])] = rest[:nbytes]
        rest = rest[nbytes:]
    assert target.content == expected


def test_elements_of_several_regions(pair: Pair) -> None:
    """Each element has a key of its own: one message may come from, and go to, several regions."""
    one, other = pair
    sources = [one.memory(bytes([65 + number]) * (number + 1)) for number in range(4)]
    targets = [other.memory(3) for _ in range(4)]
    receive = ReceiveWork()
    for target in targets:
        receive.add(target.region)
    other.qp.post_receive(receive)
    work = SendWork.send().signaled()
    for source in sources:
        work.add(source.region)
    one.qp.post_send(work)
    one.sent()
    assert other.received()[0].nbytes == 10
    assert b"".join(map(bytes, targets)) == b"ABBCCCDDDD\0\0"


def test_more_elements_than_the_queue_pair_has(pair: Pair) -> None:
    """max_send_sge and max_recv_sge bound a work request; posting a longer one fails at once and posts
    nothing."""
    one, other = pair
    source, target = one.memory(4096), other.memory(4096)
    work = SendWork.send().signaled()
    for number in range(one.qp.capabilities.max_send_elements + 1):
        work.add(source.region, number, 1)
    with pytest.raises(VerbsError, match="ibv_post_send"):
        one.qp.post_send(work)
    receive = ReceiveWork()
    for number in range(other.qp.capabilities.max_receive_elements + 1):
        receive.add(target.region, number, 1)
    with pytest.raises(VerbsError, match="ibv_post_recv"):
        other.qp.post_receive(receive)
    other.receive(target)
    one.send(source, nbytes=8)
    assert one.sent()[0].status == SUCCESS
    assert other.received()[0].nbytes == 8


def test_messages_arrive_in_order(pair: Pair) -> None:
    """Receives are used in the order they were posted, by messages in the order they were sent."""
    one, other = pair
    source, target = one.memory(bytes(range(64))), other.memory(64)
    for number in range(64):
        other.receive(target, number, 1, work_id=1000 + number)
    for number in range(64):
        one.send(source, offset=number, nbytes=1, immediate=number, work_id=number)
    assert work_ids(all_succeeded(one.sent(64))) == list(range(64))
    received = all_succeeded(other.received(64))
    assert work_ids(received) == list(range(1000, 1064))
    assert [completion.immediate for completion in received] == list(range(64))
    assert target.content == source.content


def test_list_of_requests_in_one_call(pair: Pair) -> None:
    """A linked list of requests is posted by one call, in its order."""
    one, other = pair
    source, target = one.memory(bytes(range(16))), other.memory(16)
    other.qp.post_receive([ReceiveWork(work_id=n).add(target.region, n, 1) for n in range(16)])
    one.qp.post_send(
        [SendWork.send(work_id=n).add(source.region, n, 1).signaled() for n in range(16)]
    )
    assert work_ids(all_succeeded(one.sent(16))) == list(range(16))
    assert work_ids(all_succeeded(other.received(16))) == list(range(16))
    assert target.content == source.content


def test_both_directions_at_once(pair: Pair) -> None:
    nbytes, rounds = 20000, 8
    outgoing = [end.memory(pattern(nbytes * rounds, seed)) for seed, end in enumerate(pair)]
    incoming = [end.memory(nbytes * rounds) for end in pair]
    for number in range(rounds):
        for end, target in zip(pair, incoming, strict=True):
            end.receive(target, number * nbytes, nbytes, work_id=number)
    for number in range(rounds):
        for end, source in zip(pair, outgoing, strict=True):
            end.send(source, offset=number * nbytes, nbytes=nbytes, work_id=number)
    for end in pair:
        assert work_ids(all_succeeded(end.sent(rounds))) == list(range(rounds))
        assert work_ids(all_succeeded(end.received(rounds))) == list(range(rounds))
    assert incoming[1].content == outgoing[0].content
    assert incoming[0].content == outgoing[1].content


@pytest.mark.timeout(120)
def test_ten_thousand_messages(make_pair: MakePair) -> None:
    """Many more messages than the queues hold, in a window; every one arrives once, in order."""
    count, window = 10_000, 64
    one, other = make_pair(max_send_requests=window, max_receive_requests=window, entries=window)
    source, target = one.memory(8 * window), other.memory(8 * window)
    for number in range(window):
        other.receive(target, 8 * number, 8, work_id=number)
    posted = received = completed = 0
    while received < count:
        while posted < count and posted - received < window and posted - completed < window:
            slot = posted % window
            source.content[8 * slot : 8 * slot + 8] = posted.to_bytes(8, "little")
            one.send(source, offset=8 * slot, nbytes=8, work_id=posted)
            posted += 1
        for completion in all_succeeded(one.send_queue.poll(window)):
            assert completion.work_id == completed
            completed += 1
        for completion in all_succeeded(other.receive_queue.poll(window)):
            slot = received % window
            assert completion.work_id == slot
            content = int.from_bytes(target.content[8 * slot : 8 * slot + 8], "little")
            assert content == received
            received += 1
            other.receive(target, 8 * slot, 8, work_id=slot)
    if completed < count:
        all_succeeded(one.sent(count - completed))


def test_send_work_may_be_posted_again(pair: Pair) -> None:
    """A request is copied as it is posted: the same one may be posted again at once."""
    one, other = pair
    source, target = one.memory(b"twice"), other.memory(10)
    for number in range(2):
        other.receive(target, 5 * number, 5)
    work = SendWork.send(work_id=4).add(source.region).signaled()
    one.qp.post_send(work)
    one.qp.post_send(work)
    assert work_ids(all_succeeded(one.sent(2))) == [4, 4]
    all_succeeded(other.received(2))
    assert bytes(target) == b"twicetwice"
