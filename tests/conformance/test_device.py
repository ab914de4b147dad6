"""ibv_open_device(3), ibv_query_device(3), ibv_query_port(3), ibv_query_gid(3), ibv_query_pkey(3)."""

from __future__ import annotations

import ipaddress

import pytest

from rdmatx import list_devices
from rdmatx.errors import UnavailableError, VerbsError
from rdmatx.verbs import CompletionQueue, Device, LinkLayer, PortState, ProtectionDomain


def test_device_is_listed(device: Device, provider: str) -> None:
    """The device list has every device of the provider, under the name it is opened by."""
    names = [info.name for info in list_devices(provider)]
    assert device.name in names


def test_open_twice(device: Device, provider: str) -> None:
    """ibv_open_device(3): each call makes a context of its own."""
    with Device(device.name, provider=provider) as other, ProtectionDomain(other):
        assert other.name == device.name
        assert other.guid == device.guid


def test_unknown_device_is_named(provider: str) -> None:
    with pytest.raises(UnavailableError, match="no_such_device"):
        Device("no_such_device", provider=provider)


def test_limits_are_sane(device: Device) -> None:
    """ibv_query_device(3): the limits are upper bounds; what cannot be 0 for a device that works is not
    0."""
    limits = device.limits
    assert limits.max_mr_size >= 1 << 30
    for name in ("max_qp", "max_qp_wr", "max_sge", "max_cq", "max_cqe", "max_mr", "max_pd"):
        assert getattr(limits, name) > 0, name
    assert limits.max_sge >= 2
    assert limits.max_qp_wr >= 128
    assert limits.max_cqe >= limits.max_cq or limits.max_cqe >= 1024
    assert device.port_count >= 1


def test_port_is_active(device: Device) -> None:
    """ibv_query_port(3): state, MTU and table lengths of the port that the other tests use."""
    port = device.query_port(1)
    assert port.number == 1
    assert port.state == PortState.ACTIVE
    assert port.active_mtu in (256, 512, 1024, 2048, 4096)
    assert port.active_mtu <= port.max_mtu
    assert port.max_message_bytes >= 1 << 23
    assert port.gid_table_length >= 1
    assert port.pkey_table_length >= 1
    assert port.link_layer in (LinkLayer.INFINIBAND, LinkLayer.ETHERNET)


@pytest.mark.parametrize("port", [0, 200])
def test_port_that_is_not_there(device: Device, port: int) -> None:
    """Ports count from 1; ibv_query_port(3) returns the errno of any other."""
    with pytest.raises((VerbsError, ValueError)):
        device.query_port(port)


def test_gids_are_addresses(device: Device) -> None:
    """ibv_query_gid(3): entries of the table by index, holes left out."""
    gids = device.query_gids(1)
    assert gids
    table = device.query_port(1).gid_table_length
    for entry in gids:
        assert 0 <= entry.index < table
        assert int(ipaddress.IPv6Address(entry.gid)) != 0
        again = device.query_gid(1, entry.index)
        assert (again.gid, again.type) == (entry.gid, entry.type)


def test_gid_index_beyond_the_table(device: Device) -> None:
    with pytest.raises((VerbsError, ValueError)):
        device.query_gid(1, device.query_port(1).gid_table_length + 1)


def test_default_pkey(device: Device) -> None:
    """ibv_query_pkey(3): entry 0 is the default partition, full member."""
    assert device.query_pkey(1, 0) == 0xFFFF


def test_parents_stay_while_children_live(provider: str, device_name: str | None) -> None:
    """Closing a device before what was made from it only gives up one's own handle: a child keeps its
    parent, so that nothing is freed under it (a verb would say EBUSY)."""
    device = Device(device_name, provider=provider)
    domain = ProtectionDomain(device)
    queue = CompletionQueue(device, 16)
    device.close()
    assert queue.poll() == []
    domain.close()
    queue.close()
