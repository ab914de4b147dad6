"""Faults by operations by wires: what each side is told, and how soon.

Every row is a test: an operation is repeated, or waits, when the fault comes. It must end with the class of
error that the table has for it, within the table's time, and name the peer; so must every other operation
that was outstanding; the other side, where it still lives, must be told as well; nothing may be left open;
and the context must connect again. The rows of the software HCA run over shared memory and over TCP.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rdmatx import errors
from tests.faults.scene import (
    ASIDE,
    NEVER,
    OPERATIONS,
    PATIENCE,
    Scene,
    outcome,
    repeat_until_it_fails,
    scene,
)
from tests.faults.victims import Nursery
from tests.launch import TIME_SCALE

# What a wait may take longer than its deadline.
OUTLIVES = 1.0 * TIME_SCALE
# What close() may wait for the delivery of what was sent, and the TCP wire for that of its last words.
LINGERS = 2.0
LEAVES = 1.0
SHORT = 0.2
DELAY = 0.05
ONE_SIDED = ("write", "read", "write_many", "fetch_add", "flush")
# For faults that differ from another one in little that an operation could see.
SOME = ("send_large", "recv_small", "write_many", "fetch_add")


@dataclass(frozen=True)
class Fault:
    """What happens, what the operation here ends with, and what those of the peer do."""

    strike: Callable[[Scene], object]
    here: type[errors.Error]
    words: str = ""
    there: str | None = None
    """None: nobody is there any more."""
    status: int | None = None
    """Of the peer's process, where it ends."""
    delay: float | None = DELAY
    """Seconds after the first operation was started; None: before it."""
    operations: tuple[str, ...] = tuple(OPERATIONS)


def kill(scene: Scene) -> None:
    scene.peer.signal(signal.SIGKILL)


def asked_to(word: str) -> Callable[[Scene], object]:
    return lambda scene: scene.peer.ask(word)


def told_to(word: str) -> Callable[[Scene], object]:
    return lambda scene: scene.peer.tell((word,))


FAULTS = {
    "killed": Fault(kill, errors.PeerLostError, "died", status=-signal.SIGKILL),
    "exited": Fault(
        told_to("exit_at_once"), errors.PeerLostError, "died", status=3, operations=SOME
    ),
    "interpreter_ended": Fault(
        told_to("leave"), errors.PeerLostError, "the peer closed it", status=0, operations=SOME
    ),
    "closed": Fault(asked_to("close"), errors.PeerLostError, "the peer closed it", "ClosedError"),
    "context_closed": Fault(
        asked_to("close_context"),
        errors.PeerLostError,
        "the peer closed it",
        "ClosedError",
        operations=SOME,
    ),
    "region_closed": Fault(
        asked_to("close_region"),
        errors.CompletionError,
        "remote access error",
        "PeerLostError",
        delay=None,  # a write that waits for credit would never ask for the memory
        operations=ONE_SIDED,
    ),
    "closed_here": Fault(
        lambda scene: scene.near.close(), errors.ClosedError, "closed", "PeerLostError"
    ),
    "context_closed_here": Fault(
        lambda scene: scene.context.close(),
        errors.ClosedError,
        "closed",
        "PeerLostError",
        operations=SOME,
    ),
}
ROWS = [(name, operation) for name, fault in FAULTS.items() for operation in fault.operations]


@pytest.mark.parametrize(("fault_name", "operation"), ROWS)
def test_fault(
    nursery: Nursery,
    provider: str,
    device_name: str | None,
    known_within: float,
    fault_name: str,
    operation: str,
) -> None:
    fault = FAULTS[fault_name]
    with scene(nursery, provider, device_name) as at:
        at.start_bystanders()
        end = repeat_until_it_fails(
            at, OPERATIONS[operation], fault.strike, known_within, fault.delay
        )
        assert type(end.error) is fault.here, repr(end.error)
        assert fault.words in str(end.error)
        assert at.near.peer in str(end.error)
        assert end.seconds < known_within
        for work in at.bystanders:
            assert work.done(), "it is outstanding still, on a connection that has ended"
            assert outcome(work)[0] == fault.here.__name__
        with pytest.raises(fault.here):
            at.near.send(b"to a connection that has ended")
        if fault.there is not None:
            assert {kind for kind, _ in at.peer.ask("outcomes")} == {fault.there}
        if fault.status is not None:
            assert at.peer.status() == fault.status
        if not at.context.closed:
            at.still_connects()


# A stopped process holds up whatever takes its part in it. Memory of this host may be reached without its
# help, and a device of the kernel's reads and writes for it.
MAY_GO_ON = {
    "auto": ("write", "read", "flush"),
    "tcp": (),
    None: ("write", "read", "fetch_add", "flush"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_stopped_past_the_deadline(
    nursery: Nursery, provider: str, wire: str | None, device_name: str | None, operation: str
) -> None:
    """The wait ends in time; when the peer goes on, so does the connection, and all bytes are right."""
    held_up = operation not in MAY_GO_ON[wire]
    with scene(nursery, provider, device_name) as at:
        at.start_bystanders()
        at.peer.signal(signal.SIGSTOP)
        error: errors.Error | None = None
        until = time.monotonic() + (PATIENCE if held_up else SHORT)
        while error is None and (started := time.monotonic()) < until:
            try:
                OPERATIONS[operation](at, SHORT)
            except errors.TimeoutError as caught:
                error = caught
            assert time.monotonic() < started + SHORT + OUTLIVES
        if held_up:
            assert error is not None
            assert at.near.peer in str(error)
            assert error.seconds == SHORT
        assert not at.near.iprobe(tag=NEVER)  # the connection lives
        at.peer.signal(signal.SIGCONT)
        at.peer.tell(("receive", at.counts))
        if at.counts.added:
            at.near.flush()
            at.near.send(b"", tag=ASIDE)
        assert [outcome(work)[0] for work in at.bystanders] == ["done"] * 3
        assert at.peer.hear() == "right"
        at.peer.tell(("end",))
        assert at.peer.hear() is None
        assert at.peer.status() == 0


@pytest.mark.parametrize("close", ["connection", "context"])
def test_closing_beside_a_stopped_peer(
    nursery: Nursery, provider: str, device_name: str | None, close: str
) -> None:
    """close() waits a while for the delivery of what was sent; the peer learns of it when it goes on."""
    with scene(nursery, provider, device_name) as at:
        at.start_bystanders()
        at.peer.signal(signal.SIGSTOP)
        started = time.monotonic()
        (at.near if close == "connection" else at.context).close()
        assert time.monotonic() < started + LINGERS + LEAVES + OUTLIVES
        assert [outcome(work)[0] for work in at.bystanders] == ["ClosedError"] * 3
        at.peer.signal(signal.SIGCONT)
        assert {kind for kind, _ in at.peer.ask("outcomes")} == {"PeerLostError"}
