"""Connections to peers: messages, and reads and writes of registered memory.

with rdmatx.Context() as ctx, ctx.listen("127.0.0.1:0") as listener:
    conn = ctx.connect(listener.address)
    peer = listener.accept()
    conn.send(b"hello", tag=7)
    count = peer.recv(buffer, tag=7)
"""

from __future__ import annotations

import atexit
import os
import random
import time
import weakref
from collections.abc import Sequence

from rdmatx import _C
from rdmatx._C import Connection, Listener, Region, RemoteKey, WaitingMessage, Work
from rdmatx.errors import PeerLostError, UsageError

__all__ = [
    "Connection",
    "Context",
    "Listener",
    "Region",
    "RemoteKey",
    "WaitingMessage",
    "Work",
]

#: Seconds that a call waits where neither it nor its context says otherwise.
DEFAULT_TIMEOUT = 60.0

#: Seconds between attempts of `connect(retry=True)`; each pause is twice the one before.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0

_open: weakref.WeakSet[Context] = weakref.WeakSet()


class Context(_C.Context):
    """A device opened for use, or several: where connections, listeners and regions come from.

    `device` is a name of `rdmatx.list_devices()`; without one, `RDMATX_DEVICE`, else whichever
    serves. `devices=["rxe0", "rxe1"]` opens several, the rails: large transfers go over all of
    them, and where one fails the others take its work until it is back. A device that is named
    twice carries two queue pairs. Where nothing is asked for and an RDMA device serves, peers on
    this host are reached by the software HCA's shared memory, and all others by that device.

    `device="auto", gpu=0` takes the NICs that are nearest to that GPU of this process ("cuda:0", a
    PCI address and a UUID will do too), several where there are more NICs than GPUs, as if they
    had been named: `rdmatx topo` shows which and why. `RDMATX_DEVICE` comes first, and where no
    NIC on the PCI bus serves, or with the software HCA, it is as without a GPU.

    `provider` is "auto", "system" (a verbs device, never anything else) or "soft" (the software
    HCA). `timeout` is how many seconds calls wait that are given none; `math.inf` waits for ever.
    `verify` has every message checked by a CRC-32C of its bytes before its receive ends, on each
    connection of which at least one side asks for it; a damaged message ends the connection with
    `CompletionError`.

    `gpu_direct` says whether devices are to reach the memory of GPUs themselves: "auto" where they
    can, else through the host's memory, with one warning that says why; "require" raises
    `UnavailableError` instead; "off" never. Without it, `RDMATX_GPU_DIRECT`, else "auto".
    `describe()` shows the way that was taken.

    Closing it closes what was made from it; it is also closed when the interpreter ends. A
    process that was forked from one with a context opens its own.

    Raises `UnavailableError` where no such device serves, with the reason and the remedy, and where
    there is no such GPU.
    """

    def __init__(
        self,
        device: str | None = None,
        provider: str = "auto",
        *,
        devices: Sequence[str] | None = None,
        gpu: int | str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        verify: bool = False,
        gpu_direct: str | None = None,
    ) -> None:
        if device is not None and devices is not None:
            raise UsageError("give device= or devices=, not both")
        names = [device] if device not in (None, "auto") else list(devices or [])
        if gpu is not None:
            if names:
                raise UsageError('gpu= chooses the devices: give it with device="auto" or without')
            from rdmatx.topology import rails_for

            names = rails_for(gpu, provider)
        if gpu_direct is None:
            gpu_direct = os.environ.get("RDMATX_GPU_DIRECT") or "auto"
        super().__init__(names, provider, timeout, verify, gpu_direct)
        _open.add(self)

    def listen(self, address: str = "127.0.0.1:0", secret: str | bytes | None = None) -> Listener:
        """Listens at "host:port"; port 0 is a free one, which `Listener.address` tells.

        Without a host it is the loopback interface. With a secret, whoever connects proves that
        it has the same one before it is told anything; without the argument it is that of the
        environment, `RDMATX_SECRET`. Whoever fails never gets to `accept()`; `Listener.stats()`
        counts them. Text is taken as UTF-8; 32 random bytes are a good secret.

        Raises `Error` where the address is in use, not allowed, or not this host's.
        """
        return super().listen(address, _C.PreparedSecret(secret))

    def connect(
        self,
        address: str,
        *,
        timeout: float | None = None,
        secret: str | bytes | None = None,
        retry: bool = False,
    ) -> Connection:
        """Connects to a listener of any process at "host:port" or "[v6]:port".

        The peer need not have called `accept()` yet. `secret` is the listener's, as in
        `listen()`: both sides prove that they have it, and a listener without it is told nothing.
        With `retry`, a peer that is not there is tried again until the time is up, after pauses
        that grow from 0.05 to 1 second: for peers that start in any order, and to connect again
        after one was lost.

        Raises `PeerLostError` where nothing listens there, `AuthenticationError` where the
        secrets differ or one side has none, `UnavailableError` where the two cannot talk
        (version, provider, network), and `TimeoutError`.
        """
        seconds = self.timeout if timeout is None else timeout
        prepared = _C.PreparedSecret(secret)
        until = time.monotonic() + seconds
        pause = FIRST_PAUSE
        while True:
            left = max(0.0, until - time.monotonic()) if retry else seconds
            try:
                return super().connect(address, timeout=left, secret=prepared)
            except PeerLostError:
                # Peers that retry together do not stay together.
                pause = min(pause * 2, LONGEST_PAUSE)
                wait = pause * random.uniform(0.5, 1.0)
                if not retry or time.monotonic() + wait >= until:
                    raise
            time.sleep(wait)

    async def connect_async(
        self,
        address: str,
        *,
        timeout: float | None = None,
        secret: str | bytes | None = None,
        retry: bool = False,
    ) -> Connection:
        """`connect()`, awaitable in an asyncio event loop.

        Where the awaiting task is cancelled, a connection that still comes about is closed.
        """
        from rdmatx import asynchronous

        return await asynchronous.connect(
            lambda: self.connect(address, timeout=timeout, secret=secret, retry=retry)
        )

    def register(self, buffer: object, access: str = "rw") -> Region:
        """Registers memory, so that operations need not, and peers reach it as `access` allows.

        `access` is made of "r" (peers may read), "w" (write) and "a" (atomics); "" lets nobody
        in. The memory stays alive, and must not be resized, until the region is closed. Raises
        `UsageError` for read-only memory that peers may write to, and `VerbsError` where the
        device or the limit on locked memory refuses.
        """
        return super().register(buffer, access)

    def describe(self) -> str:
        """The device with its ports and addresses, in a few lines for people."""
        return super().describe()

    def stats(self) -> dict[str, int]:
        """What the context's registrations cost, since it was opened.

        `registration_hits`: operations that found their memory registered; `registration_misses`:
        those that registered it and left it so; `registration_uncached`: those whose memory is not
        kept registered; `registration_evictions`: registrations given up, for room or since their
        memory went. Now: `registrations_kept`, their `pinned_bytes`, and the `pin_limit_bytes`
        (0: nothing is kept).
        """
        return super().stats()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Context on {self.device} ({self.provider}){state}>"


@atexit.register
def _close_all() -> None:
    """Ends every connection while the interpreter still stands."""
    for context in list(_open):
        context.close()
