"""The GPUs and NICs of a machine, as the kernel's files tell of them.

Only files are read: no driver, no library, no device is opened. `root` is "/" but where the tree of
another machine is looked at.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["Gpu", "Machine", "Nic", "names", "read", "read_machine"]

PCI_FUNCTION = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
#: Vendors, and the PCI base classes that their GPUs have: display, or processing accelerator.
GPU_VENDORS = {"0x10de": ("NVIDIA", ("0x03",)), "0x1002": ("AMD", ("0x03", "0x12"))}
VENDORS = tuple(name for name, _ in GPU_VENDORS.values())


@dataclass(frozen=True)
class Gpu:
    """A GPU on the PCI bus.

    Attributes:
        index: its place among the GPUs, those of NVIDIA first, each vendor's by address.
        address: of the PCI function, such as "0000:17:00.0".
        vendor: "NVIDIA" or "AMD".
        model: as the driver names it; empty without NVIDIA's.
        uuid: such as "GPU-9a0f…"; empty without NVIDIA's driver.
        numa_node: -1 where the system does not tell.
        path: from the host bridge over the bridges to the function itself.
        offered: whether the driver offers it to this process: in a container it may not.
    """

    index: int
    address: str
    vendor: str
    model: str
    uuid: str
    numa_node: int
    path: tuple[str, ...]
    offered: bool


@dataclass(frozen=True)
class Nic:
    """An RDMA device of the system, as named under /sys/class/infiniband.

    Attributes:
        name: such as "mlx5_0".
        address: of the PCI function; empty for a device that has none.
        physical: the function whose ports it uses: another one where it is virtual (SR-IOV).
        is_part: whether it is virtual, or only a part of its function.
        numa_node: -1 where the system does not tell.
        path: from the host bridge over the bridges to the function itself; empty without one.
        link_layer: of its fastest ACTIVE port: "InfiniBand" or "Ethernet"; else of the first.
        netdevs: its network interfaces.
        link: its PCIe link in words, such as "32 GT/s x16"; empty where unknown.
        link_gigabits_per_second: what the link carries; 0 where unknown.
        port_gigabits_per_second: of its fastest ACTIVE port; 0 where unknown.
        problem: why it is not chosen for a GPU; else empty.
    """

    name: str
    address: str
    physical: str
    is_part: bool
    numa_node: int
    path: tuple[str, ...]
    link_layer: str
    netdevs: tuple[str, ...]
    link: str
    link_gigabits_per_second: float
    port_gigabits_per_second: float
    problem: str

    @property
    def card(self) -> str:
        """What the functions of one card have in common."""
        return self.physical.rpartition(".")[0]

    @property
    def gigabits_per_second(self) -> float:
        """What it can move: the lesser of link and port, as far as they are known; else 0."""
        known = (self.link_gigabits_per_second, self.port_gigabits_per_second)
        return min((rate for rate in known if rate), default=0.0)


@dataclass(frozen=True)
class Machine:
    """What is near what.

    Attributes:
        gpus, nics: in order of their index and name.
        distances: between two NUMA nodes, as the firmware tells: 10 is a node itself, 20 about
            twice as far.
        is_virtual: whether it is a virtual machine, which sees the PCI tree that it was given.
    """

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    distances: dict[tuple[int, int], int]
    is_virtual: bool


def read(path: Path) -> str:
    """The text of a small file, "" where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def names(path: Path) -> list[str]:
    """What a folder holds, sorted; nothing where there is no such folder."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return []


def read_machine(root: Path) -> Machine:
    """Reads the tree under `root`. What it does not tell is left open; nothing is an error."""
    nodes = _numbers(read(root / "sys/devices/system/node/has_cpu"))
    only_node = nodes[0] if len(nodes) == 1 else -1
    nics = [
        _read_nic(root, name, only_node)
        for name in sorted(names(root / "sys/class/infiniband"), key=_natural)
    ]
    flags = re.search(r"^flags\s*:.*\bhypervisor\b", read(root / "proc/cpuinfo"), re.MULTILINE)
    return Machine(
        gpus=tuple(_read_gpus(root, only_node)),
        nics=tuple(_set_aside_duplicates(root, nics)),
        distances=_read_distances(root),
        is_virtual=flags is not None,
    )


def _numbers(text: str) -> list[int]:
    """A list as the kernel writes it, "0-1,4"."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """Orders "mlx5_2" before "mlx5_10"."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _address_order(address: str) -> list[int]:
    return [int(part, 16) for part in re.split(r"[:.]", address)]


def _read_distances(root: Path) -> dict[tuple[int, int], int]:
    folder = root / "sys/devices/system/node"
    nodes = sorted(int(name[4:]) for name in names(folder) if re.fullmatch(r"node\d+", name))
    return {
        (here, there): int(distance)
        for here in nodes
        for there, distance in zip(
            nodes, read(folder / f"node{here}/distance").split(), strict=False
        )
        if distance.isdecimal()
    }


def _function_of(folder: Path) -> Path | None:
    """The PCI function that a folder of the kernel's tree is, or is part of."""
    real = Path(os.path.realpath(folder))
    for place in (real, *real.parents):
        if PCI_FUNCTION.fullmatch(place.name):
            return place
    return None


def _path_of(function: Path) -> tuple[str, ...]:
    return tuple(
        part
        for part in function.parts
        if PCI_FUNCTION.fullmatch(part) or HOST_BRIDGE.fullmatch(part)
    )


def _numa_node(function: Path, only_node: int) -> int:
    """Where a function lies: what it says itself, else a bridge above it, else the only node."""
    for place in (function, *function.parents):
        if not PCI_FUNCTION.fullmatch(place.name):
            break
        node = read(place / "numa_node")
        if node.isdecimal():
            return int(node)
    return only_node


# ---- GPUs ----


def _read_gpus(root: Path, only_node: int) -> list[Gpu]:
    bus = root / "sys/bus/pci/devices"
    found = []
    for address in names(bus):
        vendor, classes = GPU_VENDORS.get(read(bus / address / "vendor"), ("", ()))
        function = _function_of(bus / address)
        # A virtual function is given away to a virtual machine, in which it is none any more.
        is_virtual = (bus / address / "physfn").exists()
        is_gpu = read(bus / address / "class").startswith(classes) if classes else False
        if is_gpu and not is_virtual and function is not None:
            found.append((vendor, address, function))
    found.sort(key=lambda gpu: (VENDORS.index(gpu[0]), _address_order(gpu[1])))
    driver = root / "proc/driver/nvidia/gpus"
    offered = names(driver)
    gpus = []
    for index, (vendor, address, function) in enumerate(found):
        told = read(driver / address / "information")
        gpus.append(
            Gpu(
                index=index,
                address=address,
                vendor=vendor,
                model=_told(told, "Model"),
                uuid=_told(told, "GPU UUID"),
                numa_node=_numa_node(function, only_node),
                path=_path_of(function),
                offered=vendor != "NVIDIA" or not offered or address in offered,
            )
        )
    return gpus


def _told(information: str, key: str) -> str:
    found = re.search(rf"^{key}:[ \t]*(\S.*)$", information, re.MULTILINE)
    return found[1].strip() if found else ""


# ---- NICs ----


def _read_nic(root: Path, name: str, only_node: int) -> Nic:
    folder = root / "sys/class/infiniband" / name
    device = Path(os.path.realpath(folder / "device"))
    function = _function_of(device) if device.exists() else None
    is_software = (folder / "parent").exists() or read(folder / "node_desc").startswith(
        "Software iWARP"
    )
    rate, layer = _read_ports(folder / "ports")
    if function is None or is_software:
        problem = "it is a software device" if is_software else "it is not on the PCI bus"
        return Nic(name, "", "", False, -1, (), layer, (), "", 0.0, rate or 0.0, problem)
    # The link of a virtual function is that of the physical one.
    is_virtual = (function / "physfn").exists()
    physical = _function_of(function / "physfn") if is_virtual else None
    link, link_rate = _read_link(physical or function)
    return Nic(
        name=name,
        address=function.name,
        physical=(physical or function).name,
        is_part=is_virtual or device != function,
        numa_node=_numa_node(function, only_node),
        path=_path_of(function),
        link_layer=layer,
        netdevs=tuple(names(device / "net")),
        link=link,
        link_gigabits_per_second=link_rate,
        port_gigabits_per_second=rate or 0.0,
        problem="" if rate is not None else "no port of it is ACTIVE",
    )


def _read_ports(ports: Path) -> tuple[float | None, str]:
    """Gb/s of the fastest ACTIVE port (None: there is none), and that port's link layer."""
    rate, layer = None, ""
    for port in sorted(names(ports), key=_natural):
        layer = layer or read(ports / port / "link_layer")
        if not read(ports / port / "state").endswith("ACTIVE"):
            continue
        told = re.match(r"[\d.]+", read(ports / port / "rate"))
        here = float(told[0]) if told else 0.0
        if rate is None or here > rate:
            rate, layer = here, read(ports / port / "link_layer")
    return rate, layer


def _read_link(function: Path) -> tuple[str, float]:
    """The PCIe link in words and in Gb/s of data; "" and 0 where unknown, as in virtual machines."""
    speed = re.match(r"[\d.]+(?= GT/s)", read(function / "current_link_speed"))
    width = read(function / "current_link_width")
    if speed is None or not width.isdecimal() or not 1 <= int(width) <= 32:
        return "", 0.0
    transfers = float(speed[0])
    # What the line code leaves: 8b/10b up to 5 GT/s, 128b/130b from 8, flits of 256 bytes from 64.
    share = 0.8 if transfers <= 5 else 128 / 130 if transfers < 64 else 242 / 256
    return f"{transfers:g} GT/s x{width}", transfers * int(width) * share


def _set_aside_duplicates(root: Path, nics: list[Nic]) -> list[Nic]:
    """Gives those a problem that would serve, but are better used as another one."""
    serving = [nic for nic in nics if not nic.problem]
    return [
        nic if nic.problem else replace(nic, problem=_better_as(root, nic, serving)) for nic in nics
    ]


def _better_as(root: Path, nic: Nic, serving: list[Nic]) -> str:
    for other in serving:
        if nic.is_part and not other.is_part and nic.physical == other.physical:
            kind = "part" if nic.address == nic.physical else "virtual function"
            return f"it is a {kind} of {other.name}"
        for netdev in nic.netdevs:
            bond = Path(os.path.realpath(root / "sys/class/net" / netdev / "master"))
            active = read(bond / "bonding/active_slave")
            if active in other.netdevs and active not in nic.netdevs:
                return f"it stands by in {bond.name}, which uses {other.name}"
    return ""
