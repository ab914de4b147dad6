"""The verbs themselves, for those who write a communication layer.

Objects of ibverbs with an owner: each keeps what it was made from alive, `close()` (or `with`)
gives it back, and a call that fails raises `VerbsError` with the attributes used. The same
objects serve a device of the system and the software HCA. Numbers of bytes are `nbytes`; timeouts
of calls are float seconds; the codes of queue pair attributes are those of the manual page, which
each docstring names.

    with Device(provider="soft") as device, ProtectionDomain(device) as domain:
        queue = CompletionQueue(device, 16)
        a, b = (QueuePair(domain, queue) for _ in range(2))
        a.connect(b.local_address()); b.connect(a.local_address())
        source = MemoryRegion(domain, b"hello", access=Access.NONE)
        target = MemoryRegion(domain, bytearray(5))
        b.post_receive(ReceiveWork(work_id=1).add(target))
        a.post_send(SendWork.send(work_id=2).add(source).signaled())
        for completion in queue.wait(2):
            completion.raise_for_status()

In a process forked after an object was made, using it raises `UsageError`: it belongs to the
parent.
"""

from rdmatx._C import (
    Access,
    Address,
    AsyncEvent,
    Completion,
    CompletionChannel,
    CompletionOpcode,
    CompletionQueue,
    Device,
    DeviceLimits,
    GidEntry,
    GidType,
    LinkLayer,
    MemoryRegion,
    PathAttributes,
    PortAttributes,
    PortState,
    ProtectionDomain,
    QueuePair,
    QueuePairCapabilities,
    QueuePairState,
    QueuePairStatus,
    ReceiveWork,
    SendOpcode,
    SendWork,
    SharedReceiveQueue,
    WorkCompletionStatus,
)

__all__ = [
    "Access",
    "Address",
    "AsyncEvent",
    "Completion",
    "CompletionChannel",
    "CompletionOpcode",
    "CompletionQueue",
    "Device",
    "DeviceLimits",
    "GidEntry",
    "GidType",
    "LinkLayer",
    "MemoryRegion",
    "PathAttributes",
    "PortAttributes",
    "PortState",
    "ProtectionDomain",
    "QueuePair",
    "QueuePairCapabilities",
    "QueuePairState",
    "QueuePairStatus",
    "ReceiveWork",
    "SendOpcode",
    "SendWork",
    "SharedReceiveQueue",
    "WorkCompletionStatus",
]
