"""A connection between the test and a peer that does as it is told, and the operations that faults meet.

The peer (`be_a_peer`) holds still unless it is asked: it polls nothing, so that what needs its help is
outstanding when the fault comes.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import rdmatx
from rdmatx import errors
from tests.faults.victims import Nursery, Test, Victim
from tests.launch import TIME_SCALE
from tests.multiprocess.messages import content

PATIENCE = 20.0 * TIME_SCALE
NBYTES = 1 << 20
# Tags of the streams, of the operations that are outstanding all the while, and of what tests say aside.
SMALL, LARGE, NEVER, BYSTANDER, ASIDE = 5, 6, 77, 98, 1000
NOTICE = 7


@dataclass
class Counts:
    """What was started and will arrive where the connection goes on."""

    small: int = 0
    large: int = 0
    notices: int = 0
    added: int = 0


@dataclass
class Scene:
    """The test's end of a connection, the peer's memory, and the peer."""

    context: rdmatx.Context
    listener: rdmatx.Listener
    near: rdmatx.Connection
    key: rdmatx.RemoteKey
    peer: Victim
    memory: bytearray = field(default_factory=lambda: bytearray(NBYTES))
    counts: Counts = field(default_factory=Counts)
    bystanders: list[rdmatx.Work] = field(default_factory=list)

    def start_bystanders(self) -> None:
        """Operations that nothing will complete: each must end in the state that the fault brings."""
        self.bystanders = [
            self.near.irecv(bytearray(8), tag=BYSTANDER),
            self.near.irecv(bytearray(NBYTES), tag=BYSTANDER + 1),
            self.near.isend(content(NBYTES, 98), tag=BYSTANDER),
        ]

    def still_connects(self) -> None:
        """Another connection of the same context works, whatever became of this one."""
        with (
            self.context.connect(self.listener.address, timeout=PATIENCE) as one,
            self.listener.accept(timeout=PATIENCE) as other,
        ):
            sent = one.isend(content(NBYTES, 1))
            buffer = bytearray(NBYTES)
            assert other.recv(buffer, timeout=PATIENCE) == NBYTES
            sent.wait(timeout=PATIENCE)
            assert buffer == content(NBYTES, 1)


@contextlib.contextmanager
def scene(nursery: Nursery, provider: str, device: str | None) -> Iterator[Scene]:
    """The test listens and the peer connects; on leaving, all of it ends."""
    with (
        rdmatx.Context(device, provider, timeout=PATIENCE) as context,
        context.listen("127.0.0.1:0") as listener,
        nursery.start(be_a_peer, provider, device, listener.address) as peer,
        listener.accept(timeout=PATIENCE) as near,
    ):
        token = bytearray(256)
        key = rdmatx.RemoteKey.from_bytes(bytes(token[: near.recv(token, tag=ASIDE)]))
        assert peer.hear() == "ready"
        yield Scene(context, listener, near, key, peer)


def be_a_peer(test: Test, provider: str, device: str | None, address: str) -> None:
    """Connects, lends its memory and then does what the test asks, until "end"."""
    with (
        rdmatx.Context(device, provider, timeout=PATIENCE) as context,
        context.connect(address, timeout=PATIENCE) as connection,
    ):
        memory = bytearray(NBYTES)
        region = context.register(memory, access="rwa")
        connection.send(bytes(region.key()), tag=ASIDE)
        pending = [
            connection.irecv(bytearray(8), tag=NEVER + 1),
            connection.isend(content(NBYTES, 3), tag=NEVER + 2),
        ]
        test.tell("ready")
        peer = Peer(context, connection, region, memory, pending)
        while True:
            word, *arguments = test.listen()
            if word == "end":
                break
            test.tell(getattr(peer, word)(*arguments))
        del peer, pending


@dataclass
class Peer:
    """What the peer can be asked to do; each returns what the test gets to hear."""

    context: rdmatx.Context
    connection: rdmatx.Connection
    region: rdmatx.Region
    memory: bytearray
    pending: list[rdmatx.Work]

    def exit_at_once(self) -> None:
        os._exit(3)

    def leave(self) -> None:
        """Ends the interpreter with everything open and work pending."""
        sys.exit(0)

    def close(self) -> None:
        self.connection.close()

    def close_context(self) -> None:
        self.context.close()

    def close_region(self) -> None:
        self.region.close()

    def outcomes(self) -> list[tuple[str, str]]:
        """What became of its operations, the class and words of each one's error."""
        return [outcome(work) for work in self.pending]

    def receive_too_small(self, tag: int) -> tuple[int, int]:
        """Seven bytes for a message of more: what it needs, and what there is."""
        try:
            self.connection.recv(bytearray(7), tag=tag)
        except errors.SizeMismatchError as error:
            return error.needed_bytes, error.available_bytes
        raise AssertionError("it fits")

    def receive(self, counts: Counts) -> str:
        """Takes what the test sent, one by one, and looks at every byte; "right" if it is."""
        buffer = bytearray(NBYTES)
        for number in range(counts.small):
            assert self.connection.recv(buffer, tag=SMALL) == 8
            assert struct.unpack_from("<Q", buffer) == (number,)
        for number in range(counts.large):
            assert self.connection.recv(buffer, tag=LARGE) == NBYTES
            assert buffer == content(NBYTES, number)
        for _ in range(counts.notices):
            assert self.connection.next_notification() == NOTICE
        assert self.connection.recv(buffer, tag=BYSTANDER) == NBYTES
        assert buffer == content(NBYTES, 98)
        if counts.added:
            self.connection.recv(buffer, tag=ASIDE)  # said when all are done
            assert struct.unpack_from("<Q", self.memory) == (counts.added,)
        self.connection.send(content(NBYTES, 99), tag=BYSTANDER + 1)
        self.connection.send(b"8 bytes.", tag=BYSTANDER)
        return "right"


def outcome(work: rdmatx.Work) -> tuple[str, str]:
    """How an operation ended; asked twice, since it may have one end only."""
    ends = []
    for _ in range(2):
        try:
            work.wait(timeout=PATIENCE)
            ends.append(("done", ""))
        except errors.Error as error:
            ends.append((type(error).__name__, str(error)))
    assert ends[0] == ends[1], ends
    assert work.done()
    return ends[0]


# ---- operations -----------------------------------------------------------------------------------

Operation = Callable[[Scene, float], object]


def send_small(scene: Scene, timeout: float) -> None:
    scene.near.send(struct.pack("<Q", scene.counts.small), tag=SMALL, timeout=timeout)
    scene.counts.small += 1


def send_large(scene: Scene, timeout: float) -> None:
    # A large one that times out goes on, so it counts.
    scene.counts.large += 1
    message = content(NBYTES, scene.counts.large - 1)
    scene.near.send(message, tag=LARGE, timeout=timeout)


def recv_small(scene: Scene, timeout: float) -> None:
    scene.near.recv(bytearray(8), tag=NEVER, timeout=timeout)


def recv_large(scene: Scene, timeout: float) -> None:
    scene.near.recv(bytearray(NBYTES), tag=NEVER, timeout=timeout)


def probe(scene: Scene, timeout: float) -> None:
    scene.near.probe(tag=NEVER, timeout=timeout)


def write(scene: Scene, timeout: float) -> None:
    scene.near.write(scene.memory, scene.key, timeout=timeout)


def read(scene: Scene, timeout: float) -> None:
    scene.near.read(scene.memory, scene.key, timeout=timeout)


def write_many(scene: Scene, timeout: float) -> None:
    scene.counts.notices += 1
    blocks = [(memoryview(scene.memory)[:1000], scene.key, 1000 * n) for n in range(1, 9)]
    scene.near.write_many(blocks, notify=NOTICE, timeout=timeout)


def fetch_add(scene: Scene, timeout: float) -> None:
    scene.counts.added += 1
    scene.near.fetch_add(scene.key, 0, 1, timeout=timeout)


def flush(scene: Scene, timeout: float) -> None:
    scene.near.iwrite(scene.memory, scene.key)
    scene.near.flush(timeout=timeout)


def next_notification(scene: Scene, timeout: float) -> None:
    scene.near.next_notification(timeout=timeout)


OPERATIONS: dict[str, Operation] = {
    "send_small": send_small,
    "send_large": send_large,
    "recv_small": recv_small,
    "recv_large": recv_large,
    "probe": probe,
    "write": write,
    "read": read,
    "write_many": write_many,
    "fetch_add": fetch_add,
    "flush": flush,
    "next_notification": next_notification,
}


@dataclass(frozen=True)
class Ending:
    """How an operation ended that was repeated until it failed."""

    error: errors.Error
    seconds: float
    """From the fault to the error."""


def repeat_until_it_fails(
    scene: Scene,
    operation: Operation,
    fault: Callable[[Scene], object],
    timeout: float,
    delay: float | None,
) -> Ending:
    """Repeats the operation; after `delay` seconds the fault happens, and it may go on for twice `timeout`.

    Without a delay the fault happens first.
    """
    struck: list[float] = []
    broken: list[BaseException] = []

    def strike() -> None:
        time.sleep(delay or 0.0)
        struck.append(time.monotonic())
        try:
            fault(scene)
        except BaseException as error:
            broken.append(error)

    thread = threading.Thread(target=strike)
    thread.start()
    if delay is None:
        thread.join(PATIENCE)
    failure: errors.Error | None = None
    until = time.monotonic() + (delay or 0.0) + 2 * timeout
    try:
        while time.monotonic() < until:
            operation(scene, timeout)
    except errors.Error as error:
        ended = time.monotonic()
        failure = error
    finally:
        thread.join(PATIENCE)
    assert not broken, broken
    assert failure is not None, f"it never failed within {2 * timeout:g} s"
    assert struck[0] <= ended, f"before the fault: {failure!r}"
    return Ending(failure, ended - struck[0])
