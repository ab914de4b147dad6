"""ibv_create_comp_channel(3), ibv_req_notify_cq(3), ibv_get_cq_event(3)."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable

import pytest

from rdmatx.errors import TimeoutError as RdmatxTimeoutError
from rdmatx.verbs import CompletionChannel, CompletionQueue, Device
from tests.conformance.ends import PATIENCE, QUIET, SUCCESS, End, all_succeeded

Pair = tuple[End, End]
MakePair = Callable[..., Pair]


@pytest.fixture
def channel_pair(make_pair: MakePair) -> Pair:
    """Both ends have a channel that serves their send and receive queues."""
    return make_pair(channel=True)


def readable(channel: CompletionChannel, seconds: float) -> bool:
    return bool(select.select([channel], [], [], seconds)[0])


def channel_of(end: End) -> CompletionChannel:
    assert end.channel is not None
    return end.channel


def test_event_for_a_completion(channel_pair: Pair) -> None:
    """An armed queue that gets a completion makes its channel readable; the event names the queue."""
    one, other = channel_pair
    channel = channel_of(other)
    other.receive(other.memory(8))
    other.receive_queue.arm()
    assert not readable(channel, 0)
    one.send(one.memory(b"wake up!"))
    assert readable(channel, PATIENCE)
    assert channel.get_event(timeout=PATIENCE) == other.receive_queue
    assert other.received()[0].status == SUCCESS
    one.sent()


def test_event_for_a_send(channel_pair: Pair) -> None:
    one, other = channel_pair
    one.send_queue.arm()
    one.write(one.memory(8), other.memory(8))
    assert channel_of(one).get_event(timeout=PATIENCE) == one.send_queue
    assert one.sent()[0].status == SUCCESS


def test_no_event_without_a_request(channel_pair: Pair) -> None:
    """Only ibv_req_notify_cq() asks for events."""
    one, other = channel_pair
    one.write(one.memory(8), other.memory(8))
    all_succeeded(one.sent())
    assert not readable(channel_of(one), QUIET)


def test_a_request_is_good_for_one_event(channel_pair: Pair) -> None:
    """The request is one shot: one event for each call, however many completions follow."""
    one, other = channel_pair
    channel, source, target = channel_of(one), one.memory(8), other.memory(8)
    one.send_queue.arm()
    for _ in range(5):
        one.write(source, target)
    channel.get_event(timeout=PATIENCE)
    all_succeeded(one.sent(5))
    one.write(source, target)
    all_succeeded(one.sent())
    assert not readable(channel, QUIET)
    one.send_queue.arm()
    one.write(source, target)
    channel.get_event(timeout=PATIENCE)
    all_succeeded(one.sent())


def test_only_new_completions_count(channel_pair: Pair) -> None:
    """An event comes for a completion that is added after the request; one that waits already makes none.
    So one arms, and then polls once more."""
    one, other = channel_pair
    channel, target = channel_of(one), one.memory(8)
    one.read(target, other.memory(b"arrived!"))
    until = time.monotonic() + PATIENCE
    while bytes(target) != b"arrived!":  # its completion is there now, or within moments
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(QUIET)
    one.send_queue.arm()
    assert not readable(channel, QUIET)
    all_succeeded(one.send_queue.poll())
    one.write(target, other.memory(8))
    channel.get_event(timeout=PATIENCE)
    all_succeeded(one.sent())


def test_solicited_only(channel_pair: Pair) -> None:
    """With solicited_only, a receive completion wakes only where the sender set the solicited flag."""
    one, other = channel_pair
    channel, source, target = channel_of(other), one.memory(8), other.memory(8)
    for index in range(3):
        other.receive(target, work_id=index)
    other.receive_queue.arm(solicited_only=True)
    one.send(source)
    all_succeeded(one.sent())
    all_succeeded(other.received())
    assert not readable(channel, QUIET)
    one.send(source, solicited=True)
    assert channel.get_event(timeout=PATIENCE) == other.receive_queue
    assert other.received()[0].work_id == 1
    other.receive_queue.arm(solicited_only=True)
    one.write(source, target, immediate=9, solicited=True)
    assert channel.get_event(timeout=PATIENCE) == other.receive_queue
    assert other.received()[0].immediate == 9
    all_succeeded(one.sent(2))


def test_failures_wake_too(channel_pair: Pair) -> None:
    """A completion that is flushed makes an event like any other."""
    other = channel_pair[1]
    other.receive(other.memory(8))
    other.receive_queue.arm()
    other.qp.to_error()
    assert channel_of(other).get_event(timeout=PATIENCE) == other.receive_queue
    assert other.received()[0].status.name == "FLUSHED"


def test_one_channel_for_several_queues(device: Device, make_pair: MakePair) -> None:
    """Each event says which of the channel's queues it is for."""
    one, other = make_pair(channel=True)
    channel = channel_of(other)
    source, target = one.memory(8), other.memory(8)
    other.receive(target)
    other.receive_queue.arm()
    other.send_queue.arm()
    one.send(source)
    assert channel.get_event(timeout=PATIENCE) == other.receive_queue
    other.write(target, source)
    assert channel.get_event(timeout=PATIENCE) == other.send_queue
    for queue in (one.send_queue, other.receive_queue, other.send_queue):
        all_succeeded(queue.wait(1, timeout=PATIENCE))


def test_waiting_for_an_event_is_bounded(channel_pair: Pair) -> None:
    with pytest.raises(RdmatxTimeoutError):
        channel_of(channel_pair[0]).get_event(timeout=0.05)


def test_event_wakes_a_sleeping_thread(channel_pair: Pair) -> None:
    """get_event sleeps without the interpreter lock; the main thread goes on, and its send wakes the
    sleeper."""
    one, other = channel_pair
    other.receive(other.memory(8))
    other.receive_queue.arm()
    woken: list[CompletionQueue] = []
    thread = threading.Thread(
        target=lambda: woken.append(channel_of(other).get_event(timeout=PATIENCE))
    )
    thread.start()
    one.send(one.memory(8))
    thread.join(PATIENCE)
    assert woken == [other.receive_queue]
    all_succeeded(other.received())
    all_succeeded(one.sent())


def test_queue_with_an_event_nobody_took_can_be_closed(device: Device, make_pair: MakePair) -> None:
    """ibv_destroy_cq() waits for events that were taken and not acknowledged; one never taken holds up
    nothing."""
    one, other = make_pair(channel=True)
    one.send_queue.arm()
    one.write(one.memory(8), other.memory(8))
    all_succeeded(one.sent())
    assert readable(channel_of(one), PATIENCE)


@pytest.mark.timeout(120)
def test_ping_pong_asleep(channel_pair: Pair) -> None:
    """Two threads that only ever wake by events exchange a thousand messages and miss none."""
    rounds = 1000

    def play(end: End, first: bool, errors: list[BaseException]) -> None:
        try:
            source, target = end.memory(8), end.memory(8)
            end.receive(target)
            started.wait(PATIENCE)
            end.receive_queue.arm()
            if first:
                end.send(source, signaled=False)
            for number in range(rounds):
                while not (got := end.receive_queue.poll()):
                    channel_of(end).get_event(timeout=PATIENCE)
                    end.receive_queue.arm()
                all_succeeded(got)
                end.receive(target)
                last = number == rounds - 1
                if not (first and last):
                    end.send(source, signaled=number % 16 == 15)
                all_succeeded(end.send_queue.poll())
        except BaseException as error:
            errors.append(error)

    errors: list[BaseException] = []
    started = threading.Barrier(2)
    threads = [
        threading.Thread(target=play, args=(end, index == 0, errors))
        for index, end in enumerate(channel_pair)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
