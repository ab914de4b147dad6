"""A connected pair in one process, for what needs no second one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import rdmatx
from tests.launch import TIME_SCALE

# Seconds for what must happen; a device that works is done long before.
PATIENCE = 20.0 * TIME_SCALE


@dataclass(frozen=True)
class Pair:
    """Two ends of one connection, both in this process."""

    context: rdmatx.Context
    listener: rdmatx.Listener
    near: rdmatx.Connection
    far: rdmatx.Connection


@pytest.fixture
def context(provider: str, device_name: str | None) -> Iterator[rdmatx.Context]:
    with rdmatx.Context(device_name, provider, timeout=PATIENCE) as context:
        yield context


@pytest.fixture
def pair(context: rdmatx.Context) -> Iterator[Pair]:
    """Connected by one thread alone: connect() returns before accept() is called."""
    with (
        context.listen("127.0.0.1:0") as listener,
        context.connect(listener.address, timeout=PATIENCE) as near,
        listener.accept(timeout=PATIENCE) as far,
    ):
        yield Pair(context, listener, near, far)
