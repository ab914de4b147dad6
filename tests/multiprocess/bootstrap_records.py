"""Records of the bootstrap socket as a stranger sees and says them, and one who sits in between."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

from tests.multiprocess.conftest import PATIENCE

MAGIC = b"RDMX"
VERSION = 2
HEAD = struct.Struct("<4sHHI")
HELLO, ACCEPT, READY, REFUSE, GOODBYE, FAILED, GREETING, CHALLENGE, DENIED = range(1, 10)
SEAL_BYTES = 32


def record(kind: int, body: bytes = b"", *, version: int = VERSION) -> bytes:
    return HEAD.pack(MAGIC, version, kind, len(body)) + body


def kind_of(whole: bytes) -> int:
    return int(HEAD.unpack(whole[: HEAD.size])[2])


def receive_record(stream: socket.socket) -> bytes:
    """The next whole record; empty where the other side has closed."""
    whole = b""
    wanted = HEAD.size
    while len(whole) < wanted:
        piece = stream.recv(wanted - len(whole))
        if not piece:
            return b""
        whole += piece
        if len(whole) == HEAD.size:
            wanted += HEAD.unpack(whole)[3]
    return whole


@contextmanager
def knock(address: str, source: str = "") -> Iterator[socket.socket]:
    """A stranger's socket, connected to a listener; from an address of the loopback range, where given."""
    with closing(knocking(address, source)) as stranger:
        yield stranger


def knocking(address: str, source: str = "") -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection(
        (host, int(port)), timeout=PATIENCE, source_address=(source, 0) if source else None
    )


#: What one in between does with a record: its direction ("out" from the connector, "in" from the listener),
#: its number in that direction, and its bytes; returns the bytes that go on.
Alter = Callable[[str, int, bytes], bytes]


@dataclass
class Proxy:
    """Passes one bootstrap connection on, record by record, and remembers what was said."""

    address: str
    said: list[tuple[str, bytes]] = field(default_factory=list)

    def of(self, direction: str) -> list[bytes]:
        return [whole for way, whole in self.said if way == direction]


@contextmanager
def in_between(target: str, alter: Alter | None = None) -> Iterator[Proxy]:
    with closing(socket.create_server(("127.0.0.1", 0))) as door:
        door.settimeout(PATIENCE)
        proxy = Proxy(f"127.0.0.1:{door.getsockname()[1]}")
        sockets: list[socket.socket] = []
        threads: list[threading.Thread] = []

        def pump(direction: str, source: socket.socket, sink: socket.socket) -> None:
            number = 0
            with suppress(OSError):
                while whole := receive_record(source):
                    proxy.said.append((direction, whole))
                    sink.sendall(alter(direction, number, whole) if alter else whole)
                    number += 1
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

        def take_one() -> None:
            with suppress(OSError):
                near, _ = door.accept()
                sockets.append(near)
                near.settimeout(PATIENCE)
                far = knocking(target)
                sockets.append(far)
                back = threading.Thread(target=pump, args=("in", far, near))
                back.start()
                threads.append(back)
                pump("out", near, far)

        taking = threading.Thread(target=take_one)
        taking.start()
        try:
            yield proxy
        finally:
            for stream in [*sockets, door]:
                with suppress(OSError):
                    stream.shutdown(socket.SHUT_RDWR)
            taking.join()
            for thread in threads:
                thread.join()
            for stream in sockets:
                stream.close()
