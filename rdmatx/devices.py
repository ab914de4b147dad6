"""The RDMA devices of this machine, and which of them serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdmatx import _C

__all__ = [
    "Choice",
    "DeviceInfo",
    "DeviceLimits",
    "GidInfo",
    "PortInfo",
    "SystemReport",
    "choose_device",
    "list_devices",
    "system_report",
]


@dataclass(frozen=True)
class GidInfo:
    """An entry of a port's GID table. Holes of the table are left out, so indices may jump.

    Attributes:
        index: its place in the table.
        gid: the address as IPv6 text, such as "fe80::1" or "::ffff:10.0.0.1".
        type: "IB", "RoCE v1" or "RoCE v2".
        netdev: the network interface behind it; empty where the kernel does not tell.
    """

    index: int
    gid: str
    type: str
    netdev: str


@dataclass(frozen=True)
class PortInfo:
    """A port as it was when asked (ibv_query_port(3)).

    Attributes:
        number: ports count from 1.
        state: "ACTIVE", "DOWN", "INIT", "ARMED", "ACTIVE_DEFER" or "NOP".
        link_layer: "InfiniBand", "Ethernet" or "unspecified".
        active_mtu, max_mtu: bytes of payload in a packet.
        lid: the port's local identifier; 0 on Ethernet.
        max_msg_sz: the largest message in bytes.
        gigabits_per_second: lanes times the rate of a lane; 0 where unknown.
        active_width, active_speed: the codes they are computed from.
        gids: the port's addresses.
    """

    number: int
    state: str
    link_layer: str
    active_mtu: int
    max_mtu: int
    lid: int
    max_msg_sz: int
    gigabits_per_second: float
    active_width: int
    active_speed: int
    gids: tuple[GidInfo, ...]


@dataclass(frozen=True)
class DeviceLimits:
    """What a device reports (ibv_query_device(3)): sizes in bytes, the rest counts.

    Attributes:
        max_mr_size: the largest memory region.
        max_qp, max_cq, max_mr, max_pd, max_srq: how many objects.
        max_qp_wr, max_cqe, max_srq_wr: requests in a queue pair, completions in a queue, receives
            in a shared queue.
        max_sge, max_sge_rd, max_srq_sge: elements in a request, in a read, in a shared receive.
        max_qp_rd_atom, max_qp_init_rd_atom: reads and atomics outstanding as responder and as
            initiator.
        atomics: whether there are atomic operations.
    """

    max_mr_size: int
    max_qp: int
    max_qp_wr: int
    max_sge: int
    max_sge_rd: int
    max_cq: int
    max_cqe: int
    max_mr: int
    max_pd: int
    max_qp_rd_atom: int
    max_qp_init_rd_atom: int
    max_srq: int
    max_srq_wr: int
    max_srq_sge: int
    atomics: bool


@dataclass(frozen=True)
class DeviceInfo:
    """An RDMA device.

    Attributes:
        name: such as "mlx5_0", "rxe0" or "soft0".
        provider: "system" (libibverbs) or "soft" (rdmatx's software HCA).
        guid: the node's identifier.
        transport: "InfiniBand" (RoCE too), "iWARP" or "unknown".
        firmware, vendor_id, vendor_part_id: what the device says of itself.
        numa_node: -1 where the system does not tell.
        ports: its ports.
        limits: what it can do.
        problem: why it cannot be opened; then only name and provider are known. Else empty.
    """

    name: str
    provider: str
    guid: str
    transport: str
    firmware: str
    vendor_id: int
    vendor_part_id: int
    numa_node: int
    ports: tuple[PortInfo, ...]
    limits: DeviceLimits
    problem: str

    @property
    def is_active(self) -> bool:
        """Whether a port is ACTIVE."""
        return any(port.state == "ACTIVE" for port in self.ports)


@dataclass(frozen=True)
class Choice:
    """The device a Context would use, and why.

    Attributes:
        provider: "system" or "soft".
        device: its name.
        port: the first ACTIVE port, else 1.
        reason: in words.
    """

    provider: str
    device: str
    port: int
    reason: str


@dataclass(frozen=True)
class SystemReport:
    """Whether the system has an RDMA device that serves.

    Attributes:
        state: "ready", "no_library", "no_kernel_support", "no_device", "permission_denied" or
            "no_active_port".
        reason: what was found.
        remedy: what to do about it; empty where all is well or where the reason says it.
    """

    state: str
    reason: str
    remedy: str


def _port(found: dict[str, Any]) -> PortInfo:
    gids = tuple(GidInfo(**gid) for gid in found["gids"])
    return PortInfo(**{**found, "gids": gids})


def list_devices(provider: str = "auto") -> list[DeviceInfo]:
    """The RDMA devices there are, those of the system first.

    Args:
        provider: "auto" (all), "system" or "soft".

    Returns:
        A provider without devices adds none, and none raises: `system_report()` says why.

    Raises:
        UsageError: there is no such provider.
    """
    devices = []
    for found in _C.list_devices(provider):
        ports = tuple(_port(port) for port in found["ports"])
        limits = DeviceLimits(**found["limits"])
        devices.append(DeviceInfo(**{**found, "ports": ports, "limits": limits}))
    return devices


def choose_device(device: str | None = None, *, provider: str = "auto") -> Choice:
    """The device that `Context(device, provider)` would use.

    An argument counts first, then RDMATX_DEVICE and RDMATX_PROVIDER, then the first ACTIVE port
    of the system, then the software HCA, with one warning that says why.

    Raises:
        UnavailableError: what was asked for is not there; the message holds the reason and the
        remedy. UsageError: there is no such provider.
    """
    return Choice(*_C.choose_device(device, provider))


def system_report() -> SystemReport:
    """Looks at the system's side of RDMA; changes nothing and never raises for what it finds."""
    return SystemReport(*_C.system_report())
