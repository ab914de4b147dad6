"""What `rdmatx doctor` makes of a machine, from made-up /proc and /sys trees."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from rdmatx.cli import checks


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def add_port(root: Path, device: str, state: str) -> None:
    port = root / "sys/class/infiniband" / device / "ports/1"
    write(port / "state", state)
    write(port / "rate", "100 Gb/sec (4X EDR)")


def test_kernel_without_rdma(tmp_path: Path) -> None:
    check = checks.check_kernel(tmp_path)
    assert check.verdict == "problem"
    assert "no RDMA support" in check.finding
    assert "rdmatx lab" in check.remedy


def test_kernel_whose_modules_are_not_loaded(tmp_path: Path) -> None:
    modules = tmp_path / "lib/modules" / os.uname().release
    write(modules / "modules.dep", "kernel/ib_uverbs.ko: \nkernel/rdma_rxe.ko: ")
    check = checks.check_kernel(tmp_path)
    assert check.remedy == "as root: modprobe ib_uverbs && modprobe rdma_rxe"


def test_kernel_with_verbs(tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband_verbs").mkdir(parents=True)
    assert checks.check_kernel(tmp_path).verdict == "fine"


def test_ports(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", "4: ACTIVE")
    add_port(tmp_path, "mlx5_1", "1: DOWN")
    add_port(tmp_path, "mlx5_2", "2: INIT")
    active, down, initializing = checks.check_ports(tmp_path)
    assert (active.name, active.verdict) == ("port mlx5_0/1", "fine")
    assert "100 Gb/sec" in active.finding
    assert (down.verdict, down.finding) == ("problem", "DOWN")
    assert "ip link set" in down.remedy
    assert "opensm" in initializing.remedy


def test_no_devices_no_ports(tmp_path: Path) -> None:
    assert list(checks.check_ports(tmp_path)) == []
    assert list(checks.check_driver(tmp_path)) == []
    assert checks.check_permissions(tmp_path) is None


def test_a_card_without_its_driver(tmp_path: Path) -> None:
    card = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    write(card / "vendor", "0x15b3")
    write(card / "class", "0x020700")
    disk = tmp_path / "sys/bus/pci/devices/0000:18:00.0"
    write(disk / "vendor", "0x15b3")
    write(disk / "class", "0x010802")
    (check,) = checks.check_driver(tmp_path)
    assert "0000:17:00.0" in check.finding
    assert "modprobe mlx5_ib" in check.remedy


def test_a_card_with_its_driver(tmp_path: Path) -> None:
    card = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    write(card / "vendor", "0x15b3")
    write(card / "class", "0x020700")
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/mlx5_0/device").symlink_to(card)
    assert list(checks.check_driver(tmp_path)) == []


def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "dev/infiniband/uverbs0", "")
    write(tmp_path / "dev/infiniband/rdma_cm", "")
    check = checks.check_permissions(tmp_path)
    assert check is not None
    assert check.verdict == "fine"
    monkeypatch.setattr(checks.os, "access", lambda *_: False)
    check = checks.check_permissions(tmp_path)
    assert check is not None
    assert check.verdict == "problem"
    assert "uverbs0" in check.remedy
    assert "rdma_cm" not in check.remedy


def test_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"value": (64 << 10, 64 << 10)}
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: limits["value"])
    monkeypatch.setattr(checks, "_may_lock_anything", lambda: False)
    check = checks.check_memlock()
    assert check.verdict == "hint"
    assert "65.5 kB" in check.finding
    assert "memlock" in check.remedy
    limits["value"] = (64 << 10, resource.RLIM_INFINITY)
    assert checks.check_memlock().remedy == "ulimit -l unlimited"
    limits["value"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert checks.check_memlock().finding == "unlimited"
    limits["value"] = (64 << 10, 64 << 10)
    monkeypatch.setattr(checks, "_may_lock_anything", lambda: True)
    assert checks.check_memlock().verdict == "fine"


@pytest.mark.parametrize(
    ("scope", "verdict"), [("0", "fine"), ("1", "fine"), ("2", "hint"), ("3", "hint")]
)
def test_cross_memory_under_yama(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, verdict: str
) -> None:
    monkeypatch.setattr(checks, "_probe_cross_memory", lambda: 0)
    write(tmp_path / "proc/sys/kernel/yama/ptrace_scope", scope)
    assert checks.check_cross_memory(tmp_path).verdict == verdict


def test_cross_memory_under_seccomp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_probe_cross_memory", lambda: errno.EPERM)
    check = checks.check_cross_memory(tmp_path)
    assert "EPERM" in check.finding
    assert "SYS_PTRACE" in check.remedy


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_shared_memory(tmp_path / "absent").verdict == "problem"
    monkeypatch.setattr(checks, "COMFORTABLE_SHM", 1)
    assert checks.check_shared_memory(tmp_path).verdict == "fine"
    monkeypatch.setattr(checks, "COMFORTABLE_SHM", 1 << 62)
    assert "--shm-size" in checks.check_shared_memory(tmp_path).remedy


def test_congestion_control(tmp_path: Path) -> None:
    assert checks.check_congestion_control(tmp_path) is None
    write(tmp_path / "proc/sys/net/ipv4/tcp_congestion_control", "bbr")
    check = checks.check_congestion_control(tmp_path)
    assert check is not None
    assert check.verdict == "hint"
    write(tmp_path / "proc/sys/net/ipv4/tcp_congestion_control", "cubic")
    check = checks.check_congestion_control(tmp_path)
    assert check is not None
    assert check.verdict == "fine"


def test_huge_pages(tmp_path: Path) -> None:
    assert checks.check_huge_pages(tmp_path) is None
    file = tmp_path / "sys/kernel/mm/transparent_hugepage/enabled"
    write(file, "always [madvise] never")
    check = checks.check_huge_pages(tmp_path)
    assert check is not None
    assert check.finding.endswith("madvise")
    write(file, "always madvise [never]")
    check = checks.check_huge_pages(tmp_path)
    assert check is not None
    assert check.verdict == "hint"


def test_what_is_wrong_has_a_remedy_on_this_machine() -> None:
    found = [
        checks.check_kernel(),
        *checks.check_driver(),
        *checks.check_ports(),
        checks.check_permissions(),
        checks.check_memlock(),
        checks.check_cross_memory(),
        checks.check_shared_memory(),
        checks.check_congestion_control(),
        checks.check_huge_pages(),
        checks.check_machine(),
    ]
    for check in found:
        if check is not None:
            assert check.finding
            assert bool(check.remedy) == (check.verdict != "fine"), check
