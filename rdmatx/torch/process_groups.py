"""What `torch.distributed` calls to make a process group of rdmatx."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any

from rdmatx.context import Context
from rdmatx.group import Group, address_towards


class SharedContext:
    """The context that all process groups of this process share: there while any of them is open.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context: Context | None = None
        self._groups = 0

    def take(self) -> Context:
        with self._lock:
            if self._context is None or self._context.closed:
                self._context = Context()
                self._groups = 0
            self._groups += 1
            return self._context

    def give_back(self, context: Context) -> None:
        """Closes it with the last group."""
        with self._lock:
            if context is not self._context:
                return
            self._groups -= 1
            if self._groups > 0:
                return
            self._context = None
        context.close()


_shared = SharedContext()


def listening_address(store: Any) -> str | None:
    """Where this rank listens: `RDMATX_LISTEN`, else the address from which it reaches the store's host;
    None where the store has none (a file's), which is the loopback interface."""
    if "RDMATX_LISTEN" in os.environ:
        return os.environ["RDMATX_LISTEN"]
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if host and port:
        return address_towards(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return None


def make_backend(store: Any, rank: int, world: int, timeout: float) -> Any:
    """The backend of the ranks that meet in this store. `timeout` in seconds bounds the making of it and
    each of its operations."""
    from rdmatx.torch import _extension

    context = _shared.take()
    try:
        group = Group(
            store,
            rank,
            world,
            context=context,
            listen=listening_address(store),
            timeout=timeout,
        )
    except BaseException:
        _shared.give_back(context)
        raise
    return _extension.Backend(
        group._capsule(), timeout, make_backend, partial(_shared.give_back, context)
    )


def create_backend(options: Any, group_options: Any = None) -> Any:
    """For `torch.distributed.Backend.register_backend`: `options` is a `DistributedBackendOptions`."""
    return make_backend(
        options.store, options.group_rank, options.group_size, options.timeout.total_seconds()
    )
