"""Which NIC is for which GPU: the nearest, by the PCI tree and the NUMA nodes.

`read_topology()` tells it of this machine, `rdmatx topo` prints it, and `Context(device="auto",
gpu=0)` uses it. It is computed from the kernel's files alone, and from all GPUs of the machine, so
that every process comes to the same answer without asking another.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Literal, get_args

from rdmatx.errors import UnavailableError, UsageError
from rdmatx.sysfs import VENDORS, Gpu, Machine, Nic, read_machine

__all__ = ["Distance", "Gpu", "Machine", "Nic", "Rails", "Topology", "rails_for", "read_topology"]

#: What lies between a GPU and a NIC, the nearest first, as `nvidia-smi topo` abbreviates it.
Kind = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MEANINGS = {
    "PIX": "on the same PCIe switch",
    "PXB": "through several PCIe switches",
    "PHB": "through the PCIe host bridge of the processor",
    "NODE": "on the same NUMA node, behind another host bridge",
    "SYS": "on another NUMA node",
}
UNKNOWN_NODES = "the system does not tell on which NUMA nodes, so taken as the farthest"

#: Distances between NUMA nodes as the firmware counts them (ACPI's SLIT).
SAME_NODE = 10
OTHER_NODE = 20
UNKNOWN_DISTANCE = 255

#: A connection has at most eight rails.
MAX_RAILS = 8

#: Where the trees of files begin, "/sys" and "/proc". Tests set another.
ROOT = Path("/")

#: What a process may be shown of the GPUs, and in which order, in turn.
_VISIBILITY = {
    "NVIDIA": ("CUDA_VISIBLE_DEVICES",),
    "AMD": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}


@dataclass(frozen=True)
class Distance:
    """How far a NIC is from a GPU.

    Attributes:
        kind: "PIX", "PXB", "PHB", "NODE" or "SYS", the nearest first.
        between_nodes: between their NUMA nodes: 10 on the same one, 255 where unknown.
    """

    kind: Kind
    between_nodes: int

    @property
    def rank(self) -> tuple[int, int]:
        """Orders distances, the nearest first."""
        return KINDS.index(self.kind), self.between_nodes

    def __str__(self) -> str:
        known = self.between_nodes != UNKNOWN_DISTANCE
        return MEANINGS[self.kind] if known else UNKNOWN_NODES


@dataclass(frozen=True)
class Rails:
    """The NICs that a GPU uses.

    Attributes:
        names: of the devices; empty where none serves.
        distance: from the GPU; the same of all. None where there are no rails.
        reason: why these, in words.
    """

    names: tuple[str, ...]
    distance: Distance | None
    reason: str


@dataclass(frozen=True)
class Topology:
    """The GPUs and NICs of a machine, and which of them go together."""

    machine: Machine

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs, in order of their index."""
        return self.machine.gpus

    @property
    def nics(self) -> tuple[Nic, ...]:
        """The RDMA devices of the system, in order of their names."""
        return self.machine.nics

    @cached_property
    def rails(self) -> tuple[Rails, ...]:
        """The NICs of each GPU, in order of the GPUs.

        Of those that serve the nearest, of these the fastest (the lesser of PCIe link and port).
        NICs that are equal in both are shared out evenly over the GPUs of a vendor, different cards
        first, then by name. Where there are more of them than GPUs, each GPU gets several.
        """
        found: dict[int, Rails] = {}
        for vendor in VENDORS:
            found |= _share_out(self, [gpu for gpu in self.gpus if gpu.vendor == vendor])
        return tuple(found[gpu.index] for gpu in self.gpus)

    def distance(self, gpu: Gpu, nic: Nic) -> Distance | None:
        """How far they are from each other; None for a NIC that is not on the PCI bus."""
        if not nic.path:
            return None
        pairs = zip(gpu.path, nic.path, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if shared > 1:
            # A switch is two bridges on the way: a port towards each of the two.
            ports = len(gpu.path) + len(nic.path) - 2 * (shared + 1)
            return Distance("PIX" if ports <= 2 else "PXB", SAME_NODE)
        if shared == 1:
            return Distance("PHB", SAME_NODE)
        if -1 in (gpu.numa_node, nic.numa_node):
            return Distance("SYS", UNKNOWN_DISTANCE)
        if gpu.numa_node == nic.numa_node:
            return Distance("NODE", SAME_NODE)
        nodes = (gpu.numa_node, nic.numa_node)
        return Distance("SYS", self.machine.distances.get(nodes, OTHER_NODE))

    def among(self, names: Collection[str]) -> Topology:
        """The same with these NICs alone to choose from."""
        nics = tuple(
            nic
            if nic.problem or nic.name in names
            else replace(nic, problem="this process cannot use it")
            for nic in self.nics
        )
        return Topology(replace(self.machine, nics=nics))

    def gpu(self, which: int | str, environment: Mapping[str, str] = os.environ) -> Gpu:
        """The GPU of this number, PCI address or UUID.

        Args:
            which: 0 or "cuda:0" is the first that this process is shown, as CUDA and HIP count
                them in the order of PCI addresses; "0000:17:00.0" or "GPU-9a0f…" is meant as such.
            environment: where CUDA_VISIBLE_DEVICES, or ROCR_VISIBLE_DEVICES and
                HIP_VISIBLE_DEVICES, hide and order GPUs.

        Raises:
            UnavailableError: there is no such GPU.
            UsageError: it is none of these.
        """
        text = str(which).strip()
        number = re.fullmatch(r"(?:cuda:)?(\d+)", text)
        if number is not None and not isinstance(which, bool):
            shown = [gpu for vendor in VENDORS for gpu in self._shown(vendor, environment)]
            if int(number[1]) < len(shown):
                return shown[int(number[1])]
        elif address := re.fullmatch(
            r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", text.lower()
        ):
            wanted = f"{int(address[1] or '0', 16):04x}:{address[2]}"
            for gpu in self.gpus:
                if gpu.address == wanted:
                    return gpu
        elif text.startswith("GPU-"):
            if gpu_of := _by_uuid(self.gpus, text):
                return gpu_of
        else:
            raise UsageError(
                f"{which!r} is no GPU: give its number, such as 0 or 'cuda:0', its PCI address, "
                "such as '0000:17:00.0', or its UUID"
            )
        raise UnavailableError(self._explain_missing(text, environment))

    def _shown(self, vendor: str, environment: Mapping[str, str]) -> list[Gpu]:
        """The GPUs of a vendor that this process is shown, in the order of their numbers."""
        shown = [gpu for gpu in self.gpus if gpu.vendor == vendor and gpu.offered]
        for variable in _VISIBILITY[vendor]:
            if variable not in environment:
                continue
            chosen: list[Gpu] = []
            for word in environment[variable].split(","):
                gpu = _by_word(shown, word.strip())
                if gpu is None:
                    break  # so do the drivers: what follows a mistake does not count
                chosen.append(gpu)
            shown = chosen
        return shown

    def _explain_missing(self, text: str, environment: Mapping[str, str]) -> str:
        listed = ", ".join(f"{gpu.address} ({gpu.vendor})" for gpu in self.gpus)
        if not listed:
            return (
                f'there is no GPU "{text}": no GPU is on the PCI bus of this machine. '
                "Without gpu= a context chooses its device by itself."
            )
        hiding = "".join(
            f" {variable} is {environment[variable]!r}."
            for variables in _VISIBILITY.values()
            for variable in variables
            if variable in environment
        )
        if any(not gpu.offered for gpu in self.gpus):
            hiding += " The driver offers only some of them here."
        return (
            f'this process has no GPU "{text}". The machine has {listed}.{hiding} '
            "A PCI address names a GPU whatever is hidden."
        )


def read_topology(root: str | os.PathLike[str] | None = None) -> Topology:
    """Reads the topology of this machine.

    Args:
        root: a folder with the `sys` and `proc` of another machine; without it, this one's.

    Returns:
        What is not there or cannot be read is left out; nothing of it is an error.
    """
    return Topology(read_machine(ROOT if root is None else Path(root)))


def rails_for(gpu: int | str, provider: str = "auto") -> list[str]:
    """The devices that `Context(device="auto", provider, gpu=gpu)` opens.

    Returns:
        Nothing where the GPU makes no difference: the environment names a device, the provider is
        the software HCA, or no NIC on the PCI bus serves. The context then chooses as without it.

    Raises:
        UnavailableError: there is no such GPU.
        UsageError: `gpu` is none.
    """
    from rdmatx.devices import list_devices

    topology = read_topology()
    wanted = topology.gpu(gpu)
    if provider == "auto":
        provider = os.environ.get("RDMATX_PROVIDER", "")
    if provider == "soft" or os.environ.get("RDMATX_DEVICE"):
        return []
    serving = {device.name for device in list_devices("system") if device.is_active}
    return list(topology.among(serving).rails[wanted.index].names)


def _by_uuid(gpus: Collection[Gpu], text: str) -> Gpu | None:
    """The only GPU whose UUID begins so."""
    found = [gpu for gpu in gpus if gpu.uuid and gpu.uuid.startswith(text)]
    return found[0] if len(found) == 1 else None


def _by_word(gpus: list[Gpu], word: str) -> Gpu | None:
    if word.isdecimal():
        return gpus[int(word)] if int(word) < len(gpus) else None
    # An instance of a GPU as older drivers write it: MIG-GPU-UUID/2/0.
    return _by_uuid(gpus, word.removeprefix("MIG-").partition("/")[0]) if word else None


# ---- choosing ----


def _nearest(topology: Topology, gpu: Gpu) -> tuple[Distance | None, list[Nic]]:
    """The NICs that serve and are nearest, and how near that is."""
    found = [
        (distance, nic)
        for nic in topology.nics
        if not nic.problem and (distance := topology.distance(gpu, nic)) is not None
    ]
    if not found:
        return None, []
    closest = min((distance for distance, _ in found), key=lambda distance: distance.rank)
    return closest, [nic for distance, nic in found if distance == closest]


def _fastest(nics: list[Nic]) -> list[Nic]:
    most = max((nic.gigabits_per_second for nic in nics), default=0.0)
    return [nic for nic in nics if nic.gigabits_per_second == most]


def _share_out(topology: Topology, gpus: list[Gpu]) -> dict[int, Rails]:
    """The NICs of each of these GPUs, by its index."""
    best = {gpu.index: _fastest(_nearest(topology, gpu)[1]) for gpu in gpus}
    rails: dict[int, Rails] = {}
    used: Counter[str] = Counter()
    # Who has the fewest to choose from goes first: the others have a way out.
    for gpu in sorted(gpus, key=lambda gpu: (len(best[gpu.index]), gpu.index)):
        choices = best[gpu.index]
        rivals = [other for other in gpus if any(nic in choices for nic in best[other.index])]
        functions = len({nic.physical for nic in choices})
        count = min(MAX_RAILS, max(1, functions // max(1, len(rivals))))
        taken: list[Nic] = []
        while choices and len(taken) < count:
            nic = min(choices, key=lambda nic: (used[nic.card], used[nic.physical], used[nic.name]))
            taken.append(nic)
            used.update((nic.card, nic.physical, nic.name))
            # Rails of a connection share neither a port nor lie in networks of different kinds.
            choices = [
                other
                for other in choices
                if other.physical != nic.physical and other.link_layer == nic.link_layer
            ]
        rails[gpu.index] = _explain(topology, gpu, taken, len(rivals))
    return rails


def _explain(topology: Topology, gpu: Gpu, taken: list[Nic], rivals: int) -> Rails:
    distance, near = _nearest(topology, gpu)
    if distance is None:
        reason = "no NIC on the PCI bus serves" if topology.nics else "there is no RDMA device"
        return Rails((), None, f"{reason}; a context chooses as without a GPU")
    fastest = _fastest(near)
    reasons = [f"{distance} ({distance.kind})"]
    slower = [nic for nic in near if nic not in fastest]
    if slower:
        reasons.append(
            f"{taken[0].gigabits_per_second:.0f} Gb/s, more than {_list(slower)}, as near"
        )
    if len(fastest) > len(taken):
        shared = f"shared out over {rivals} GPUs" if rivals > 1 else "one a port and network"
        reasons.append(f"of {len(fastest)} as near and as fast, {shared}")
    for nic in topology.nics:
        other = topology.distance(gpu, nic)
        if nic.problem and other is not None and other.rank < distance.rank:
            reasons.append(f"{nic.name} would be nearer, but {nic.problem}")
    return Rails(tuple(nic.name for nic in taken), distance, "; ".join(reasons))


def _list(nics: list[Nic]) -> str:
    return ", ".join(nic.name for nic in nics)
