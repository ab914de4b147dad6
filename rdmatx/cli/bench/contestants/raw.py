"""The limits of one host without any protocol: a ring in shared memory, and a copy by both sides."""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any

from rdmatx import _C
from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.contestants.base import INITIATOR, TARGET, Contestant, now
from rdmatx.cli.bench.contestants.cma import allow_everybody
from rdmatx.cli.bench.memory import Block
from rdmatx.cli.errors import CommandError

# Where the initiator says who and where it is, near the end of the board's first page.
_ORIGIN = struct.Struct("=QQ")
_ORIGIN_AT = 4096 - _ORIGIN.size


class _Raw(Contestant):
    """Memory that both processes map, and loops in C++ over it: the whole round is one call."""

    name = ""

    def __init__(self, rank: int, case: Case) -> None:
        super().__init__(rank, case)
        if case.op != "send" or case.mode != "bw":
            raise CommandError(
                f"{self.name} is a stream that both sides take part in: take --op send --mode bw"
            )
        self._board: mmap.mmap | None = None

    def offer(self) -> dict[str, Any]:
        self._fd = os.memfd_create("rdmatx-bench", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, _C.testing.BOARD_BYTES)
        return {"path": f"/proc/{os.getpid()}/fd/{self._fd}"}

    def join(self, offer: dict[str, Any]) -> dict[str, Any]:
        if self.rank == INITIATOR:
            self._fd = os.open(offer["path"], os.O_RDWR | os.O_CLOEXEC)
        self._board = mmap.mmap(self._fd, _C.testing.BOARD_BYTES)
        return {}

    def _copy(self, board: mmap.mmap, iterations: int) -> None:
        raise NotImplementedError

    def run(self, iterations: int) -> dict[str, Any]:
        assert self._board is not None
        begin = now()
        self._copy(self._board, iterations)
        return {"seconds": now() - begin}

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
            os.close(self._fd)


class SharedRing(_Raw):
    """Two copies, both at once: the sender's into a ring of 8 times 64 KiB, the receiver's out."""

    name = "ring"

    def _copy(self, board: mmap.mmap, iterations: int) -> None:
        if self.rank == INITIATOR:
            _C.testing.ring_send(board, self.block.view, iterations)
        else:
            _C.testing.ring_receive(board, self.block.view, iterations)


class SplitCopy(_Raw):
    """One copy by the kernel, both sides at once: each moves one half of every message."""

    name = "split"

    def arrange(
        self, case: Case, block: Block, sink: Block, offer: dict[str, Any]
    ) -> dict[str, Any]:
        super().arrange(case, block, sink, offer)
        assert self._board is not None
        allow_everybody()
        if self.rank == TARGET:
            return {"pid": os.getpid(), "address": block.address}
        # The target is told by the board: it was arranged before this side.
        _ORIGIN.pack_into(self._board, _ORIGIN_AT, os.getpid(), block.address)
        self._other = (offer["pid"], offer["address"])
        return {}

    def _copy(self, board: mmap.mmap, iterations: int) -> None:
        sends = self.rank == INITIATOR
        pid, address = self._other if sends else _ORIGIN.unpack_from(board, _ORIGIN_AT)
        view, window = self.block.view, self.case.window
        _C.testing.copy_half(board, view, pid, address, sends, iterations, window)
