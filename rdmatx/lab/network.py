"""What joins the hosts of a run and what their RDMA devices stand on: names, addresses, links."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

MOST_HOSTS = 2
MOST_RAILS = 16
MTU = 9000  # of the Ethernet below; RoCE takes 4096 of it
QUEUE_DEPTH = 1024  # packets that a host's side of a link holds
LINK_BYTES = 8 << 20  # that may be on their way on a link
DISCARDED_AT_ONCE = 256
HOSTNAME = "rdmatx-lab"
_SO_SNDBUFFORCE = 32  # Linux; not named by Python's socket module


@dataclass(frozen=True)
class Network:
    """The network of a run; pure arithmetic on names and addresses.

    ``rails`` is the number of RDMA devices of each host. One host without a number has one, on
    ``lo``; with a number each stands on a dummy network device. Two hosts have a link for each.
    ``netem`` holds the words for `tc qdisc … netem`, for both ends of every link.
    """

    hosts: int = 1
    rails: int | None = None
    netem: tuple[str, ...] = ()

    @property
    def devices(self) -> list[str]:
        """The RDMA devices of every host, by rail."""
        return [f"rxe{rail}" for rail in range(self.rails or 1)]

    @property
    def links(self) -> int:
        """How many links join the two hosts."""
        return len(self.devices) if self.hosts > 1 else 0

    @property
    def on_loopback(self) -> bool:
        """Whether the one device stands on ``lo``."""
        return self.hosts == 1 and self.rails is None

    def netdev(self, rail: int) -> str:
        """The network device below a rail."""
        if self.on_loopback:
            return "lo"
        return f"vec{rail}" if self.hosts > 1 else f"dm{rail}"

    def ipv4(self, host: int, rail: int = 0) -> str:
        """The IPv4 address of a host on a rail; each rail is a subnet of 24 bits."""
        return "127.0.0.1" if self.on_loopback else f"10.0.{rail}.{host + 1}"

    def ipv6(self, host: int, rail: int = 0) -> str:
        """The IPv6 address of a host on a rail; each rail is a subnet of 64 bits."""
        return (
            "::1"
            if self.on_loopback
            else str(ipaddress.IPv6Address(f"fd00:0:0:{rail:x}::{host + 1}"))
        )

    def setup(self, host: int) -> list[list[str]]:
        """The commands that make the host's network and its RDMA devices, run as root."""
        lines = ["ip link set lo up"]
        for rail, device in enumerate(self.devices):
            netdev = self.netdev(rail)
            if not self.on_loopback:
                lines += self._make_netdev(rail)
                lines += [
                    f"ip link set {netdev} mtu {MTU} up",
                    f"ip address add {self.ipv4(host, rail)}/24 dev {netdev}",
                    f"ip address add {self.ipv6(host, rail)}/64 dev {netdev} nodad",
                ]
            lines.append(f"rdma link add {device} type rxe netdev {netdev}")
        # Without this a link that goes down would lose its IPv6 address, and the GID with it.
        keep = ["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/keep_addr_on_down"]
        commands = [keep, *(line.split() for line in lines)]
        if self.netem:
            for rail in range(self.links):
                commands.append(
                    ["tc", "qdisc", "add", "dev", self.netdev(rail), "root", "netem", *self.netem]
                )
        return commands

    def _make_netdev(self, rail: int) -> list[str]:
        """The commands that make the network device of a rail.

        The kernel's end of a link closes its socket for good when it is set down. So it gets
        another name and stays up, and what stands on it bears the name: that can be set down and
        up again.
        """
        netdev = self.netdev(rail)
        if self.hosts == 1:
            return [f"ip link add {netdev} type dummy"]
        wire = f"wire{rail}"
        return [
            f"ip link set {netdev} name {wire}",
            f"ip link set {wire} mtu {MTU} up",
            f"ip link add link {wire} name {netdev} type macvlan mode passthru",
        ]

    def gids(self, host: int) -> dict[str, list[str]]:
        """Device: the GIDs that it must have before the command starts, as sysfs writes them."""
        found = {}
        for rail, device in enumerate(self.devices):
            texts = [f"::ffff:{self.ipv4(host, rail)}"]
            if not self.on_loopback:
                texts.append(self.ipv6(host, rail))
            found[device] = [ipaddress.IPv6Address(text).exploded for text in texts]
        return found

    def hostname(self, host: int) -> str:
        """The name a host has."""
        return HOSTNAME if self.hosts == 1 else f"{HOSTNAME}-{host}"

    def names(self) -> list[str]:
        """Lines for /etc/hosts."""
        return [f"{self.ipv4(host)} {self.hostname(host)}" for host in range(self.hosts)]

    def environment(self, host: int) -> dict[str, str]:
        """What the command is told of the network."""
        everyone = range(self.hosts)
        return {
            "RDMATX_LAB_HOST": str(host),
            "RDMATX_LAB_PEERS": ",".join(self.ipv4(index) for index in everyone),
            "RDMATX_LAB_PEERS6": ",".join(self.ipv6(index) for index in everyone),
            "RDMATX_LAB_DEVICES": ",".join(self.devices),
        }

    def kernel_arguments(self, host: int, descriptors: Sequence[int]) -> list[str]:
        """What makes the kernel's ends of the links; ``descriptors`` are theirs, by rail."""
        return [
            f"vec{rail}:transport=fd,fd={descriptor},mtu={MTU},depth={QUEUE_DEPTH},"
            f"mac=02:00:00:00:{rail:02x}:{host + 1:02x}"
            for rail, descriptor in enumerate(descriptors)
        ]


class Links:
    """Owns the ends of every link, by host and rail, beside those that the kernels have.

    A link is a pair of datagram sockets without a name: nothing else can reach it. Between such a
    pair the number of datagrams (``max_dgram_qlen``) is not limited, only their bytes; more than
    the system's limit are granted to root. Where a kernel is gone its ends are held open here, and
    ``discard`` takes what is still sent to it: to a closed end the other kernel would send in vain
    for ever, and do nothing else.
    """

    def __init__(self, network: Network) -> None:
        self.ends: list[list[socket.socket]] = [[] for _ in range(network.hosts)]
        for _ in range(network.links):
            for host, end in enumerate(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)):
                self.ends[host].append(end)
                try:
                    end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, LINK_BYTES)
                except PermissionError:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LINK_BYTES)

    def discard(self, descriptor: int) -> None:
        """Takes what has come to a host that is gone, on one of its ends."""
        end = next(end for ends in self.ends for end in ends if end.fileno() == descriptor)
        with contextlib.suppress(BlockingIOError):
            for _ in range(DISCARDED_AT_ONCE):
                end.recv(1, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Closes all ends."""
        for ends in self.ends:
            for end in ends:
                end.close()
