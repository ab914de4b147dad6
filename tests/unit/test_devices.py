"""Devices in Python: what is listed, what is chosen and why."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

import rdmatx
from rdmatx.devices import Choice, DeviceInfo
from rdmatx.errors import UnavailableError, UsageError
from tests.launch import ROOT, TIME_SCALE


@pytest.fixture
def soft_device() -> DeviceInfo:
    return rdmatx.list_devices("soft")[0]


def test_soft_device(soft_device: DeviceInfo) -> None:
    assert soft_device.provider == "soft"
    assert soft_device.is_active
    assert soft_device.problem == ""
    (port,) = soft_device.ports
    assert (port.number, port.state) == (1, "ACTIVE")
    assert port.active_mtu in (256, 512, 1024, 2048, 4096)
    assert port.max_msg_sz >= 1 << 20
    assert port.gids
    assert all(value > 0 for value in dataclasses.astuple(soft_device.limits))


def test_listed_with_the_others(soft_device: DeviceInfo) -> None:
    def names(provider: str) -> set[tuple[str, str]]:
        return {(device.provider, device.name) for device in rdmatx.list_devices(provider)}

    assert ("soft", soft_device.name) in names("auto")
    assert names("auto") == names("system") | names("soft")
    assert ("soft", soft_device.name) not in names("system")


def test_same_as_the_verbs_say(soft_device: DeviceInfo) -> None:
    with rdmatx.verbs.Device(soft_device.name, provider="soft") as device:
        assert (device.name, device.guid) == (soft_device.name, soft_device.guid)
        assert device.limits.max_qp == soft_device.limits.max_qp
        assert len(device.query_gids()) == len(soft_device.ports[0].gids)
        assert device.query_port().active_mtu == soft_device.ports[0].active_mtu


def test_an_argument_is_the_reason(soft_device: DeviceInfo) -> None:
    choice = rdmatx.choose_device(provider="soft")
    assert choice == Choice("soft", soft_device.name, 1, "asked for by argument")
    assert rdmatx.choose_device(soft_device.name).device == soft_device.name


def test_the_environment_is_the_reason(
    soft_device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDMATX_PROVIDER", "soft")
    monkeypatch.delenv("RDMATX_DEVICE", raising=False)
    assert rdmatx.choose_device().reason == "RDMATX_PROVIDER=soft"
    monkeypatch.setenv("RDMATX_DEVICE", soft_device.name)
    reason = rdmatx.choose_device().reason
    assert reason == f"RDMATX_DEVICE={soft_device.name} and RDMATX_PROVIDER=soft"


def test_what_is_not_there() -> None:
    with pytest.raises(UnavailableError, match="nothing0"):
        rdmatx.choose_device("nothing0")
    with pytest.raises(UsageError, match=r'"auto", "system".* or "soft"'):
        rdmatx.choose_device(provider="hardware")
    with pytest.raises(UsageError):
        rdmatx.list_devices("hardware")


def test_system_report_says_what_to_do() -> None:
    report = rdmatx.system_report()
    assert report.reason
    if report.state not in ("ready", "no_library", "permission_denied"):
        assert report.remedy
    if report.state == "ready":
        assert rdmatx.choose_device(provider="system").provider == "system"
    else:
        with pytest.raises(UnavailableError):
            rdmatx.choose_device(provider="system")


def test_one_warning_names_the_reason() -> None:
    """Automatic choice without an RDMA device warns once a process."""
    code = "import rdmatx\nfor _ in range(3): rdmatx.choose_device()"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"RDMATX_IBVERBS_LIB": "/nonexistent/lib.so", "PYTHONPATH": ":".join(sys.path)},
        timeout=60 * TIME_SCALE,
        check=True,
    )
    assert ran.stderr.count("rdmatx warning:") == 1
    assert "/nonexistent/lib.so" in ran.stderr
    assert "RDMATX_PROVIDER=soft" in ran.stderr
