"""The ways the software HCA moves bytes between processes of one host: shared memory alone, one process
reading and writing the other's memory (CMA), and the choice it makes itself, also where the kernel forbids
CMA."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import pytest

from tests.conformance import test_two_processes as two
from tests.lanes import lane_missing
from tests.launch import Rank, launch

pytestmark = [pytest.mark.soft, pytest.mark.soft_only]

SIZES = [1, 64, 4097, 1 << 20, 12 << 20]
WIRES = ["auto", "shm", "cma", "tcp"]
NOBODY = 65534
_PR_SET_DUMPABLE = 4


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("function", [two.send_and_receive, two.write_and_read])
def test_wire_carries_every_size(function: Callable[..., object], wire: str) -> None:
    environment = {"RDMATX_SOFT_WIRE": wire}
    launch(function, "soft", None, SIZES, ranks=2, environment=environment)


@pytest.mark.parametrize("wire", WIRES)
def test_wire_keeps_the_order(wire: str) -> None:
    launch(two.stream, "soft", None, 2000, ranks=2, environment={"RDMATX_SOFT_WIRE": wire})


@pytest.mark.parametrize("wire", WIRES)
def test_wire_refuses(wire: str) -> None:
    launch(two.forbidden, "soft", None, ranks=2, environment={"RDMATX_SOFT_WIRE": wire})


def without_cma(rank: Rank, sizes: list[int]) -> None:
    """Gives up the privileges and the dumpable flag that reading another process takes."""
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)
    two.send_and_receive(rank, "soft", None, sizes)
    two.write_and_read(rank, "soft", None, sizes)


def test_where_the_kernel_forbids_cma() -> None:
    """The probe finds out, and shared memory alone serves."""
    if os.geteuid() != 0:
        lane_missing("soft", "only root can become a user that may not read the other process")
    launch(without_cma, SIZES, ranks=2, environment={"RDMATX_SOFT_WIRE": "auto"})


def unknown_wire(rank: Rank) -> str:
    from rdmatx.errors import Error
    from rdmatx.verbs import Device

    with pytest.raises(Error) as caught:
        Device(provider="soft")
    return str(caught.value)


def test_wire_that_is_none() -> None:
    (text,) = launch(unknown_wire, ranks=1, environment={"RDMATX_SOFT_WIRE": "pigeon"})
    assert "pigeon" in text
    assert "shm" in text
    assert "tcp" in text
