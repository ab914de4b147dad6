"""Two hosts, rails and netem before a kernel boots: addresses, choices that clash, what is printed."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import socket

import pytest

from rdmatx.errors import UsageError
from rdmatx.lab import cli, power
from rdmatx.lab.network import MOST_RAILS, Links, Network
from rdmatx.lab.options import Options
from rdmatx.lab.output import BACKLOG, LONGEST_LINE, Output


def test_command_line() -> None:
    parser = argparse.ArgumentParser()
    cli.add_actions(parser)
    words = ["--hosts", "2", "--rails", "3", "--netem", "loss 1%", "--linger", "5", "--json"]
    args = parser.parse_args(["run", *words, "--", "prog", "--rails", "4"])
    assert (args.hosts, args.rails, args.netem, args.linger) == (2, 3, "loss 1%", 5.0)
    assert args.json
    assert cli.given_command(args) == ["prog", "--rails", "4"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(hosts=0), "--hosts 0"),
        (Options(hosts=3), "give 1 or 2"),
        (Options(rails=0), "--rails 0"),
        (Options(rails=MOST_RAILS + 1), f"1 to {MOST_RAILS}"),
        (Options(netem="loss 1%"), "--netem needs --hosts 2"),
        (Options(hosts=2, netem="  "), "tc-netem"),
        (Options(hosts=2, netem="'loss"), "--netem"),
        (Options(hosts=2, tty=True), "--tty goes with one host"),
        (Options(tty=True, json=True), "--tty and --json"),
        (Options(hosts=2, native=True), "--native"),
        (Options(rails=2, native=True), "--native"),
        (Options(linger=-1.0), "--linger"),
        (Options(linger=float("nan")), "--linger"),
        (Options(timeout=0.0), "timeout"),
    ],
)
def test_choices_that_make_no_sense(options: Options, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        options.check()


def test_two_hosts_share_the_memory_that_one_would_have() -> None:
    assert (Options().memory, Options(hosts=2).memory) == ("4G", "2G")
    assert Options(hosts=2, mem="512M").memory == "512M"


def test_one_host_is_on_loopback_unless_it_has_rails() -> None:
    network = Network()
    assert network.netdev(0) == "lo"
    assert network.devices == ["rxe0"]
    assert network.links == 0
    assert network.environment(0)["RDMATX_LAB_PEERS"] == "127.0.0.1"
    assert network.hostname(0) == "rdmatx-lab"
    assert Network(rails=1).netdev(0) == "dm0"
    assert Network(rails=1).links == 0


@pytest.mark.parametrize("rails", [1, 2, MOST_RAILS])
@pytest.mark.parametrize("hosts", [1, 2])
def test_rails_are_subnets_of_their_own(hosts: int, rails: int) -> None:
    network = Network(hosts, rails)
    for version, prefix, address in ((4, 24, network.ipv4), (6, 64, network.ipv6)):
        found = {}
        for rail in range(rails):
            of_rail = {
                ipaddress.ip_interface(f"{address(host, rail)}/{prefix}") for host in range(hosts)
            }
            assert len(of_rail) == hosts
            subnets = {interface.network for interface in of_rail}
            assert len(subnets) == 1
            assert all(interface.is_private for interface in of_rail)
            found[rail] = subnets.pop()
        assert len(set(found.values())) == rails
        assert {subnet.version for subnet in found.values()} == {version}


def test_what_the_hosts_are_told_agrees() -> None:
    network = Network(2, 2)
    told = [network.environment(host) for host in range(2)]
    assert [entry["RDMATX_LAB_HOST"] for entry in told] == ["0", "1"]
    assert told[0]["RDMATX_LAB_PEERS"] == told[1]["RDMATX_LAB_PEERS"] == "10.0.0.1,10.0.0.2"
    assert told[0]["RDMATX_LAB_PEERS6"] == "fd00::1,fd00::2"
    assert told[0]["RDMATX_LAB_DEVICES"] == "rxe0,rxe1"
    assert network.names() == ["10.0.0.1 rdmatx-lab-0", "10.0.0.2 rdmatx-lab-1"]
    assert network.gids(1)["rxe1"] == [
        "0000:0000:0000:0000:0000:ffff:0a00:0102",
        "fd00:0000:0000:0001:0000:0000:0000:0002",
    ]


def test_netem_is_on_every_link_and_no_shell_reads_it() -> None:
    network = Options(hosts=2, rails=2, netem="loss 1% delay '5ms; reboot'").network()
    lines = [line for line in network.setup(0) if line[0] == "tc"]
    words = ["root", "netem", "loss", "1%", "delay", "5ms; reboot"]
    assert lines == [["tc", "qdisc", "add", "dev", f"vec{rail}", *words] for rail in range(2)]
    assert network.setup(0) != network.setup(1)


def test_kernels_get_the_ends_of_their_links() -> None:
    network = Network(2, 2)
    first, second = (network.kernel_arguments(host, [7, 9]) for host in range(2))
    assert [line.split(":")[0] for line in first] == ["vec0", "vec1"]
    assert "fd=9" in first[1].split(",")
    addresses = [line.rpartition("mac=")[2] for line in [*first, *second]]
    assert len(set(addresses)) == 4


def test_links_carry_bursts_and_close() -> None:
    links = Links(Network(2, 1))
    here, there = links.ends[0][0], links.ends[1][0]
    here.setblocking(False)
    for _ in range(20):  # more than the default of net.unix.max_dgram_qlen
        here.send(b"x" * 4200)
    links.discard(there.fileno())
    with pytest.raises(BlockingIOError):
        there.recv(1, socket.MSG_DONTWAIT)
    links.close()
    assert here.fileno() == there.fileno() == -1


def read_output(monkeypatch: pytest.MonkeyPatch, output: Output) -> dict[int, bytes]:
    """Everything that waits, as the caller would read it."""
    seen = {1: b"", 2: b""}

    def write(number: int, data: bytes) -> int:
        seen[number] += bytes(data)
        return len(data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        for _ in range(1000):
            for number in output.waiting():
                assert output.write(number)
    return seen


def test_one_host_is_passed_on_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(1, as_json=False)
    output.take(0, 1, b"a\0b")
    output.take(0, 2, b"\r")
    output.event(event="end")
    output.finish(0)
    assert read_output(monkeypatch, output) == {1: b"a\0b", 2: b"\r"}


def test_lines_of_two_hosts_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(2, as_json=False)
    output.take(0, 1, b"on")
    output.take(1, 1, b"two\nmo")
    output.take(0, 1, b"e\n\nrest")
    output.take(1, 2, b"error\n")
    output.finish(0)
    output.finish(1)
    assert read_output(monkeypatch, output) == {
        1: b"[host 1] two\n[host 0] one\n[host 0] \n[host 0] rest\n[host 1] mo\n",
        2: b"[host 1] error\n",
    }


def test_json_has_an_object_for_each_line_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(1, as_json=True)
    output.take(0, 2, b'quote " and \xff\n')
    output.event(event="exit", host=0, status=3)
    output.note("a word for people")
    seen = read_output(monkeypatch, output)
    assert [json.loads(line) for line in seen[1].splitlines()] == [
        {"event": "output", "host": 0, "stream": "stderr", "text": 'quote " and �'},
        {"event": "exit", "host": 0, "status": 3},
    ]
    assert seen[2] == b"rdmatx lab: a word for people\n"


def test_a_line_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(2, as_json=False)
    for _ in range(3):
        output.take(0, 1, b"x" * LONGEST_LINE)
    assert not output.crowded
    assert read_output(monkeypatch, output)[1].count(b"\n") == 2
    while not output.crowded:
        output.take(0, 1, b"y" * LONGEST_LINE)
    assert len(read_output(monkeypatch, output)[1]) > BACKLOG


def test_output_that_nobody_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(number: int, data: bytes) -> int:
        raise BrokenPipeError

    output = Output(2, as_json=False)
    output.take(0, 1, b"line\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken)
        assert not output.write(1)
    output.take(0, 1, b"line\n")
    assert output.waiting() == []


def test_only_a_host_of_the_lab_is_powered_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMATX_LAB", "1")  # whatever the environment says
    monkeypatch.setattr(power.ctypes, "CDLL", None)  # a call would raise
    with pytest.raises(UsageError, match="no host of the lab"):
        power.power_off()
