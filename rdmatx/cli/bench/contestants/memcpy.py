"""``memcpy`` inside one process: what one core can do at most."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.contestants.base import INITIATOR, Contestant, timed_calls
from rdmatx.cli.bench.memory import Block


class Memcpy(Contestant):
    """Copies from the initiator's block to one like the target's, in the initiator itself."""

    one_sided = True

    def __init__(self, rank: int, case: Case) -> None:
        super().__init__(rank, case)
        self._copy = Block(0)

    def arrange(
        self, case: Case, block: Block, sink: Block, offer: dict[str, Any]
    ) -> dict[str, Any]:
        super().arrange(case, block, sink, offer)
        if self.rank == INITIATOR:
            shared = case.memory == "empty"
            self._copy = Block(case.bytes, shared=shared, huge=case.huge)
        return {}

    def origin(self) -> Block | None:
        return self.block if self.rank == INITIATOR else None

    def destinations(self) -> list[Block]:
        return [self._copy] if self.rank == INITIATOR else []

    def run(self, iterations: int) -> dict[str, Any]:
        copy = partial(ctypes.memmove, self._copy.address, self.block.address, self.case.bytes)
        return timed_calls(copy, iterations, self.case.mode)

    def close(self) -> None:
        self._copy = Block(0)
