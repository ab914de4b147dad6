"""Several devices in one context; on the software HCA, the same one twice."""

from __future__ import annotations

import pytest

import rdmatx
from rdmatx import errors
from tests.launch import Rank, launch
from tests.multiprocess.conftest import PATIENCE
from tests.multiprocess.messages import content, meet

SIZES = [0, 8, 8193, 600_000, 9_000_001]


def both_ways(rank: Rank, device: str) -> list[int]:
    """Messages of all sizes in both directions, and writes, over two rails; bytes of each rail."""
    with (
        rdmatx.Context(devices=[device, device], timeout=PATIENCE) as context,
        meet(rank, context) as connection,
    ):
        window = bytearray(max(SIZES))
        with context.register(window, access="w") as region:
            connection.send(bytes(region.key()), tag=1)
            token = bytearray(64)
            key = rdmatx.RemoteKey.from_bytes(bytes(token[: connection.recv(token, tag=1)]))
            for index, nbytes in enumerate(SIZES):
                work = connection.isend(content(nbytes, rank.index), tag=2)
                buffer = bytearray(nbytes)
                assert connection.recv(buffer, tag=2) == nbytes
                assert buffer == content(nbytes, 1 - rank.index)
                work.wait()
                connection.write(content(nbytes, 7 + rank.index), key, notify=index)
                assert connection.next_notification() == index
                assert window[:nbytes] == content(nbytes, 8 - rank.index)
                connection.send(b"", tag=3)
                connection.recv(bytearray(0), tag=3)
        rails = connection.stats()["rails"]
        assert [rail["alive"] for rail in rails] == [True, True]
        return [rail["bytes"] for rail in rails]


def test_two_rails_between_processes(provider: str, device_name: str | None) -> None:
    name = device_name or rdmatx.choose_device(provider=provider).device
    for carried in launch(both_ways, name):
        assert all(nbytes > 1_000_000 for nbytes in carried)
        assert sum(carried) >= 2 * (600_000 + 9_000_001)


def test_devices_are_named_and_counted() -> None:
    with rdmatx.Context(devices=["soft0", "soft0"]) as context:
        assert context.device == "soft0,soft0"
        with context.register(bytearray(8)) as region:
            key = region.key()
            assert rdmatx.RemoteKey.from_bytes(bytes(key)) == key
    with pytest.raises(errors.UsageError, match="at most 8 devices"):
        rdmatx.Context(devices=["soft0"] * 9)
    with pytest.raises(errors.UsageError, match="not both"):
        rdmatx.Context("soft0", devices=["soft0"])
    with pytest.raises(errors.UnavailableError, match="nothere0"):
        rdmatx.Context(devices=["soft0", "nothere0"])


def test_a_key_of_a_smaller_context_is_told_apart() -> None:
    """The writer's peer has two rails; a key of a context with one says nothing of the second."""
    with (
        rdmatx.Context("soft0") as one,
        rdmatx.Context(devices=["soft0", "soft0"], timeout=PATIENCE) as two,
        two.listen() as listener,
        two.connect(listener.address) as near,
        listener.accept(),
        one.register(bytearray(8)) as region,
        pytest.raises(errors.UsageError, match="of another context"),
    ):
        near.write(b"x", region.key())
