"""``rdmatx topo``: the GPUs and NICs on the PCI tree, and which NIC is for which GPU."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from rdmatx.cli.options import add_json_option
from rdmatx.cli.output import emit, format_table, printable, say

if TYPE_CHECKING:
    from rdmatx.topology import Gpu, Nic, Topology


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``rdmatx topo``."""
    parser.epilog = (
        "Reads the kernel's files alone; opens no device. A * marks the NICs that\n"
        'Context(device="auto", gpu=N) uses for GPU N. With --json one object: "gpus", each with\n'
        'its "rails", the "reason", and the "distances" to all NICs; "nics"; "is_virtual".'
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="a copy of the folders sys and proc of another machine (default: this one's)",
    )
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints the topology."""
    from rdmatx.topology import read_topology

    topology = read_topology(arguments.root)
    if arguments.json:
        emit(_to_json(topology))
    else:
        say("\n".join(_format(topology)))
    return 0


# ---- for programs ----


def _to_json(topology: Topology) -> dict[str, Any]:
    return {
        "gpus": [_gpu_to_json(topology, gpu) for gpu in topology.gpus],
        "nics": [
            {**dataclasses.asdict(nic), "gigabits_per_second": nic.gigabits_per_second}
            for nic in topology.nics
        ],
        "is_virtual": topology.machine.is_virtual,
    }


def _gpu_to_json(topology: Topology, gpu: Gpu) -> dict[str, Any]:
    rails = topology.rails[gpu.index]
    distances = {nic.name: topology.distance(gpu, nic) for nic in topology.nics}
    return {
        **dataclasses.asdict(gpu),
        "rails": list(rails.names),
        "reason": rails.reason,
        "distances": {
            name: None if distance is None else dataclasses.asdict(distance)
            for name, distance in distances.items()
        },
    }


# ---- for people ----


def _format(topology: Topology) -> list[str]:
    lines = _draw(topology)
    if not topology.gpus:
        lines.append("no GPU on the PCI bus")
    if not topology.nics:
        lines.append("no RDMA device of the system")
    if topology.gpus and topology.nics:
        lines += ["", _matrix(topology), "", *_legend(topology), ""]
    for gpu in topology.gpus:
        rails = topology.rails[gpu.index]
        uses = f"uses {', '.join(rails.names)}" if rails.names else "has no rails"
        lines.append(f"GPU {gpu.index} {uses}: {rails.reason}")
    lines += [
        f"{printable(nic.name)} is not for a GPU: {nic.problem}"
        for nic in topology.nics
        if nic.problem
    ]
    if topology.machine.is_virtual and topology.gpus and topology.nics:
        lines.append("A virtual machine sees the PCI tree that it was given, not the host's.")
    return lines


def _matrix(topology: Topology) -> str:
    rows = []
    for gpu in topology.gpus:
        chosen = topology.rails[gpu.index].names
        row = [f"GPU {gpu.index}"]
        for nic in topology.nics:
            distance = topology.distance(gpu, nic)
            kind = "-" if distance is None else distance.kind
            row.append(f"{kind}{'*' if nic.name in chosen else ''}")
        rows.append(row)
    return format_table(["", *(printable(nic.name) for nic in topology.nics)], rows)


def _legend(topology: Topology) -> list[str]:
    """The meanings of what the matrix holds."""
    from rdmatx.topology import MEANINGS

    distances = [topology.distance(gpu, nic) for gpu in topology.gpus for nic in topology.nics]
    kinds = {distance.kind for distance in distances if distance is not None}
    lines = [f"{kind.ljust(4)} {text}" for kind, text in MEANINGS.items() if kind in kinds]
    if None in distances:
        lines.append("-    software, or not on the PCI bus")
    return [*lines, "*    used for that GPU"]


def _draw(topology: Topology) -> list[str]:
    """The PCI tree as far as it leads to GPUs and NICs, by NUMA node."""
    leaves: dict[int, list[tuple[tuple[str, ...], str]]] = {}
    for gpu in topology.gpus:
        leaves.setdefault(gpu.numa_node, []).append((gpu.path, _describe_gpu(gpu)))
    for nic in topology.nics:
        if nic.path:
            leaves.setdefault(nic.numa_node, []).append((nic.path, _describe_nic(nic)))
    lines = []
    for node in sorted(leaves, key=lambda node: (node < 0, node)):
        lines.append(f"NUMA node {node}" if node >= 0 else "NUMA node not told")
        lines += _draw_branch(leaves[node])
    return lines


def _draw_branch(leaves: list[tuple[tuple[str, ...], str]], indent: str = "") -> list[str]:
    """What lies below a place; bridges that lead to one place only share a line."""
    branches: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for path, text in leaves:
        branches.setdefault(path[0], []).append((path[1:], text))
    lines = []
    for place, (head, below) in enumerate(sorted(branches.items()), start=1):
        is_last = place == len(branches)
        first, deeper = (
            f"{indent}{'└─ ' if is_last else '├─ '}",
            f"{indent}{'   ' if is_last else '│  '}",
        )
        way = [head]
        while len({path[:1] for path, _ in below}) == 1 and below[0][0]:
            way.append(below[0][0][0])
            below = [(path[1:], text) for path, text in below]
        ends = [text for path, text in below if not path]
        # A function is the last of its way; several devices of one function share its line.
        lines.append(f"{first}{' ─ '.join(way)}{'  ' + ', '.join(ends) if ends else ''}")
        lines += _draw_branch([(path, text) for path, text in below if path], deeper)
    return lines


def _describe_gpu(gpu: Gpu) -> str:
    hidden = "" if gpu.offered else ", not offered to this process"
    return f"GPU {gpu.index} ({gpu.model or gpu.vendor}{hidden})"


def _describe_nic(nic: Nic) -> str:
    port = f"{nic.port_gigabits_per_second:g} Gb/s" if nic.port_gigabits_per_second else "no rate"
    state = f"{nic.link_layer} {port}".strip() if not nic.problem else nic.problem
    return f"{printable(nic.name)} ({', '.join(filter(None, (nic.link, state)))})"
