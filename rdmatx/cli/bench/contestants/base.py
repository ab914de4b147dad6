"""What a contestant does in each of the two processes."""

from __future__ import annotations

import time
from typing import Any

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.memory import Block
from rdmatx.cli.bench.statistics import latency_percentiles

INITIATOR = 0
TARGET = 1

now = time.perf_counter


class Contestant:
    """One way to move bytes from one process to the other.

    Rank 0 is the initiator: it sends, writes or reads, and holds the clock. Rank 1 is the
    target. ``offer`` (target), then ``join`` (both at once) connect them, once; ``arrange``
    (target first, its answer goes to the initiator) prepares each size; ``run`` does one round.
    """

    # Whether the target has nothing to do in a round: then it sleeps, and only rank 0 runs.
    one_sided = False

    def __init__(self, rank: int, case: Case) -> None:
        self.rank = rank
        self.case = case
        self.block = Block(0)
        self.sink = Block(0)

    def offer(self) -> dict[str, Any]:
        """What the initiator needs to find the target."""
        return {}

    def join(self, offer: dict[str, Any]) -> dict[str, Any]:
        """Connects; gives what the report says about the contestant (device, provider)."""
        del offer
        return {}

    def arrange(
        self, case: Case, block: Block, sink: Block, offer: dict[str, Any]
    ) -> dict[str, Any]:
        """Takes the memory of the next size. ``sink`` is where rank 0 gets what comes back."""
        del offer
        self.case, self.block, self.sink = case, block, sink
        return {}

    def origin(self) -> Block | None:
        """The block of this rank that holds what is to be moved, if it does."""
        holder = TARGET if self.case.op == "read" else INITIATOR
        return self.block if self.rank == holder else None

    def destinations(self) -> list[Block]:
        """The blocks of this rank that hold the same as the origin after a round."""
        echoes = self.case.op == "send" and self.case.mode == "lat"
        found = [] if self.origin() is self.block else [self.block]
        if self.rank == INITIATOR and echoes and not self.one_sided:
            found.append(self.sink)
        return found

    def run(self, iterations: int) -> dict[str, Any]:
        """One round: ``seconds`` in all; for mode "lat" also the percentiles in µs."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives everything back."""


def latency_result(samples: list[float], seconds: float, *, scale: float = 1.0) -> dict[str, Any]:
    """The result of a latency round; ``samples`` are seconds, ``scale`` 0.5 halves round trips."""
    return {
        "seconds": seconds,
        "lat_us": latency_percentiles([sample * scale * 1e6 for sample in samples]),
    }


def timed_calls(call: Any, iterations: int, mode: str) -> dict[str, Any]:
    """Calls ``call()`` over and over: the whole round of a contestant whose calls complete."""
    if mode == "bw":
        begin = now()
        for _ in range(iterations):
            call()
        return {"seconds": now() - begin}
    samples: list[float] = []
    add = samples.append
    begin = last = now()
    for _ in range(iterations):
        call()
        moment = now()
        add(moment - last)
        last = moment
    return latency_result(samples, last - begin)
