"""How the processes of a group find each other: a key-value store that all of them reach.

Any store of `torch.distributed` will do (TCPStore, FileStore, HashStore, ...): what is used of it is
`set(key, value)` and `get(key)`, which waits for the key. Where there is none, `TCPStore` below is
one: rank 0 serves it at MASTER_ADDR:MASTER_PORT, the others connect.

Values are bytes. Whoever reaches the store can say where a group's ranks are; it tells no secret, and
with RDMATX_SECRET the ranks prove it to each other before they talk.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from rdmatx.errors import Error, PeerLostError, TimeoutError, UsageError

__all__ = ["Environment", "PrefixStore", "Store", "TCPStore", "environment"]

#: Bytes of a key, and of a value, at most: what they hold is addresses.
LONGEST = 1 << 16

# Magic, command, bytes of the key (in an answer, which server this is), bytes of the value.
_HEAD = struct.Struct("<4sBII")
_MAGIC = b"RDMS"
_SET, _GET, _HERE, _ABSENT = 1, 2, 3, 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.2


class Store(Protocol):
    """What a store has to have."""

    def set(self, key: str, value: Any, /) -> Any: ...
    def get(self, key: str, /) -> Any: ...


@dataclass(frozen=True)
class Environment:
    """Who this process is among those that were started with it."""

    rank: int
    world: int
    master: str  #: "host:port", where rank 0 serves the store


#: Variables that a launcher sets, by launcher: rank and number of ranks.
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH, Intel MPI": ("PMI_RANK", "PMI_SIZE"),
}
DEFAULT_PORT = 29500


def environment(variables: dict[str, str] | None = None) -> Environment:
    """Rank, world and master of this process, from what torchrun, Slurm or mpirun set.

    The master's address is MASTER_ADDR and MASTER_PORT; under Slurm, without them, the first host of
    the job. The port is 29500 where none is set.

    Raises `UsageError` that says which variables are missing or make no sense.
    """
    env = dict(os.environ) if variables is None else variables
    for names in _LAUNCHERS.values():
        if all(name in env for name in names):
            rank, world = (_number(env, name) for name in names)
            break
    else:
        listed = "; ".join(f"{who} sets {' and '.join(names)}" for who, names in _LAUNCHERS.items())
        raise UsageError(
            f"the environment does not say which rank this is ({listed}): start the program with one "
            "of them, or pass rank=, world= and a store to rdmatx.Group"
        )
    if not 0 <= rank < world:
        raise UsageError(f"the environment says rank {rank} of {world}: ranks count from 0")
    host = env.get("MASTER_ADDR") or _first_slurm_host(env.get("SLURM_JOB_NODELIST", ""))
    if not host:
        if world > 1:
            raise UsageError(
                "the environment does not say where rank 0 is: set MASTER_ADDR (and MASTER_PORT) to its "
                "address, the same for all ranks"
            )
        host = "127.0.0.1"
    port = _number(env, "MASTER_PORT") if "MASTER_PORT" in env else DEFAULT_PORT
    return Environment(rank, world, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _number(env: dict[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise UsageError(f'{name} is "{env[name]}", and should be a number') from None


def _first_slurm_host(nodes: str) -> str:
    """Of "node[07-12,20],other3" it is node07."""
    head, bracket, rest = nodes.partition("[")
    if not bracket:
        return head.partition(",")[0]
    if "," in head:
        return head.partition(",")[0]
    return head + rest.partition("]")[0].partition(",")[0].partition("-")[0]


class PrefixStore:
    """A part of a store, whose keys are apart from all others."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix = prefix
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(f"{self._prefix}/{key}"))


class TCPStore:
    """A store that rank 0 keeps in memory and serves to the others over TCP.

    `address` is "host:port" of rank 0, which passes `serve=True`; with port 0 it is a free one, and
    `address` tells which. `timeout` in seconds bounds every `get()`. Each call is a connection of its
    own, so nothing stays open on the other ranks; on rank 0 a thread serves until `close()`. Where
    another one serves at the address meanwhile, it is told anew what this rank had set: rank 0 may
    still be closing the store of an earlier group.
    """

    def __init__(self, address: str, *, serve: bool = False, timeout: float = 60.0) -> None:
        self._host, self._port = _split(address)
        self._timeout = timeout
        self._server = _Server(self._host, self._port) if serve else None
        self._set: dict[str, bytes] = {}
        self._instance = 0  # of the server that was told of them
        if self._server is not None:
            self._port = self._server.port

    @property
    def address(self) -> str:
        """ "host:port"."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    def set(self, key: str, value: bytes) -> None:
        """Stores a value, in place of the one there was."""
        self._set[key] = bytes(value)
        self._tell(time.monotonic() + self._timeout)

    def _tell(self, until: float) -> None:
        for key, value in self._set.items():
            self._instance, _ = self._ask(_SET, key, value, until)

    def get(self, key: str) -> bytes:
        """The value of a key, once somebody has set it. Raises `TimeoutError`."""
        until = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while True:
            instance, value = self._ask(_GET, key, b"", until)
            if value is not None:
                return value
            if self._set and instance != self._instance:
                self._tell(until)
            if time.monotonic() + pause > until:
                raise TimeoutError(
                    f'nobody set "{key}" in the store at {self.address} within {self._timeout:g} s: are '
                    "all ranks running?",
                    peer=self.address,
                    operation="get",
                    seconds=self._timeout,
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def close(self) -> None:
        """Stops serving, and forgets all values. On other ranks there is nothing to close."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def __enter__(self) -> TCPStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, command: int, key: str, value: bytes, until: float) -> tuple[int, bytes | None]:
        """Which server answered, and the value if there is one."""
        while True:
            try:
                return self._ask_once(command, key, value, until)
            except _BrokenOffError as error:
                # It was just closing: another one may follow.
                if time.monotonic() + _LONGEST_PAUSE > until:
                    raise PeerLostError(
                        f"the store at {self.address} is gone: {error}", peer=self.address
                    ) from error
            time.sleep(_FIRST_PAUSE)

    def _ask_once(
        self, command: int, key: str, value: bytes, until: float
    ) -> tuple[int, bytes | None]:
        name = key.encode()
        if len(name) > LONGEST or len(value) > LONGEST:
            raise UsageError(f"a key or value of the store is longer than {LONGEST} bytes")
        with self._connect(until) as channel:
            channel.settimeout(max(0.1, until - time.monotonic()))
            try:
                channel.sendall(_HEAD.pack(_MAGIC, command, len(name), len(value)) + name + value)
                magic, answer, instance, nbytes = _HEAD.unpack(_receive(channel, _HEAD.size))
                if magic != _MAGIC or nbytes > LONGEST:
                    raise Error(f"what listens at {self.address} is no store of rdmatx")
                body = _receive(channel, nbytes)
            except OSError as error:
                raise _BrokenOffError(str(error)) from error
        return instance, body if answer == _HERE else None

    def _connect(self, until: float) -> socket.socket:
        pause = _FIRST_PAUSE
        while True:
            try:
                return socket.create_connection(
                    (self._host, self._port), timeout=max(0.1, until - time.monotonic())
                )
            except OSError as error:
                # Ranks start in any order: rank 0 may be the last.
                if time.monotonic() + pause > until:
                    raise PeerLostError(
                        f"nothing serves the store at {self.address} ({error}): is rank 0 running, and "
                        "is it reached from here?",
                        peer=self.address,
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


class _BrokenOffError(Exception):
    """The server went away in the middle of a request."""


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f'"{address}" is no address: it is "host:port" or "[v6]:port"')
    return host.removeprefix("[").removesuffix("]"), int(port)


def _receive(channel: socket.socket, nbytes: int) -> bytes:
    parts = bytearray()
    while len(parts) < nbytes:
        part = channel.recv(nbytes - len(parts))
        if not part:
            raise ConnectionResetError("it closed the connection")
        parts += part
    return bytes(parts)


class _Server:
    """The store's thread: short requests, each of a bounded size, none of which can hold up the others."""

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._values: dict[bytes, bytes] = {}
        self._instance = random.getrandbits(32) or 1
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise Error(
                f"cannot serve the store at {host}:{port}: {error}. Rank 0 has to run on the host of "
                "MASTER_ADDR, and MASTER_PORT has to be free there"
            ) from error
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="rdmatx-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._waker.close()
        self._thread.join()

    def _run(self) -> None:
        partial: dict[socket.socket, bytearray] = {}
        with selectors.DefaultSelector() as selector, self._socket, self._wake:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    channel = key.fileobj
                    assert isinstance(channel, socket.socket)
                    if channel is self._wake:
                        for open_channel in partial:
                            open_channel.close()
                        return
                    if channel is self._socket:
                        with contextlib.suppress(OSError):
                            asking, _address = self._socket.accept()
                            asking.setblocking(False)
                            selector.register(asking, selectors.EVENT_READ)
                            partial[asking] = bytearray()
                    elif not self._goes_on(channel, partial[channel]):
                        selector.unregister(channel)
                        del partial[channel]
                        channel.close()

    def _goes_on(self, channel: socket.socket, request: bytearray) -> bool:
        """Whether more of this request is to come."""
        try:
            part = channel.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        request += part
        if not part:
            return False
        if len(request) < _HEAD.size:
            return True
        magic, command, key_bytes, value_bytes = _HEAD.unpack_from(request)
        if magic != _MAGIC or key_bytes > LONGEST or value_bytes > LONGEST:
            return False
        if len(request) < _HEAD.size + key_bytes + value_bytes:
            return True
        key = bytes(request[_HEAD.size : _HEAD.size + key_bytes])
        if command == _SET:
            self._values[key] = bytes(request[_HEAD.size + key_bytes :][:value_bytes])
        value = self._values.get(key, b"") if command == _GET else b""
        answer = _HERE if command == _SET or key in self._values else _ABSENT
        # A few kilobytes at most, which the kernel takes at once.
        with contextlib.suppress(OSError):
            channel.sendall(_HEAD.pack(_MAGIC, answer, self._instance, len(value)) + value)
        return False
