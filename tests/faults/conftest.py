"""The wires that faults are tried on, and the process that victims are forked from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.victims import Nursery
from tests.launch import TIME_SCALE

# Seconds in which the end of a peer must be known.
KNOWN_WITHIN = 3.0 * TIME_SCALE
KNOWN_WITHIN_OVER_A_NETWORK = 8.0 * TIME_SCALE


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The software HCA has two ways to a peer: what uses a victim runs over both."""
    names = metafunc.fixturenames
    if metafunc.config.getoption("--provider") == "soft" and {"provider", "nursery"} <= {*names}:
        metafunc.parametrize("provider", ["auto", "tcp"], indirect=True, scope="session")


@pytest.fixture
def wire(request: pytest.FixtureRequest) -> str | None:
    """RDMATX_SOFT_WIRE of this test; None on a device."""
    parameters = getattr(request.node, "callspec", None)
    found = parameters and parameters.params.get("provider")
    return str(found) if found else None


@pytest.fixture
def known_within(wire: str | None) -> float:
    return KNOWN_WITHIN if wire == "auto" else KNOWN_WITHIN_OVER_A_NETWORK


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery
