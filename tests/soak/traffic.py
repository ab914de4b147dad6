"""A soak's traffic: what both sides do, drawn step by step from one seed: neither has to tell the other.

Each step is one operation. Both sides draw the same step; one acts, the other does its part and looks at
every byte. Between steps nothing is outstanding, within one several operations may be.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy

import rdmatx

WINDOW = 4 << 20
LARGEST = 3 << 20
DONE = (1 << 40) + 1  # a tag that no step draws


@dataclass
class End:
    """One side: its connection, its window of memory, and what it knows of the peer's."""

    connection: rdmatx.Connection
    region: rdmatx.Region
    window: bytearray
    key: rdmatx.RemoteKey
    side: int
    steps: Counter[str] = field(default_factory=Counter)
    bytes_checked: int = 0

    @classmethod
    def of(cls, context: rdmatx.Context, connection: rdmatx.Connection, side: int) -> End:
        """Registers a window and swaps keys with the peer."""
        window = bytearray(WINDOW)
        region = context.register(window, access="rwa")
        sent = connection.isend(bytes(region.key()), tag=DONE)
        token = bytearray(256)
        nbytes = connection.recv(token, tag=DONE)
        sent.wait()
        key = rdmatx.RemoteKey.from_bytes(bytes(token[:nbytes]))
        return cls(connection, region, window, key, side)

    def check(self, found: bytes | bytearray | memoryview, expected: bytes, what: str) -> None:
        self.bytes_checked += len(expected)
        if found != expected:
            wrong = next(i for i in range(len(expected)) if found[i] != expected[i])
            raise AssertionError(f"{what}: byte {wrong} of {len(expected)} is wrong")

    def meet(self) -> None:
        """Both sides are through with the step, and what was written has been seen."""
        self.connection.send(b"", tag=DONE)
        self.connection.recv(bytearray(0), tag=DONE)


def draw_size(chance: random.Random) -> int:
    """Small ones, sizes around the borders, and large ones, some of each."""
    border = chance.choice([0, 8, 216, 4096, 8192, 65536, 262144, 524288, 1 << 20])
    return chance.choice(
        [
            chance.randrange(64),
            max(0, border + chance.randrange(-2, 3)),
            chance.randrange(20_000),
            chance.randrange(LARGEST),
        ]
    )


def messages(end: End, chance: random.Random, acts: bool) -> None:
    """Up to 30 messages of several tags at once, taken in another order."""
    tags = [chance.randrange(4) for _ in range(chance.randrange(1, 30))]
    data = [chance.randbytes(min(draw_size(chance), 200_000)) for _ in tags]
    order = sorted(range(len(tags)), key=lambda n: (tags[n], n))
    if acts:
        for work in [
            end.connection.isend(each, tag=tag) for each, tag in zip(data, tags, strict=True)
        ]:
            work.wait()
    else:
        for number in order:
            buffer = bytearray(len(data[number]) + chance_free(number))
            nbytes = end.connection.recv(buffer, tag=tags[number])
            end.check(buffer[:nbytes], data[number], f"message {number} of tag {tags[number]}")


def chance_free(number: int) -> int:
    """How much larger a buffer is than it must be; not drawn, since only one side needs it."""
    return (number * 37) % 100


def one_message(end: End, chance: random.Random, acts: bool) -> None:
    """One of any size, blocking, to a receive of any tag, perhaps looked at first."""
    data, tag = chance.randbytes(draw_size(chance)), chance.randrange(1 << 30)
    probes = chance.random() < 0.3
    if acts:
        end.connection.send(data, tag=tag)
        return
    if probes:
        waiting = end.connection.probe(tag=tag)
        assert (waiting.tag, waiting.nbytes) == (tag, len(data)), (waiting, tag, len(data))
    buffer = bytearray(len(data))
    work = end.connection.irecv(buffer, tag=tag if probes else None)
    assert work.wait() == len(data)
    assert work.tag == tag
    end.check(buffer, data, "a message")


def strided_message(end: End, chance: random.Random, acts: bool) -> None:
    """An array with gaps at one end or both; the elements are the same in order."""
    rows, columns = chance.randrange(1, 300), chance.randrange(1, 300)
    gaps = [chance.randrange(1, 4) for _ in range(4)]
    values = numpy.frombuffer(chance.randbytes(rows * columns * 4), numpy.int32).reshape(
        rows, columns
    )
    near, far = gaps[:2], gaps[2:]
    steps = near if acts else far
    whole = numpy.zeros((rows * steps[0], columns * steps[1]), numpy.int32)
    part = whole[:: steps[0], :: steps[1]]
    if acts:
        part[:] = values
        end.connection.send(part, tag=7)
        return
    end.connection.recv(part, tag=7)
    end.check(part.tobytes(), values.tobytes(), f"an array of {rows} by {columns}, steps {steps}")
    assert int(numpy.count_nonzero(whole)) == int(numpy.count_nonzero(values))


def write(end: End, chance: random.Random, acts: bool) -> None:
    data = chance.randbytes(draw_size(chance))
    offset = chance.randrange(WINDOW - len(data) + 1)
    notify, flushes = chance.randrange(1 << 32), chance.random() < 0.5
    if acts:
        work = end.connection.iwrite(data, end.key, offset, notify=notify)
        end.connection.flush() if flushes else work.wait()
        assert work.done()
    else:
        assert end.connection.next_notification() == notify
        end.check(end.window[offset : offset + len(data)], data, f"a write at {offset}")


def write_many(end: End, chance: random.Random, acts: bool) -> None:
    count = chance.randrange(1, 60)
    room = WINDOW // count
    blocks = [chance.randbytes(chance.randrange(min(room, 9_000))) for _ in range(count)]
    notify = chance.randrange(1 << 32)
    if acts:
        triples = [(block, end.key, n * room) for n, block in enumerate(blocks)]
        end.connection.write_many(triples, notify=notify)
    else:
        assert end.connection.next_notification() == notify
        for number, block in enumerate(blocks):
            at = number * room
            end.check(end.window[at : at + len(block)], block, f"block {number} of {count}")


def read(end: End, chance: random.Random, acts: bool) -> None:
    data = chance.randbytes(draw_size(chance))
    offset = chance.randrange(WINDOW - len(data) + 1)
    if not acts:
        end.window[offset : offset + len(data)] = data
        end.meet()
        return
    end.meet()
    buffer = bytearray(len(data))
    end.connection.read(buffer, end.key, offset)
    end.check(buffer, data, f"a read at {offset}")


def atomics(end: End, chance: random.Random, acts: bool) -> None:
    offset, start = 8 * chance.randrange(WINDOW // 8), chance.getrandbits(63)
    added = [chance.randrange(1000) for _ in range(chance.randrange(1, 20))]
    if not acts:
        struct.pack_into("<Q", end.window, offset, start)
        end.meet()
        end.connection.recv(bytearray(0), tag=9)
        assert struct.unpack_from("<Q", end.window, offset) == (5,)
        return
    end.meet()
    value = start
    for each in added:
        assert end.connection.fetch_add(end.key, offset, each) == value
        value += each
    assert end.connection.compare_swap(end.key, offset, value + 1, 4) == value
    assert end.connection.compare_swap(end.key, offset, value, 5) == value
    end.connection.send(b"", tag=9)


STEPS: list[Callable[[End, random.Random, bool], None]] = [
    messages,
    one_message,
    one_message,
    strided_message,
    write,
    write_many,
    read,
    atomics,
]


def step(end: End, chance: random.Random) -> None:
    """The next step of both sides."""
    doing = chance.choice(STEPS)
    actor = chance.randrange(2)
    doing(end, random.Random(chance.getrandbits(64)), actor == end.side)
    end.meet()
    end.steps[doing.__name__] += 1
