"""`rdmatx topo`: the tree, the matrix, the choice and why, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rdmatx.cli import checks
from rdmatx.cli.main import main
from tests.multiprocess.cli_processes import run
from tests.unit import machines


def topo(root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["topo", "--root", str(root)]) == 0
    return capsys.readouterr().out


def topo_json(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["topo", "--json", "--root", str(root)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    report: dict[str, Any] = json.loads(line)
    return report


def test_the_tree_of_a_machine_with_switches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.dgx(tmp_path)
    lines = topo(tmp_path, capsys).splitlines()
    assert lines[:6] == [
        "NUMA node 0",
        "├─ pci0000:15 ─ 0000:15:01.0 ─ 0000:16:00.0",
        "│  ├─ 0000:17:00.0 ─ 0000:18:00.0",
        "│  │  ├─ 0000:19:00.0 ─ 0000:1a:00.0  GPU 0 (Example H100)",
        "│  │  └─ 0000:19:01.0 ─ 0000:1b:00.0  mlx5_0 (32 GT/s x16, InfiniBand 400 Gb/s)",
        "│  └─ 0000:17:01.0 ─ 0000:1e:00.0",
    ]
    rows = [line.split() for line in lines if line.startswith("GPU") and ":" not in line]
    assert " ".join(rows[0]) == "GPU 0 PIX* PXB NODE NODE NODE SYS SYS SYS SYS SYS"
    assert len(rows) == 8
    assert "PXB  through several PCIe switches" in lines
    assert "PHB" not in "".join(lines)
    assert lines[-1] == "GPU 7 uses mlx5_8: on the same PCIe switch (PIX)"


def test_every_shape_is_drawn_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What lies on the PCI bus is in the tree once, and every GPU has its sentence."""
    for name, make in machines.SHAPES.items():
        make(tmp_path / name)
        report = topo_json(tmp_path / name, capsys)
        lines = topo(tmp_path / name, capsys).splitlines()
        drawn = [line for line in lines if "─ " in line]
        for device in report["gpus"] + [nic for nic in report["nics"] if nic["path"]]:
            label = device.get("name", f"GPU {device.get('index')}")
            found = [line for line in drawn if f"{device['address']}  {label} (" in line]
            assert len(found) == 1, (name, label)
        for gpu in report["gpus"]:
            (sentence,) = [
                line for line in lines if line.startswith(f"GPU {gpu['index']} ") and ":" in line
            ]
            assert gpu["reason"] in sentence


def test_json_holds_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machines.two_sockets(tmp_path)
    report = topo_json(tmp_path, capsys)
    assert set(report) == {"gpus", "nics", "is_virtual"}
    gpu = report["gpus"][1]
    assert (gpu["index"], gpu["address"], gpu["numa_node"]) == (1, "0000:41:00.0", 0)
    assert gpu["rails"] == ["mlx5_0"]
    assert "NODE" in gpu["reason"]
    assert gpu["distances"] == {
        "mlx5_0": {"kind": "NODE", "between_nodes": 10},
        "mlx5_1": {"kind": "SYS", "between_nodes": 32},
    }
    nic = report["nics"][0]
    assert (nic["name"], nic["link"], nic["problem"]) == ("mlx5_0", "16 GT/s x16", "")
    assert nic["path"] == ["pci0000:00", "0000:00:03.1", "0000:02:00.0"]


def test_software_devices_have_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machines.software_only(tmp_path)
    printed = topo(tmp_path, capsys)
    assert "GPU 0 has no rails: no NIC on the PCI bus serves" in printed
    assert "siw0 is not for a GPU: it is a software device" in printed
    assert topo_json(tmp_path, capsys)["gpus"][0]["distances"]["rxe1"] is None


def test_a_virtual_machine_is_called_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.virtual_machine(tmp_path)
    printed = topo(tmp_path, capsys)
    assert printed.startswith("NUMA node not told\n")
    assert printed.endswith(
        "A virtual machine sees the PCI tree that it was given, not the host's.\n"
    )


def test_a_machine_with_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert topo(tmp_path, capsys) == "no GPU on the PCI bus\nno RDMA device of the system\n"
    assert topo_json(tmp_path, capsys) == {"gpus": [], "nics": [], "is_virtual": False}


def test_this_machine_without_the_core() -> None:
    """Only files are read: no verbs, no core."""
    script = "import atexit; atexit.register(lambda: print('rdmatx._C' in sys.modules))"
    done = run("topo", "--json", patch=script)
    assert (done.returncode, done.stderr) == (0, "")
    line, core = done.stdout.splitlines()
    assert set(json.loads(line)) == {"gpus", "nics", "is_virtual"}
    assert core == "False"


# ---- what `rdmatx doctor` makes of it ----


@pytest.mark.parametrize(
    ("shape", "finding"),
    [
        ("dgx", "each GPU has its NIC near it: at most PIX, on the same PCIe switch"),
        ("two sockets", "at most NODE, on the same NUMA node"),
        ("virtual machine", "at most PHB"),
        ("grace", "at most NODE"),
    ],
)
def test_doctor_is_content(tmp_path: Path, shape: str, finding: str) -> None:
    machines.SHAPES[shape](tmp_path)
    check = checks.check_topology(tmp_path)
    assert check is not None
    assert check.verdict == "fine"
    assert finding in check.finding


def test_doctor_has_nothing_to_compare(tmp_path: Path) -> None:
    assert checks.check_topology(tmp_path / "absent") is None
    machines.software_only(tmp_path)
    assert checks.check_topology(tmp_path) is None


def test_doctor_knows_what_is_far(tmp_path: Path) -> None:
    tree = machines.two_sockets(tmp_path)
    machines.write(tree.sys / "class/infiniband/mlx5_1/ports/1/state", "1: DOWN")
    check = checks.check_topology(tmp_path)
    assert check is not None
    assert check.verdict == "hint"
    assert "GPU 2 (0000:81:00.0, NUMA node 1), 3 (0000:c1:00.0, NUMA node 1)" in check.finding
    assert "rdmatx topo" in check.remedy


def test_doctor_does_not_guess(tmp_path: Path) -> None:
    """Where the system tells no nodes, nothing is said to be far."""
    tree = machines.MachineTree(tmp_path)
    tree.gpu("pci0000:00/0000:00:01.0")
    tree.nic("mlx5_0", "pci0000:40/0000:40:01.0")
    assert checks.check_topology(tmp_path) is None
