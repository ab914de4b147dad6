"""What is a GPU and what is a NIC for it, and which GPU is meant, on trees of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdmatx.errors import UnavailableError, UsageError
from rdmatx.topology import read_topology
from tests.unit import machines
from tests.unit.machines import GEN4, MachineTree, flat, kinds, rails

# ---- GPUs ----


def test_what_is_a_gpu(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path)
    tree.gpu("pci0000:00/0000:00:01.0", vendor=machines.AMD, kind="0x120000")
    tree.gpu("pci0000:00/0000:00:02.0", vendor=machines.AMD, kind="0x030000")
    tree.gpu("pci0000:00/0000:00:10.0", kind="0x030000")
    physical = tree.gpu("pci0000:00/0000:00:03.0")
    tree.gpu("pci0000:00/0000:00:04.0", kind="0x040300")  # its sound
    tree.gpu("pci0000:00/0000:00:05.0", kind="0x068000")  # NVSwitch
    tree.gpu("pci0000:00/0000:00:06.0", vendor="0x1a03", kind="0x030000")  # the board's own
    machines.link(tree.gpu("pci0000:00/0000:00:03.1") / "physfn", physical)
    found = [(gpu.index, gpu.vendor, gpu.address) for gpu in read_topology(tmp_path).gpus]
    assert found == [
        (0, "NVIDIA", "0000:00:03.0"),
        (1, "NVIDIA", "0000:00:10.0"),
        (2, "AMD", "0000:00:01.0"),
        (3, "AMD", "0000:00:02.0"),
    ]


def test_vendors_do_not_take_nics_from_each_other(tmp_path: Path) -> None:
    tree = flat(tmp_path, 1)
    tree.gpu("pci0000:00/0000:00:02.0", node=0, vendor=machines.AMD, kind="0x030000")
    for number in (0, 1):
        tree.nic(f"mlx5_{number}", f"pci0000:00/0000:00:1{number}.0", node=0)
    assert rails(read_topology(tmp_path)) == [("mlx5_0", "mlx5_1")] * 2


@pytest.mark.parametrize(
    ("which", "environment", "index"),
    [
        (0, {}, 0),
        (3, {}, 3),
        ("2", {}, 2),
        ("cuda:2", {}, 2),
        ("0009:01:00.0", {}, 0),
        ("00000019:01:00.0", {}, 1),
        ("GPU-2", {}, 2),
        (0, {"CUDA_VISIBLE_DEVICES": "3,1"}, 3),
        (1, {"CUDA_VISIBLE_DEVICES": "3,1"}, 1),
        (0, {"CUDA_VISIBLE_DEVICES": "GPU-20000000"}, 2),
        (0, {"CUDA_VISIBLE_DEVICES": "MIG-GPU-10000000/1/0"}, 1),
        ("0029:01:00.0", {"CUDA_VISIBLE_DEVICES": "0"}, 2),
        (1, {"HIP_VISIBLE_DEVICES": "0"}, 1),
    ],
)
def test_which_gpu(
    tmp_path: Path, which: int | str, environment: dict[str, str], index: int
) -> None:
    machines.grace(tmp_path)
    assert read_topology(tmp_path).gpu(which, environment).index == index


@pytest.mark.parametrize(
    ("which", "environment", "text"),
    [
        (4, {}, 'has no GPU "4". The machine has 0009:01:00.0'),
        (0, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is ''"),
        (1, {"CUDA_VISIBLE_DEVICES": "2,-1,3"}, "CUDA_VISIBLE_DEVICES is '2,-1,3'"),
        (0, {"CUDA_VISIBLE_DEVICES": "MIG-5c0a"}, "A PCI address names a GPU"),
        ("0099:01:00.0", {}, 'has no GPU "0099:01:00.0"'),
        ("GPU-", {}, 'has no GPU "GPU-"'),  # which of the four?
    ],
)
def test_which_gpu_is_not_there(
    tmp_path: Path, which: int | str, environment: dict[str, str], text: str
) -> None:
    machines.grace(tmp_path)
    with pytest.raises(UnavailableError) as caught:
        read_topology(tmp_path).gpu(which, environment)
    assert text in str(caught.value)


@pytest.mark.parametrize("which", ["first", -1, True, "mlx5_0", ""])
def test_what_is_no_gpu(tmp_path: Path, which: int | str) -> None:
    machines.grace(tmp_path)
    with pytest.raises(UsageError, match="is no GPU"):
        read_topology(tmp_path).gpu(which, {})


def test_no_gpu_at_all(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no GPU is on the PCI bus of this machine"):
        read_topology(tmp_path).gpu(0, {})


def test_a_container_with_one_gpu(tmp_path: Path) -> None:
    """The driver tells of that alone; what the others use does not change by it."""
    tree = machines.virtual_machine(tmp_path)
    information = "proc/driver/nvidia/gpus/0000:00:06.0/information"
    machines.write(tree.root / information, "Model: Example GPU")
    topology = read_topology(tmp_path)
    assert topology.gpu(0, {}).address == "0000:00:06.0"
    assert rails(topology) == [("mlx5_0",), ("mlx5_1",)]
    with pytest.raises(UnavailableError, match="offers only some of them"):
        topology.gpu(1, {})


def test_amd_variables_are_applied_in_turn(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path)
    for slot in range(1, 5):
        tree.gpu(f"pci0000:00/0000:00:0{slot}.0", vendor=machines.AMD, kind="0x120000")
    shown = {"ROCR_VISIBLE_DEVICES": "1,2,3", "HIP_VISIBLE_DEVICES": "2,0"}
    topology = read_topology(tmp_path)
    assert [topology.gpu(number, shown).index for number in (0, 1)] == [3, 1]


# ---- NICs ----


def test_virtual_functions_give_way_to_the_physical_one(tmp_path: Path) -> None:
    tree = flat(tmp_path, 1)
    physical = tree.nic("mlx5_0", "pci0000:00/0000:00:10.0", node=0, speed=GEN4)
    for number in (1, 2):
        way = f"pci0000:00/0000:00:10.{number}"
        tree.virtual_function(f"mlx5_{number}", way, physical, node=0)
    topology = read_topology(tmp_path)
    assert rails(topology) == [("mlx5_0",)]
    assert [nic.problem for nic in topology.nics] == [
        "",
        *["it is a virtual function of mlx5_0"] * 2,
    ]
    assert topology.nics[1].link == "16 GT/s x16"


def test_virtual_functions_serve_where_the_physical_one_does_not(tmp_path: Path) -> None:
    """Two of one port are not two rails."""
    tree = flat(tmp_path, 1)
    physical = tree.nic("mlx5_0", "pci0000:00/0000:00:10.0", node=0, ports="DOWN 400")
    for number in (1, 2):
        way = f"pci0000:00/0000:00:10.{number}"
        tree.virtual_function(f"mlx5_{number}", way, physical, node=0)
    topology = read_topology(tmp_path)
    assert rails(topology) == [("mlx5_1",)]
    assert "one a port and network" in topology.rails[0].reason


@pytest.mark.parametrize(
    ("physical", "gpus", "expected"),
    [
        (("10.0", "11.0"), 2, ["mlx5_0", "mlx5_2"]),  # of different cards first
        (("10.0", "10.1"), 2, ["mlx5_0", "mlx5_2"]),  # then of different ports
        (("10.0",), 2, ["mlx5_0", "mlx5_1"]),
    ],
)
def test_virtual_functions_are_shared_out(
    tmp_path: Path, physical: tuple[str, ...], gpus: int, expected: list[str]
) -> None:
    """The physical ones are no RDMA devices here, and each has two virtual ones."""
    tree = flat(tmp_path, gpus)
    for number, function in enumerate(physical):
        owner = tree.function(f"pci0000:00/0000:00:{function}", node=0, speed=GEN4, width=16)
        for which in (0, 1):
            way = f"pci0000:00/0000:00:2{which}.{number}"
            tree.virtual_function(f"mlx5_{2 * number + which}", way, owner, node=0)
    assert rails(read_topology(tmp_path)) == [(name,) for name in expected]


def test_a_part_of_a_function(tmp_path: Path) -> None:
    """A scalable function is no PCI function: it lies where that lies of which it is a part."""
    tree = flat(tmp_path, 1)
    tree.nic("mlx5_0", "pci0000:00/0000:00:10.0", node=0)
    tree.nic("mlx5_1", "pci0000:00/0000:00:10.0", node=0, part="mlx5_core.sf.2")
    topology = read_topology(tmp_path)
    assert kinds(topology) == ["PHB PHB"]
    assert rails(topology) == [("mlx5_0",)]
    assert topology.nics[1].problem == "it is a part of mlx5_0"


def test_a_bonded_device(tmp_path: Path) -> None:
    """One RDMA device for both functions of a card, whichever of its interfaces is active."""
    tree = flat(tmp_path, 1)
    tree.nic("mlx5_bond_0", "pci0000:00/0000:00:10.0", node=0, layer="Ethernet", netdev="eth0")
    other = tree.function("pci0000:00/0000:00:10.1", node=0)
    tree.netdev(other, "eth1")
    tree.bond("bond0", ["eth0", "eth1"], active="eth1")
    assert rails(read_topology(tmp_path)) == [("mlx5_bond_0",)]


@pytest.mark.parametrize(
    ("active", "expected"), [("eth1", ("mlx5_1",)), ("", ("mlx5_0", "mlx5_1"))]
)
def test_devices_of_a_bond(tmp_path: Path, active: str, expected: tuple[str, ...]) -> None:
    """With one active interface the addresses are on its device; else both serve."""
    tree = flat(tmp_path, 1)
    for number in (0, 1):
        way = f"pci0000:00/0000:00:1{number}.0"
        tree.nic(f"mlx5_{number}", way, node=0, layer="Ethernet", netdev=f"eth{number}")
    tree.bond("bond0", ["eth0", "eth1"], active=active)
    topology = read_topology(tmp_path)
    assert rails(topology) == [expected]
    if active:
        assert topology.nics[0].problem == "it stands by in bond0, which uses mlx5_1"


def test_names_are_ordered_as_numbers(tmp_path: Path) -> None:
    tree = flat(tmp_path, 1)
    for number in (10, 2):
        tree.nic(f"mlx5_{number}", f"pci0000:00/0000:00:{number + 16:02x}.0", node=0)
    assert [nic.name for nic in read_topology(tmp_path).nics] == ["mlx5_2", "mlx5_10"]


def test_only_some_can_be_used(tmp_path: Path) -> None:
    machines.two_sockets(tmp_path)
    topology = read_topology(tmp_path).among({"mlx5_1"})
    assert rails(topology) == [("mlx5_1",)] * 4
    assert "mlx5_0 would be nearer, but this process cannot use it" in topology.rails[0].reason
