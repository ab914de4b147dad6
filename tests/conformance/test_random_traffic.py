"""Random work in both directions against a model of what memory must hold: sizes, offsets, gather and scatter
lists, signaled and unsignaled, inline, in batches, on one queue pair and on several at once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from rdmatx.verbs import SendWork
from tests.conformance.ends import PATIENCE, End, Memory, all_succeeded, pattern

Pair = tuple[End, End]
MakePair = Callable[..., Pair]
ROOM = 1 << 17
INLINE = 32
WORK_IN_FLIGHT = 12


class Side:
    """One end with the memory it sends from, and the model of its peer's memory that it writes to."""

    def __init__(self, end: End, peer: End, seed: int) -> None:
        self.end = end
        self.source = end.memory(pattern(ROOM, seed))
        self.target = peer.memory(ROOM)
        self.model = bytearray(ROOM)
        self.back = end.memory(ROOM)
        self.back_model = bytearray(ROOM)

    def check(self) -> None:
        assert self.target.content == self.model
        assert self.back.content == self.back_model


def cut(chance: random.Random, nbytes: int) -> list[int]:
    """Divides a length into one to four parts, some of them empty."""
    borders = sorted(chance.randint(0, nbytes) for _ in range(chance.randint(0, 3)))
    edges = [0, *borders, nbytes]
    return [after - before for before, after in itertools.pairwise(edges)]


def length(chance: random.Random) -> int:
    return min(ROOM, int(2 ** chance.uniform(0, 15)) + chance.choice([-1, 0, 0, 1]))


def gather(work: SendWork, chance: random.Random, memory: Memory, nbytes: int) -> bytes:
    """Adds parts of `memory` from anywhere in it; what they hold, one after the other."""
    content = b""
    for part in cut(chance, nbytes):
        offset = chance.randint(0, ROOM - part)
        work.add(memory.region, offset, part)
        content += bytes(memory.content[offset : offset + part])
    return content


def write(side: Side, chance: random.Random) -> SendWork:
    nbytes = length(chance)
    at = chance.randint(0, ROOM - nbytes)
    work = SendWork.write(side.target.address + at, side.target.key)
    side.model[at : at + nbytes] = gather(work, chance, side.source, nbytes)
    if nbytes <= INLINE and chance.random() < 0.5:
        work.inlined()
    return work


def read(side: Side, chance: random.Random) -> SendWork:
    """Reads what earlier writes of this side have left; the queue pair keeps them in order."""
    nbytes = length(chance)
    at = chance.randint(0, ROOM - nbytes)
    work = SendWork.read(side.target.address + at, side.target.key)
    taken = bytes(side.model[at : at + nbytes])
    offset = chance.randint(0, ROOM - nbytes)
    side.back_model[offset : offset + nbytes] = taken
    for part in cut(chance, nbytes):
        work.add(side.back.region, offset, part)
        offset += part
    # A later read may land on the same bytes: reads of one queue pair complete in order.
    return work


def drain(side: Side, signaled: int) -> None:
    if signaled:
        all_succeeded(side.end.send_queue.wait(signaled, timeout=PATIENCE))


def run_rounds(sides: list[Side], chance: random.Random, rounds: int) -> None:
    for _ in range(rounds):
        waiting = []
        for side in sides:
            batch = [
                (write if chance.random() < 0.7 else read)(side, chance)
                for _ in range(chance.randint(1, WORK_IN_FLIGHT))
            ]
            signaled = 1
            for work in batch[:-1]:
                if chance.random() < 0.4:
                    work.signaled()
                    signaled += 1
                if chance.random() < 0.2:
                    work.fenced()
            batch[-1].signaled()
            if chance.random() < 0.5:
                side.end.qp.post_send(batch)
            else:
                for work in batch:
                    side.end.qp.post_send(work)
            waiting.append(signaled)
        for side, signaled in zip(sides, waiting, strict=True):
            drain(side, signaled)
    for side in sides:
        side.check()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(4))
def test_writes_and_reads(make_pair: MakePair, seed: int) -> None:
    one, other = make_pair(max_inline_bytes=INLINE)
    chance = random.Random(seed)
    run_rounds([Side(one, other, 1), Side(other, one, 2)], chance, rounds=40)


@pytest.mark.timeout(120)
def test_several_queue_pairs(make_pair: MakePair) -> None:
    chance = random.Random(99)
    sides = []
    for number in range(3):
        one, other = make_pair(max_inline_bytes=INLINE)
        sides += [Side(one, other, number), Side(other, one, 10 + number)]
    run_rounds(sides, chance, rounds=15)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(3))
def test_messages(make_pair: MakePair, seed: int) -> None:
    """Random messages both ways, each into a receive that is at least as long; some carry an immediate."""
    ends = make_pair(max_inline_bytes=INLINE)
    chance = random.Random(seed)
    sources = [end.memory(pattern(ROOM, number)) for number, end in enumerate(ends)]
    targets = [end.memory(ROOM) for end in ends]
    for _ in range(30):
        batches = []
        for number in (0, 1):
            sizes = [length(chance) % (ROOM // 16) for _ in range(chance.randint(1, 8))]
            for slot, nbytes in enumerate(sizes):
                room = nbytes + chance.choice([0, 0, 1, 100])
                ends[1 - number].receive(
                    targets[1 - number], slot * (ROOM // 8), room, work_id=slot
                )
            batches.append(sizes)
        expected: list[list[tuple[bytes, int | None]]] = [[], []]
        for number in (0, 1):
            for nbytes in batches[number]:
                work = SendWork.send().signaled()
                content = gather(work, chance, sources[number], nbytes)
                immediate = chance.choice([None, chance.getrandbits(32)])
                if immediate is not None:
                    work.immediate(immediate)
                if nbytes <= INLINE and chance.random() < 0.5:
                    work.inlined()
                ends[number].qp.post_send(work)
                expected[number].append((content, immediate))
        for number in (0, 1):
            all_succeeded(ends[number].sent(len(batches[number])))
            received = all_succeeded(ends[1 - number].received(len(batches[number])))
            for slot, completion in enumerate(received):
                content, immediate = expected[number][slot]
                assert (completion.work_id, completion.nbytes) == (slot, len(content))
                assert completion.immediate == immediate
                at = slot * (ROOM // 8)
                assert bytes(targets[1 - number].content[at : at + len(content)]) == content
