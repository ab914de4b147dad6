"""What the tests of the torch backend share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tests.launch import Rank

#: Seconds that a call of a group may take.
PATIENCE = 30.0


@contextmanager
def process_group(
    rank: Rank,
    folder: str,
    *,
    timeout: float = PATIENCE,
    name: str = "store",
) -> Iterator[Any]:
    """`torch.distributed` with its default group of all ranks, who meet in a file of that folder."""
    import torch.distributed as dist

    import rdmatx.torch  # noqa: F401  registers the backend also where rdmatx is not installed

    dist.init_process_group(
        "rdmatx",
        store=dist.FileStore(f"{folder}/{name}", rank.world),
        rank=rank.index,
        world_size=rank.world,
        timeout=timedelta(seconds=timeout),
    )
    try:
        yield dist
    finally:
        dist.destroy_process_group()
