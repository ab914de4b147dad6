"""Which NIC is for which GPU, on trees of files in the shapes of real machines."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdmatx.topology import Gpu, Machine, Nic, Topology, read_topology
from tests.unit import machines
from tests.unit.machines import GEN3, GEN4, MachineTree, flat, kinds, rails

# ---- whole machines ----


def test_switches(tmp_path: Path) -> None:
    machines.dgx(tmp_path)
    topology = read_topology(tmp_path)
    assert kinds(topology) == [
        "PIX PXB NODE NODE NODE SYS SYS SYS SYS SYS",
        "PXB PIX NODE NODE NODE SYS SYS SYS SYS SYS",
        "NODE NODE PIX PXB NODE SYS SYS SYS SYS SYS",
        "NODE NODE PXB PIX NODE SYS SYS SYS SYS SYS",
        "SYS SYS SYS SYS SYS PIX PXB NODE NODE NODE",
        "SYS SYS SYS SYS SYS PXB PIX NODE NODE NODE",
        "SYS SYS SYS SYS SYS NODE NODE PIX PXB NODE",
        "SYS SYS SYS SYS SYS NODE NODE PXB PIX NODE",
    ]
    assert rails(topology) == [(f"mlx5_{n}",) for n in (0, 1, 2, 3, 5, 6, 7, 8)]
    assert [gpu.numa_node for gpu in topology.gpus] == [0] * 4 + [1] * 4
    assert topology.gpus[3].model == "Example H100"
    assert topology.nics[4].netdevs == ("eth0",)
    assert topology.nics[0].link == "32 GT/s x16"
    assert not topology.machine.is_virtual
    assert "on the same PCIe switch (PIX)" in topology.rails[0].reason


def test_switches_with_a_port_that_is_down(tmp_path: Path) -> None:
    """The GPU takes the neighbour's NIC, and says which one it misses."""
    tree = machines.dgx(tmp_path)
    machines.write(tree.sys / "class/infiniband/mlx5_2/ports/1/state", "1: DOWN")
    topology = read_topology(tmp_path)
    assert rails(topology)[2:4] == [("mlx5_3",), ("mlx5_3",)]
    assert "PXB" in topology.rails[2].reason
    assert "mlx5_2 would be nearer, but no port of it is ACTIVE" in topology.rails[2].reason


def test_sockets_without_switches(tmp_path: Path) -> None:
    machines.two_sockets(tmp_path)
    topology = read_topology(tmp_path)
    assert kinds(topology) == ["PHB SYS", "NODE SYS", "SYS NODE", "SYS NODE"]
    assert rails(topology) == [("mlx5_0",), ("mlx5_0",), ("mlx5_1",), ("mlx5_1",)]
    distance = topology.distance(topology.gpus[0], topology.nics[1])
    assert distance is not None
    assert distance.between_nodes == 32


@pytest.mark.parametrize("node", [-1, None])
def test_a_virtual_machine_tells_nothing(tmp_path: Path, node: int | None) -> None:
    machines.virtual_machine(tmp_path, node=node)
    topology = read_topology(tmp_path)
    assert kinds(topology) == ["PHB PHB"] * 2
    assert rails(topology) == [("mlx5_0",), ("mlx5_1",)]
    assert "shared out over 2 GPUs" in topology.rails[0].reason
    assert topology.machine.is_virtual
    assert {gpu.numa_node for gpu in topology.gpus} == {-1}
    assert topology.nics[0].link == ""
    assert topology.nics[0].gigabits_per_second == 400


def test_software_devices_are_near_no_gpu(tmp_path: Path) -> None:
    machines.software_only(tmp_path)
    topology = read_topology(tmp_path)
    assert kinds(topology) == ["- - -"]
    assert rails(topology) == [()]
    assert topology.rails[0].distance is None
    assert "no NIC on the PCI bus serves" in topology.rails[0].reason
    assert {nic.problem for nic in topology.nics} == {"it is a software device"}


def test_a_node_for_each_gpu(tmp_path: Path) -> None:
    machines.grace(tmp_path)
    topology = read_topology(tmp_path)
    assert rails(topology) == [("mlx5_3",), ("mlx5_2",), ("mlx5_1",), ("mlx5_0",)]
    assert kinds(topology)[0] == "SYS SYS SYS NODE"


@pytest.mark.parametrize("there", ["sys/class/infiniband", "sys", ""])
def test_a_machine_with_nothing(tmp_path: Path, there: str) -> None:
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    topology = read_topology(tmp_path)
    assert (topology.gpus, topology.nics, topology.rails) == ((), (), ())


def test_this_machine() -> None:
    topology = read_topology()
    assert len(topology.rails) == len(topology.gpus)


# ---- distances ----


@pytest.mark.parametrize(
    ("gpu", "nic", "kind"),
    [
        # Two functions in one slot: no switch between them at all.
        ("00:01.0/01:00.0", "00:01.0/01:00.1", "PIX"),
        # Two ports of one switch.
        ("00:01.0/01:00.0/02:00.0/03:00.0", "00:01.0/01:00.0/02:01.0/04:00.0", "PIX"),
        # A switch below a switch, on either side.
        ("00:01.0/01:00.0/02:00.0/03:00.0/04:00.0/05:00.0", "00:01.0/01:00.0/02:01.0/06:00.0", "PXB"),
        ("00:01.0/01:00.0/02:01.0/06:00.0", "00:01.0/01:00.0/02:00.0/03:00.0/04:00.0/05:00.0", "PXB"),
        # A switch, and a bridge on the card itself.
        ("00:01.0/01:00.0/02:00.0/03:00.0/04:00.0", "00:01.0/01:00.0/02:01.0/06:00.0", "PXB"),
        # Two root ports, whatever is below them.
        ("00:01.0/01:00.0/02:00.0/03:00.0", "00:02.0/04:00.0", "PHB"),
        ("00:01.0", "00:02.0", "PHB"),
    ],
)  # fmt: skip
def test_kinds(tmp_path: Path, gpu: str, nic: str, kind: str) -> None:
    def way(text: str) -> str:
        return "/".join(["pci0000:00", *(f"0000:{part}" for part in text.split("/"))])

    tree = MachineTree(tmp_path)
    tree.gpu(way(gpu), node=0)
    tree.nic("mlx5_0", way(nic), node=0)
    assert kinds(read_topology(tmp_path)) == [kind]


def test_nearer_nodes_come_first(tmp_path: Path) -> None:
    """Nodes 0 and 1 are parts of one socket: SYS like the other, but less far."""
    tree = MachineTree(tmp_path)
    tree.nodes(["10 32 12", "32 10 32", "12 32 10"], with_cpus="0-2")
    tree.gpu("pci0000:00/0000:00:01.0", node=0)
    tree.nic("mlx5_0", "pci0000:40/0000:40:01.0", node=1)
    tree.nic("mlx5_1", "pci0000:80/0000:80:01.0", node=2, ports="ACTIVE 100")
    topology = read_topology(tmp_path)
    assert kinds(topology) == ["SYS SYS"]
    assert rails(topology) == [("mlx5_1",)]


def test_nodes_that_are_not_told(tmp_path: Path) -> None:
    """With several nodes the farthest is assumed; with one there is but that."""
    tree = MachineTree(tmp_path)
    tree.nodes(["10 21", "21 10"], with_cpus="0-1")
    tree.gpu("pci0000:00/0000:00:01.0")
    tree.nic("mlx5_0", "pci0000:40/0000:40:01.0")
    topology = read_topology(tmp_path)
    assert kinds(topology) == ["SYS"]
    assert "the system does not tell" in topology.rails[0].reason
    machines.write(tmp_path / "sys/devices/system/node/has_cpu", "0")
    assert kinds(read_topology(tmp_path)) == ["NODE"]


def test_a_bridge_tells_the_node(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path)
    tree.nodes(["10 21", "21 10"], with_cpus="0-1")
    tree.function("pci0000:00/0000:00:01.0", node=1)
    tree.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", node=-1)
    assert read_topology(tmp_path).gpus[0].numa_node == 1


# ---- what breaks ties ----


def test_a_faster_link_wins(tmp_path: Path) -> None:
    tree = flat(tmp_path, 1)
    tree.nic("mlx5_0", "pci0000:00/0000:00:10.0", node=0, speed=GEN3)
    tree.nic("mlx5_1", "pci0000:00/0000:00:11.0", node=0, speed=GEN4)
    tree.nic("mlx5_2", "pci0000:00/0000:00:12.0", node=0, speed=GEN4, width=8)
    topology = read_topology(tmp_path)
    assert rails(topology) == [("mlx5_1",)]
    assert topology.nics[1].link_gigabits_per_second == pytest.approx(252.06, abs=0.01)
    assert "252 Gb/s, more than mlx5_0, mlx5_2, as near" in topology.rails[0].reason


def test_a_faster_port_wins(tmp_path: Path) -> None:
    tree = flat(tmp_path, 1)
    tree.nic("mlx5_0", "pci0000:00/0000:00:10.0", node=0, ports="ACTIVE 100, DOWN 400")
    tree.nic("mlx5_1", "pci0000:00/0000:00:11.0", node=0, ports="DOWN 400, ACTIVE 200")
    tree.nic("mlx5_2", "pci0000:00/0000:00:12.0", node=0, ports="ACTIVE 100, ACTIVE 300, ACTIVE 40")
    assert rails(read_topology(tmp_path)) == [("mlx5_2",)]


@pytest.mark.parametrize(
    ("speed", "width", "link", "rate"),
    [
        ("2.5 GT/s PCIe", 4, "2.5 GT/s x4", 8.0),
        ("8.0 GT/s PCIe", 8, "8 GT/s x8", 63.0),
        ("32.0 GT/s PCIe", 16, "32 GT/s x16", 504.1),
        ("64.0 GT/s PCIe", 16, "64 GT/s x16", 968.0),
        ("16 GT/s", 1, "16 GT/s x1", 15.8),  # as older kernels write it
        ("Unknown", 16, "", 0),
        ("Unknown speed", 0, "", 0),
        ("2.5 GT/s PCIe", 0, "", 0),
        ("2.5 GT/s PCIe", 63, "", 0),  # what a card that does not answer reads as
    ],
)
def test_links(tmp_path: Path, speed: str, width: int, link: str, rate: float) -> None:
    tree = MachineTree(tmp_path)
    tree.nic("mlx5_0", "pci0000:00/0000:00:10.0", speed=speed, width=width)
    nic = read_topology(tmp_path).nics[0]
    assert nic.link == link
    assert nic.link_gigabits_per_second == pytest.approx(rate, abs=0.05)


def test_a_link_that_is_faster_than_its_port_wins_nothing(tmp_path: Path) -> None:
    """Both move 100 Gb/s, so each GPU has one to itself."""
    tree = flat(tmp_path, 2)
    tree.nic("mlx5_0", "pci0000:00/0000:00:10.0", node=0, speed=GEN4, ports="ACTIVE 100")
    tree.nic("mlx5_1", "pci0000:00/0000:00:11.0", node=0, speed=GEN3, ports="ACTIVE 100")
    assert rails(read_topology(tmp_path)) == [("mlx5_0",), ("mlx5_1",)]


@pytest.mark.parametrize(
    ("gpus", "nics", "expected"),
    [
        (1, 2, ["0 1"]),
        (2, 2, ["0", "1"]),
        (2, 3, ["0", "1"]),
        (2, 4, ["0 1", "2 3"]),
        (4, 2, ["0", "1", "0", "1"]),
        (3, 2, ["0", "1", "0"]),
        (1, 12, ["0 1 2 3 4 5 6 7"]),  # a connection has no more rails
    ],
)
def test_equal_nics_are_shared_out(
    tmp_path: Path, gpus: int, nics: int, expected: list[str]
) -> None:
    tree = flat(tmp_path, gpus)
    for number in range(nics):
        tree.nic(f"mlx5_{number}", f"pci0000:00/0000:00:{number + 16:02x}.0", node=0)
    found = [" ".join(name[5:] for name in names) for names in rails(read_topology(tmp_path))]
    assert found == expected


def test_cards_come_before_their_functions(tmp_path: Path) -> None:
    tree = flat(tmp_path, 4)
    for number, function in enumerate(("10.0", "10.1", "11.0", "11.1")):
        tree.nic(f"mlx5_{number}", f"pci0000:00/0000:00:{function}", node=0)
    assert rails(read_topology(tmp_path)) == [("mlx5_0",), ("mlx5_2",), ("mlx5_1",), ("mlx5_3",)]


def test_who_has_one_choice_goes_first(tmp_path: Path) -> None:
    """GPU 0 has a NIC at no switch of its own; it leaves GPU 1 the one of its switch."""
    top = "pci0000:00/0000:00:01.0/0000:01:00.0"
    tree = MachineTree(tmp_path)
    tree.gpu(f"{top}/0000:02:00.0/0000:03:00.0/0000:04:00.0/0000:05:00.0", node=0)
    below = f"{top}/0000:02:01.0/0000:06:00.0"
    tree.gpu(f"{below}/0000:07:00.0/0000:08:00.0", node=0)
    tree.nic("mlx5_0", f"{below}/0000:07:01.0/0000:09:00.0", node=0)
    tree.nic("mlx5_1", f"{top}/0000:02:02.0/0000:0a:00.0", node=0)
    topology = read_topology(tmp_path)
    assert kinds(topology) == ["PXB PXB", "PIX PXB"]
    assert rails(topology) == [("mlx5_1",), ("mlx5_0",)]


def test_rails_are_of_one_kind_of_network(tmp_path: Path) -> None:
    tree = flat(tmp_path, 1)
    for number, layer in enumerate(("InfiniBand", "Ethernet", "InfiniBand")):
        way = f"pci0000:00/0000:00:{number + 16:02x}.0"
        tree.nic(f"mlx5_{number}", way, node=0, layer=layer)
    assert rails(read_topology(tmp_path)) == [("mlx5_0", "mlx5_2")]


Place = tuple[int, int]
places = st.tuples(st.integers(0, 1), st.integers(0, 2))


@settings(max_examples=200, deadline=None)
@given(gpus=st.lists(places, min_size=1, max_size=4), nics=st.lists(places, min_size=1, max_size=4))
def test_any_machine(gpus: list[Place], nics: list[Place]) -> None:
    """Every GPU has a nearest NIC, and no NIC more GPUs than the best sharing out gives it."""
    topology = Topology(
        Machine(
            tuple(_gpu(index, place) for index, place in enumerate(gpus)),
            tuple(_nic(index, place) for index, place in enumerate(nics)),
            distances={},
            is_virtual=False,
        )
    )
    nearest = []
    for gpu in topology.gpus:
        ranks = {nic.name: topology.distance(gpu, nic).rank for nic in topology.nics}  # type: ignore[union-attr]
        nearest.append([name for name, rank in ranks.items() if rank == min(ranks.values())])
    assert all(
        set(found.names) <= set(best) for found, best in zip(topology.rails, nearest, strict=True)
    )
    assert all(found.names for found in topology.rails)
    firsts = [found.names[0] for found in topology.rails]
    least = min(_most_shared(list(assigned)) for assigned in itertools.product(*nearest))
    assert _most_shared(firsts) <= least


def _gpu(index: int, place: Place) -> Gpu:
    path = _path(place, index)
    return Gpu(index, path[-1], "NVIDIA", "", "", place[0], path, offered=True)


def _nic(index: int, place: Place) -> Nic:
    path = _path(place, index + 8)
    name, node = f"mlx5_{index}", place[0]
    return Nic(name, path[-1], path[-1], False, node, path, "Ethernet", (), "", 0, 400, "")


def _path(place: Place, slot: int) -> tuple[str, ...]:
    """A host bridge for each node; at its root port a switch, and two more below that."""
    node, port = place
    switch = [f"downstream {node} {port}", f"upstream {node} {port}"] if port else []
    ways = (f"root port {node}", f"upstream {node}", *switch, f"downstream {node} {port} {slot}")
    return (f"host bridge {node}", *ways, f"0000:{slot:02x}:00.0")


def _most_shared(names: list[str]) -> int:
    return max(names.count(name) for name in names)
