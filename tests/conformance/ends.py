"""Two ends of a connection, as the conformance tests use them.

An End is one queue pair with the queues, domain and memory it needs. Everything an End makes is closed
when its `with` ends, children before parents, so that a test that fails leaves nothing behind either.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, TypeVar

from rdmatx.errors import VerbsError
from rdmatx.verbs import (
    Access,
    Completion,
    CompletionChannel,
    CompletionQueue,
    Device,
    MemoryRegion,
    ProtectionDomain,
    QueuePair,
    QueuePairState,
    ReceiveWork,
    SendWork,
    SharedReceiveQueue,
    WorkCompletionStatus,
)
from tests.lanes import unsupported
from tests.launch import TIME_SCALE

ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
SUCCESS = WorkCompletionStatus.SUCCESS
# Where the specification leaves a device no choice, and devices take one all the same, a test here accepts
# what is known of them, by its reason. tests/unit/test_soft_strict.py holds the software HCA to the
# specification.
# A fault of a request's own memory is a local protection error. A device that finds it as it builds a
# packet may call it a QP operation error, or lose the reason in the flush that follows (rxe).
LOCAL_FAULT = ("LOCAL_PROTECTION_ERROR", "LOCAL_QP_OPERATION_ERROR", "FLUSHED")
# A message longer than the receive is a local length error; rxe says QP operation error.
RECEIVE_TOO_SHORT = ("LOCAL_LENGTH_ERROR", "LOCAL_QP_OPERATION_ERROR")
# Its sender hears of an invalid request, or of the operation error that the receiver made of it.
SENT_TOO_MUCH = ("REMOTE_INVALID_REQUEST", "REMOTE_OPERATION_ERROR")
# An operation that the target queue pair's access flags exclude: refused as not supported or not allowed.
QUEUE_PAIR_REFUSES = ("REMOTE_ACCESS_ERROR", "REMOTE_INVALID_REQUEST")
# Seconds to wait for what must happen. Not a measurement: a device that works is done long before.
PATIENCE = 20.0 * TIME_SCALE
# Seconds in which nothing may happen.
QUIET = 0.1

T = TypeVar("T")


def pattern(nbytes: int, seed: int = 1) -> bytes:
    """Bytes whose every 8-byte word differs, so that a block in the wrong place shows."""
    words = nbytes // 8 + 1
    return (
        b"".join(
            ((index * 0x9E3779B97F4A7C15 + seed) & (1 << 64) - 1).to_bytes(8, "little")
            for index in range(words)
        )[:nbytes]
        if nbytes < 1 << 16
        else _long_pattern(nbytes, seed)
    )


def _long_pattern(nbytes: int, seed: int) -> bytes:
    block = pattern(65528, seed)  # no multiple of a page, so that a shift by pages shows as well
    return (block * (nbytes // len(block) + 1))[:nbytes]


class Memory:
    """Registered memory: a bytearray and its region."""

    def __init__(self, region: MemoryRegion, content: bytearray) -> None:
        self.region = region
        self.content = content

    def __len__(self) -> int:
        return len(self.content)

    @property
    def address(self) -> int:
        return self.region.address

    @property
    def key(self) -> int:
        return self.region.remote_key

    def __bytes__(self) -> bytes:
        return bytes(self.content)


class End:
    """One queue pair and what belongs to it. `options` go to QueuePair."""

    def __init__(
        self,
        device: Device,
        gid_index: int,
        *,
        domain: ProtectionDomain | None = None,
        queue: CompletionQueue | None = None,
        entries: int = 256,
        channel: bool = False,
        shared_receives: int = 0,
        **options: Any,
    ) -> None:
        self._stack = ExitStack()
        self.device = device
        self.gid_index = gid_index
        with ExitStack() as undo:
            undo.callback(self.close)
            self.domain = domain or self.own(ProtectionDomain(device))
            self.channel = self.own(CompletionChannel(device)) if channel else None
            self.send_queue = queue or self.own(
                CompletionQueue(device, entries, channel=self.channel)
            )
            self.receive_queue = queue or self.own(
                CompletionQueue(device, entries, channel=self.channel)
            )
            self.shared = None
            if shared_receives:
                self.shared = self.own(make_shared_queue(self.domain, shared_receives))
                options["shared_receive_queue"] = self.shared
            options = {"max_send_elements": 4, "max_receive_elements": 4, **options}
            self.qp = self.own(
                QueuePair(self.domain, self.send_queue, self.receive_queue, **options)
            )
            undo.pop_all()

    def own(self, thing: T) -> T:
        """Closes `thing` when the end is closed, before all that was owned earlier."""
        self._stack.enter_context(thing)  # type: ignore[arg-type]
        return thing

    def close(self) -> None:
        self._stack.close()

    def memory(self, content: int | bytes, access: Access = ALL) -> Memory:
        """Registers new memory: of this many zero bytes, or with this content."""
        data = bytearray(content)
        return Memory(self.own(MemoryRegion(self.domain, data, access=access)), data)

    def address(self) -> Any:
        return self.qp.local_address(gid_index=self.gid_index)

    def connect(self, remote: Any, **options: Any) -> None:
        self.qp.connect(remote, gid_index=self.gid_index, **options)

    # ---- work: each posts one request and returns its id ----

    def send(self, memory: Memory | None = None, **parts: Any) -> int:
        return self.post(SendWork.send(work_id=parts.pop("work_id", 1)), memory, **parts)

    def write(self, memory: Memory | None, remote: Memory, at: int = 0, **parts: Any) -> int:
        work = SendWork.write(remote.address + at, remote.key, work_id=parts.pop("work_id", 1))
        return self.post(work, memory, **parts)

    def read(self, memory: Memory, remote: Memory, at: int = 0, **parts: Any) -> int:
        work = SendWork.read(remote.address + at, remote.key, work_id=parts.pop("work_id", 1))
        return self.post(work, memory, **parts)

    def fetch_add(
        self, memory: Memory, remote: Memory, value: int, at: int = 0, **parts: Any
    ) -> int:
        work = SendWork.fetch_add(
            remote.address + at, remote.key, value, work_id=parts.pop("work_id", 1)
        )
        return self.post(work, memory, nbytes=8, **parts)

    def compare_swap(
        self, memory: Memory, remote: Memory, expected: int, desired: int, at: int = 0, **parts: Any
    ) -> int:
        work = SendWork.compare_swap(
            remote.address + at, remote.key, expected, desired, work_id=parts.pop("work_id", 1)
        )
        return self.post(work, memory, nbytes=8, **parts)

    def post(
        self,
        work: SendWork,
        memory: Memory | None,
        *,
        offset: int = 0,
        nbytes: int | None = None,
        immediate: int | None = None,
        signaled: bool = True,
        fenced: bool = False,
        solicited: bool = False,
        inlined: bool = False,
    ) -> int:
        if memory is not None:
            work.add(memory.region, offset, nbytes)
        if immediate is not None:
            work.immediate(immediate)
        work.signaled(signaled).fenced(fenced).solicited(solicited).inlined(inlined)
        self.qp.post_send(work)
        return work.work_id

    def receive(
        self,
        memory: Memory | None = None,
        offset: int = 0,
        nbytes: int | None = None,
        *,
        work_id: int = 1,
    ) -> int:
        work = ReceiveWork(work_id=work_id)
        if memory is not None:
            work.add(memory.region, offset, nbytes)
        if self.shared is not None:
            self.shared.post_receive(work)
        else:
            self.qp.post_receive(work)
        return work_id

    # ---- completions ----

    def sent(self, count: int = 1) -> list[Completion]:
        """The next completions of the send queue, whatever their status."""
        return self.send_queue.wait(count, timeout=PATIENCE)

    def received(self, count: int = 1) -> list[Completion]:
        return self.receive_queue.wait(count, timeout=PATIENCE)


def connect(one: End, other: End, **options: Any) -> None:
    """Connects two ends of one process to each other, both with the same options."""
    addresses = one.address(), other.address()
    one.connect(addresses[1], **options)
    other.connect(addresses[0], **options)


def usable_gid_index(device: Device) -> int:
    """An IPv4 GID where there is one: the link-local GID of a loopback device leads nowhere. The software
    HCA's first leads everywhere that its wire does."""
    gids = device.query_gids()
    if device.provider == "soft":
        return gids[0].index
    for entry in gids:
        if entry.gid.startswith("::ffff:"):
            return entry.index
    return gids[0].index if gids else 0


def make_shared_queue(
    domain: ProtectionDomain, requests: int, **options: Any
) -> SharedReceiveQueue:
    try:
        return SharedReceiveQueue(domain, requests, **options)
    except VerbsError as error:
        skip_where_unsupported(error, "shared receive queues")
        raise


def skip_where_unsupported(error: VerbsError, feature: str) -> None:
    """Skips where the device says EOPNOTSUPP (or the ENOSYS of old kernels); every other error is an
    error."""
    import errno

    if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
        unsupported(str(error), feature)


def status_of_send(end: End) -> str:
    """The status of the next completion of the send queue."""
    return end.sent()[0].status.name


def wait_for_state(end: End, state: QueuePairState) -> None:
    until = time.monotonic() + PATIENCE
    while end.qp.state != state:
        assert time.monotonic() < until, f"{end.qp.state.name}, not {state.name}"
        time.sleep(0.001)


def statuses(completions: list[Completion]) -> list[str]:
    return [completion.status.name for completion in completions]


def work_ids(completions: list[Completion]) -> list[int]:
    return [completion.work_id for completion in completions]


def all_succeeded(completions: list[Completion]) -> list[Completion]:
    """Raises the CompletionError of the first that failed."""
    for completion in completions:
        completion.raise_for_status()
    return completions
