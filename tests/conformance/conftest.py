"""Fixtures of the conformance suite: a device of the provider under test, and connected queue pairs on
it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from rdmatx.verbs import Device
from tests.conformance.ends import End, connect, usable_gid_index


@pytest.fixture
def device(provider: str, device_name: str | None) -> Iterator[Device]:
    with Device(device_name, provider=provider) as opened:
        yield opened


@pytest.fixture
def gid_index(device: Device) -> int:
    return usable_gid_index(device)


@pytest.fixture
def make_end(device: Device, gid_index: int) -> Iterator[Callable[..., End]]:
    """Makes ends that are not connected; closes them after the test, the last one first."""
    with ExitStack() as stack:

        def make(**options: Any) -> End:
            end = End(device, gid_index, **options)
            stack.callback(end.close)
            return end

        yield make


@pytest.fixture
def make_pair(make_end: Callable[..., End]) -> Callable[..., tuple[End, End]]:
    """Makes two connected ends. `connection` has options of QueuePair.connect, the rest are of End."""

    def make(connection: dict[str, Any] | None = None, **options: Any) -> tuple[End, End]:
        one, other = make_end(**options), make_end(**options)
        connect(one, other, **(connection or {}))
        return one, other

    return make


@pytest.fixture
def pair(make_pair: Callable[..., tuple[End, End]]) -> tuple[End, End]:
    return make_pair()
