"""What the hosts of test_lab_faults.py run. No pytest here: it takes a second to import inside the lab."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from rdmatx import errors
from tests.rxe.lab_hosts import LabHost
from tests.rxe.lab_programs import MESSAGE, PATIENCE, connected, content

LINK = "vec0"
# Seconds: less and more than the queue pairs' retries and the keepalive of the bootstrap socket bear.
SHORT_OUTAGE = 1.0
LONG_OUTAGE = 10.0
MESSAGES = 24


def lose_everything(host: LabHost) -> Callable[[], object]:
    """100 % loss of what this host sends; returns what ends it."""
    host.command("tc", "qdisc", "replace", "dev", LINK, "root", "netem", "loss", "100%")
    return lambda: host.command("tc", "qdisc", "del", "dev", LINK, "root")


def link_down(host: LabHost) -> Callable[[], object]:
    host.command("ip", "link", "set", LINK, "down")
    return lambda: host.command("ip", "link", "set", LINK, "up")


OUTAGES: dict[str, Callable[[LabHost], Callable[[], object]]] = {
    "loss": lose_everything,
    "link": link_down,
}


def survive_an_outage(host: LabHost) -> dict[str, Any]:
    """Host 0 sends into the void for a second in the middle of messages both ways; all bytes arrive right."""
    with connected(host) as connection:
        ending = threading.Thread(target=outage, args=(host,))
        if host.index == 0:
            ending.start()
        buffers = [bytearray(MESSAGE) for _ in range(MESSAGES)]
        receives = [connection.irecv(buffer, tag=n) for n, buffer in enumerate(buffers)]
        until = time.monotonic() + SHORT_OUTAGE + 0.5
        for number in range(MESSAGES):
            connection.send(content(2 * number + host.index, MESSAGE), tag=number)
            # Some before the outage, some in it, some after it.
            time.sleep(max(0.0, min(0.05, until - time.monotonic())))
        for number, work in enumerate(receives):
            work.wait()
            assert buffers[number] == content(2 * number + 1 - host.index, MESSAGE), number
        if host.index == 0:
            ending.join()
        host.exchange("done")
        rails = connection.stats()["rails"]
    return {"counters": host.counters(), "rails": rails}


def outage(host: LabHost) -> None:
    time.sleep(0.1)
    ended = lose_everything(host)
    time.sleep(SHORT_OUTAGE)
    ended()


def idle_without_a_link(host: LabHost) -> str:
    """Host 0's link is down for a second while nobody has anything to say; then the connection goes on."""
    with connected(host) as connection:
        host.exchange("ready")
        if host.index == 0:
            up = link_down(host)
            time.sleep(SHORT_OUTAGE)
            up()
        else:
            time.sleep(SHORT_OUTAGE + 0.5)
        buffer = bytearray(MESSAGE)
        work = connection.irecv(buffer)
        connection.send(content(host.index, MESSAGE))
        assert work.wait() == MESSAGE
        assert buffer == content(1 - host.index, MESSAGE)
        host.exchange("done")
        return connection.peer


def be_cut_off(host: LabHost, kind: str, role: str) -> None:
    """Host 0 loses the network for good; both report what they get to know, and how soon."""
    with connected(host, 4 * PATIENCE) as connection:
        host.exchange("ready")
        time.sleep(0.2)
        ends = None
        if host.index == 0:
            ends = OUTAGES[kind](host)
        started = time.monotonic()
        buffer = bytearray(MESSAGE)
        try:
            while True:
                if role == "idle" or host.index == 1:
                    connection.recv(buffer, tag=7)
                else:
                    connection.send(buffer, tag=8)
        except (errors.PeerLostError, errors.CompletionError) as error:
            seconds = time.monotonic() - started
            host.report({"kind": type(error).__name__, "words": str(error), "seconds": seconds})
        with contextlib.suppress(errors.Error):
            connection.send(b"")
            raise AssertionError("a connection that has ended still sends")
    # The other host has to notice by itself, before the network is back.
    time.sleep(max(0.0, started + LONG_OUTAGE - time.monotonic()))
    if ends is not None:
        ends()
    time.sleep(1.0)
    connects_again(host)


def connects_again(host: LabHost) -> None:
    """Once the network is back, a new connection works."""
    with connected(host) as connection:
        if host.index == 0:
            connection.send(content(1, MESSAGE))
        else:
            buffer = bytearray(MESSAGE)
            assert connection.recv(buffer) == MESSAGE
            assert buffer == content(1, MESSAGE)
        host.exchange("done")
