"""PyTorch's gloo over TCP: what ``torch.distributed`` does for tensors on the CPU."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from datetime import timedelta
from importlib import import_module
from typing import Any

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.contestants.base import (
    INITIATOR,
    TARGET,
    Contestant,
    latency_result,
    now,
)
from rdmatx.cli.bench.memory import Block
from rdmatx.cli.errors import CommandError

# Imported by name, so that types are checked alike where PyTorch is installed and where not.
try:
    torch: Any = import_module("torch")
    dist: Any = import_module("torch.distributed")
except ImportError as error:
    raise CommandError(
        "gloo is a part of PyTorch, which is not installed: pip install torch (a build for the "
        "CPU will do)"
    ) from error


class Gloo(Contestant):
    """Sends and receives tensors; it has no one-sided operations, so it does this for all."""

    def __init__(self, rank: int, case: Case) -> None:
        super().__init__(rank, case)
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def offer(self) -> dict[str, Any]:
        # A file, where the two meet: c10d's TCP store asks for the host's name, and waits for it.
        self._folder = tempfile.TemporaryDirectory(prefix="rdmatx-gloo-")
        return {"path": os.path.join(self._folder.name, "store")}

    def join(self, offer: dict[str, Any]) -> dict[str, Any]:
        # Else gloo looks the host's name up, which not every container can.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(offer["path"], 2),
            rank=self.rank,
            world_size=2,
            timeout=timedelta(seconds=self.case.timeout),
        )
        return {"device": "tcp", "provider": "gloo"}

    def arrange(
        self, case: Case, block: Block, sink: Block, offer: dict[str, Any]
    ) -> dict[str, Any]:
        super().arrange(case, block, sink, offer)
        self._tensor = _tensor(block)
        self._sink = _tensor(sink)
        self._flag = torch.zeros(1, dtype=torch.uint8)
        # The rank that holds the bytes sends them, also where ours reads them.
        self._sends = self.origin() is not None
        self._other = 1 - self.rank
        return {}

    def run(self, iterations: int) -> dict[str, Any]:
        if self.case.mode == "lat":
            return self._echo(iterations)
        # The clock's rank starts when the other is ready and stops when all is known there.
        if self.rank == TARGET:
            dist.send(self._flag, self._other)
            self._stream(iterations)
            dist.send(self._flag, self._other)
            return {}
        dist.recv(self._flag, self._other)
        begin = now()
        self._stream(iterations)
        dist.recv(self._flag, self._other)
        return {"seconds": now() - begin}

    def _stream(self, iterations: int) -> None:
        start = dist.isend if self._sends else dist.irecv
        pending: deque[Any] = deque()
        for _ in range(iterations):
            if len(pending) == self.case.window:
                pending.popleft().wait()
            pending.append(start(self._tensor, self._other))
        while pending:
            pending.popleft().wait()

    def _echo(self, iterations: int) -> dict[str, Any]:
        send, recv, other, tensor = dist.send, dist.recv, self._other, self._tensor
        if self.rank == TARGET:
            for _ in range(iterations):
                recv(tensor, other)
                send(tensor, other)
            return {}
        sink = self._sink
        samples = []
        begin = last = now()
        for _ in range(iterations):
            send(tensor, other)
            recv(sink, other)
            moment = now()
            samples.append(moment - last)
            last = moment
        return latency_result(samples, last - begin, scale=0.5)

    def origin(self) -> Block | None:
        if self.case.mode == "lat":
            return self.block if self.rank == INITIATOR else None
        return super().origin()

    def destinations(self) -> list[Block]:
        if self.case.mode == "lat":
            return [self.sink] if self.rank == INITIATOR else [self.block]
        return super().destinations()

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        if self._folder is not None:
            self._folder.cleanup()


def _tensor(block: Block) -> Any:
    if not block.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(block.view, dtype=torch.uint8)
