"""What runs on the two hosts of test_lab_rails.py."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import rdmatx
from tests.launch import TIME_SCALE
from tests.multiprocess.messages import content
from tests.rxe.lab_hosts import LabHost

NBYTES = 12 << 20
PATIENCE = 60.0 * TIME_SCALE


def connect(host: LabHost, context: rdmatx.Context) -> rdmatx.Connection:
    if host.index == 0:
        with context.listen(f"{host.address}:0") as listener:
            host.exchange(listener.address)
            return listener.accept()
    return context.connect(host.exchange(None)[0])


def errors_of(connection: rdmatx.Connection) -> int:
    return sum(rail["errors"] for rail in connection.stats()["rails"])


def send_while_a_link_fails(host: LabHost, failing: int) -> dict[str, Any]:
    """Host 0 sends messages while its link `failing` goes down in the middle of one, and up again."""
    with (
        rdmatx.Context(devices=host.devices, timeout=PATIENCE) as context,
        connect(host, context) as connection,
    ):
        window = bytearray(NBYTES)
        link = f"vec{failing}"
        if host.index == 0:
            connection.send(content(NBYTES, 0), tag=0)
            carried = [rail["bytes"] for rail in connection.stats()["rails"]]
            work = connection.isend(content(NBYTES, 1), tag=1)
            while sum(rail["bytes"] for rail in connection.stats()["rails"]) <= sum(carried):
                assert not work.done()  # the first pieces are on their way
            host.command("ip", "link", "set", link, "down")
            work.wait()
            connection.send(content(NBYTES, 2), tag=2)
            failed = errors_of(connection)
            host.command("ip", "link", "set", link, "up")
            until = time.monotonic() + PATIENCE
            while not all(rail["alive"] for rail in connection.stats()["rails"]):
                assert time.monotonic() < until, connection.stats()
                connection.iprobe()
                with contextlib.suppress(rdmatx.errors.TimeoutError):
                    connection.probe(tag=99, timeout=0.02)
            connection.send(content(NBYTES, 3), tag=3)
            connection.recv(bytearray(1), tag=4)
        else:
            carried, failed = [], 0
            for seed in range(4):
                assert connection.recv(window, tag=seed) == NBYTES
                assert window == content(NBYTES, seed), f"message {seed} arrived damaged"
            connection.send(b"", tag=4)
        rails = connection.stats()["rails"]
        return {"carried": carried, "failed": failed, "rails": rails}
