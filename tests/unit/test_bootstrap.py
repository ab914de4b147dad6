"""Who a process is among those started with it, and the store through which they find each other."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from rdmatx import bootstrap, errors
from rdmatx.bootstrap import Environment, TCPStore, environment


def test_torchrun() -> None:
    env = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "192.0.2.7", "MASTER_PORT": "29501"}
    assert environment(env) == Environment(3, 8, "192.0.2.7:29501")


def test_mpirun() -> None:
    env = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "2001:db8::1"}
    assert environment(env) == Environment(0, 2, "[2001:db8::1]:29500")
    env = {"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "host.example"}
    assert environment(env) == Environment(1, 2, "host.example:29500")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("node7,node9", "node7"),
        ("node[07-12,20],other3", "node07"),
        ("gpu-a[3]", "gpu-a3"),
        ("one,node[1-2]", "one"),
    ],
)
def test_slurm(nodes: str, first: str) -> None:
    env = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": nodes}
    assert environment(env) == Environment(1, 4, f"{first}:29500")


def test_a_world_of_one_needs_no_master() -> None:
    assert environment({"RANK": "0", "WORLD_SIZE": "1"}).master == "127.0.0.1:29500"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, "torchrun sets RANK and WORLD_SIZE"),
        ({"RANK": "0"}, "which rank this is"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "set MASTER_ADDR"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "x"}, "rank 2 of 2"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, 'RANK is "one"'),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "y"}, "MASTER_PORT"),
    ],
)
def test_what_is_missing_is_said(env: dict[str, str], said: str) -> None:
    with pytest.raises(errors.UsageError, match=said):
        environment(env)


def test_values_go_from_rank_to_rank() -> None:
    with TCPStore("127.0.0.1:0", serve=True) as store:
        other = TCPStore(store.address)
        other.set("a", b"")
        other.set("b", b"\x00" * 1000)
        assert store.get("a") == b""
        assert store.get("b") == bytes(1000)
        store.set("a", b"new")
        assert other.get("a") == b"new"
        keys = bootstrap.PrefixStore("group", other)
        keys.set("a", b"mine")
        assert store.get("group/a") == keys.get("a") == b"mine"


def test_get_waits_until_somebody_sets() -> None:
    with TCPStore("127.0.0.1:0", serve=True) as store:
        late = threading.Timer(0.2, store.set, ["key", b"value"])
        late.start()
        assert TCPStore(store.address).get("key") == b"value"
        late.join()


def test_get_gives_up() -> None:
    with TCPStore("127.0.0.1:0", serve=True, timeout=0.1) as store:
        with pytest.raises(errors.TimeoutError, match='nobody set "key"') as caught:
            store.get("key")
        assert caught.value.seconds == 0.1


def test_the_server_may_come_last() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    got: list[bytes] = []
    early = threading.Thread(target=lambda: got.append(TCPStore(f"127.0.0.1:{port}").get("key")))
    early.start()
    time.sleep(0.1)
    with TCPStore(f"127.0.0.1:{port}", serve=True) as store:
        store.set("key", b"value")
        early.join()
    assert got == [b"value"]


def test_a_server_that_follows_another_is_told_anew() -> None:
    """A rank that is ahead sets its key in the store of the group before, which rank 0 is just closing."""
    first = TCPStore("127.0.0.1:0", serve=True)
    ahead = TCPStore(first.address)
    ahead.set("rank 1", b"here")
    waiting = threading.Thread(target=lambda: ahead.get("rank 0"))
    waiting.start()
    time.sleep(0.05)
    first.close()
    with TCPStore(first.address, serve=True) as second:
        assert second.get("rank 1") == b"here"
        second.set("rank 0", b"here, too")
        waiting.join()


def test_nobody_serves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(errors.PeerLostError, match="is rank 0 running"):
        TCPStore(f"127.0.0.1:{port}", timeout=0.1).get("key")


def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(errors.Error, match="MASTER_PORT has to be free"):
            TCPStore(f"127.0.0.1:{port}", serve=True)


@pytest.mark.parametrize("address", ["nowhere", "host:", ":", "host:port", "host:99999"])
def test_malformed_addresses(address: str) -> None:
    with pytest.raises(errors.UsageError, match="is no address"):
        TCPStore(address)


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 13,
        bootstrap._HEAD.pack(b"RDMS", 1, 1 << 30, 0),
        bootstrap._HEAD.pack(b"RDMS", 1, 5, 5) + b"abc",
        bootstrap._HEAD.pack(b"RDMS", 77, 1, 0) + b"a",
    ],
)
def test_noise_ends_its_own_connection_alone(noise: bytes) -> None:
    with TCPStore("127.0.0.1:0", serve=True) as store:
        host, _, port = store.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as channel:
            channel.sendall(noise)
            channel.shutdown(socket.SHUT_WR)
            assert len(channel.recv(1000)) <= bootstrap._HEAD.size
        store.set("key", b"value")
        assert store.get("key") == b"value"


def test_what_is_too_long_is_refused() -> None:
    with (
        TCPStore("127.0.0.1:0", serve=True) as store,
        pytest.raises(errors.UsageError, match="longer"),
    ):
        store.set("key", bytes(bootstrap.LONGEST + 1))
