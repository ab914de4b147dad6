"""UCX, called through the core of ucxx: tagged messages over shared memory and CMA."""

from __future__ import annotations

from collections import deque
from importlib import import_module
from typing import Any

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.contestants.base import INITIATOR, TARGET, Contestant, latency_result, now
from rdmatx.cli.bench.memory import Block
from rdmatx.cli.errors import CommandError

# Imported by name, so that types are checked alike where ucxx is installed and where not.
ucx: Any = import_module("ucxx._lib.libucxx")
Array: Any = import_module("ucxx._lib.arr").Array

_MESSAGE_TAG = ucx.UCXXTag(0)
# The tag of "ready" and "done", which stand outside the messages that are measured.
_FLAG_TAG = ucx.UCXXTag(1)
# The initiator's address travels in a message of this size, behind its length.
_ADDRESS_BYTES = 4096
_LENGTH_BYTES = 4


class Ucx(Contestant):
    """Sends and receives; waits by polling, which is the fastest that UCX has."""

    def __init__(self, rank: int, case: Case) -> None:
        super().__init__(rank, case)
        self._context = ucx.UCXContext(feature_flags=(ucx.Feature.TAG,))
        self._worker = ucx.UCXWorker(
            self._context, enable_delayed_submission=False, enable_python_future=False
        )
        self._progress = self._worker.progress
        self._endpoint: Any = None
        self._message: Any = None
        self._echoed: Any = None

    def offer(self) -> dict[str, Any]:
        return {"address": self._address().hex()}

    def _address(self) -> bytes:
        return bytes(ucx.UCXAddress.create_from_worker(self._worker).tobytes())

    def join(self, offer: dict[str, Any]) -> dict[str, Any]:
        letter = bytearray(_ADDRESS_BYTES)
        if self.rank == INITIATOR:
            self._connect(bytes.fromhex(offer["address"]))
            address = self._address()
            if _LENGTH_BYTES + len(address) > _ADDRESS_BYTES:
                raise CommandError("the address of UCX's worker is longer than the benchmark knows")
            letter[:_LENGTH_BYTES] = len(address).to_bytes(_LENGTH_BYTES, "little")
            letter[_LENGTH_BYTES : _LENGTH_BYTES + len(address)] = address
            self._wait(self._endpoint.tag_send(Array(letter), _FLAG_TAG))
        else:
            self._wait(self._worker.tag_recv(Array(letter), _FLAG_TAG, ucx.UCXXTagMaskFull))
            count = int.from_bytes(letter[:_LENGTH_BYTES], "little")
            self._connect(bytes(letter[_LENGTH_BYTES : _LENGTH_BYTES + count]))
        version = ".".join(map(str, ucx.get_ucx_version()))
        return {"device": "shared memory", "provider": f"UCX {version}"}

    def _connect(self, address: bytes) -> None:
        peer = ucx.UCXAddress.create_from_buffer(address)
        self._endpoint = ucx.UCXEndpoint.create_from_worker_address(
            self._worker, peer, endpoint_error_handling=False
        )

    def arrange(
        self, case: Case, block: Block, sink: Block, offer: dict[str, Any]
    ) -> dict[str, Any]:
        super().arrange(case, block, sink, offer)
        self._message, self._echoed = Array(block.view), Array(sink.view)
        return {}

    def _wait(self, request: Any) -> None:
        progress = self._progress
        while not request.completed:
            progress()
        request.check_error()

    def run(self, iterations: int) -> dict[str, Any]:
        return self._echo(iterations) if self.case.mode == "lat" else self._stream(iterations)

    def _stream(self, iterations: int) -> dict[str, Any]:
        wait, message, flag = self._wait, self._message, Array(bytearray(1))
        send, receive = self._endpoint.tag_send, self._endpoint.tag_recv
        start = receive if self.rank == TARGET else send
        pending: deque[Any] = deque()
        first = min(self.case.window, iterations)
        if self.rank == TARGET:
            pending.extend(start(message, _MESSAGE_TAG) for _ in range(first))
            wait(send(flag, _FLAG_TAG))
        else:
            wait(receive(flag, _FLAG_TAG))
        begin = now()
        if self.rank != TARGET:
            pending.extend(start(message, _MESSAGE_TAG) for _ in range(first))
        for _ in range(iterations - first):
            wait(pending.popleft())
            pending.append(start(message, _MESSAGE_TAG))
        while pending:
            wait(pending.popleft())
        if self.rank == TARGET:
            wait(send(flag, _FLAG_TAG))
            self._part()
            return {}
        wait(receive(flag, _FLAG_TAG))
        seconds = now() - begin
        self._part()
        return {"seconds": seconds}

    def _part(self) -> None:
        """Ends a round. UCX moves only while it is called: the target calls it until all is over."""
        call = self._endpoint.tag_recv if self.rank == TARGET else self._endpoint.tag_send
        self._wait(call(Array(bytearray(1)), _FLAG_TAG))

    def _echo(self, iterations: int) -> dict[str, Any]:
        send, receive = self._endpoint.tag_send, self._endpoint.tag_recv
        wait, message, tag = self._wait, self._message, _MESSAGE_TAG
        if self.rank == TARGET:
            for _ in range(iterations):
                wait(receive(message, tag))
                wait(send(message, tag))
            self._part()
            return {}
        echoed = self._echoed
        samples = []
        begin = last = now()
        for _ in range(iterations):
            wait(send(message, tag))
            wait(receive(echoed, tag))
            moment = now()
            samples.append(moment - last)
            last = moment
        self._part()
        return latency_result(samples, last - begin, scale=0.5)

    def close(self) -> None:
        self._endpoint = self._message = self._echoed = None
