"""Machines as the kernel's files describe them, in the shapes that are met: for tests of the topology.

A `MachineTree` writes what `rdmatx.sysfs` reads: `sys/devices` with a folder in a folder for each bridge and
function, and the links into it from `sys/bus/pci/devices`, `sys/class/infiniband` and `sys/class/net`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rdmatx.topology import Topology

GEN3, GEN4, GEN5 = "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe"
NVIDIA, AMD, MELLANOX = "0x10de", "0x1002", "0x15b3"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def link(path: Path, target: Path) -> None:
    """A relative link, as the kernel makes them: the tree can be moved."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


class MachineTree:
    """A tree under `root` that is added to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sys = root / "sys"
        (self.sys / "class/infiniband").mkdir(parents=True)

    def nodes(self, distances: list[str], *, with_cpus: str) -> None:
        """NUMA nodes, each with its distances to all; `with_cpus` such as "0-1"."""
        for number, distance in enumerate(distances):
            write(self.sys / f"devices/system/node/node{number}/distance", distance)
        write(self.sys / "devices/system/node/has_cpu", with_cpus)

    def function(
        self,
        way: str,
        *,
        node: int | None = -1,
        speed: str = "Unknown",
        width: int = 0,
        **files: str,
    ) -> Path:
        """A PCI function and the bridges above it: "pci0000:00/0000:00:01.0/0000:01:00.0". `node` None is a
        kernel without NUMA."""
        folder = self.sys / "devices"
        for part in way.split("/"):
            folder /= part
            entry = self.sys / "bus/pci/devices" / part
            if not part.startswith("pci") and not entry.is_symlink():
                folder.mkdir(parents=True)
                link(entry, folder)
                for name, text in {"vendor": "0x8086", "class": "0x060400"}.items():
                    write(folder / name, text)
                if node is not None:
                    write(folder / "numa_node", str(node))
        told = {**files, "current_link_speed": speed, "current_link_width": str(width)}
        for name, text in told.items():
            write(folder / name, text)
        return folder

    def gpu(
        self,
        way: str,
        *,
        node: int | None = -1,
        vendor: str = NVIDIA,
        kind: str = "0x030200",
        uuid: str = "",
        model: str = "Example GPU",
    ) -> Path:
        """A GPU; with a UUID the driver knows it. It dozes, so its link is slower than it can be."""
        folder = self.function(
            way, node=node, speed="2.5 GT/s PCIe", width=16, vendor=vendor, **{"class": kind}
        )
        if uuid:
            information = self.root / f"proc/driver/nvidia/gpus/{folder.name}/information"
            write(information, f"Model: \t\t {model}\nIRQ:   \t\t 101\nGPU UUID: \t {uuid}")
        return folder

    def nic(
        self,
        name: str,
        way: str,
        *,
        node: int | None = -1,
        speed: str = GEN5,
        width: int = 16,
        ports: str = "ACTIVE 400",
        layer: str = "InfiniBand",
        netdev: str = "",
        part: str = "",
    ) -> Path:
        """An RDMA device of a function, or of a `part` of it. Ports: "ACTIVE 100, DOWN 40"."""
        folder = self.function(
            way, node=node, speed=speed, width=width, vendor=MELLANOX, **{"class": "0x020700"}
        )
        parent = folder / part
        self._device(parent / "infiniband" / name, name, ports, layer)
        link(parent / "infiniband" / name / "device", parent)
        if netdev:
            self.netdev(parent, netdev)
        return folder

    def virtual_function(self, name: str, way: str, physical: Path, **options: int | str) -> Path:
        """A NIC's virtual function, whose own link says nothing."""
        folder = self.nic(name, way, speed="Unknown", width=0, **options)  # type: ignore[arg-type]
        link(folder / "physfn", physical)
        return folder

    def netdev(self, parent: Path, name: str) -> None:
        (parent / "net" / name).mkdir(parents=True)
        link(self.sys / "class/net" / name, parent / "net" / name)

    def bond(self, name: str, interfaces: list[str], *, active: str = "") -> None:
        folder = self.sys / "devices/virtual/net" / name
        write(folder / "bonding/active_slave", active)
        link(self.sys / "class/net" / name, folder)
        for interface in interfaces:
            link((self.sys / "class/net" / interface).resolve() / "master", folder)

    def software(self, name: str, *, over: Path | None = None, iwarp: bool = False) -> None:
        """rxe or siw; older kernels hang it on the PCI function of the interface that is below."""
        parent = over or self.sys / "devices/virtual"
        folder = parent / "infiniband" / name
        self._device(folder, name, "ACTIVE 100", "Ethernet")
        if iwarp:
            write(folder / "node_desc", "Software iWARP stack")
        else:
            write(folder / "parent", "eth0")
        if over is not None:
            link(folder / "device", over)

    def _device(self, folder: Path, name: str, ports: str, layer: str) -> None:
        for number, port in enumerate(ports.split(", "), start=1):
            state, rate = port.split()
            write(folder / f"ports/{number}/state", f"{4 if state == 'ACTIVE' else 1}: {state}")
            write(folder / f"ports/{number}/rate", f"{rate} Gb/sec (4X)")
            write(folder / f"ports/{number}/link_layer", layer)
        link(self.sys / "class/infiniband" / name, folder)


def dgx(root: Path) -> MachineTree:
    """Two sockets, two switches at each, below each of these two with a GPU and a NIC: 8 GPUs and 8 NICs. And
    a NIC for storage at each socket."""
    tree = MachineTree(root)
    tree.nodes(["10 21", "21 10"], with_cpus="0-1")
    number = 0
    for node, bridges in enumerate((("15", "37"), ("97", "b7"))):
        for bridge in bridges:
            bus = int(bridge, 16)
            top = f"pci0000:{bridge}/0000:{bridge}:01.0/0000:{bus + 1:02x}:00.0"
            for half in (0, 1):
                first = bus + 3 + 6 * half
                below = f"{top}/0000:{bus + 2:02x}:0{half}.0/0000:{first:02x}:00.0"
                gpu = f"{below}/0000:{first + 1:02x}:00.0/0000:{first + 2:02x}:00.0"
                tree.gpu(gpu, node=node, uuid=f"GPU-{number:08x}-0000", model="Example H100")
                nic = f"{below}/0000:{first + 1:02x}:01.0/0000:{first + 3:02x}:00.0"
                tree.nic(f"mlx5_{number + node}", nic, node=node)
                number += 1
        storage = "5a" if node == 0 else "da"
        way = f"pci0000:{storage}/0000:{storage}:01.0/0000:{int(storage, 16) + 1:02x}:00.0"
        tree.nic(f"mlx5_{number + node}", way, node=node, layer="Ethernet", netdev=f"eth{node}")
    return tree


def two_sockets(root: Path) -> MachineTree:
    """No switches. Socket 0: GPUs 0 and 1, a NIC at the host bridge of GPU 0. Socket 1: GPUs 2 and 3, a NIC
    at a host bridge of its own."""
    tree = MachineTree(root)
    tree.nodes(["10 32", "32 10"], with_cpus="0-1")
    tree.gpu("pci0000:00/0000:00:01.1/0000:01:00.0", node=0)
    tree.nic("mlx5_0", "pci0000:00/0000:00:03.1/0000:02:00.0", node=0, speed=GEN4)
    tree.gpu("pci0000:40/0000:40:01.1/0000:41:00.0", node=0)
    tree.gpu("pci0000:80/0000:80:01.1/0000:81:00.0", node=1)
    tree.gpu("pci0000:c0/0000:c0:01.1/0000:c1:00.0", node=1)
    tree.nic("mlx5_1", "pci0000:e0/0000:e0:03.1/0000:e1:00.0", node=1, speed=GEN4)
    return tree


def virtual_machine(root: Path, *, node: int | None = -1) -> MachineTree:
    """Two GPUs and two NICs that were given to it, all on one bus; their links say nothing."""
    tree = MachineTree(root)
    tree.nodes(["10 20", "20 10"], with_cpus="0-1")
    write(root / "proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm")
    for slot in (5, 6):
        tree.gpu(f"pci0000:00/0000:00:{slot:02x}.0", node=node)
    for slot in (7, 8):
        way = f"pci0000:00/0000:00:{slot:02x}.0"
        tree.nic(f"mlx5_{slot - 7}", way, node=node, speed="Unknown", width=0)
    return tree


def software_only(root: Path) -> MachineTree:
    """A GPU, and RDMA devices that are software: one of them hangs on an Ethernet card's function."""
    tree = MachineTree(root)
    tree.nodes(["10"], with_cpus="0")
    tree.gpu("pci0000:00/0000:00:01.0/0000:01:00.0")
    card = tree.function("pci0000:00/0000:00:02.0/0000:02:00.0", speed=GEN3, width=8)
    tree.software("rxe0")
    tree.software("rxe1", over=card)
    tree.software("siw0", over=card, iwarp=True)
    return tree


def grace(root: Path) -> MachineTree:
    """Four processors, each a NUMA node with a GPU and a NIC in PCI domains of their own; the memory of the
    GPUs is a node as well."""
    tree = MachineTree(root)
    far = [["10" if a == b else "40" for b in range(4)] + ["80"] * 4 for a in range(4)]
    memory = [["80"] * 4 + ["10" if a == b else "160" for b in range(4)] for a in range(4)]
    tree.nodes([" ".join(row) for row in far + memory], with_cpus="0-3")
    for node in range(4):
        gpu, nic = f"00{node}9", f"00{node}0"
        tree.gpu(f"pci{gpu}:00/{gpu}:00:00.0/{gpu}:01:00.0", node=node, uuid=f"GPU-{node}0000000")
        # Named against the order of the nodes: nearness counts, and not the number.
        tree.nic(f"mlx5_{3 - node}", f"pci{nic}:00/{nic}:00:00.0/{nic}:03:00.0", node=node)
    return tree


def flat(root: Path, gpus: int) -> MachineTree:
    """GPUs and nothing else, all on one bus."""
    tree = MachineTree(root)
    for slot in range(gpus):
        tree.gpu(f"pci0000:00/0000:00:{slot + 1:02x}.0", node=0)
    return tree


SHAPES: dict[str, Callable[[Path], MachineTree]] = {
    "dgx": dgx,
    "two sockets": two_sockets,
    "virtual machine": virtual_machine,
    "software only": software_only,
    "grace": grace,
}


# ---- what the topology makes of them ----


def rails(topology: Topology) -> list[tuple[str, ...]]:
    """The names of the NICs of each GPU."""
    return [found.names for found in topology.rails]


def kinds(topology: Topology) -> list[str]:
    """The matrix, a line a GPU."""
    found = []
    for gpu in topology.gpus:
        distances = [topology.distance(gpu, nic) for nic in topology.nics]
        found.append(" ".join("-" if one is None else one.kind for one in distances))
    return found
