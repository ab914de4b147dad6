"""One of the two processes of a benchmark: does what the command's process tells it.

Between orders it is blocked reading its socket, so the target of one-sided operations sleeps.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from typing import IO, Any

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.contestants import make
from rdmatx.cli.bench.contestants.base import INITIATOR, TARGET, Contestant
from rdmatx.cli.bench.leash import die_with_parent
from rdmatx.cli.bench.memory import Block
from rdmatx.cli.errors import describe


class Worker:
    """Holds this process's memory and contestants. Each public method is an order by name."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._contestants: dict[str, Contestant] = {}
        self._case = Case()
        self._block = Block(0)
        self._sink = Block(0)

    def offer(self, contestant: str, case: dict[str, Any]) -> dict[str, Any]:
        """Makes the target's contestant and gives what the initiator needs to join it."""
        return self._make(contestant, case).offer()

    def join(self, contestant: str, case: dict[str, Any], offer: dict[str, Any]) -> dict[str, Any]:
        """Connects the contestant with the other side's; says what it is."""
        made = self._contestants.get(contestant) or self._make(contestant, case)
        return {**made.join(offer), "one_sided": made.one_sided}

    def _make(self, name: str, case: dict[str, Any]) -> Contestant:
        self._contestants[name] = make(name, self._rank, Case(**case))
        return self._contestants[name]

    def allocate(self, case: dict[str, Any]) -> None:
        """Gets the memory of the next size; both sides have their own."""
        self._case = Case(**case)
        shared = self._case.memory == "empty" and self._rank == TARGET
        self._block = Block(self._case.bytes, shared=shared, huge=self._case.huge)
        needs_sink = self._rank == INITIATOR and self._case.mode == "lat"
        self._sink = Block(self._case.bytes if needs_sink else 0, huge=self._case.huge)

    def arrange(self, contestant: str, offer: dict[str, Any]) -> dict[str, Any]:
        """Gives the contestant the memory."""
        return self._contestants[contestant].arrange(self._case, self._block, self._sink, offer)

    def prepare(self, contestant: str, seed: int) -> None:
        """Before a round: new content where bytes come from, none of it where they go to."""
        chosen = self._contestants[contestant]
        for block in chosen.destinations():
            block.poison()
        origin = chosen.origin()
        if origin is not None:
            origin.stamp(seed)

    def run(self, contestant: str, iterations: int) -> dict[str, Any]:
        """One round."""
        return self._contestants[contestant].run(iterations)

    def digests(self, contestant: str) -> list[str]:
        """After a round: the SHA-256 of all that should be the same now."""
        chosen = self._contestants[contestant]
        origin = chosen.origin()
        blocks = [*([] if origin is None else [origin]), *chosen.destinations()]
        return [block.digest() for block in blocks]

    def cpu_seconds(self) -> float:
        """The processor time of this process so far, all its threads, user and system."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def close(self) -> None:
        """Closes the contestants, the last one first."""
        while self._contestants:
            self._contestants.popitem()[1].close()


def serve(worker: Worker, orders: IO[str], answers: IO[str]) -> None:
    """Carries out orders, one JSON object a line, until the other side hangs up."""
    for line in orders:
        order = json.loads(line)
        try:
            answer = {"value": getattr(worker, order["do"])(**order["with"])}
        except Exception as error:
            if os.environ.get("RDMATX_DEBUG", "0") not in ("", "0"):
                raise
            answer = {"error": describe(error), "type": type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """``python -m rdmatx.cli.bench.worker RANK FD|PATH``: a socket, or where to call."""
    rank, where = int(sys.argv[1]), sys.argv[2]
    # Ctrl-C goes to the whole foreground group; it is the command's process that answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A command that is killed outright leaves no worker behind.
    die_with_parent()
    # An answer that nobody waits for any more is no error of this process.
    with suppress(BrokenPipeError), _reach(where) as control, control.makefile("rw") as stream:
        serve(Worker(rank), stream, stream)


def _reach(where: str) -> socket.socket:
    if where.isdecimal():
        return socket.socket(fileno=int(where))
    control = socket.socket(socket.AF_UNIX)
    control.connect(where)
    return control


if __name__ == "__main__":
    main()
