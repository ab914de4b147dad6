"""Two hosts, as far as the software HCA can tell: two network namespaces joined by a link of their own, each
rank in one. What is tried between them goes over TCP."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import rdmatx
from rdmatx.verbs import Address, Device
from tests.conformance import test_two_processes as two
from tests.conformance.ends import SUCCESS, End, pattern, usable_gid_index
from tests.lanes import lane_missing
from tests.launch import TIME_SCALE, Rank, Ranks
from tests.multiprocess.conftest import PATIENCE

pytestmark = [pytest.mark.soft, pytest.mark.soft_only]

CLONE_NEWNET = 0x40000000
SIZES = [1, 4096, 100_001, 12 << 20]
ADDRESSES = {
    "ipv4": ("198.51.100.1/24", "198.51.100.2/24"),
    "ipv6": ("2001:db8::1/64", "2001:db8::2/64"),
}
# Seconds after which a host that does not answer is given up, in the tests of links that go down.
GIVEN_UP_AFTER = 2


@dataclass(frozen=True)
class Hosts:
    """Two namespaces by name; each has one end of the link, `link0`."""

    names: tuple[str, str]

    def ip(self, host: int, *arguments: str) -> None:
        _run("ip", "-n", self.names[host], *arguments)

    def cut(self) -> None:
        self.ip(1, "link", "set", "link0", "down")

    def mend(self) -> None:
        self.ip(1, "link", "set", "link0", "up")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@pytest.fixture(params=["ipv4", "ipv6"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hosts(family: str) -> Iterator[Hosts]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        lane_missing("soft", "only root with iproute2 can make network namespaces")
    names = tuple(f"rdmatx-{os.getpid()}-{side}" for side in "ab")
    made = Hosts(names)  # type: ignore[arg-type]
    try:
        for name in names:
            try:
                _run("ip", "netns", "add", name)
            except OSError as error:
                lane_missing("soft", f"this machine allows no network namespaces: {error}")
        _run(
            *("ip", "link", "add", "link0", "netns", names[0], "type", "veth"),
            *("peer", "name", "link0", "netns", names[1]),
        )
        for host, address in enumerate(ADDRESSES[family]):
            made.ip(host, "link", "set", "lo", "up")
            # Usable at once: without the wait in which a duplicate would show.
            flags = ("nodad",) if family == "ipv6" else ()
            made.ip(host, "address", "add", address, "dev", "link0", *flags)
            made.ip(host, "link", "set", "link0", "up")
        yield made
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def enter(name: str) -> None:
    """Moves this thread, and those it starts, into the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def on_host(rank: Rank, names: tuple[str, str], function: Callable[..., Any], *rest: Any) -> Any:
    enter(names[rank.index])
    return function(rank, *rest)


def run(hosts: Hosts, function: Callable[..., Any], *rest: Any, **options: Any) -> Ranks:
    environment = {"RDMATX_SOFT_PEER_TIMEOUT": str(GIVEN_UP_AFTER), **options}
    return Ranks(
        on_host, hosts.names, function, *rest, ranks=2, timeout=50, environment=environment
    )


def connect_queue_pair(rank: Rank, device: Device) -> End:
    end = End(device, usable_gid_index(device), max_send_requests=64)
    end.connect(Address.from_bytes(rank.exchange(end.address().to_bytes())))
    return end


@pytest.mark.parametrize(
    ("function", "rest"),
    [
        (two.send_and_receive, [SIZES]),
        (two.write_and_read, [SIZES]),
        (two.write_with_immediate, []),
        (two.count_together, [50]),
        (two.stream, [2000]),
        (two.forbidden, []),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_verbs(hosts: Hosts, function: Callable[..., Any], rest: list[Any]) -> None:
    with run(hosts, function, "soft", None, *rest, RDMATX_SOFT_WIRE="tcp") as ranks:
        ranks.results()


def test_several_streams(hosts: Hosts) -> None:
    options = {"RDMATX_SOFT_WIRE": "tcp", "RDMATX_SOFT_STREAMS": "3"}
    with run(hosts, two.write_and_read, "soft", None, SIZES, **options) as ranks:
        ranks.results()


def talk(rank: Rank, host: str) -> str:
    """Messages and a one-sided write by the public interface, which finds the way itself."""
    with rdmatx.Context(provider="soft", timeout=PATIENCE) as context:
        if rank.index == 0:
            with context.listen(f"{host}:0") as listener:
                rank.send(1, listener.address)
                connection = listener.accept(timeout=PATIENCE)
        else:
            connection = context.connect(rank.receive(0), timeout=PATIENCE)
        with connection:
            for nbytes in (0, 8, 100_000, 9 << 20):
                buffer = bytearray(nbytes)
                if rank.index == 0:
                    connection.send(pattern(nbytes))
                    connection.recv(buffer)
                else:
                    connection.recv(buffer)
                    connection.send(buffer)
                assert buffer == pattern(nbytes)
            rank.barrier()
            return str(connection.path)


def test_messages_find_the_way(hosts: Hosts, family: str) -> None:
    address = ADDRESSES[family][0].partition("/")[0]
    with run(hosts, talk, f"[{address}]" if ":" in address else address) as ranks:
        for path in ranks.results():
            assert "TCP" in path
            assert address in path


def send_over_a_cut_link(rank: Rank) -> list[str]:
    """Rank 0 sends, and once the link is cut sends on; it returns how each send ended."""
    with Device(provider="soft") as device:
        end = connect_queue_pair(rank, device)
        try:
            memory = end.memory(1 << 20)
            if rank.index == 1:
                for number in range(4):
                    end.receive(memory, work_id=number)
                rank.barrier()
                rank.tell("ready")
                rank.listen(timeout=40 * TIME_SCALE)
                return [end.qp.state.name]
            rank.barrier()
            outcomes = []
            for turn in range(2):
                if turn == 1:
                    rank.tell("sent")
                    rank.listen()
                end.send(memory)
                outcomes.append(end.sent()[0].status.name)
            return [*outcomes, end.qp.state.name]
        finally:
            end.close()


@pytest.mark.parametrize("seconds", [0.5 * GIVEN_UP_AFTER, None], ids=["for a while", "for good"])
def test_link_goes_down(hosts: Hosts, family: str, seconds: float | None) -> None:
    """A shorter outage is a pause; a longer one ends the queue pairs at both ends, in bounded time."""
    if family == "ipv6" and seconds is not None:
        hosts.ip(1, "link", "set", "link0", "addrgenmode", "none")
    with run(hosts, send_over_a_cut_link, RDMATX_SOFT_WIRE="tcp") as ranks:
        ranks.hear(1)
        ranks.hear(0)
        # Where the link is cut at the other side, this side's kernel keeps its addresses and routes.
        hosts.cut()
        began = time.monotonic()
        ranks.tell(0, "go")
        if seconds is not None:
            time.sleep(seconds)
            hosts.mend()
            if family == "ipv6":  # which a link that goes down takes away
                hosts.ip(1, "address", "replace", ADDRESSES[family][1], "dev", "link0", "nodad")
        first, second, state = ranks.result(0)
        took = time.monotonic() - began
        assert first == SUCCESS.name
        if seconds is None:
            assert (second, state) == ("RETRY_EXCEEDED", "ERROR")
            assert took < (GIVEN_UP_AFTER + 6) * TIME_SCALE
        else:
            assert (second, state) == (SUCCESS.name, "READY_TO_SEND")
        time.sleep(GIVEN_UP_AFTER + 2 if seconds is None else 0)
        ranks.tell(1, "end")
        assert ranks.result(1) == (["ERROR"] if seconds is None else ["READY_TO_SEND"])


def test_host_whose_process_is_killed(hosts: Hosts) -> None:
    with run(hosts, two.send_to_the_dead, "soft", None, RDMATX_SOFT_WIRE="tcp") as ranks:
        assert ranks.hear(1) == "ready"
        ranks.kill(1)
        ranks.tell(0, "go")
        status, state = ranks.result(0)
        assert status in (
            "RETRY_EXCEEDED",
            "FLUSHED",
        )  # the latter where the death was noticed first
        assert state == "ERROR"
