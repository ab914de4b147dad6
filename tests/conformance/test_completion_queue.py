"""ibv_create_cq(3), ibv_poll_cq(3), ibv_resize_cq(3)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from rdmatx.errors import TimeoutError as RdmatxTimeoutError
from rdmatx.errors import VerbsError
from rdmatx.verbs import Completion, CompletionQueue, Device
from tests.conformance.ends import (
    PATIENCE,
    End,
    all_succeeded,
    connect,
    skip_where_unsupported,
    work_ids,
)

Pair = tuple[End, End]
MakePair = Callable[..., Pair]


@pytest.mark.parametrize("entries", [1, 2, 100, 1000])
def test_capacity_is_at_least_what_was_asked(device: Device, entries: int) -> None:
    """ibv_create_cq(3): the size may be greater than or equal to the requested one."""
    with CompletionQueue(device, entries) as queue:
        assert queue.capacity >= entries
        assert queue.poll() == []


def test_more_entries_than_the_device_can(device: Device) -> None:
    with pytest.raises(VerbsError, match="ibv_create_cq"):
        CompletionQueue(device, device.limits.max_cqe + 1)


def test_most_entries_the_device_can(device: Device) -> None:
    """max_cqe is an upper bound; a device may still run short of memory, but not of patience."""
    with CompletionQueue(device, min(device.limits.max_cqe, 1 << 16)) as queue:
        assert queue.capacity >= min(device.limits.max_cqe, 1 << 16)


def test_poll_returns_the_oldest_first_and_each_once(pair: Pair) -> None:
    """ibv_poll_cq(3): the first num_entries completions, or all where there are fewer; each is removed."""
    one, other = pair
    source, target = one.memory(8), other.memory(8)
    for index in range(20):
        one.write(source, target, work_id=index)
    seen: list[Completion] = []
    while len(seen) < 20:
        batch = one.send_queue.poll(7)
        assert len(batch) <= 7
        seen += batch
    assert work_ids(all_succeeded(seen)) == list(range(20))
    assert one.send_queue.poll(7) == []


def test_wait_is_bounded(pair: Pair) -> None:
    """What does not come is a time-out, never a hang."""
    with pytest.raises(RdmatxTimeoutError):
        pair[0].send_queue.wait(1, timeout=0.05)


def test_one_queue_for_sends_and_receives(make_end: Callable[..., End], device: Device) -> None:
    """One completion queue may serve both queues of a queue pair, and many queue pairs."""
    with CompletionQueue(device, 256) as queue:
        ends = [make_end(queue=queue) for _ in range(4)]
        connect(ends[0], ends[1])
        connect(ends[2], ends[3])
        sources = [end.memory(bytes([65 + index])) for index, end in enumerate(ends)]
        targets = [end.memory(1) for end in ends]
        for index, end in enumerate(ends):
            end.receive(targets[index], work_id=100 + index)
        for index, end in enumerate(ends):
            end.send(sources[index], work_id=index)
        completions = all_succeeded(queue.wait(8, timeout=PATIENCE))
        assert sorted(work_ids(completions)) == [0, 1, 2, 3, 100, 101, 102, 103]
        numbers = Counter(completion.queue_pair_number for completion in completions)
        assert numbers == Counter({end.qp.number: 2 for end in ends})
        for completion in completions:
            assert completion.is_receive == (completion.work_id >= 100)
            owner = ends[completion.work_id % 100]
            assert completion.queue_pair_number == owner.qp.number
        assert [bytes(target) for target in targets] == [b"B", b"A", b"D", b"C"]


def test_completions_of_one_queue_pair_keep_their_order(
    make_end: Callable[..., End], device: Device
) -> None:
    with CompletionQueue(device, 256) as queue:
        one, other = make_end(queue=queue), make_end(queue=queue)
        connect(one, other)
        source, target = one.memory(8), other.memory(8)
        for index in range(30):
            other.receive(target, work_id=1000 + index)
        for index in range(30):
            one.send(source, work_id=index)
        ids = work_ids(all_succeeded(queue.wait(60, timeout=PATIENCE)))
        assert [number for number in ids if number < 1000] == list(range(30))
        assert [number for number in ids if number >= 1000] == list(range(1000, 1030))


def test_resize_keeps_what_waits(make_pair: MakePair) -> None:
    """ibv_resize_cq(3): at least cqe entries afterwards; completions that were not polled stay, in
    order."""
    one, other = make_pair(entries=16)
    source, target = one.memory(8), other.memory(8)
    for index in range(10):
        one.write(source, target, signaled=True, work_id=index)
    # A read after the writes tells that they are done without a look at the queue.
    probe = other.memory(8)
    other.read(probe, one.memory(8))
    all_succeeded(other.sent())
    try:
        one.send_queue.resize(200)
    except VerbsError as error:
        skip_where_unsupported(error, "resizing completion queues")
        raise
    assert one.send_queue.capacity >= 200
    for index in range(10, 60):
        one.write(source, target, work_id=index)
    assert work_ids(all_succeeded(one.sent(60))) == list(range(60))


def test_resize_beyond_the_device(device: Device) -> None:
    with CompletionQueue(device, 16) as queue:
        with pytest.raises(VerbsError, match="ibv_resize_cq"):
            queue.resize(device.limits.max_cqe + 1)
        assert queue.capacity >= 16


def test_threads_share_the_completions_out(pair: Pair) -> None:
    """Two threads that poll one queue get each completion once between them."""
    one, other = pair
    source, target = one.memory(8), other.memory(8)
    total, seen, lock = 2000, Counter[int](), threading.Lock()
    posting = threading.Semaphore(48)

    def poll() -> None:
        while True:
            with lock:
                if seen.total() >= total:
                    return
            for completion in all_succeeded(one.send_queue.poll(4)):
                with lock:
                    seen[completion.work_id] += 1
                posting.release()

    threads = [threading.Thread(target=poll) for _ in range(2)]
    for thread in threads:
        thread.start()
    for index in range(total):
        assert posting.acquire(timeout=PATIENCE)
        one.write(source, target, work_id=index)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert seen == Counter(range(total))
