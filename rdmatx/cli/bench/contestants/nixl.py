"""NIXL over UCX, without a thread of its own: writes and reads, and notifications with them."""

from __future__ import annotations

import importlib.util
from collections import deque
from typing import Any

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.contestants.base import (
    TARGET,
    Contestant,
    latency_result,
    now,
    timed_calls,
)
from rdmatx.cli.bench.memory import Block
from rdmatx.cli.errors import CommandError

# The package is named after the CUDA it was built for; none of them needs a GPU.
PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl")
_NAMES = ("initiator", "target")
_INTRODUCTION = b"introduction:"
_END = b"end"


def installed_package() -> str | None:
    """The first of ``PACKAGES`` that can be imported; nothing is."""
    return next((name for name in PACKAGES if importlib.util.find_spec(name)), None)


class Nixl(Contestant):
    """Memory is registered once a size. Messages of mode "lat" are writes with a notification.

    Its writes and reads want the target's help: there the target polls until the round is over.
    """

    def __init__(self, rank: int, case: Case) -> None:
        super().__init__(rank, case)
        # Imported by name, so that types are checked alike where it is installed and where not.
        api: Any = importlib.import_module(f"{installed_package()}._api")
        # Its thread, where there are few processors, costs more than it brings.
        options = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent: Any = api.nixl_agent(_NAMES[rank], options)
        self._peer = _NAMES[1 - rank]
        self._registered: list[Any] = []
        self._handles: list[Any] = []
        self._has_peer = False

    def join(self, offer: dict[str, Any]) -> dict[str, Any]:
        del offer
        return {"device": "shared memory", "provider": "NIXL"}

    def arrange(
        self, case: Case, block: Block, sink: Block, offer: dict[str, Any]
    ) -> dict[str, Any]:
        super().arrange(case, block, sink, offer)
        self._forget()
        for memory in (block, sink):
            if memory.nbytes:
                self._registered.append(
                    self._agent.register_memory([(memory.address, memory.nbytes, 0, "")], "DRAM")
                )
        if self.rank == TARGET:
            self._has_peer = False
            return {"metadata": self._agent.get_agent_metadata().hex(), "address": block.address}
        self._agent.add_remote_agent(bytes.fromhex(offer["metadata"]))
        if case.op != "send":
            count = case.window if case.mode == "bw" else 1
            kind = "WRITE" if case.op == "write" else "READ"
            self._handles = [self._transfer(kind, offer["address"]) for _ in range(count)]
            return {}
        self._handles = [self._transfer("WRITE", offer["address"])]
        # The target writes back, and was arranged before this side.
        metadata = self._agent.get_agent_metadata()
        where = sink.address.to_bytes(8, "little")
        self._agent.send_notif(self._peer, _INTRODUCTION + where + metadata)
        return {}

    def _transfer(self, kind: str, remote: int) -> Any:
        agent, size = self._agent, self.case.bytes
        local = agent.get_xfer_descs([(self.block.address, size, 0)], "DRAM")
        there = agent.get_xfer_descs([(remote, size, 0)], "DRAM")
        return agent.initialize_xfer(kind, local, there, self._peer)

    def _meet(self) -> None:
        """The target's part of ``arrange``: it waits for what the initiator says of itself."""
        text = self._await_notification()
        if not text.startswith(_INTRODUCTION):
            raise CommandError("NIXL delivered a notification that nobody sent")
        body = text[len(_INTRODUCTION) :]
        self._agent.add_remote_agent(body[8:])
        self._handles = [self._transfer("WRITE", int.from_bytes(body[:8], "little"))]
        self._has_peer = True

    def _await_notification(self) -> bytes:
        told = self._agent.get_new_notifs
        while not (found := told()):
            pass
        (texts,) = found.values()
        (text,) = texts
        return bytes(text)

    def _finish(self, handle: Any, state: str) -> None:
        check = self._agent.check_xfer_state
        while state == "PROC":
            state = check(handle)
        if state != "DONE":
            raise CommandError(f"a transfer of NIXL ended in the state {state!r}")

    def _complete(self) -> None:
        (handle,) = self._handles
        self._finish(handle, self._agent.transfer(handle))

    def run(self, iterations: int) -> dict[str, Any]:
        if self.case.op == "send":
            return self._echo(iterations)
        if self.rank == TARGET:
            self._await_notification()
            return {}
        if self.case.mode == "lat":
            result = timed_calls(self._complete, iterations, "lat")
        else:
            result = self._stream(iterations)
        self._agent.send_notif(self._peer, _END)
        return result

    def _stream(self, iterations: int) -> dict[str, Any]:
        transfer, finish = self._agent.transfer, self._finish
        free = deque((handle, "DONE") for handle in self._handles)
        begin = now()
        for _ in range(iterations):
            handle, state = free.popleft()
            finish(handle, state)
            free.append((handle, transfer(handle)))
        for handle, state in free:
            finish(handle, state)
        return {"seconds": now() - begin}

    def _echo(self, iterations: int) -> dict[str, Any]:
        if self.rank == TARGET and not self._has_peer:
            self._meet()
        transfer, finish, wait = self._agent.transfer, self._finish, self._await_notification
        (handle,) = self._handles
        if self.rank == TARGET:
            for _ in range(iterations):
                wait()
                finish(handle, transfer(handle, b"x"))
            return {}
        samples = []
        begin = last = now()
        for _ in range(iterations):
            finish(handle, transfer(handle, b"x"))
            wait()
            moment = now()
            samples.append(moment - last)
            last = moment
        return latency_result(samples, last - begin, scale=0.5)

    def _forget(self) -> None:
        for handle in self._handles:
            handle.release()
        self._handles = []
        for region in self._registered:
            self._agent.deregister_memory(region)
        self._registered = []

    def close(self) -> None:
        self._forget()
        self._agent = None
