"""What the hosts of test_lab_transfer.py run. No pytest here: it takes a second to import inside the lab."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator

import rdmatx
from rdmatx.cli.main import main
from rdmatx.errors import PeerLostError
from tests.launch import TIME_SCALE
from tests.rxe.lab_hosts import LabHost

PATIENCE = 20.0 * TIME_SCALE
# Seconds in which a host that is gone must have been noticed; the operations themselves wait longer.
NOTICED = 20.0 * TIME_SCALE
MESSAGE = 1 << 20


def content(number: int, nbytes: int) -> bytes:
    return hashlib.shake_128(number.to_bytes(8, "little")).digest(nbytes)


@contextlib.contextmanager
def connected(host: LabHost, timeout: float = PATIENCE) -> Iterator[rdmatx.Connection]:
    """A connection between the two hosts over rxe0; host 1 listens."""
    with rdmatx.Context("rxe0", "system", timeout=timeout) as context:
        if host.index == 1:
            with context.listen(f"{host.address}:0") as listener:
                host.exchange(listener.address)
                connection = listener.accept(timeout=PATIENCE)
        else:
            connection = context.connect(host.exchange(None)[1], timeout=PATIENCE)
        with connection:
            yield connection


def say_hello(host: LabHost, word: str) -> list[str]:
    host.report(f"{word} from {host.index}")
    return host.exchange(host.address)


def fail_on_one(host: LabHost) -> None:
    assert host.index == 0, "this is not host 0"


def send_and_check(host: LabHost, sizes: list[int]) -> dict[str, int]:
    """Messages both ways at once, every byte looked at; returns the device's counters."""
    with connected(host) as connection:
        mine = [content(2 * n + host.index, size) for n, size in enumerate(sizes)]
        theirs = [content(2 * n + 1 - host.index, size) for n, size in enumerate(sizes)]
        buffers = [bytearray(size) for size in sizes]
        receives = [connection.irecv(buffer, tag=n) for n, buffer in enumerate(buffers)]
        sends = [connection.isend(data, tag=n) for n, data in enumerate(mine)]
        for work in [*receives, *sends]:
            work.wait()
        wrong = [n for n, buffer in enumerate(buffers) if bytes(buffer) != theirs[n]]
        assert not wrong, f"messages {wrong} arrived with other bytes"
        host.exchange("done")
    return host.counters()


def lose_the_peer(host: LabHost, survivor_sends: bool) -> None:
    """Host 1 is powered off in the middle of a stream of messages; host 0 reports what it gets to know."""
    sends = survivor_sends == (host.index == 0)
    buffer = bytearray(MESSAGE)
    with connected(host, 4 * NOTICED) as connection:
        for number in range(10_000):
            if host.index == 1 and number == 10:
                host.power_off()
            try:
                if sends:
                    connection.send(buffer)
                else:
                    connection.recv(buffer)
            except PeerLostError as error:
                host.report({"messages": number, "error": str(error)})
                return
    raise AssertionError("10,000 messages went to a host that is off")


def states_of_rails(host: LabHost, rail: int) -> None:
    """What `rdmatx devices` says before a rail's link goes down, while it is, and when it is up again."""

    def states() -> dict[str, list[str]]:
        with contextlib.redirect_stdout(io.StringIO()) as text:
            assert main(["devices", "--json", "--provider", "system"]) == 0
        listed = [json.loads(line) for line in text.getvalue().splitlines()]
        return {device["name"]: [port["state"] for port in device["ports"]] for device in listed}

    netdev = "vec" if len(host.peers) > 1 else "dm"
    host.report(states())
    for state in ("down", "up"):
        host.command("ip", "link", "set", f"{netdev}{rail}", state)
        host.report(states())
