"""Context(device="auto", gpu=0): the rails of a GPU, on a machine that a folder describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import rdmatx
from rdmatx import devices, topology
from rdmatx.errors import UnavailableError, UsageError
from tests.unit import machines
from tests.unit.machines import MachineTree


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., MachineTree]:
    """Makes this machine look like two sockets whose verbs list devices of these names."""
    monkeypatch.setattr(topology, "ROOT", tmp_path)
    for variable in ("RDMATX_DEVICE", "RDMATX_PROVIDER", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    soft = rdmatx.list_devices("soft")[0]

    def make(*names: str) -> MachineTree:
        listed = [dataclasses.replace(soft, name=name, provider="system") for name in names]
        monkeypatch.setattr(devices, "list_devices", lambda provider: listed)
        return machines.two_sockets(tmp_path)

    return make


def test_the_nearest_that_verbs_list(serving: Callable[..., MachineTree]) -> None:
    serving("mlx5_0", "mlx5_1")
    assert topology.rails_for(0) == ["mlx5_0"]
    assert topology.rails_for("cuda:3") == ["mlx5_1"]
    serving_one_only = topology.read_topology().among({"mlx5_0"})
    assert serving_one_only.rails[3].names == ("mlx5_0",)


def test_a_nic_that_verbs_do_not_list_is_passed_over(serving: Callable[..., MachineTree]) -> None:
    serving("mlx5_1")
    assert topology.rails_for(0) == ["mlx5_1"]


def test_no_nic_is_as_without_a_gpu(serving: Callable[..., MachineTree]) -> None:
    serving()
    assert topology.rails_for(0) == []


def test_the_environment_comes_first(
    serving: Callable[..., MachineTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving("mlx5_0", "mlx5_1")
    monkeypatch.setenv("RDMATX_PROVIDER", "soft")
    assert topology.rails_for(0) == []
    assert topology.rails_for(0, "system") == ["mlx5_0"]
    monkeypatch.setenv("RDMATX_DEVICE", "mlx5_1")
    assert topology.rails_for(0, "system") == []
    with pytest.raises(UnavailableError, match='no GPU "7"'):
        topology.rails_for(7)


def test_the_order_of_cuda_counts(
    serving: Callable[..., MachineTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving("mlx5_0", "mlx5_1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert [topology.rails_for(number) for number in (0, 1)] == [["mlx5_1"], ["mlx5_0"]]


@pytest.mark.parametrize("device", [None, "auto"])
def test_a_context_opens_them(serving: Callable[..., MachineTree], device: str | None) -> None:
    """The software HCA stands in for the NIC at the second socket."""
    tree = serving("soft0")
    (tree.sys / "class/infiniband/mlx5_1").rename(tree.sys / "class/infiniband/soft0")
    with rdmatx.Context(device, gpu=2, timeout=10.0) as context:
        assert context.device == "soft0"


def test_a_context_of_the_software_hca(serving: Callable[..., MachineTree]) -> None:
    """It is equally near to all GPUs, but the GPU must be there."""
    serving("mlx5_0")
    with rdmatx.Context("auto", "soft", gpu=1) as context:
        assert context.provider == "soft"
    with pytest.raises(UnavailableError, match='no GPU "4"'):
        rdmatx.Context("auto", "soft", gpu=4)


def test_a_context_without_such_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "ROOT", tmp_path)
    with pytest.raises(UnavailableError, match="no GPU is on the PCI bus of this machine"):
        rdmatx.Context(device="auto", gpu=0)


def test_named_devices_leave_nothing_to_choose() -> None:
    with pytest.raises(UsageError, match='device="auto"'):
        rdmatx.Context("soft0", gpu=0)
    with pytest.raises(UsageError, match='device="auto"'):
        rdmatx.Context(devices=["soft0"], gpu=0)


def test_auto_is_what_no_device_is() -> None:
    with rdmatx.Context("auto", "soft") as context:
        assert context.device == "soft0"
