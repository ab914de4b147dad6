"""rdmatx itself."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import rdmatx
from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.contestants.base import (
    INITIATOR,
    TARGET,
    Contestant,
    latency_result,
    now,
    timed_calls,
)
from rdmatx.cli.bench.memory import Block

# The tag of "ready" and "done", which stand outside the messages that are measured.
_FLAG_TAG = 1


class Ours(Contestant):
    """One connection; memory registered once on both sides, or given as it is."""

    def __init__(self, rank: int, case: Case) -> None:
        super().__init__(rank, case)
        self.one_sided = case.op != "send"
        self._context = rdmatx.Context(case.device, case.provider)
        self._listener: rdmatx.Listener | None = None
        self._connection: rdmatx.Connection | None = None
        self._regions: list[rdmatx.Region] = []
        # What the operations of this side are given: a region, or the buffer itself.
        self._source: Any = None
        self._sink: Any = None
        self._key: Any = None

    def offer(self) -> dict[str, Any]:
        self._listener = self._context.listen("127.0.0.1:0")
        return {"address": self._listener.address}

    def join(self, offer: dict[str, Any]) -> dict[str, Any]:
        timeout = self.case.timeout
        if self._listener is not None:
            self._connection = self._listener.accept(timeout=timeout)
        else:
            self._connection = self._context.connect(offer["address"], timeout=timeout)
        return {"device": self._context.device, "provider": self._context.provider}

    def arrange(
        self, case: Case, block: Block, sink: Block, offer: dict[str, Any]
    ) -> dict[str, Any]:
        super().arrange(case, block, sink, offer)
        self._close_regions()
        if self.one_sided and self.rank == TARGET:
            return {"key": bytes(self._register(block).key()).hex()}
        self._source, self._sink = block.buffer, sink.buffer
        if case.registered and case.bytes:
            self._source = self._register(block)
            self._sink = self._register(sink) if sink.nbytes else sink.buffer
        if self.one_sided:
            self._key = rdmatx.RemoteKey.from_bytes(bytes.fromhex(offer["key"]))
        return {}

    def _register(self, block: Block) -> rdmatx.Region:
        # Received messages are written by the peer, so they too need memory that lets it in.
        region = self._context.register(block.buffer, access="rw")
        self._regions.append(region)
        return region

    def _close_regions(self) -> None:
        for region in self._regions:
            region.close()
        self._regions.clear()

    def run(self, iterations: int) -> dict[str, Any]:
        if self.case.op == "send":
            return self._echo(iterations) if self.case.mode == "lat" else self._stream(iterations)
        if self.case.mode == "lat":
            return self._one_sided_latency(iterations)
        return self._one_sided_stream(iterations)

    @property
    def _peer(self) -> rdmatx.Connection:
        assert self._connection is not None
        return self._connection

    def _one_sided_stream(self, iterations: int) -> dict[str, Any]:
        peer, local, key = self._peer, self._source, self._key
        start = peer.iwrite if self.case.op == "write" else peer.iread
        pending: deque[rdmatx.Work] = deque()
        window = self.case.window
        begin = now()
        for _ in range(min(window, iterations)):
            pending.append(start(local, key))
        for _ in range(iterations - len(pending)):
            pending.popleft().wait()
            pending.append(start(local, key))
        while pending:
            pending.popleft().wait()
        return {"seconds": now() - begin}

    def _one_sided_latency(self, iterations: int) -> dict[str, Any]:
        operation = self._peer.write if self.case.op == "write" else self._peer.read
        return timed_calls(partial(operation, self._source, self._key), iterations, "lat")

    def _stream(self, iterations: int) -> dict[str, Any]:
        peer, buffer, flag = self._peer, self._source, bytearray(1)
        pending: deque[rdmatx.Work] = deque()
        first = min(self.case.window, iterations)
        if self.rank == TARGET:
            pending.extend(peer.irecv(buffer) for _ in range(first))
            peer.send(flag, tag=_FLAG_TAG)
            for _ in range(iterations - first):
                pending.popleft().wait()
                pending.append(peer.irecv(buffer))
            while pending:
                pending.popleft().wait()
            peer.send(flag, tag=_FLAG_TAG)
            return {}
        peer.recv(flag, tag=_FLAG_TAG)
        begin = now()
        pending.extend(peer.isend(buffer) for _ in range(first))
        for _ in range(iterations - first):
            pending.popleft().wait()
            pending.append(peer.isend(buffer))
        while pending:
            pending.popleft().wait()
        peer.recv(flag, tag=_FLAG_TAG)
        return {"seconds": now() - begin}

    def _echo(self, iterations: int) -> dict[str, Any]:
        send, recv, buffer = self._peer.send, self._peer.recv, self._source
        if self.rank != INITIATOR:
            for _ in range(iterations):
                recv(buffer)
                send(buffer)
            return {}
        sink = self._sink
        samples = []
        begin = last = now()
        for _ in range(iterations):
            send(buffer)
            recv(sink)
            moment = now()
            samples.append(moment - last)
            last = moment
        return latency_result(samples, last - begin, scale=0.5)

    def close(self) -> None:
        self._close_regions()
        for owned in (self._connection, self._listener, self._context):
            if owned is not None:
                owned.close()
