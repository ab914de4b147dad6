"""``process_vm_writev`` and ``process_vm_readv``: one copy from process to process by the kernel."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.contestants.base import INITIATOR, TARGET, Contestant, timed_calls
from rdmatx.cli.bench.memory import Block
from rdmatx.cli.errors import CommandError

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def allow_everybody() -> None:
    """Lets any process of this user touch this one's memory: Yama's scope 1 asks for that."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


class CrossMemory(Contestant):
    """The initiator writes into the target's block, or reads from it, one call an operation."""

    one_sided = True

    def __init__(self, rank: int, case: Case) -> None:
        super().__init__(rank, case)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._call: Callable[[], None] = lambda: None

    def offer(self) -> dict[str, Any]:
        allow_everybody()
        return {}

    def arrange(
        self, case: Case, block: Block, sink: Block, offer: dict[str, Any]
    ) -> dict[str, Any]:
        super().arrange(case, block, sink, offer)
        if self.rank == INITIATOR:
            self._call = self._prepare(offer["pid"], offer["address"])
        return {"pid": os.getpid(), "address": block.address} if self.rank == TARGET else {}

    def _prepare(self, pid: int, address: int) -> Callable[[], None]:
        """One operation as a call without arguments, with as little Python in it as can be."""
        name = "process_vm_readv" if self.case.op == "read" else "process_vm_writev"
        function = getattr(self._libc, name)
        function.restype = ctypes.c_ssize_t
        function.argtypes = (
            ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong,
            ctypes.c_ulong,
        )  # fmt: skip
        size = self.case.bytes
        here, there = _Iovec(self.block.address, size), _Iovec(address, size)
        self._vectors = (here, there)
        here_at, there_at = ctypes.addressof(here), ctypes.addressof(there)

        def call() -> None:
            count = function(pid, here_at, 1, there_at, 1, 0)
            if count != size:
                self._finish(function, pid, address, count)

        return call

    def _finish(self, function: Any, pid: int, address: int, moved: int) -> None:
        """The rest of an operation that the kernel did in part (it moves 2 GiB a call at most)."""
        while 0 <= moved < self.case.bytes:
            rest = self.case.bytes - moved
            here, there = _Iovec(self.block.address + moved, rest), _Iovec(address + moved, rest)
            count = function(pid, ctypes.addressof(here), 1, ctypes.addressof(there), 1, 0)
            moved = moved + count if count > 0 else -1
        if moved < 0:
            raise CommandError(
                f"the kernel refused cross-memory attach ({os.strerror(ctypes.get_errno())}), so "
                "there is no `cma` to compare with: `rdmatx doctor` says how to allow it"
            )

    def run(self, iterations: int) -> dict[str, Any]:
        return timed_calls(self._call, iterations, self.case.mode)
