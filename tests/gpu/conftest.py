"""A connected pair in one process, on the software HCA and the fake driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import rdmatx
from tests.gpu import fake_driver
from tests.lanes import lane_missing
from tests.launch import TIME_SCALE

# Seconds for what must happen.
PATIENCE = 20.0 * TIME_SCALE


@dataclass(frozen=True)
class Pair:
    """Two ends of one connection, both in this process."""

    context: rdmatx.Context
    near: rdmatx.Connection
    far: rdmatx.Connection


@pytest.fixture(scope="session")
def fake_gpu() -> None:
    if not fake_driver.LIBRARY.exists():
        lane_missing("cpp", f"the fake driver is not built: {fake_driver.LIBRARY} (make test-cpp)")
    fake_driver.use()


@pytest.fixture(params=["auto", "off"])
def gpu_direct(request: pytest.FixtureRequest) -> str:
    """By dma-buf, and through pinned memory."""
    return str(request.param)


@pytest.fixture
def pair(fake_gpu: None, gpu_direct: str) -> Iterator[Pair]:
    with (
        rdmatx.Context(provider="soft", timeout=PATIENCE, gpu_direct=gpu_direct) as context,
        context.listen("127.0.0.1:0") as listener,
        context.connect(listener.address) as near,
        listener.accept() as far,
    ):
        yield Pair(context, near, far)
