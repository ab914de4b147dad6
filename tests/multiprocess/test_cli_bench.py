"""`rdmatx bench p2p`: the contract of its report. Nothing here judges a number."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rdmatx.cli.bench.contestants.nixl import installed_package
from tests.lanes import lane_missing
from tests.multiprocess.cli_processes import Background, run

COMMON = {
    "bench": "p2p",
    "world": 2,
    "memory": "ordinary",
    "pages": "4K",
    "registered": True,
    "rounds": 2,
    "iters": 3,
    "verified": True,
}


def bench(*words: object) -> list[dict[str, Any]]:
    done = run("bench", "p2p", "--json", "--rounds", 2, "--iterations", 3, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_speed(record: dict[str, Any], prefix: str = "") -> None:
    if record["mode"] == "bw":
        assert record[f"{prefix}gbytes_per_s"] > 0
    else:
        latencies = record[f"{prefix}lat_us"]
        assert 0 < latencies["p50"] <= latencies["p99"] <= latencies["p999"]
    assert record[f"{prefix}cpu_s_per_gb"] is None or record[f"{prefix}cpu_s_per_gb"] >= 0


@pytest.mark.parametrize("op", ["write", "read", "send"])
@pytest.mark.parametrize("mode", ["bw", "lat"])
def test_one_object_a_size(provider: str, op: str, mode: str) -> None:
    records = bench("--op", op, "--mode", mode, "--sizes", "8,64K,1M", "--provider", provider)
    assert [record["bytes"] for record in records] == [8, 65536, 1 << 20]
    for record in records:
        assert record.items() >= {**COMMON, "op": op, "mode": mode, "provider": provider}.items()
        assert record["device"]
        assert record["rdmatx_version"]
        assert "peer" not in record
        check_speed(record)


def test_one_object_a_peer(provider: str) -> None:
    records = bench("--sizes", "64K,1M", "--vs", "cma,memcpy", "--provider", provider)
    assert [(record["bytes"], record["peer"]) for record in records] == [
        (65536, "cma"),
        (65536, "memcpy"),
        (1 << 20, "cma"),
        (1 << 20, "memcpy"),
    ]
    for record in records:
        assert record["peer_verified"] is True
        assert record["ratio"] > 0
        check_speed(record)
        check_speed(record, "peer_")


def test_the_ways_without_a_protocol(provider: str) -> None:
    words = ("--op", "send", "--sizes", "8,100000,1M", "--vs", "ring,split")
    records = bench(*words, "--provider", provider)
    assert [(record["bytes"], record["peer"]) for record in records] == [
        (size, peer) for size in (8, 100000, 1 << 20) for peer in ("ring", "split")
    ]
    assert all(record["peer_verified"] for record in records)
    done = run("bench", "p2p", "--op", "write", "--vs", "ring", "--provider", provider)
    assert done.returncode == 1
    assert "take --op send --mode bw" in done.stderr


def test_memory_of_rdmatx_and_huge_pages(provider: str) -> None:
    words = ("--sizes", "4M", "--memory", "empty", "--vs", "memcpy", "--provider", provider)
    (record,) = bench(*words)
    assert (record["memory"], record["verified"]) == ("empty", True)
    words = ("--sizes", "4M", "--huge", "--vs", "cma", "--op", "read", "--provider", provider)
    if Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        (record,) = bench(*words)
        assert (record["pages"], record["peer_verified"]) == ("huge", True)
    else:
        done = run("bench", "p2p", *words)
        assert done.returncode == 1
        assert "no transparent huge pages" in done.stderr


@pytest.mark.parametrize("op", ["write", "read", "send"])
def test_memory_that_was_not_registered(provider: str, op: str) -> None:
    words = ("--unregistered", "--op", op, "--provider", provider)
    (record,) = bench("--sizes", "64K", *words)
    assert (record["registered"], record["verified"]) == (False, True)


def test_zero_bytes_have_a_latency(provider: str) -> None:
    (record,) = bench("--op", "send", "--mode", "lat", "--sizes", 0, "--provider", provider)
    assert record["cpu_s_per_gb"] is None
    done = run("bench", "p2p", "--sizes", 0, "--provider", provider)
    assert done.returncode == 1
    assert "no bandwidth" in done.stderr


@pytest.mark.torch
@pytest.mark.soft_only  # what a peer does has nothing to do with the provider
@pytest.mark.parametrize("op", ["write", "read", "send"])
@pytest.mark.parametrize("mode", ["bw", "lat"])
def test_gloo(provider: str, op: str, mode: str) -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        lane_missing("torch", "PyTorch is not installed")
    words = ("--op", op, "--mode", mode, "--sizes", "8,64K", "--vs", "gloo")
    for record in bench(*words, "--provider", provider):
        assert (record["peer"], record["peer_verified"]) == ("gloo", True)
        check_speed(record, "peer_")


def skip_without(peer: str) -> None:
    if peer == "mpi" and (shutil.which("mpirun") is None or not importlib.util.find_spec("mpi4py")):
        pytest.skip("Open MPI is not here: apt-get install openmpi-bin libopenmpi-dev, mpi4py")
    if peer == "ucx" and not importlib.util.find_spec("ucxx"):
        pytest.skip("UCX is not here: pip install ucxx-cu12")
    if peer == "nixl" and installed_package() is None:
        pytest.skip("NIXL is not here: pip install nixl-cu12")


# No test of a lane: what a peer does has nothing to do with the provider, and it is installed or not.
@pytest.mark.timeout(120)
@pytest.mark.parametrize("peer", ["mpi", "ucx"])
@pytest.mark.parametrize("mode", ["bw", "lat"])
def test_peers_with_processes_of_their_own(peer: str, mode: str) -> None:
    skip_without(peer)
    # The first is eager, the last a rendezvous, for every one of them.
    words = ("--op", "send", "--mode", mode, "--sizes", "8,64K,1M", "--vs", peer)
    records = bench(*words, "--provider", "soft")
    assert [record["bytes"] for record in records] == [8, 65536, 1 << 20]
    for record in records:
        assert (record["peer"], record["peer_verified"]) == (peer, True)
        assert record["peer_setting"] in ("with CMA", "without CMA")
        assert record["ratio"] > 0
        check_speed(record, "peer_")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("op", "mode"), [("send", "lat"), ("write", "bw"), ("write", "lat"), ("read", "bw")]
)
def test_nixl(op: str, mode: str) -> None:
    skip_without("nixl")
    words = ("--op", op, "--mode", mode, "--sizes", "8,1M", "--vs", "nixl", "--provider", "soft")
    for record in bench(*words):
        assert (record["peer"], record["peer_verified"]) == ("nixl", True)
        check_speed(record, "peer_")


def processes_that_say(text: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            said = (entry / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in said:
            found.append(int(entry.name))
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_mpi_outlives_the_command(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without("mpi")
    mark = f"{number.name}-{time.monotonic_ns()}"
    monkeypatch.setenv("RDMATX_TEST_MARK", mark)
    words = ("bench", "p2p", "--op", "send", "--mode", "lat", "--vs", "mpi", "--rounds", 100_000)
    with Background(*words, "--sizes", "8,16", "--provider", "soft", "--json") as command:
        # Ours has two processes, each of the settings three, and the command is one.
        while len(processes_that_say(mark)) < 9:
            assert command.process.poll() is None
            time.sleep(0.1)
        command.process.send_signal(number)
        command.process.communicate(timeout=60)
        while processes_that_say(mark):
            time.sleep(0.1)


@pytest.mark.timeout(180)
def test_perftest(provider: str) -> None:
    words = ("--sizes", "64K", "--vs", "perftest", "--provider", provider)
    if provider == "soft":
        done = run("bench", "p2p", *words)
        assert done.returncode == 1
        assert "perftest" in done.stderr
        return
    if shutil.which("ib_write_bw") is None:
        lane_missing("rxe", "perftest is not installed: apt-get install perftest")
    for op, mode in (("write", "bw"), ("send", "bw"), ("read", "bw"), ("read", "lat")):
        (record,) = bench("--op", op, "--mode", mode, *words)
        assert (record["peer"], record["peer_verified"]) == ("perftest", None)
        assert record["peer_iters"] == 100
        check_speed(record, "peer_")


def test_people_get_a_table(provider: str) -> None:
    words = ("--rounds", 1, "--iterations", 3, "--sizes", "8,1M", "--vs", "memcpy")
    done = run("bench", "p2p", *words, "--provider", provider)
    assert done.returncode == 0
    heading, columns, *rows = done.stdout.splitlines()
    assert heading.startswith("write bw over ")
    assert columns.split()[:2] == ["bytes", "GB/s"]
    assert [row.split()[0] for row in rows] == ["8", "1M"]


def test_a_peer_nobody_knows_is_named() -> None:
    done = run("bench", "p2p", "--vs", "gloo,quux")
    assert done.returncode == 2
    choices = "gloo, cma, ring, split, memcpy, mpi, ucx, nixl, perftest"
    assert f"'quux' is no peer: choose among {choices}" in done.stderr


@pytest.mark.parametrize(
    ("peer", "missing", "remedy"),
    [
        ("perftest", "shutil.which = lambda name: None", "apt-get install perftest"),
        ("mpi", "shutil.which = lambda name: None", "apt-get install openmpi-bin libopenmpi-dev"),
        (
            "mpi",
            "shutil.which = str; importlib.util.find_spec = lambda name: None",
            "pip install mpi4py",
        ),
        ("ucx", "importlib.util.find_spec = lambda name: None", "pip install ucxx-cu12"),
        ("nixl", "importlib.util.find_spec = lambda name: None", "pip install nixl-cu12"),
    ],
)
def test_a_peer_that_is_not_installed_says_how_to_get_it(
    provider: str, peer: str, missing: str, remedy: str
) -> None:
    words = ("bench", "p2p", "--op", "send", "--mode", "lat", "--sizes", 8, "--vs", peer)
    words += ("--provider", provider)
    done = run(*words, patch=f"import importlib.util, shutil; {missing}")
    assert done.returncode == 1
    assert remedy in done.stderr


@pytest.mark.parametrize("peer", ["mpi", "ucx"])
def test_peers_of_messages_alone_say_so(provider: str, peer: str) -> None:
    done = run("bench", "p2p", "--op", "write", "--vs", peer, "--provider", provider)
    assert done.returncode == 1
    assert f"{peer} is compared at messages only: take --op send" in done.stderr


def test_nixl_has_no_stream_of_messages(provider: str) -> None:
    done = run("bench", "p2p", "--op", "send", "--vs", "nixl", "--provider", provider)
    assert done.returncode == 1
    assert "nixl has no messages: take --mode lat" in done.stderr
